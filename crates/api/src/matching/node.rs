//! Node selectors and required node affinity: whether a node's name and labels match.

use k8s_openapi::{
    api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, PodSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{Labels, Requirement, UNLABELLED, has_labels};

/// One alternative of a node selector.
pub trait NodeTerm {
    type Requirement: Requirement;

    fn labels(&self) -> &[Self::Requirement];
    /// There is only `metadata.name`.
    fn fields(&self) -> &[Self::Requirement];

    /// A term without requirements matches nothing.
    fn matches(&self, name: &str, labels: &Labels) -> bool {
        let named = |field: &Self::Requirement| field.key() == "metadata.name" && field.admits(Some(name));
        !(self.labels().is_empty() && self.fields().is_empty())
            && self.labels().iter().all(|requirement| requirement.holds(labels))
            && self.fields().iter().all(named)
    }
}

impl NodeTerm for NodeSelectorTerm {
    type Requirement = NodeSelectorRequirement;

    fn labels(&self) -> &[NodeSelectorRequirement] {
        self.match_expressions.as_deref().unwrap_or_default()
    }

    fn fields(&self) -> &[NodeSelectorRequirement] {
        self.match_fields.as_deref().unwrap_or_default()
    }
}

/// By the node selector and the terms of the required node affinity, of which one has to match if there is one.
pub fn matches_node_selector(
    selector: &Labels,
    required: Option<&[impl NodeTerm]>,
    name: &str,
    labels: &Labels,
) -> bool {
    has_labels(selector, labels) && required.is_none_or(|terms| terms.iter().any(|term| term.matches(name, labels)))
}

/// [`matches_node_selector`], for a pod and a node as the API writes them.
pub fn pod_matches_node(pod: &PodSpec, node: &ObjectMeta) -> bool {
    let affinity = pod.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref());
    matches_node_selector(
        pod.node_selector.as_ref().unwrap_or(&UNLABELLED),
        required.map(|selector| selector.node_selector_terms.as_slice()),
        node.name.as_deref().unwrap_or_default(),
        node.labels.as_ref().unwrap_or(&UNLABELLED),
    )
}
