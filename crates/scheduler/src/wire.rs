//! Offers and namespaces as the API writes them; what placing decides by is read in [`crate::core::wire`].

use std::{collections::BTreeMap, time::Duration};

use mainstay_api::offer::OfferSpec;
use serde::Deserialize;

use crate::core::view::OfferView;

/// An offer and how long it is good for.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "OfferObject")]
pub struct OfferWire {
    pub terms: OfferView,
    /// Nothing if it does not say.
    pub ttl: Option<Duration>,
}

#[derive(Deserialize)]
struct OfferObject {
    spec: OfferSpec,
}

impl From<OfferObject> for OfferWire {
    fn from(OfferObject { spec }: OfferObject) -> Self {
        let seconds = u64::try_from(spec.ttl_seconds).ok().filter(|seconds| *seconds > 0);
        Self { terms: OfferView::from(&spec), ttl: seconds.map(Duration::from_secs) }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct NamespaceWire {
    metadata: NamespaceMeta,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NamespaceMeta {
    labels: Option<BTreeMap<String, String>>,
}

impl NamespaceWire {
    pub fn labels(self) -> BTreeMap<String, String> {
        self.metadata.labels.unwrap_or_default()
    }
}
