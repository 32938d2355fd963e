//! Decodes Offers, the Leases that renew them, and Namespaces.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use mainstay_api::{
    offer::{OfferPool, OfferSpec},
    ports::PortRanges,
    resources::{self, ResourceList},
    wellknown::mainstay::RENEWED_OFFER,
};
use serde::Deserialize;

use crate::core::view::{OfferView, PoolView};

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
            free: amounts(&spec.free),
            automatic_ports: PortRanges::parse_valid(&spec.automatic_ports),
            explicit_ports: PortRanges::parse_valid(&spec.explicit_ports),
            pools: spec.pools.iter().map(PoolView::from).collect(),
            seen: spec.seen.parse().unwrap_or(0),
        }
    }
}

impl From<&OfferPool> for PoolView {
    fn from(pool: &OfferPool) -> Self {
        Self {
            role: pool.role.clone(),
            capacity: amounts(&pool.capacity),
            free: amounts(&pool.free),
            automatic_ports: PortRanges::parse_valid(&pool.automatic_ports),
            explicit_ports: PortRanges::parse_valid(&pool.explicit_ports),
        }
    }
}

fn amounts(quantities: &BTreeMap<String, Quantity>) -> ResourceList {
    resources::parse_list(quantities.iter().map(|(name, quantity)| (name.as_str(), quantity.0.as_str())))
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
