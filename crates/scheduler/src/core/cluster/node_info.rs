//! One node in the cache: its Node object, its offer, and the pods on it.

use std::sync::Arc;

use super::{PodId, PoolInfo, RoleId, ended_pods::EndedPod};
use crate::core::view::{
    AssignedHostPort, AutomaticPort, HostPort, NodeView, OfferView, PodKey, PodView, SchedulingRules,
};

#[derive(Debug)]
pub struct NodeInfo {
    pub name: Arc<str>,
    /// `None` while only pods or an offer name it.
    pub node: Option<NodeView>,
    pub offer: Option<OfferView>,
    /// By resource: what the offer says, less what was bound here since.
    pub free: Vec<i64>,
    /// The same for each role; empty if nothing is reserved for roles.
    pub pools: Vec<PoolInfo>,
    /// By resource: what the node has for pods in all.
    pub allocatable: Vec<i64>,
    pub pods: Vec<PodId>,
    pub nominated_pods: Vec<NominatedPod>,
    pub ended_pods: Vec<EndedPod>,
    /// Host ports asked for by number, and the pods that have them.
    pub ports: Vec<(HostPort, PodId)>,
    /// Numbers that automatic ports cannot get, sorted.
    pub used_ports: Vec<u16>,
}

/// A pod that others on the node were preempted for.
#[derive(Clone, Debug)]
pub struct NominatedPod {
    pub pod: Arc<PodView>,
    pub requests: Vec<(usize, i64)>,
    pub roles: Vec<RoleId>,
}

impl NominatedPod {
    /// Whether a pod of this priority has to leave it its resources.
    pub fn outranks(&self, priority: i32) -> bool {
        self.pod.spec.priority >= priority
    }
}

impl NodeInfo {
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            node: None,
            offer: None,
            free: vec![],
            pools: vec![],
            allocatable: vec![],
            pods: vec![],
            nominated_pods: vec![],
            ended_pods: vec![],
            ports: vec![],
            used_ports: vec![],
        }
    }

    pub fn is_unreferenced(&self) -> bool {
        self.node.is_none() && self.offer.is_none() && self.pods.is_empty() && self.nominated_pods.is_empty()
    }

    pub fn free(&self, resource: usize) -> i64 {
        self.free.get(resource).copied().unwrap_or(0)
    }

    pub fn allocatable(&self, resource: usize) -> i64 {
        self.allocatable.get(resource).copied().unwrap_or(0)
    }

    /// Kept for nominated pods that outrank a pod of this priority.
    pub fn reserved(&self, resource: usize, priority: i32) -> i64 {
        if self.nominated_pods.is_empty() {
            return 0;
        }
        let outranking = self.nominated_pods.iter().filter(|nominated| nominated.outranks(priority));
        let amounts = outranking.flat_map(|nominated| &nominated.requests).filter(|(id, _)| *id == resource);
        amounts.map(|(_, amount)| amount).sum()
    }

    pub fn subtract(&mut self, requests: &[(usize, i64)]) {
        for (resource, amount) in requests {
            if *resource >= self.free.len() {
                self.free.resize(resource + 1, 0);
            }
            self.free[*resource] = self.free[*resource].saturating_sub(*amount);
        }
    }

    pub fn restore(&mut self, requests: &[(usize, i64)]) {
        for (resource, amount) in requests {
            if let Some(free) = self.free.get_mut(*resource) {
                *free = free.saturating_add(*amount);
            }
        }
    }

    /// The pod, other than those in `removed`, that has a host port in conflict with this one.
    pub fn port_holder(&self, port: &HostPort, removed: &[PodId]) -> Option<PodId> {
        let mut conflicting = self.ports.iter().filter(|(held, by)| held.conflicts_with(port) && !removed.contains(by));
        conflicting.next().map(|(_, by)| *by)
    }

    /// The nominated pod that outranks a pod of this priority and asks for the port.
    pub fn nominated_port_holder(&self, port: &HostPort, priority: i32) -> Option<&PodKey> {
        let mut outranking = self.nominated_pods.iter().filter(|nominated| nominated.outranks(priority));
        let asks = |nominated: &&NominatedPod| nominated.pod.spec.ports.iter().any(|own| own.conflicts_with(port));
        outranking.find(asks).map(|nominated| &nominated.pod.key)
    }

    /// The automatic ports of a pod, if they get numbers on this node.
    pub fn automatic_ports<'a>(&self, rules: &'a SchedulingRules) -> &'a [AutomaticPort] {
        let by_host_port = self.node.as_ref().is_some_and(|node| node.by_host_port);
        if rules.port_mapping.applies(by_host_port) { &rules.automatic_ports } else { &[] }
    }

    /// The first free host port for each automatic port, or how many are free. The pod's explicit ports are not free.
    pub fn assign_automatic_ports(&self, rules: &SchedulingRules) -> Result<Vec<AssignedHostPort>, usize> {
        let (explicit, automatic) = (&rules.ports, self.automatic_ports(rules));
        if automatic.is_empty() {
            return Ok(vec![]);
        }
        let free = self.offered_automatic_ports(&rules.roles).flat_map(|ranges| ranges.iter());
        let is_explicit = |number: u16| explicit.iter().any(|port| port.port == number);
        let free = free.filter(|number| self.used_ports.binary_search(number).is_err() && !is_explicit(*number));
        let assigned: Vec<AssignedHostPort> =
            automatic.iter().zip(free).map(|(port, number)| port.assign(number)).collect();
        if assigned.len() == automatic.len() { Ok(assigned) } else { Err(assigned.len()) }
    }

    pub fn hold_ports(&mut self, pod: PodId, explicit: &[HostPort], assigned: &[AssignedHostPort]) {
        self.ports.extend(explicit.iter().map(|port| (port.clone(), pod)));
        for number in port_numbers(explicit, assigned) {
            let position = self.used_ports.partition_point(|used| *used < number);
            self.used_ports.insert(position, number);
        }
    }

    pub fn release_ports(&mut self, pod: PodId, explicit: &[HostPort], assigned: &[AssignedHostPort]) {
        if !explicit.is_empty() {
            self.ports.retain(|(_, by)| *by != pod);
        }
        for number in port_numbers(explicit, assigned) {
            if let Ok(position) = self.used_ports.binary_search(&number) {
                self.used_ports.remove(position);
            }
        }
    }
}

fn port_numbers(explicit: &[HostPort], assigned: &[AssignedHostPort]) -> impl Iterator<Item = u16> {
    explicit.iter().map(|port| port.port).chain(assigned.iter().map(|port| port.host_port))
}
