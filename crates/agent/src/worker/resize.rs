//! In-place resize: what a pod's containers have been allocated, and whether what its spec asks for now can be given. Pure.
//!
//! A resize that does not fit is pending: the pod goes on with its allocation. `Infeasible` is what this node can never give,
//! `Deferred` what other pods take at present; both are upstream's reasons, with upstream's messages.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use mainstay_api::resources;

use crate::offers::{NodeCapacity, PodDemand, check_resources};

/// The resources of each container of a pod that can be resized, by name.
pub type Allocation = BTreeMap<String, ResourceRequirements>;

/// A resize that cannot be done at present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingResize {
    pub reason: &'static str,
    pub message: String,
}

pub const INFEASIBLE: &str = "Infeasible";
pub const DEFERRED: &str = "Deferred";

/// What the spec asks for.
pub fn desired(pod: &Pod) -> Allocation {
    let containers =
        pod.spec.iter().flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    containers.map(|c| (c.name.clone(), c.resources.clone().unwrap_or_default())).collect()
}

/// What an agent before this one allocated, as the status in the API has it; what it does not say is as the spec asks.
pub fn recorded(pod: &Pod) -> Allocation {
    let status = pod.status.iter();
    let lists = status.flat_map(|status| [&status.container_statuses, &status.init_container_statuses]);
    let known = lists.flatten().flatten().filter_map(|c| Some((c.name.clone(), c.resources.clone()?)));
    let mut allocation = desired(pod);
    allocation.extend(known);
    allocation
}

/// Whether the spec asks for other cpu or memory than is allocated.
pub fn is_requested(pod: &Pod, allocated: &Allocation) -> bool {
    desired(pod).iter().any(|(name, wanted)| allocated.get(name).is_some_and(|now| compute(now) != compute(wanted)))
}

/// Whether a pod can be given what its spec asks for, beside the other pods of this node.
pub fn check(pod: &Pod, capacity: &NodeCapacity, others: &[PodDemand]) -> Result<(), PendingResize> {
    let demand = PodDemand::from_pod(pod);
    for name in ["memory", "cpu"] {
        let requested = demand.requests.get(name).copied().unwrap_or(0);
        let available = capacity.allocatable_for(&demand.roles, name);
        let Some(available) = available.filter(|available| requested > *available) else { continue };
        let message =
            format!("Node didn't have enough capacity: {name}, requested: {requested}, capacity: {available}");
        return Err(PendingResize { reason: INFEASIBLE, message });
    }
    check_resources(&demand, capacity, others)
        .map_err(|rejection| PendingResize { reason: DEFERRED, message: rejection.message })
}

/// The pod as it is allocated.
pub fn with_allocation(pod: &Pod, allocated: &Allocation) -> Pod {
    let mut pod = pod.clone();
    let Some(spec) = &mut pod.spec else { return pod };
    let allocate = |container: &mut Container| {
        if let Some(resources) = allocated.get(&container.name) {
            container.resources = Some(resources.clone());
        }
    };
    spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()).for_each(allocate);
    pod
}

/// The amounts of cpu and memory, however they are written: requests, then limits.
fn compute(resources: &ResourceRequirements) -> [Option<i64>; 4] {
    let amount = |list: &Option<BTreeMap<_, k8s_openapi::apimachinery::pkg::api::resource::Quantity>>, name: &str| {
        let quantities =
            list.iter().flatten().map(|(name, quantity): (&String, _)| (name.as_str(), quantity.0.as_str()));
        resources::parse_list(quantities).get(name).copied()
    };
    let (requests, limits) = (&resources.requests, &resources.limits);
    [amount(requests, "cpu"), amount(requests, "memory"), amount(limits, "cpu"), amount(limits, "memory")]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(cpu: &str, memory: &str) -> Pod {
        let resources = json!({ "requests": { "cpu": cpu, "memory": memory } });
        serde_json::from_value(json!({
            "metadata": { "name": "p" }, "spec": { "containers": [{ "name": "c", "resources": resources }] },
        }))
        .unwrap()
    }

    fn capacity() -> NodeCapacity {
        let allocatable = resources::parse_list([("cpu", "2"), ("memory", "1000"), ("pods", "10")]);
        NodeCapacity { allocatable, ..NodeCapacity::default() }
    }

    #[test]
    fn what_the_node_can_never_give_is_infeasible_and_what_others_hold_is_deferred() {
        let other = [PodDemand::from_pod(&pod("1500m", "10"))];
        assert_eq!(check(&pod("500m", "10"), &capacity(), &other), Ok(()));
        let refused = |cpu: &str, memory: &str| {
            let PendingResize { reason, message } = check(&pod(cpu, memory), &capacity(), &other).unwrap_err();
            format!("{reason}: {message}")
        };
        assert_eq!(
            refused("2100m", "10"),
            "Infeasible: Node didn't have enough capacity: cpu, requested: 2100, capacity: 2000"
        );
        assert_eq!(
            refused("3", "2000"),
            "Infeasible: Node didn't have enough capacity: memory, requested: 2000, capacity: 1000"
        );
        assert_eq!(
            refused("1", "10"),
            "Deferred: Node didn't have enough resource: cpu, requested: 1000, used: 1500, capacity: 2000"
        );
    }

    #[test]
    fn a_resize_is_a_change_of_amounts_and_not_of_how_they_are_written() {
        let allocated = desired(&pod("500m", "1Ki"));
        assert!(!is_requested(&pod("0.5", "1024"), &allocated));
        assert!(is_requested(&pod("501m", "1Ki"), &allocated));
        assert_eq!(desired(&with_allocation(&pod("2", "2Ki"), &allocated)), allocated);
    }

    #[test]
    fn an_allocation_outlives_the_agent_in_the_status() {
        let mut pod = pod("2", "1Ki");
        let resources = json!({ "requests": { "cpu": "1", "memory": "1Ki" } });
        let status = json!({ "containerStatuses": [
            { "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0, "resources": resources },
        ] });
        pod.status = serde_json::from_value(status).unwrap();
        assert!(is_requested(&pod, &recorded(&pod)));
    }
}
