//! What a machine is, against what a pod asks it to be, whatever runs there.

use mainstay_api::matching::{self, NodeTerm as _};

use super::{
    cluster::EXCLUDED,
    score,
    view::{Effect, MachineRules, NodeView, Taint},
};

const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// The score of a machine that may be used, or [`EXCLUDED`].
pub fn fixed(rules: &MachineRules, node: Option<&NodeView>) -> i32 {
    match node {
        Some(node) if admits(rules, node) => score::fixed(rules, node),
        Some(_) | None => EXCLUDED,
    }
}

fn admits(rules: &MachineRules, node: &NodeView) -> bool {
    !cordoned(rules, node)
        && !unready(rules, node)
        && untolerated(rules, node).is_none()
        && selected(rules, node)
        && reachable(rules, node)
}

pub fn tolerates<S: AsRef<str>>(rules: &MachineRules, taint: &Taint<S>) -> bool {
    rules.tolerations.iter().any(|toleration| toleration.covers(taint))
}

pub fn cordoned(rules: &MachineRules, node: &NodeView) -> bool {
    node.unschedulable && !tolerates(rules, &implied(UNSCHEDULABLE, Effect::NoSchedule))
}

pub fn unready(rules: &MachineRules, node: &NodeView) -> bool {
    let borne = |effect| tolerates(rules, &implied(NOT_READY, effect));
    !node.ready && !borne(Effect::NoSchedule) && !borne(Effect::NoExecute)
}

fn implied(key: &str, effect: Effect) -> Taint<&str> {
    Taint { key, value: "", effect }
}

/// The first taint that keeps the pod away.
pub fn untolerated<'a>(rules: &MachineRules, node: &'a NodeView) -> Option<&'a Taint> {
    node.taints.iter().find(|taint| taint.effect.is_hard() && !tolerates(rules, taint))
}

/// By the node selector and the required node affinity.
pub fn selected(rules: &MachineRules, node: &NodeView) -> bool {
    matching::selected(&rules.selector, rules.required.as_deref(), &node.name, &node.labels)
}

/// The pod's volumes can be had there.
pub fn reachable(rules: &MachineRules, node: &NodeView) -> bool {
    rules.volumes.iter().all(|terms| terms.iter().any(|term| term.matches(&node.name, &node.labels)))
}
