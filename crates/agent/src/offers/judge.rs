//! Whether a pod that was placed here can be here. Pure.
//!
//! The same questions, with the same answers, that upstream's kubelet asks of a pod it has not yet taken. Beyond them,
//! a machine may keep ports to itself.

use k8s_openapi::api::core::v1::{Node, Pod};
use mainstay_api::matching::{Effect, repels, suits};

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
    if pod.spec.as_ref().is_some_and(|spec| !suits(spec, &node.metadata)) {
        let words = "node(s) didn't match Pod's node affinity/selector";
        return Err(Rejection::predicate("NodeAffinity", words));
    }
    ports(&claim, room, held)?;
    let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
    if repels(node, Effect::NoExecute, tolerations) {
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
