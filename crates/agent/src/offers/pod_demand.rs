//! What a pod takes of a node: resources and host ports, by the rules that the scheduler follows too.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use mainstay_api::{
    pod,
    ports::{self, HostPort},
    resources::{self, ResourceList},
    roles::{PodRoles, RoleShares},
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodDemand {
    pub requests: ResourceList,
    pub host_ports: Vec<DemandedPort>,
    /// The roles whose pools it may use.
    pub roles: PodRoles,
    /// What it was given of each when it was bound.
    pub recorded_shares: RoleShares,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DemandedPort {
    pub host_port: HostPort,
    /// Assigned by the scheduler rather than asked for by number.
    pub assigned: bool,
}

impl PodDemand {
    pub fn from_pod(pod: &Pod) -> Self {
        let Some(spec) = &pod.spec else { return Self::default() };
        let assigned = ports::assigned_host_ports(pod);
        // On a node whose pods share its network, an assigned port replaces the one that the container names.
        let is_replaced =
            |port: &HostPort| assigned.iter().any(|a| (&a.protocol, a.container_port) == (&port.protocol, port.port));
        let requested = ports::host_ports(spec).into_iter().filter(|port| !is_replaced(port));
        let requested = requested.map(|host_port| DemandedPort { host_port, assigned: false });
        let assigned = assigned
            .iter()
            .map(|a| DemandedPort { host_port: HostPort::new(a.host_port, &a.protocol, ""), assigned: true });
        let annotations = pod.metadata.annotations.as_ref();
        Self {
            requests: pod::requests(spec),
            host_ports: requested.chain(assigned).collect(),
            roles: PodRoles::from_annotations(annotations),
            recorded_shares: RoleShares::from_annotations(annotations),
        }
    }

    /// What all of these take together.
    pub fn sum_requests<'a>(demands: impl IntoIterator<Item = &'a Self>) -> ResourceList {
        let mut sum = ResourceList::new();
        demands.into_iter().for_each(|demand| resources::add(&mut sum, &demand.requests));
        sum
    }

    /// The ports that are taken, whatever the protocol.
    pub fn taken_ports<'a>(demands: impl IntoIterator<Item = &'a Self>) -> BTreeSet<u16> {
        demands.into_iter().flat_map(|demand| demand.host_ports.iter().map(|port| port.host_port.port)).collect()
    }
}
