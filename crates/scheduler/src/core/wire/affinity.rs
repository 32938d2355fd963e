//! Affinities and spreading, with what they leave out filled in from the pod itself.

use serde::Deserialize;

use super::{WireSelector, or_default};
use crate::core::{
    selector::{Labels, NodeTerm, Operator, PodSelector, Requirement, Selector},
    view::{MachineRules, Near, SpreadRule, Together},
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
    preferred: Vec<WirePreferredNode>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireNodeSelector {
    #[serde(deserialize_with = "or_default")]
    pub(super) node_selector_terms: Vec<NodeTerm>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WirePreferredNode {
    weight: i32,
    preference: NodeTerm,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WirePodAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution", deserialize_with = "or_default")]
    required: Vec<WireNear>,
    #[serde(rename = "preferredDuringSchedulingIgnoredDuringExecution", deserialize_with = "or_default")]
    preferred: Vec<WirePreferredNear>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WirePreferredNear {
    weight: i32,
    pod_affinity_term: WireNear,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireNear {
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
    pub(super) fn split(self, namespace: &str, labels: &Labels, machine: &mut MachineRules) -> Together {
        machine.required = self.node_affinity.required.map(|wire| wire.node_selector_terms);
        let preferred = self.node_affinity.preferred.into_iter();
        machine.preferred = preferred.map(|wire| (wire.weight, wire.preference)).collect();
        let near = |wire: WireNear| wire.near(namespace, labels);
        let all = |wires: Vec<WireNear>| wires.into_iter().map(near).collect();
        let weighted = |wires: Vec<WirePreferredNear>| {
            wires.into_iter().map(|wire| (wire.weight, wire.pod_affinity_term.near(namespace, labels))).collect()
        };
        Together {
            required: all(self.pod_affinity.required),
            preferred: weighted(self.pod_affinity.preferred),
            forbidden: all(self.pod_anti_affinity.required),
            avoided: weighted(self.pod_anti_affinity.preferred),
        }
    }
}

impl WireNear {
    /// Without namespaces, named or described, it means the pod's own.
    fn near(self, namespace: &str, labels: &Labels) -> Near {
        let mut namespaces = self.namespaces;
        if namespaces.is_empty() && self.namespace_selector.is_none() {
            namespaces.push(namespace.to_owned());
        }
        namespaces.sort_unstable();
        let own = |keys: Vec<String>, operator| own_values(keys, operator, labels);
        let extra = own(self.match_label_keys, Operator::In).chain(own(self.mismatch_label_keys, Operator::NotIn));
        let selector = self.label_selector.map(|wire| narrowed(wire, extra));
        let namespaces_like = self.namespace_selector.map(Selector::from);
        Near { pods: PodSelector { namespaces, namespaces_like, labels: selector }, topology: self.topology_key }
    }
}

impl WireSpread {
    pub(super) fn rule(self, namespace: &str, labels: &Labels) -> SpreadRule {
        let extra = own_values(self.match_label_keys, Operator::In, labels);
        let selector = self.label_selector.map(|wire| narrowed(wire, extra));
        SpreadRule {
            topology: self.topology_key,
            pods: PodSelector { namespaces: vec![namespace.to_owned()], namespaces_like: None, labels: selector },
            max_skew: self.max_skew.max(1),
            min_domains: self.min_domains,
            hard: self.when_unsatisfiable != "ScheduleAnyway",
            honour_affinity: self.node_affinity_policy.as_deref() != Some("Ignore"),
            honour_taints: self.node_taints_policy.as_deref() == Some("Honor"),
        }
    }
}

/// The pod's own values of some labels; those it does not have are passed over.
fn own_values(keys: Vec<String>, operator: Operator, labels: &Labels) -> impl Iterator<Item = Requirement> {
    keys.into_iter().filter_map(move |key| {
        let values = vec![labels.get(&key)?.clone()];
        Some(Requirement { key, operator, values })
    })
}

/// A server may have merged the same already: said twice it means the same.
fn narrowed(mut wire: WireSelector, extra: impl Iterator<Item = Requirement>) -> Selector {
    wire.match_expressions.extend(extra);
    let mut selector = Selector::from(wire);
    selector.0.dedup();
    selector
}
