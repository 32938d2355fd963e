//! Decodes the API's JSON into [views](super::view). Fields that are not named here are skipped without being copied.

mod affinity;
mod containers;
mod node;
mod offer;
mod pod;
#[cfg(test)]
mod tests;

use std::{borrow::Cow, collections::BTreeMap};

pub(super) use mainstay_api::narrow::or_default;
use mainstay_api::resources::{ResourceList, parse_list};
pub use offer::{NamespaceObject, NodeLease, OfferObject};
use serde::{Deserialize, Deserializer};

use super::selector::{Labels, NodeTerm, Operator, Requirement, Selector};

pub(super) fn deserialize_operator<'de, D: Deserializer<'de>>(from: D) -> Result<Operator, D::Error> {
    Ok(Operator::parse(&Cow::<str>::deserialize(from)?))
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireSelector {
    #[serde(deserialize_with = "or_default")]
    match_labels: Labels,
    #[serde(deserialize_with = "or_default")]
    match_expressions: Vec<Requirement>,
}

impl From<WireSelector> for Selector {
    fn from(wire: WireSelector) -> Self {
        let equal = wire.match_labels.iter().map(|(key, value)| Requirement::equal(key, value));
        let mut all: Vec<Requirement> = equal.chain(wire.match_expressions).collect();
        all.sort_unstable();
        Self(all)
    }
}

/// The alternatives of a node selector as the API writes them (`{"nodeSelectorTerms": [...]}`).
pub fn node_selector_terms(json: &[u8]) -> Result<Vec<NodeTerm>, serde_json::Error> {
    serde_json::from_slice::<affinity::WireNodeSelector>(json).map(|wire| wire.node_selector_terms)
}

fn resource_list(quantities: &BTreeMap<String, String>) -> ResourceList {
    parse_list(quantities.iter().map(|(name, text)| (name.as_str(), text.as_str())))
}
