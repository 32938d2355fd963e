//! Decodes containers: the resource requests and host ports of a pod, by the rules in [`mainstay_api::pod`] and [`mainstay_api::ports`].

use std::collections::BTreeMap;

use mainstay_api::{
    pod::{complete_requests, lasting},
    ports::{HostPort, protocol_or_default, requested_host_port},
    resources::{InitContainer, ResourceList, peak},
};
use serde::Deserialize;

use super::{or_default, resource_list};
use crate::core::{
    devices::extended::{ContainerRequests, ResourceRequest, may_have_class},
    host_ports::AutomaticPort,
};

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireContainer {
    name: String,
    #[serde(deserialize_with = "or_default")]
    resources: WireResources,
    restart_policy: Option<String>,
    #[serde(deserialize_with = "or_default")]
    ports: Vec<WirePort>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct WireResources {
    #[serde(deserialize_with = "or_default")]
    pub(super) requests: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WirePort {
    container_port: u16,
    host_port: Option<u16>,
    #[serde(rename = "hostIP")]
    host_ip: Option<String>,
    protocol: Option<String>,
    name: Option<String>,
}

impl WireContainer {
    fn is_sidecar(&self) -> bool {
        self.restart_policy.as_deref() == Some("Always")
    }

    fn requests(&self) -> ResourceList {
        resource_list(&self.resources.requests)
    }
}

pub(super) fn pod_requests(
    init_containers: &[WireContainer],
    containers: &[WireContainer],
    pod_level: &WireResources,
    overhead: &BTreeMap<String, String>,
) -> ResourceList {
    let init = init_containers.iter().map(|container| match container.is_sidecar() {
        true => InitContainer::Sidecar(container.requests()),
        false => InitContainer::Ordinary(container.requests()),
    });
    let mut requests = peak(init, containers.iter().map(WireContainer::requests));
    complete_requests(&mut requests, resource_list(&pod_level.requests), &resource_list(overhead));
    requests
}

/// The extended resources that containers request; containers without any are left out.
pub(super) fn extended_requests(
    init_containers: &[WireContainer],
    containers: &[WireContainer],
) -> Vec<ContainerRequests> {
    let early = init_containers.iter().map(|container| (container, !container.is_sidecar()));
    let all = early.chain(containers.iter().map(|container| (container, false)));
    let requests = all.enumerate().map(|(index, (container, ends_early))| {
        let amounts = container.requests();
        let names = container.resources.requests.keys().enumerate().filter(|(_, name)| may_have_class(name));
        let requests = names.map(|(index, name)| ResourceRequest {
            index,
            resource: name.clone(),
            count: amounts.get(name).copied().unwrap_or(0),
        });
        ContainerRequests { name: container.name.clone(), index, ends_early, requests: requests.collect() }
    });
    requests.filter(|container| !container.requests.is_empty()).collect()
}

/// Host ports asked for by number (sorted), and container ports that leave the host port open.
pub(super) fn pod_ports(
    init_containers: &[WireContainer],
    containers: &[WireContainer],
    host_network: bool,
) -> (Vec<HostPort>, Vec<AutomaticPort>) {
    let (mut explicit, mut automatic) = (vec![], vec![]);
    let lasting = lasting(containers, init_containers, WireContainer::is_sidecar);
    for port in lasting.flat_map(|container| &container.ports) {
        let protocol = protocol_or_default(port.protocol.as_deref());
        match requested_host_port(port.host_port.map(i32::from), i32::from(port.container_port), host_network) {
            Some(number) => explicit.push(HostPort::new(number, protocol, port.host_ip.as_deref().unwrap_or(""))),
            None => automatic.push(AutomaticPort {
                container_port: port.container_port,
                protocol: protocol.to_owned(),
                name: port.name.clone().unwrap_or_default(),
            }),
        }
    }
    explicit.sort_unstable();
    (explicit, automatic)
}
