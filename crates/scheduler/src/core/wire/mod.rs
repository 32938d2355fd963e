//! From the API's JSON straight to views: what is not named here is skipped, neither kept nor copied.

mod affinity;
mod machine;
mod needs;
mod pod;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use super::{
    amounts::{Amounts, amount},
    selector::{Labels, NodeTerm, Operator, Requirement, Selector},
};

/// `null` is as good as missing.
pub(super) fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireSelector {
    #[serde(deserialize_with = "or_default")]
    match_labels: Labels,
    #[serde(deserialize_with = "or_default")]
    match_expressions: Vec<WireRequirement>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireRequirement {
    key: String,
    operator: String,
    #[serde(deserialize_with = "or_default")]
    values: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireTerm {
    #[serde(deserialize_with = "or_default")]
    match_expressions: Vec<WireRequirement>,
    #[serde(deserialize_with = "or_default")]
    match_fields: Vec<WireRequirement>,
}

impl From<WireRequirement> for Requirement {
    fn from(wire: WireRequirement) -> Self {
        Self { key: wire.key, operator: Operator::parse(&wire.operator), values: wire.values }
    }
}

impl From<WireSelector> for Selector {
    fn from(wire: WireSelector) -> Self {
        let equal = wire.match_labels.iter().map(|(key, value)| Requirement::equal(key, value));
        let mut all: Vec<Requirement> =
            equal.chain(wire.match_expressions.into_iter().map(Requirement::from)).collect();
        all.sort_unstable();
        Self(all)
    }
}

impl From<WireTerm> for NodeTerm {
    fn from(wire: WireTerm) -> Self {
        let all = |wires: Vec<WireRequirement>| wires.into_iter().map(Requirement::from).collect();
        Self { labels: all(wire.match_expressions), fields: all(wire.match_fields) }
    }
}

/// A label selector as the API writes it.
pub fn selector(json: &[u8]) -> Result<Selector, serde_json::Error> {
    serde_json::from_slice::<WireSelector>(json).map(Selector::from)
}

/// The alternatives of a node selector as the API writes them (`{"nodeSelectorTerms": [...]}`).
pub fn node_terms(json: &[u8]) -> Result<Vec<NodeTerm>, serde_json::Error> {
    serde_json::from_slice::<affinity::WireNodeSelector>(json).map(affinity::WireNodeSelector::terms)
}

fn amounts(wire: &BTreeMap<String, String>) -> Amounts {
    wire.iter().filter_map(|(name, text)| Some((name.clone(), amount(name, text)?))).collect()
}
