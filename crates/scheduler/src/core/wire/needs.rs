//! What a pod needs of a machine: resources and host ports.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{amounts, or_default};
use crate::core::{
    amounts::{Amounts, PODS, add, raise},
    ports::{HostPort, PortWish},
};

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WireContainer {
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
    /// Started before the others and kept.
    fn is_sidecar(&self) -> bool {
        self.restart_policy.as_deref() == Some("Always")
    }
}

/// All containers together with those that start before and stay, or the largest of those that start before and
/// go, whichever is more; what is said for the whole pod goes first; and the overhead on top.
pub(super) fn requests(
    before: &[WireContainer],
    containers: &[WireContainer],
    whole: &WireResources,
    overhead: &BTreeMap<String, String>,
) -> Amounts {
    let (mut staying, mut most) = (Amounts::new(), Amounts::new());
    for container in before {
        let mut needed = amounts(&container.resources.requests);
        if container.is_sidecar() {
            add(&mut staying, &needed);
            needed = staying.clone();
        } else {
            add(&mut needed, &staying);
        }
        raise(&mut most, &needed);
    }
    let mut running = staying;
    containers.iter().for_each(|container| add(&mut running, &amounts(&container.resources.requests)));
    raise(&mut running, &most);
    running.extend(amounts(&whole.requests));
    add(&mut running, &amounts(overhead));
    running.insert(PODS.to_owned(), 1);
    running.retain(|_, amount| *amount > 0);
    running
}

/// Ports asked for by number, and those that leave it open.
pub(super) fn ports(
    before: &[WireContainer],
    containers: &[WireContainer],
    host_network: bool,
) -> (Vec<HostPort>, Vec<PortWish>) {
    let (mut explicit, mut wishes) = (vec![], vec![]);
    let lasting = before.iter().filter(|container| container.is_sidecar()).chain(containers);
    for port in lasting.flat_map(|container| &container.ports) {
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let number = port.host_port.filter(|number| *number > 0).or(host_network.then_some(port.container_port));
        match number {
            Some(number) => explicit.push(HostPort::new(number, protocol, port.host_ip.as_deref().unwrap_or(""))),
            None => wishes.push(PortWish {
                container_port: port.container_port,
                protocol: protocol.to_owned(),
                name: port.name.clone().unwrap_or_default(),
            }),
        }
    }
    explicit.sort_unstable();
    (explicit, wishes)
}
