//! Ports of the machine that were chosen for a pod that asked for any.
//!
//! Who places the pod writes them as annotations; here they become mappings, like ports that a pod asks for by number, and
//! variables in its containers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerPort, Pod};

use crate::spec::container::is_sidecar;

/// `k8s.mesosphere.io/port_TCP_80: "31000"`.
const BY_NUMBER: &str = "k8s.mesosphere.io/port_";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    pub protocol: String,
    pub container_port: u16,
    /// The port's own name, or nothing.
    pub name: String,
    pub host_port: u16,
}

/// In the order of the pod's containers and their ports. What annotations say of ports that the pod does not have, or
/// asks for by number, does not count.
pub fn chosen(pod: &Pod) -> Vec<Chosen> {
    let Some(annotations) = pod.metadata.annotations.as_ref() else { return Vec::new() };
    if !annotations.keys().any(|key| key.starts_with(BY_NUMBER)) {
        return Vec::new();
    }
    let open = ports(pod).filter(|port| port.host_port.unwrap_or(0) == 0);
    let found = open.filter_map(|port| {
        let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
        let said = annotations.get(&format!("{BY_NUMBER}{protocol}_{}", port.container_port))?;
        Some(Chosen {
            container_port: u16::try_from(port.container_port).ok()?,
            name: port.name.clone().unwrap_or_default(),
            host_port: said.parse().ok().filter(|port| *port > 0)?,
            protocol,
        })
    });
    let mut chosen: Vec<Chosen> = Vec::new();
    for port in found {
        let same = |other: &Chosen| (&other.protocol, other.container_port) == (&port.protocol, port.container_port);
        if !chosen.iter().any(same) {
            chosen.push(port);
        }
    }
    chosen
}

fn ports(pod: &Pod) -> impl Iterator<Item = &ContainerPort> {
    let spec = pod.spec.as_ref();
    let sidecars = spec.into_iter().flat_map(|spec| spec.init_containers.iter().flatten().filter(|c| is_sidecar(c)));
    let main = spec.into_iter().flat_map(|spec| &spec.containers);
    main.chain(sidecars).flat_map(|container| container.ports.iter().flatten())
}

/// `HOST_PORT_TCP_80`, and `HOST_PORT_WEB` for a port with a name.
pub fn variables(pod: &Pod) -> BTreeMap<String, String> {
    let mut variables = BTreeMap::new();
    for port in chosen(pod) {
        let number = port.host_port.to_string();
        if !port.name.is_empty() {
            variables.insert(format!("HOST_PORT_{}", port.name.to_uppercase().replace('-', "_")), number.clone());
        }
        variables.insert(format!("HOST_PORT_{}_{}", port.protocol, port.container_port), number);
    }
    variables
}
