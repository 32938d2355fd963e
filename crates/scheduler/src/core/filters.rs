//! Filters on the Node object alone, whatever runs on the node: cordon, readiness, taints, node affinity, volumes.

use mainstay_api::{
    matching::{self, NodeTerm as _},
    wellknown::taint::{NOT_READY, UNSCHEDULABLE},
};

use super::{
    cluster::EXCLUDED,
    score,
    view::{Effect, NodeRules, NodeView, Taint},
};

/// The static score of a node that passes these filters, or [`EXCLUDED`].
pub fn static_score(rules: &NodeRules, node: Option<&NodeView>) -> i32 {
    match node {
        Some(node) if passes_filters(rules, node) => score::static_score(rules, node),
        Some(_) | None => EXCLUDED,
    }
}

fn passes_filters(rules: &NodeRules, node: &NodeView) -> bool {
    !is_cordoned(rules, node)
        && !is_not_ready(rules, node)
        && untolerated_taint(rules, node).is_none()
        && matches_node_affinity(rules, node)
        && volumes_reachable(rules, node)
}

pub fn tolerates<S: AsRef<str>>(rules: &NodeRules, taint: &Taint<S>) -> bool {
    rules.tolerations.iter().any(|toleration| toleration.tolerates(taint))
}

pub fn is_cordoned(rules: &NodeRules, node: &NodeView) -> bool {
    node.unschedulable && !tolerates(rules, &implied_taint(UNSCHEDULABLE, Effect::NoSchedule))
}

pub fn is_not_ready(rules: &NodeRules, node: &NodeView) -> bool {
    let tolerated = |effect| tolerates(rules, &implied_taint(NOT_READY, effect));
    !node.ready && !tolerated(Effect::NoSchedule) && !tolerated(Effect::NoExecute)
}

/// The taint that the node lifecycle controller will add.
fn implied_taint(key: &str, effect: Effect) -> Taint<&str> {
    Taint { key, value: "", effect }
}

/// The first taint that excludes the node.
pub fn untolerated_taint<'a>(rules: &NodeRules, node: &'a NodeView) -> Option<&'a Taint> {
    node.taints.iter().find(|taint| taint.effect.is_hard() && !tolerates(rules, taint))
}

/// By the node selector and the required node affinity.
pub fn matches_node_affinity(rules: &NodeRules, node: &NodeView) -> bool {
    matching::matches_node_selector(&rules.selector, rules.required.as_deref(), &node.name, &node.labels)
}

/// By the node affinity of the pod's volumes.
pub fn volumes_reachable(rules: &NodeRules, node: &NodeView) -> bool {
    rules.volumes.iter().all(|terms| terms.iter().any(|term| term.matches(&node.name, &node.labels)))
}
