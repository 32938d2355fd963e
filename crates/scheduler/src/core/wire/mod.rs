//! From the API's JSON straight to views: what is not named here is skipped, neither kept nor copied.

mod affinity;
mod machine;
mod needs;
mod pod;
#[cfg(test)]
mod tests;

use std::{borrow::Cow, collections::BTreeMap};

pub(super) use mainstay_api::narrow::or_default;
use serde::{Deserialize, Deserializer};

use super::{
    amounts::{Amounts, amount},
    selector::{Labels, NodeTerm, Operator, Requirement, Selector},
};

pub(super) fn operator<'de, D: Deserializer<'de>>(from: D) -> Result<Operator, D::Error> {
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

/// A label selector as the API writes it.
pub fn selector(json: &[u8]) -> Result<Selector, serde_json::Error> {
    serde_json::from_slice::<WireSelector>(json).map(Selector::from)
}

/// The alternatives of a node selector as the API writes them (`{"nodeSelectorTerms": [...]}`).
pub fn node_terms(json: &[u8]) -> Result<Vec<NodeTerm>, serde_json::Error> {
    serde_json::from_slice::<affinity::WireNodeSelector>(json).map(|wire| wire.node_selector_terms)
}

fn amounts(wire: &BTreeMap<String, String>) -> Amounts {
    wire.iter().filter_map(|(name, text)| Some((name.clone(), amount(name, text)?))).collect()
}
