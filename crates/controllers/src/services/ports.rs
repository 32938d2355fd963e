//! The port at which a pod is reached for a port of a Service.

use k8s_openapi::{
    api::{core::v1 as core, core::v1::ServicePort, discovery::v1 as discovery},
    apimachinery::pkg::util::intstr::IntOrString,
};

use crate::objects::pod::{self, Pod};

/// On a pod: the host port that leads to a container's port, where the node chose it.
const HOST_PORT: &str = mainstay_api::wellknown::mainstay::ASSIGNED_HOST_PORT;

/// A port of an endpoint. In this order they stand in slices.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port {
    pub name: String,
    pub protocol: String,
    pub port: i32,
    pub app_protocol: Option<String>,
}

impl Port {
    pub fn new(service: &ServicePort, port: i32) -> Self {
        Self {
            name: service.name.clone().unwrap_or_default(),
            protocol: protocol(service).to_owned(),
            port,
            app_protocol: service.app_protocol.clone(),
        }
    }

    pub fn in_slice(&self) -> discovery::EndpointPort {
        discovery::EndpointPort {
            name: Some(self.name.clone()),
            protocol: Some(self.protocol.clone()),
            port: Some(self.port),
            app_protocol: self.app_protocol.clone(),
        }
    }

    pub fn in_subset(&self) -> core::EndpointPort {
        core::EndpointPort {
            name: Some(self.name.clone()).filter(|name| !name.is_empty()),
            protocol: Some(self.protocol.clone()),
            port: self.port,
            app_protocol: self.app_protocol.clone(),
        }
    }
}

impl From<&discovery::EndpointPort> for Port {
    fn from(port: &discovery::EndpointPort) -> Self {
        Self {
            name: port.name.clone().unwrap_or_default(),
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
            port: port.port.unwrap_or_default(),
            app_protocol: port.app_protocol.clone(),
        }
    }
}

impl From<&core::EndpointPort> for Port {
    fn from(port: &core::EndpointPort) -> Self {
        Self {
            name: port.name.clone().unwrap_or_default(),
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
            port: port.port,
            app_protocol: port.app_protocol.clone(),
        }
    }
}

pub fn protocol(port: &ServicePort) -> &str {
    port.protocol.as_deref().unwrap_or("TCP")
}

/// The pod's own port that a Service's port leads to. A number is taken as it is, declared or not; a name has to
/// be that of a port of a container that runs beside the others.
pub fn target(pod: &Pod, port: &ServicePort) -> Option<i32> {
    match &port.target_port {
        None => Some(port.port),
        Some(IntOrString::Int(number)) => Some(*number),
        Some(IntOrString::String(name)) => {
            let mut all = declared(pod);
            all.find(|own| own.name == *name && protocol_of(own) == protocol(port)).map(|own| own.container_port)
        }
    }
}

/// The node's port that leads to a pod's own: the one the node chose, the one the pod asked for, or, on the
/// node's network, the same.
pub fn host_port(pod: &Pod, protocol: &str, port: i32) -> Option<i32> {
    let annotations = pod.metadata.annotations.as_ref();
    let chosen = annotations.and_then(|all| all.get(&format!("{HOST_PORT}{protocol}_{port}")));
    let chosen = chosen.and_then(|number| number.parse().ok()).filter(|number| (1..=65_535).contains(number));
    let mut same = declared(pod).filter(|own| own.container_port == port && protocol_of(own) == protocol);
    let asked = || same.find_map(|own| Some(own.host_port).filter(|number| *number > 0));
    chosen.or_else(asked).or_else(|| pod.spec.host_network.then_some(port))
}

/// What nodes said of the pod's host ports.
pub fn annotated(pod: &Pod) -> impl Iterator<Item = (String, String)> {
    let all = pod.metadata.annotations.iter().flatten().filter(|(key, _)| key.starts_with(HOST_PORT));
    all.map(|(key, value)| (key.clone(), value.clone()))
}

fn declared(pod: &Pod) -> impl Iterator<Item = &pod::Port> {
    let beside = pod.spec.init_containers.iter().filter(|container| container.restart_policy == "Always");
    pod.spec.containers.iter().chain(beside).flat_map(|container| &container.ports)
}

fn protocol_of(port: &pod::Port) -> &str {
    if port.protocol.is_empty() { "TCP" } else { &port.protocol }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"annotations": {"k8s.mesosphere.io/port_UDP_53": "31053", "k8s.mesosphere.io/port_TCP_81": "x"}},
            "spec": {
                "containers": [
                    {"ports": [{"name": "web", "containerPort": 80, "hostPort": 8080}, {"containerPort": 81}]},
                    {"ports": [{"name": "dns", "containerPort": 53, "protocol": "UDP"}]},
                ],
                "initContainers": [
                    {"restartPolicy": "Always", "ports": [{"name": "side", "containerPort": 90}]},
                    {"ports": [{"name": "init", "containerPort": 91}]},
                ],
            },
        }))
        .unwrap()
    }

    fn port(target: serde_json::Value, protocol: &str) -> ServicePort {
        serde_json::from_value(json!({"port": 7, "targetPort": target, "protocol": protocol})).unwrap()
    }

    #[test]
    fn names_are_looked_up_and_numbers_are_not() {
        for (wanted, protocol, found) in [
            (json!("web"), "TCP", Some(80)),
            (json!("web"), "UDP", None),
            (json!("dns"), "UDP", Some(53)),
            (json!("side"), "TCP", Some(90)),
            (json!("init"), "TCP", None),
            (json!(12_345), "TCP", Some(12_345)),
            (json!(null), "TCP", Some(7)),
        ] {
            assert_eq!(target(&pod(), &port(wanted.clone(), protocol)), found, "{wanted} {protocol}");
        }
    }

    #[test]
    fn host_ports_are_the_machines_then_the_pods_then_the_same() {
        for (protocol, number, found) in [
            ("UDP", 53, Some(31_053)),
            ("TCP", 53, None),
            ("TCP", 80, Some(8080)),
            ("TCP", 81, None),
            ("TCP", 99, None),
        ] {
            assert_eq!(host_port(&pod(), protocol, number), found, "{protocol} {number}");
        }
        let mut open = pod();
        open.spec.host_network = true;
        assert_eq!(host_port(&open, "TCP", 99), Some(99));
        assert_eq!(host_port(&open, "TCP", 80), Some(8080));
    }
}
