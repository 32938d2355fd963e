//! Decodes affinity and topology spread constraints; what they leave out is filled in from the pod itself.

use serde::Deserialize;

use super::{WireSelector, or_default};
use crate::core::{
    selector::{Labels, NodeTerm, Operator, PodSelector, Requirement, Selector},
    view::{AffinityTerm, NodeRules, PodAffinityRules, SpreadConstraint},
};

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireAffinity {
    #[serde(deserialize_with = "or_default")]
    node_affinity: WireNodeAffinity,
    #[serde(deserialize_with = "or_default")]
    pod_affinity: WirePodAffinity,
    #[serde(deserialize_with = "or_default")]
    pod_anti_affinity: WirePodAffinity,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireNodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    required: Option<WireNodeSelector>,
    #[serde(rename = "preferredDuringSchedulingIgnoredDuringExecution", deserialize_with = "or_default")]
    preferred: Vec<WireWeightedNodeTerm>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireNodeSelector {
    #[serde(deserialize_with = "or_default")]
    pub(super) node_selector_terms: Vec<NodeTerm>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireWeightedNodeTerm {
    weight: i32,
    preference: NodeTerm,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WirePodAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution", deserialize_with = "or_default")]
    required: Vec<WirePodAffinityTerm>,
    #[serde(rename = "preferredDuringSchedulingIgnoredDuringExecution", deserialize_with = "or_default")]
    preferred: Vec<WireWeightedTerm>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireWeightedTerm {
    weight: i32,
    pod_affinity_term: WirePodAffinityTerm,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WirePodAffinityTerm {
    label_selector: Option<WireSelector>,
    topology_key: String,
    #[serde(deserialize_with = "or_default")]
    namespaces: Vec<String>,
    namespace_selector: Option<WireSelector>,
    #[serde(deserialize_with = "or_default")]
    match_label_keys: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    mismatch_label_keys: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireSpread {
    label_selector: Option<WireSelector>,
    topology_key: String,
    max_skew: i32,
    min_domains: Option<i32>,
    when_unsatisfiable: String,
    node_affinity_policy: Option<String>,
    node_taints_policy: Option<String>,
    #[serde(deserialize_with = "or_default")]
    match_label_keys: Vec<String>,
}

impl WireAffinity {
    pub(super) fn split(self, namespace: &str, labels: &Labels, node: &mut NodeRules) -> PodAffinityRules {
        node.required = self.node_affinity.required.map(|wire| wire.node_selector_terms);
        let preferred = self.node_affinity.preferred.into_iter();
        node.preferred = preferred.map(|wire| (wire.weight, wire.preference)).collect();
        let all =
            |wires: Vec<WirePodAffinityTerm>| wires.into_iter().map(|wire| wire.term(namespace, labels)).collect();
        let weighted = |wires: Vec<WireWeightedTerm>| {
            wires.into_iter().map(|wire| (wire.weight, wire.pod_affinity_term.term(namespace, labels))).collect()
        };
        PodAffinityRules {
            required: all(self.pod_affinity.required),
            preferred: weighted(self.pod_affinity.preferred),
            anti_required: all(self.pod_anti_affinity.required),
            anti_preferred: weighted(self.pod_anti_affinity.preferred),
        }
    }
}

impl WirePodAffinityTerm {
    /// Without namespaces and namespace selector, it means the pod's own namespace.
    fn term(self, namespace: &str, labels: &Labels) -> AffinityTerm {
        let mut namespaces = self.namespaces;
        if namespaces.is_empty() && self.namespace_selector.is_none() {
            namespaces.push(namespace.to_owned());
        }
        namespaces.sort_unstable();
        let own = |keys: Vec<String>, operator| own_label_values(keys, operator, labels);
        let extra = own(self.match_label_keys, Operator::In).chain(own(self.mismatch_label_keys, Operator::NotIn));
        let selector = self.label_selector.map(|wire| narrow_selector(wire, extra));
        let namespaces_like = self.namespace_selector.map(Selector::from);
        AffinityTerm {
            pods: PodSelector { namespaces, namespaces_like, labels: selector },
            topology_key: self.topology_key,
        }
    }
}

impl WireSpread {
    pub(super) fn constraint(self, namespace: &str, labels: &Labels) -> SpreadConstraint {
        let extra = own_label_values(self.match_label_keys, Operator::In, labels);
        let selector = self.label_selector.map(|wire| narrow_selector(wire, extra));
        SpreadConstraint {
            topology_key: self.topology_key,
            pods: PodSelector { namespaces: vec![namespace.to_owned()], namespaces_like: None, labels: selector },
            max_skew: self.max_skew.max(1),
            min_domains: self.min_domains,
            hard: self.when_unsatisfiable != "ScheduleAnyway",
            honor_affinity: self.node_affinity_policy.as_deref() != Some("Ignore"),
            honor_taints: self.node_taints_policy.as_deref() == Some("Honor"),
        }
    }
}

/// `matchLabelKeys`: the pod's own values of some labels; those it does not have are left out.
fn own_label_values(keys: Vec<String>, operator: Operator, labels: &Labels) -> impl Iterator<Item = Requirement> {
    keys.into_iter().filter_map(move |key| {
        let values = vec![labels.get(&key)?.clone()];
        Some(Requirement { key, operator, values })
    })
}

/// The API server may have merged the same requirements already; duplicates are removed.
fn narrow_selector(mut wire: WireSelector, extra: impl Iterator<Item = Requirement>) -> Selector {
    wire.match_expressions.extend(extra);
    let mut selector = Selector::from(wire);
    selector.0.dedup();
    selector
}
