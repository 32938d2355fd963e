//! Which ports of a node belong to a pod: asked for by number, assigned by the scheduler, or shared with the node's network.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodSpec};

use super::{DeclaredPort, valid_port};
use crate::{
    pod::lasting_containers,
    wellknown::mainstay::{ASSIGNED_HOST_PORT, ASSIGNED_HOST_PORT_BY_NAME},
};

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
        Some(HostPort::new(number, DeclaredPort::from(port).protocol(), port.host_ip.as_deref().unwrap_or_default()))
    });
    requested.collect()
}

/// The port of the node that a container port asks for by number, if it does.
pub fn requested_host_port(host_port: Option<i32>, container_port: i32, host_network: bool) -> Option<u16> {
    let number = host_port.filter(|port| *port > 0).or(host_network.then_some(container_port))?;
    valid_port(number)
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

/// The annotations that record assigned host ports: by the container port's number, and by its name if it has one.
pub fn host_port_annotations(ports: &[AssignedHostPort]) -> BTreeMap<String, String> {
    let mut annotations = BTreeMap::new();
    for AssignedHostPort { protocol, container_port, name, host_port } in ports {
        annotations.insert(annotation_key(protocol, i32::from(*container_port)), host_port.to_string());
        if !name.is_empty() {
            annotations.insert(format!("{ASSIGNED_HOST_PORT_BY_NAME}{protocol}_{name}"), host_port.to_string());
        }
    }
    annotations
}

/// Whether this is a key of [`host_port_annotations`].
pub fn is_host_port_annotation(key: &str) -> bool {
    key.starts_with(ASSIGNED_HOST_PORT) || key.starts_with(ASSIGNED_HOST_PORT_BY_NAME)
}

/// The host port that an annotation assigns to a container port.
pub fn parse_assigned_host_port(
    annotations: &BTreeMap<String, String>,
    protocol: &str,
    container_port: i32,
) -> Option<u16> {
    annotations.get(&annotation_key(protocol, container_port))?.parse().ok().and_then(valid_port)
}

fn annotation_key(protocol: &str, container_port: i32) -> String {
    format!("{ASSIGNED_HOST_PORT}{protocol}_{container_port}")
}

/// The host ports that annotations assign to the pod's container ports, in the order of containers and ports. Annotations
/// for ports that the pod does not have, or asks for by number, do not count.
pub fn assigned_host_ports(pod: &Pod) -> Vec<AssignedHostPort> {
    let Some((annotations, spec)) = pod.metadata.annotations.as_ref().zip(pod.spec.as_ref()) else { return Vec::new() };
    if !annotations.keys().any(|key| key.starts_with(ASSIGNED_HOST_PORT)) {
        return Vec::new();
    }
    let mut assigned: Vec<AssignedHostPort> = Vec::new();
    for port in declared_ports(spec).filter(|port| port.host_port == 0) {
        let Some(container_port) = valid_port(port.container_port) else { continue };
        let is_new = assigned.iter().all(|a| (&*a.protocol, a.container_port) != (port.protocol(), container_port));
        let number = parse_assigned_host_port(annotations, port.protocol(), port.container_port);
        if let Some(host_port) = number.filter(|_| is_new) {
            let (protocol, name) = (port.protocol().to_owned(), port.name.to_owned());
            assigned.push(AssignedHostPort { protocol, container_port, name, host_port });
        }
    }
    assigned
}

/// The node's port that leads to a pod's own: the one the pod asks for by number, the one that was assigned to it, or, on
/// the host's network, the same.
pub fn mapped_host_port<'a>(
    declared: impl Iterator<Item = DeclaredPort<'a>>,
    annotations: &BTreeMap<String, String>,
    host_network: bool,
    protocol: &str,
    container_port: i32,
) -> Option<u16> {
    let mut same =
        declared.filter(|port| port.container_port == container_port && port.protocol() == protocol).peekable();
    let assigned = same.peek().and_then(|_| parse_assigned_host_port(annotations, protocol, container_port));
    let requested = same.find_map(|port| valid_port(port.host_port));
    requested.or(assigned).or_else(|| valid_port(container_port).filter(|_| host_network))
}

/// The ports of the containers that last as long as the pod.
pub fn declared_ports(spec: &PodSpec) -> impl Iterator<Item = DeclaredPort<'_>> {
    lasting_containers(spec).flat_map(|container| container.ports.iter().flatten()).map(DeclaredPort::from)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(value: serde_json::Value) -> Pod {
        serde_json::from_value(value).unwrap()
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
    fn annotations_that_record_assigned_ports_are_read_back() {
        let assigned = |name: &str| AssignedHostPort {
            protocol: "UDP".to_owned(),
            container_port: 53,
            name: name.to_owned(),
            host_port: 31_053,
        };
        let annotations = host_port_annotations(&[assigned("dns")]);
        assert_eq!(annotations.len(), 2);
        assert!(annotations.keys().all(|key| is_host_port_annotation(key)) && !is_host_port_annotation("app"));
        assert_eq!(host_port_annotations(&[assigned("")]).len(), 1);
        let read = |protocol, port| parse_assigned_host_port(&annotations, protocol, port);
        assert_eq!((read("UDP", 53), read("TCP", 53), read("UDP", 54)), (Some(31_053), None, None));
        for wrong in ["0", "-1", "65536", "x", ""] {
            let annotations = [(annotation_key("UDP", 53), wrong.to_owned())].into();
            assert_eq!(parse_assigned_host_port(&annotations, "UDP", 53), None, "{wrong}");
        }
    }

    #[test]
    fn a_port_leads_where_the_pod_asks_then_where_it_was_assigned_then_to_the_same_number() {
        let declared = |container_port, host_port| DeclaredPort { name: "", protocol: "", container_port, host_port };
        let ports = [declared(80, 8080), declared(81, 0), declared(82, 0)];
        let annotations = [(80, "31080"), (81, "31081"), (99, "31099")]
            .map(|(port, number)| (annotation_key("TCP", port), number.to_owned()))
            .into();
        let mapped = |host_network, port| mapped_host_port(ports.into_iter(), &annotations, host_network, "TCP", port);
        for (port, expected) in [(80, Some(8080)), (81, Some(31_081)), (82, None), (99, None)] {
            assert_eq!(mapped(false, port), expected, "{port}");
        }
        assert_eq!((mapped(true, 80), mapped(true, 81), mapped(true, 99)), (Some(8080), Some(31_081), Some(99)));
        assert_eq!(mapped_host_port(ports.into_iter(), &annotations, false, "UDP", 80), None);
    }
}
