//! The next step of a load balancer, from the Service, the nodes and what Octavia has. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Service};
use mainstay_controllers::runtime::Plan;

use crate::context::Pace;

/// Upstream's: a Service with it stays until its load balancer is gone.
pub const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
/// Upstream's of OpenStack: the address is of the cluster's own network, and there is no floating IP.
const INTERNAL: &str = "service.beta.kubernetes.io/openstack-internal-load-balancer";
/// Upstream's: nodes with it are no members.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceView {
    pub version: String,
    pub uid: String,
    /// It is to have a load balancer of ours.
    pub is_wanted: bool,
    pub is_deleting: bool,
    pub finalizers: Vec<String>,
    pub ports: Vec<PortView>,
    pub source_ranges: Option<BTreeSet<String>>,
    pub is_internal: bool,
    /// The addresses that its status shows.
    pub ingress: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortView {
    pub protocol: String,
    pub port: i64,
    pub node_port: i64,
}

impl From<&Service> for ServiceView {
    fn from(service: &Service) -> Self {
        let (meta, spec) = (&service.metadata, service.spec.clone().unwrap_or_default());
        let is_balancer = spec.type_.as_deref() == Some("LoadBalancer") && spec.load_balancer_class.is_none();
        let is_deleting = meta.deletion_timestamp.is_some();
        let ports = spec.ports.unwrap_or_default().into_iter().filter_map(|port| {
            let node_port = i64::from(port.node_port?);
            let protocol = port.protocol.unwrap_or_else(|| "TCP".to_owned());
            Some(PortView { protocol, port: port.port.into(), node_port })
        });
        let ranges = spec.load_balancer_source_ranges.filter(|ranges| !ranges.is_empty());
        let annotation = meta.annotations.as_ref().and_then(|all| all.get(INTERNAL));
        let ingress = service.status.as_ref().and_then(|status| status.load_balancer.as_ref()?.ingress.as_ref());
        Self {
            version: meta.resource_version.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            is_wanted: is_balancer && !is_deleting,
            is_deleting,
            finalizers: meta.finalizers.clone().unwrap_or_default(),
            ports: ports.collect(),
            source_ranges: ranges.map(|ranges| ranges.into_iter().collect()),
            is_internal: annotation.is_some_and(|value| value == "true"),
            ingress: ingress.into_iter().flatten().filter_map(|one| one.ip.clone()).collect(),
        }
    }
}

/// The nodes that are members: name and internal address.
pub fn member_nodes<'a>(nodes: impl Iterator<Item = &'a Node>) -> BTreeMap<String, String> {
    nodes.filter_map(member_node).collect()
}

fn member_node(node: &Node) -> Option<(String, String)> {
    let (meta, status) = (&node.metadata, node.status.as_ref()?);
    let is_excluded = meta.labels.as_ref().is_some_and(|labels| labels.contains_key(EXCLUDED));
    let mut conditions = status.conditions.iter().flatten();
    let is_ready = conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let address = internal_address(node)?;
    let is_member = is_ready && !is_excluded && meta.deletion_timestamp.is_none();
    is_member.then(|| (meta.name.clone().unwrap_or_default(), address.to_owned()))
}

/// Its address in the cluster's network, whether it is ready or not.
pub fn internal_address(node: &Node) -> Option<&str> {
    let mut addresses = node.status.as_ref()?.addresses.iter().flatten();
    addresses.find(|address| address.type_ == "InternalIP").map(|address| address.address.as_str())
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct BalancerView {
    pub provisioning_status: String,
    pub vip_address: String,
    pub vip_port: Option<String>,
    pub listeners: Vec<ListenerView>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListenerView {
    pub id: String,
    pub protocol: String,
    pub port: i64,
    pub allowed: BTreeSet<String>,
    pub pool: Option<PoolView>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolView {
    pub id: String,
    pub has_monitor: bool,
    /// Address and port.
    pub members: BTreeSet<(String, i64)>,
}

/// What the ledger and the cloud say of one resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Observed<T> {
    /// No entry.
    #[default]
    Absent,
    /// An entry without an id: created perhaps.
    Intended,
    /// An entry with an id that the cloud does not show.
    Lost,
    Present(T),
}

impl<T> Observed<T> {
    fn has_entry(&self) -> bool {
        !matches!(self, Self::Absent)
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct AddressView {
    pub id: String,
    pub address: String,
    pub port: Option<String>,
}

#[derive(Clone, Debug, Default)]
pub struct World {
    /// None if there is no such Service any more.
    pub service: Option<ServiceView>,
    pub nodes: BTreeMap<String, String>,
    pub balancer: Observed<BalancerView>,
    pub address: Observed<AddressView>,
    /// The network of floating IPs, where there is one.
    pub floating_network: Option<String>,
    /// Entries of an earlier Service of this name.
    pub stale_entries: Vec<String>,
    pub pace: Pace,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    SetFinalizers {
        version: String,
        finalizers: Vec<String>,
    },
    EnsureBalancer,
    /// Also of one in ERROR, which is created anew afterwards.
    RemoveBalancer,
    EnsureAddress {
        network: String,
        port: String,
    },
    AssociateAddress {
        id: String,
        port: String,
    },
    RemoveAddress,
    /// One that the cloud does not show, which may be an answer from stale data: nothing is deleted.
    ForgetBalancer,
    ForgetAddress,
    RemoveStale {
        entry: String,
    },
    CreateListener {
        protocol: String,
        port: i64,
        allowed: BTreeSet<String>,
    },
    RestrictListener {
        id: String,
        allowed: BTreeSet<String>,
    },
    DeleteListener {
        id: String,
    },
    CreatePool {
        listener: String,
        protocol: String,
        name: String,
    },
    CreateMonitor {
        pool: String,
        protocol: String,
    },
    SetMembers {
        pool: String,
        port: i64,
        nodes: BTreeMap<String, String>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IngressStatus {
    pub version: String,
    pub addresses: Vec<String>,
}

pub fn plan(world: &World, now: Timestamp) -> Plan<Action, IngressStatus> {
    let mut plan = match &world.service {
        Some(service) if service.is_wanted => plan_wanted(world, service, now),
        service => plan_removal(world, service.as_ref(), now),
    };
    for entry in &world.stale_entries {
        plan.actions.push(Action::RemoveStale { entry: entry.clone() });
        plan.requeue_at = Some(now + world.pace.poll);
    }
    plan
}

fn plan_removal(world: &World, service: Option<&ServiceView>, now: Timestamp) -> Plan<Action, IngressStatus> {
    let mut actions = Vec::new();
    if world.address.has_entry() {
        actions.push(Action::RemoveAddress);
    }
    if world.balancer.has_entry() {
        actions.push(Action::RemoveBalancer);
    }
    if !actions.is_empty() {
        return Plan { actions, requeue_at: Some(now + world.pace.poll), status: None };
    }
    let Some(service) = service else { return Plan::default() };
    let finalizers = without_finalizer(service);
    let status = (!service.is_deleting && !service.ingress.is_empty() && finalizers.is_some())
        .then(|| IngressStatus { version: service.version.clone(), addresses: Vec::new() });
    if status.is_some() {
        // The status first: the finalizer says that there is something of ours to be undone.
        return Plan { status, requeue_at: Some(now + world.pace.poll), actions: Vec::new() };
    }
    let version = service.version.clone();
    Plan::act(finalizers.map(|finalizers| Action::SetFinalizers { version, finalizers }))
}

fn without_finalizer(service: &ServiceView) -> Option<Vec<String>> {
    let has = service.finalizers.iter().any(|own| own == FINALIZER);
    has.then(|| service.finalizers.iter().filter(|own| *own != FINALIZER).cloned().collect())
}

fn plan_wanted(world: &World, service: &ServiceView, now: Timestamp) -> Plan<Action, IngressStatus> {
    let step = |action: Action| Plan { requeue_at: Some(now + world.pace.poll), ..Plan::act([action]) };
    let wait = || Plan { requeue_at: Some(now + world.pace.poll), ..Plan::default() };
    if !service.finalizers.iter().any(|own| own == FINALIZER) {
        let finalizers = service.finalizers.iter().cloned().chain([FINALIZER.to_owned()]).collect();
        return step(Action::SetFinalizers { version: service.version.clone(), finalizers });
    }
    let balancer = match &world.balancer {
        Observed::Absent | Observed::Intended => return step(Action::EnsureBalancer),
        Observed::Lost => return step(Action::ForgetBalancer),
        Observed::Present(balancer) => balancer,
    };
    match balancer.provisioning_status.as_str() {
        "ACTIVE" => {}
        "ERROR" => return step(Action::RemoveBalancer),
        _ => return wait(),
    }
    if let Some(action) = next_change(service, &world.nodes, balancer) {
        return step(action);
    }
    let network = world.floating_network.as_ref().filter(|_| !service.is_internal);
    let address = match (network, &balancer.vip_port, &world.address) {
        (Some(network), Some(port), Observed::Absent | Observed::Intended) => {
            return step(Action::EnsureAddress { network: network.clone(), port: port.clone() });
        }
        (_, _, Observed::Lost) => return step(Action::ForgetAddress),
        (Some(_), Some(port), Observed::Present(address)) => {
            if address.port.as_ref() != Some(port) {
                return step(Action::AssociateAddress { id: address.id.clone(), port: port.clone() });
            }
            address.address.clone()
        }
        (None, _, Observed::Present(_) | Observed::Intended) => return step(Action::RemoveAddress),
        _ => balancer.vip_address.clone(),
    };
    let addresses = vec![address];
    let status = (service.ingress != addresses).then(|| IngressStatus { version: service.version.clone(), addresses });
    Plan { status, requeue_at: Some(now + world.pace.resync), actions: Vec::new() }
}

/// The first thing in which a load balancer differs from its Service.
fn next_change(service: &ServiceView, nodes: &BTreeMap<String, String>, balancer: &BalancerView) -> Option<Action> {
    let wants =
        |listener: &ListenerView, port: &PortView| listener.port == port.port && listener.protocol == port.protocol;
    // Surplus first: a port may have changed its protocol.
    let surplus = balancer.listeners.iter().find(|own| !service.ports.iter().any(|port| wants(own, port)));
    if let Some(listener) = surplus {
        return Some(Action::DeleteListener { id: listener.id.clone() });
    }
    let allowed = service.source_ranges.clone().unwrap_or_default();
    for port in &service.ports {
        let protocol = port.protocol.clone();
        let Some(listener) = balancer.listeners.iter().find(|own| wants(own, port)) else {
            return Some(Action::CreateListener { protocol, port: port.port, allowed });
        };
        if listener.allowed != allowed {
            return Some(Action::RestrictListener { id: listener.id.clone(), allowed });
        }
        let Some(pool) = &listener.pool else {
            let name = format!("{}-{}", protocol.to_lowercase(), port.port);
            return Some(Action::CreatePool { listener: listener.id.clone(), protocol, name });
        };
        let members: BTreeSet<_> = nodes.values().map(|address| (address.clone(), port.node_port)).collect();
        if pool.members != members {
            let (pool, nodes) = (pool.id.clone(), nodes.clone());
            return Some(Action::SetMembers { pool, port: port.node_port, nodes });
        }
        if !pool.has_monitor {
            return Some(Action::CreateMonitor { pool: pool.id.clone(), protocol });
        }
    }
    None
}

#[cfg(test)]
mod tests;
