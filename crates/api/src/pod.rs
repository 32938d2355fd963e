//! Rules about pods that the scheduler, nodes and controllers must agree on: requests, host ports, readiness, phases.
//!
//! Functions take the API's own types; whoever reads pods into something smaller calls the same rules with its parts
//! ([`crate::resources::peak`], [`lasting`], [`requested_host_port`], [`is_terminal_phase`]).

use k8s_openapi::api::core::v1::{Container, ContainerPort, Pod, PodSpec, PodStatus};

use crate::{
    resources::{self, InitContainer, PODS, ResourceList},
    wellknown::mainstay::ASSIGNED_HOST_PORT,
};

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

/// A port of the node that a pod occupies.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPort {
    pub port: u16,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Empty for all addresses of the node.
    pub ip: String,
}

impl HostPort {
    pub fn new(port: u16, protocol: &str, ip: &str) -> Self {
        let all_addresses = matches!(ip, "" | "0.0.0.0" | "::");
        Self { port, protocol: protocol.to_owned(), ip: if all_addresses { String::new() } else { ip.to_owned() } }
    }

    pub fn conflicts_with(&self, other: &Self) -> bool {
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || self.ip.is_empty() || other.ip.is_empty())
    }
}

/// Ports of the node that a pod asks for by number. Ordinary init containers do not count, as upstream: they end before the
/// pod serves anybody. On the host's network every container port is a port of the node.
pub fn host_ports(spec: &PodSpec) -> Vec<HostPort> {
    let host_network = spec.host_network.unwrap_or_default();
    let ports = lasting_containers(spec).flat_map(|container| container.ports.iter().flatten());
    let requested = ports.filter_map(|port| {
        let number = requested_host_port(port.host_port, port.container_port, host_network)?;
        Some(HostPort::new(number, protocol(port), port.host_ip.as_deref().unwrap_or_default()))
    });
    requested.collect()
}

/// The port of the node that a container port asks for by number, if it does.
pub fn requested_host_port(host_port: Option<i32>, container_port: i32, host_network: bool) -> Option<u16> {
    let number = host_port.filter(|port| *port > 0).or(host_network.then_some(container_port))?;
    u16::try_from(number).ok().filter(|port| *port > 0)
}

fn protocol(port: &ContainerPort) -> &str {
    port.protocol.as_deref().unwrap_or("TCP")
}

/// A host port that the scheduler chose for a container port which left the number open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssignedHostPort {
    pub protocol: String,
    pub container_port: u16,
    /// Of the container port; may be empty.
    pub name: String,
    pub host_port: u16,
}

/// The host ports that annotations assign to the pod's container ports, in the order of containers and ports. Annotations
/// for ports that the pod does not have, or asks for by number, do not count.
pub fn assigned_host_ports(pod: &Pod) -> Vec<AssignedHostPort> {
    let Some((annotations, spec)) = pod.metadata.annotations.as_ref().zip(pod.spec.as_ref()) else { return Vec::new() };
    if !annotations.keys().any(|key| key.starts_with(ASSIGNED_HOST_PORT)) {
        return Vec::new();
    }
    let ports = lasting_containers(spec).flat_map(|container| container.ports.iter().flatten());
    let mut assigned: Vec<AssignedHostPort> = Vec::new();
    for port in ports.filter(|port| port.host_port.unwrap_or_default() == 0) {
        let Ok(container_port) = u16::try_from(port.container_port) else { continue };
        let annotation = annotations.get(&format!("{ASSIGNED_HOST_PORT}{}_{container_port}", protocol(port)));
        let number = annotation.and_then(|text| text.parse().ok()).filter(|number| *number > 0);
        let is_new =
            assigned.iter().all(|a| (a.protocol.as_str(), a.container_port) != (protocol(port), container_port));
        if let Some(host_port) = number.filter(|_| is_new) {
            let (protocol, name) = (protocol(port).to_owned(), port.name.clone().unwrap_or_default());
            assigned.push(AssignedHostPort { protocol, container_port, name, host_port });
        }
    }
    assigned
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
    fn host_ports_of_ordinary_init_containers_do_not_count() {
        let port = |number: u16| json!([{ "containerPort": 80, "hostPort": number }]);
        let spec = json!({
            "initContainers": [
                { "name": "once", "ports": port(1000) },
                { "name": "sidecar", "restartPolicy": "Always", "ports": port(2000) },
            ],
            "containers": [{ "name": "main", "ports": port(3000) }],
        });
        let ports: Vec<u16> = host_ports(&pod(json!({ "spec": spec })).spec.unwrap()).iter().map(|p| p.port).collect();
        assert_eq!(ports, [3000, 2000]);
    }

    #[test]
    fn on_the_hosts_network_container_ports_are_ports_of_the_node() {
        let containers = json!([{ "name": "main", "ports": [{ "containerPort": 80, "protocol": "UDP" }] }]);
        let spec = |host_network: bool| {
            pod(json!({ "spec": { "hostNetwork": host_network, "containers": containers } })).spec.unwrap()
        };
        assert_eq!(host_ports(&spec(true)), [HostPort::new(80, "UDP", "")]);
        assert_eq!(host_ports(&spec(false)), []);
    }

    #[test]
    fn ports_conflict_on_the_same_address_or_where_one_takes_all() {
        let port = |protocol, ip| HostPort::new(80, protocol, ip);
        assert!(port("TCP", "").conflicts_with(&port("TCP", "10.0.0.1")));
        assert!(port("TCP", "0.0.0.0").conflicts_with(&port("TCP", "10.0.0.1")));
        assert!(port("TCP", "10.0.0.1").conflicts_with(&port("TCP", "10.0.0.1")));
        assert!(!port("TCP", "10.0.0.1").conflicts_with(&port("TCP", "10.0.0.2")));
        assert!(!port("TCP", "").conflicts_with(&port("UDP", "")));
    }

    #[test]
    fn assigned_ports_are_those_that_the_pod_left_open() {
        let ports = json!([
            { "containerPort": 80, "name": "web" },
            { "containerPort": 80 },
            { "containerPort": 81, "hostPort": 81 },
            { "containerPort": 82 },
        ]);
        let annotations = json!({
            "k8s.mesosphere.io/port_TCP_80": "31000", "k8s.mesosphere.io/port_TCP_81": "31001",
            "k8s.mesosphere.io/port_TCP_82": "none", "k8s.mesosphere.io/port_TCP_83": "31003",
        });
        let pod = pod(json!({
            "metadata": { "annotations": annotations }, "spec": { "containers": [{ "name": "main", "ports": ports }] },
        }));
        let web = AssignedHostPort {
            protocol: "TCP".to_owned(),
            container_port: 80,
            name: "web".to_owned(),
            host_port: 31000,
        };
        assert_eq!(assigned_host_ports(&pod), [web]);
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
