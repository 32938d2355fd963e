//! The kubelet's admission predicates: whether a pod that was bound to this node fits it. Pure.
//!
//! The same checks, with the same reasons and messages, as upstream's kubelet runs on a pod it has not yet admitted.
//! Beyond them, a node may keep ports to itself.

use k8s_openapi::api::core::v1::{Node, Pod};
use mainstay_api::matching::{Effect, has_untolerated_taint, pod_matches_node};

use super::{NodeCapacity, PodDemand, pod_demand::DemandedPort};

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

/// Checks a pod against what the node is and what it holds already.
pub fn check_pod(pod: &Pod, node: &Node, capacity: &NodeCapacity, held: &[PodDemand]) -> Result<(), Rejection> {
    let demand = PodDemand::from_pod(pod);
    check_resources(&demand, capacity, held)?;
    if pod.spec.as_ref().is_some_and(|spec| !pod_matches_node(spec, &node.metadata)) {
        let words = "node(s) didn't match Pod's node affinity/selector";
        return Err(Rejection::predicate("NodeAffinity", words));
    }
    check_ports(&demand, capacity, held)?;
    let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
    if has_untolerated_taint(node, Effect::NoExecute, tolerations) {
        return Err(Rejection::predicate("TaintToleration", "node(s) had taints that the pod didn't tolerate"));
    }
    Ok(())
}

/// Checks what a pod asks for against what is left beside what the node holds already.
pub fn check_resources(demand: &PodDemand, capacity: &NodeCapacity, held: &[PodDemand]) -> Result<(), Rejection> {
    if !capacity.serves_roles(&demand.roles) {
        let roles = match demand.roles.text() {
            roles if roles.is_empty() => "none".to_owned(),
            roles => roles,
        };
        let message = format!("Node has nothing for the roles that the pod may use: {roles}");
        return Err(Rejection { reason: "UnservedRoles".to_owned(), message });
    }
    let used = PodDemand::sum_requests(held);
    // Pods first, as upstream; of a resource that the machine does not have, others know more.
    let mut names: Vec<&String> =
        demand.requests.keys().filter(|name| capacity.allocatable.contains_key(*name)).collect();
    names.sort_by_key(|name| *name != "pods");
    for name in names {
        let (requested, allocatable) = (demand.requests[name], capacity.allocatable[name]);
        let used = used.get(name).copied().unwrap_or(0);
        if requested > 0 && requested > allocatable.saturating_sub(used) {
            return Err(Rejection {
                reason: format!("OutOf{name}"),
                message: format!(
                    "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {allocatable}"
                ),
            });
        }
    }
    check_pools(demand, capacity, held)
}

/// Checks what a pod asks for against what is left for its roles, if the machine reserves something for roles.
fn check_pools(demand: &PodDemand, capacity: &NodeCapacity, held: &[PodDemand]) -> Result<(), Rejection> {
    if capacity.pools.is_empty() {
        return Ok(());
    }
    let (pools, left) = (capacity.pools_of(demand), capacity.left_in_pools(held));
    let Some((name, _)) = capacity.take(demand, &pools, &left).lacking.first().copied() else { return Ok(()) };
    let free = pools.iter().map(|pool| {
        let left = left[*pool].get(name).copied().unwrap_or(0).max(0);
        format!("{left} for {}", capacity.pools[*pool].role)
    });
    let free = free.collect::<Vec<_>>().join(", ");
    Err(Rejection {
        reason: format!("OutOf{name}"),
        message: format!(
            "Node didn't have enough resource for the pod's roles: {name}, requested: {}, free: {free}",
            demand.requests[name]
        ),
    })
}

fn check_ports(demand: &PodDemand, capacity: &NodeCapacity, held: &[PodDemand]) -> Result<(), Rejection> {
    let name = "NodePorts";
    for DemandedPort { host_port: port, assigned } in &demand.host_ports {
        let allowed = capacity.ports_for(&demand.roles, *assigned);
        if !allowed.contains(port.port) {
            let words = format!("host port {} is not among those of this machine ({allowed})", port.port);
            return Err(Rejection::predicate(name, words));
        }
        if held.iter().any(|other| other.host_ports.iter().any(|taken| port.conflicts_with(&taken.host_port))) {
            let words = "node(s) didn't have free ports for the requested pod ports";
            return Err(Rejection::predicate(name, format!("{words}: {} {}", port.protocol, port.port)));
        }
    }
    Ok(())
}
