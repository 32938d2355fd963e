//! The port at which a pod is reached for a port of a Service.

use std::collections::BTreeMap;

use k8s_openapi::api::{core::v1 as core, core::v1::ServicePort, discovery::v1 as discovery};
use mainstay_api::{
    pod::lasting,
    ports::{DeclaredPort, is_host_port_annotation, mapped_host_port, protocol_or_default, resolve_target_port},
};

use crate::objects::pod::{self, Pod};

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
            protocol: protocol_or_default(service.protocol.as_deref()).to_owned(),
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
            protocol: protocol_or_default(port.protocol.as_deref()).to_owned(),
            port: port.port.unwrap_or_default(),
            app_protocol: port.app_protocol.clone(),
        }
    }
}

impl From<&core::EndpointPort> for Port {
    fn from(port: &core::EndpointPort) -> Self {
        Self {
            name: port.name.clone().unwrap_or_default(),
            protocol: protocol_or_default(port.protocol.as_deref()).to_owned(),
            port: port.port,
            app_protocol: port.app_protocol.clone(),
        }
    }
}

/// The pod's own port that a Service's port leads to.
pub fn target(pod: &Pod, port: &ServicePort) -> Option<i32> {
    resolve_target_port(port, declared_ports(pod))
}

/// The node's port that leads to what a Service's port means in the pod, and that port of the pod.
pub fn host_port(pod: &Pod, port: &ServicePort) -> Option<(i32, i32)> {
    let none = BTreeMap::new();
    let annotations = pod.metadata.annotations.as_ref().unwrap_or(&none);
    let (protocol, target) = (protocol_or_default(port.protocol.as_deref()), target(pod, port)?);
    let number = mapped_host_port(declared_ports(pod), annotations, pod.spec.host_network, protocol, target)?;
    Some((i32::from(number), target))
}

/// The annotations that assign host ports to the pod's ports.
pub fn host_port_annotations(pod: &Pod) -> impl Iterator<Item = (String, String)> {
    let all = pod.metadata.annotations.iter().flatten().filter(|(key, _)| is_host_port_annotation(key));
    all.map(|(key, value)| (key.clone(), value.clone()))
}

fn declared_ports(pod: &Pod) -> impl Iterator<Item = DeclaredPort<'_>> {
    let is_sidecar = |container: &pod::Container| container.restart_policy == "Always";
    let containers = lasting(&pod.spec.containers, &pod.spec.init_containers, is_sidecar);
    containers.flat_map(|container| &container.ports).map(|port| DeclaredPort {
        name: &port.name,
        protocol: &port.protocol,
        container_port: port.container_port,
        host_port: port.host_port,
    })
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
    fn names_of_ports_are_those_of_containers_that_last() {
        for (wanted, protocol, found) in [
            (json!("web"), "TCP", Some(80)),
            (json!("dns"), "UDP", Some(53)),
            (json!("side"), "TCP", Some(90)),
            (json!("init"), "TCP", None),
            (json!(12_345), "TCP", Some(12_345)),
        ] {
            assert_eq!(target(&pod(), &port(wanted.clone(), protocol)), found, "{wanted} {protocol}");
        }
    }

    #[test]
    fn a_service_reaches_a_pod_at_the_host_port_that_the_node_opens_for_it() {
        for (wanted, protocol, found) in [
            (json!("dns"), "UDP", Some((31_053, 53))),
            (json!(53), "TCP", None),
            (json!("web"), "TCP", Some((8080, 80))),
            (json!(81), "TCP", None),
            (json!(99), "TCP", None),
        ] {
            assert_eq!(host_port(&pod(), &port(wanted.clone(), protocol)), found, "{wanted} {protocol}");
        }
    }

    #[test]
    fn an_annotation_does_not_replace_a_host_port_that_the_pod_asks_for() {
        let mut pod = pod();
        let annotations = pod.metadata.annotations.as_mut().unwrap();
        annotations.insert("k8s.mesosphere.io/port_TCP_80".to_owned(), "31080".to_owned());
        annotations.insert("k8s.mesosphere.io/port_TCP_99".to_owned(), "31099".to_owned());
        let reached = [json!("web"), json!(99)].map(|wanted| host_port(&pod, &port(wanted, "TCP")));
        assert_eq!(reached, [Some((8080, 80)), None], "the node opens 8080, and nothing for a port nobody declares");
    }
}
