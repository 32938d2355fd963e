//! Decodes Offers, the Leases that renew them, and Namespaces.

use std::{collections::BTreeMap, time::Duration};

use mainstay_api::{offer::OfferSpec, ports::PortRanges, resources, wellknown::mainstay::RENEWED_OFFER};
use serde::Deserialize;

use crate::core::view::OfferView;

/// An offer and how long it is valid after it was received.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "WireOffer")]
pub struct OfferObject {
    pub offer: OfferView,
    /// `None` if it does not say.
    pub ttl: Option<Duration>,
}

#[derive(Deserialize)]
struct WireOffer {
    #[serde(default)]
    metadata: WireOfferMeta,
    spec: OfferSpec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireOfferMeta {
    uid: String,
}

impl From<WireOffer> for OfferObject {
    fn from(WireOffer { metadata, spec }: WireOffer) -> Self {
        let seconds = u64::try_from(spec.ttl_seconds).ok().filter(|seconds| *seconds > 0);
        let offer = OfferView { uid: metadata.uid, ..OfferView::from(&spec) };
        Self { offer, ttl: seconds.map(Duration::from_secs) }
    }
}

impl From<&OfferSpec> for OfferView {
    /// Ranges and quantities that cannot be read count as not offered: the API has refused them already.
    fn from(spec: &OfferSpec) -> Self {
        Self {
            uid: String::new(),
            free: resources::parse_list(spec.free.iter().map(|(name, quantity)| (name.as_str(), quantity.0.as_str()))),
            automatic_ports: PortRanges::parse_valid(&spec.automatic_ports),
            explicit_ports: PortRanges::parse_valid(&spec.explicit_ports),
            seen: spec.seen.parse().unwrap_or(0),
        }
    }
}

/// What a node's Lease says about its offer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "WireLease")]
pub struct NodeLease {
    /// The version of the offer that it renews; `None` if it renews none.
    pub offer_version: Option<u64>,
}

#[derive(Deserialize)]
struct WireLease {
    metadata: WireLeaseMeta,
}

#[derive(Deserialize)]
struct WireLeaseMeta {
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

impl From<WireLease> for NodeLease {
    fn from(WireLease { metadata }: WireLease) -> Self {
        let renewed = metadata.annotations.as_ref().and_then(|annotations| annotations.get(RENEWED_OFFER));
        Self { offer_version: renewed.and_then(|version| version.parse().ok()) }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct NamespaceObject {
    metadata: WireNamespaceMeta,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct WireNamespaceMeta {
    labels: Option<BTreeMap<String, String>>,
}

impl NamespaceObject {
    pub fn into_labels(self) -> BTreeMap<String, String> {
        self.metadata.labels.unwrap_or_default()
    }
}
