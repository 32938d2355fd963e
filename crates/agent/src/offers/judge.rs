//! Whether a pod that was placed here can be here. Pure.
//!
//! The same questions, with the same answers, that upstream's kubelet asks of a pod it has not yet taken. Beyond them,
//! a machine may keep ports to itself.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, Taint, Toleration};

use super::{Claim, Room};

/// Why not, as it is reported: `OutOfcpu`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub reason: String,
    pub message: String,
}

impl Rejection {
    fn predicate(name: &str, words: impl std::fmt::Display) -> Self {
        Self { reason: name.to_owned(), message: format!("Predicate {name} failed: {words}") }
    }
}

/// Judges a pod against what the machine is and what it holds already.
pub fn judge(pod: &Pod, node: &Node, room: &Room, held: &[Claim]) -> Result<(), Rejection> {
    let claim = Claim::of(pod);
    enough(&claim, room, held)?;
    if !matches_node(pod, node) {
        let words = "node(s) didn't match Pod's node affinity/selector";
        return Err(Rejection::predicate("NodeAffinity", words));
    }
    ports(&claim, room, held)?;
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
    if taints.filter(|taint| taint.effect == "NoExecute").any(|taint| !tolerated(taint, tolerations)) {
        return Err(Rejection::predicate("TaintToleration", "node(s) had taints that the pod didn't tolerate"));
    }
    Ok(())
}

fn enough(claim: &Claim, room: &Room, held: &[Claim]) -> Result<(), Rejection> {
    let used = Claim::sum(held);
    // Pods first, as upstream; of a resource that the machine does not have, others know more.
    let mut names: Vec<&String> = claim.amounts.keys().filter(|name| room.allocatable.contains_key(*name)).collect();
    names.sort_by_key(|name| *name != "pods");
    for name in names {
        let (requested, capacity) = (claim.amounts[name], room.allocatable[name]);
        let used = used.get(name).copied().unwrap_or(0);
        if requested > 0 && requested > capacity - used {
            return Err(Rejection {
                reason: format!("OutOf{name}"),
                message: format!(
                    "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}"
                ),
            });
        }
    }
    Ok(())
}

fn ports(claim: &Claim, room: &Room, held: &[Claim]) -> Result<(), Rejection> {
    let name = "NodePorts";
    for port in &claim.ports {
        let allowed = if port.automatic { &room.automatic } else { &room.explicit };
        if !allowed.contains(port.port) {
            let words = format!("host port {} is not among those of this machine ({allowed})", port.port);
            return Err(Rejection::predicate(name, words));
        }
        if held.iter().any(|other| other.ports.iter().any(|taken| port.clashes(taken))) {
            let words = "node(s) didn't have free ports for the requested pod ports";
            return Err(Rejection::predicate(name, format!("{words}: {} {}", port.protocol, port.port)));
        }
    }
    Ok(())
}

fn matches_node(pod: &Pod, node: &Node) -> bool {
    let Some(spec) = &pod.spec else { return true };
    let none = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&none);
    let selected = spec.node_selector.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    let name = node.metadata.name.as_deref().unwrap_or_default();
    selected && required.is_none_or(|required| required.node_selector_terms.iter().any(|t| matches(t, labels, name)))
}

/// A term without requirements matches nothing.
fn matches(term: &NodeSelectorTerm, labels: &BTreeMap<String, String>, name: &str) -> bool {
    let by_label = term.match_expressions.as_deref().unwrap_or_default();
    let by_field = term.match_fields.as_deref().unwrap_or_default();
    (!by_label.is_empty() || !by_field.is_empty())
        && by_label.iter().all(|r| holds(r, labels.get(&r.key).map(String::as_str)))
        && by_field.iter().all(|r| r.key == "metadata.name" && holds(r, Some(name)))
}

fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let among = value.is_some_and(|value| values.iter().any(|wanted| wanted == value));
    let compared = || Some(value?.parse::<i64>().ok()?.cmp(&values.first()?.parse().ok()?));
    match requirement.operator.as_str() {
        "In" => among,
        "NotIn" => !among,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared() == Some(std::cmp::Ordering::Greater),
        "Lt" => compared() == Some(std::cmp::Ordering::Less),
        _ => false,
    }
}

fn tolerated(taint: &Taint, tolerations: &[Toleration]) -> bool {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    tolerations.iter().any(|toleration| {
        let (key, effect) = (text(&toleration.key), text(&toleration.effect));
        let exists = toleration.operator.as_deref() == Some("Exists");
        (effect.is_empty() || effect == taint.effect)
            && (key == taint.key || (key.is_empty() && exists))
            && (exists || text(&toleration.value) == text(&taint.value))
    })
}
