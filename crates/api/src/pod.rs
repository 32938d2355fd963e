//! Rules about pods that the scheduler, nodes and controllers must agree on: requests, lasting containers, readiness,
//! phases. Those about ports are in [`crate::ports`].
//!
//! Functions take the API's own types; whoever reads pods into something smaller calls the same rules with its parts
//! ([`crate::resources::peak`], [`lasting`], [`is_terminal_phase`]).

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodStatus};

use crate::resources::{self, InitContainer, PODS, ResourceList};

/// `terminationGracePeriodSeconds` of a pod that does not state it, as upstream.
pub const DEFAULT_TERMINATION_GRACE_SECONDS: i64 = 30;

/// Settings of the kernel that belong to a pod's namespaces and hurt nobody else.
pub const SAFE_SYSCTLS: &[&str] = &[
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

/// An init container that goes on running beside the others.
pub fn is_sidecar(init_container: &Container) -> bool {
    init_container.restart_policy.as_deref() == Some("Always")
}

/// The containers whose processes may run for as long as the pod does: ordinary ones and sidecars.
pub fn lasting_containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    lasting(&spec.containers, spec.init_containers.as_deref().unwrap_or_default(), is_sidecar)
}

/// [`lasting_containers`] for whoever reads containers into a type of its own.
pub fn lasting<'a, C>(
    containers: &'a [C],
    init_containers: &'a [C],
    is_sidecar: impl Fn(&C) -> bool + 'a,
) -> impl Iterator<Item = &'a C> {
    containers.iter().chain(init_containers.iter().filter(move |container| is_sidecar(container)))
}

/// What a pod takes of a node: its containers at their worst moment, or what it asks for as a whole, and its overhead.
/// Resources of which nothing is asked for are left out.
pub fn requests(spec: &PodSpec) -> ResourceList {
    let of_container = |container: &Container| {
        let requests = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        quantities(requests)
    };
    let init = spec.init_containers.iter().flatten().map(|container| match is_sidecar(container) {
        true => InitContainer::Sidecar(of_container(container)),
        false => InitContainer::Ordinary(of_container(container)),
    });
    let mut requests = resources::peak(init, spec.containers.iter().map(of_container));
    let whole = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    complete_requests(&mut requests, quantities(whole), &quantities(spec.overhead.as_ref()));
    requests
}

/// Adds to what the containers of a pod ask for what stands for the pod as a whole.
pub fn complete_requests(requests: &mut ResourceList, pod_level: ResourceList, overhead: &ResourceList) {
    requests.extend(pod_level);
    resources::add(requests, overhead);
    requests.insert(PODS.to_owned(), 1);
    requests.retain(|_, amount| *amount > 0);
}

fn quantities(
    list: Option<&std::collections::BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>>,
) -> ResourceList {
    resources::parse_list(list.into_iter().flatten().map(|(name, quantity)| (name.as_str(), quantity.0.as_str())))
}

/// `Succeeded` and `Failed`: no container of the pod will ever run again.
pub fn is_terminal_phase(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}

pub fn is_finished(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).is_some_and(is_terminal_phase)
}

/// Whether the pod's `Ready` condition is true.
pub fn is_ready(pod: &Pod) -> bool {
    pod.status.as_ref().is_some_and(has_ready_condition)
}

/// [`is_ready`] for a status that is not in a pod yet.
pub fn has_ready_condition(status: &PodStatus) -> bool {
    status.conditions.iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(value: serde_json::Value) -> Pod {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn requests_of_the_whole_pod_stand_before_those_of_its_containers_and_overhead_is_added() {
        let spec = |resources: serde_json::Value| {
            let containers = json!([{ "name": "a", "resources": { "requests": { "cpu": "1", "memory": "0" } } }]);
            let spec = json!({ "containers": containers, "resources": resources, "overhead": { "cpu": "10m" } });
            pod(json!({ "spec": spec })).spec.unwrap()
        };
        let cpu_and_pod = |cpu| ResourceList::from([("cpu".to_owned(), cpu), (PODS.to_owned(), 1)]);
        assert_eq!(requests(&spec(json!({}))), cpu_and_pod(1010));
        assert_eq!(requests(&spec(json!({ "requests": { "cpu": "3" } }))), cpu_and_pod(3010));
    }

    #[test]
    fn ready_and_finished_are_read_from_the_status() {
        let with = |phase: &str, ready: &str| {
            pod(json!({ "status": { "phase": phase, "conditions": [{ "type": "Ready", "status": ready }] } }))
        };
        assert!(is_ready(&with("Running", "True")) && !is_ready(&with("Running", "False")));
        assert!(is_finished(&with("Failed", "False")) && !is_finished(&with("Running", "True")));
        assert!(!is_ready(&Pod::default()) && !is_finished(&Pod::default()));
    }
}
