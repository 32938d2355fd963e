//! Frontends of Services and the backends behind them: the types that both data paths share, and the choice of
//! backends. Pure.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddrV4},
    sync::Arc,
    time::Duration,
};

use crate::{
    catalogue::{CatalogueState, Endpoint, Key, Service, ServiceKind, ServicePort, TopologyHints},
    journal::Protocol,
};

/// An address, protocol and port at which a Service is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frontend {
    /// `None` is every address of this machine: a node port.
    pub address: Option<Ipv4Addr>,
    pub protocol: Protocol,
    pub port: u16,
}

/// The backends of a frontend, and how connections reach them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendPool {
    /// Sorted, each once.
    pub backends: Vec<SocketAddrV4>,
    /// Endpoints that are terminating and still serve. They become the backends when connections were held for a while
    /// and nothing is ready.
    pub terminating: Vec<SocketAddrV4>,
    /// Session affinity: a client keeps its backend for so long after its last connection.
    pub affinity: Option<Duration>,
    /// Connections are masqueraded, so that replies come back through this machine.
    pub masquerade: bool,
    /// Connections go through the user-space proxy even while there are backends. TCP only.
    pub through_user_space: bool,
    pub without_backends: WithoutBackends,
    /// The pool of clients inside the cluster (processes of this machine, and pods) if they have their own. Only for
    /// frontends with an address, and not nested further.
    pub internal: Option<Box<BackendPool>>,
}

/// What happens to a new connection while there is no backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithoutBackends {
    /// The user-space proxy holds it for so long, and resets it if there is still no backend. TCP only.
    Hold(Duration),
    /// The client receives an RST or ICMP port unreachable at once.
    Reject,
    /// The client receives nothing: other machines may well have backends.
    Drop,
}

impl BackendPool {
    /// How long connections are held before terminating endpoints get them: half of the time they are held at all, so
    /// that a backend that starts soon comes first and nobody is reset before. `None` if there is nothing to wait for.
    pub fn fallback_delay(&self) -> Option<Duration> {
        let own = match self.without_backends {
            WithoutBackends::Hold(hold) if self.backends.is_empty() && !self.terminating.is_empty() => Some(hold / 2),
            _ => None,
        };
        own.or_else(|| self.internal.as_ref()?.fallback_delay())
    }

    /// Makes terminating endpoints the backends where there are no others.
    pub fn fall_back(&mut self) {
        if self.backends.is_empty() {
            self.backends.clone_from(&self.terminating);
        }
        if let Some(internal) = &mut self.internal {
            internal.fall_back();
        }
    }

    /// Whether new connections go to the user-space proxy.
    pub fn is_in_user_space(&self) -> bool {
        match self.without_backends {
            _ if self.through_user_space => true,
            WithoutBackends::Hold(_) => self.backends.is_empty(),
            WithoutBackends::Reject | WithoutBackends::Drop => false,
        }
    }
}

/// The Node for which backends are chosen.
#[derive(Clone, Copy, Debug)]
pub struct LocalNode<'a> {
    pub name: &'a str,
    pub zone: Option<&'a str>,
}

/// All frontends of a Service on this node; none if it has no cluster IP, another proxy serves it, or it does not exist.
pub fn service_frontends(catalogue: &CatalogueState, key: &Key, node: LocalNode<'_>) -> Vec<(Frontend, BackendPool)> {
    let Some(service) = catalogue.service(key) else { return Vec::new() };
    let ServiceKind::ClusterIp(address) = service.kind else { return Vec::new() };
    if service.has_other_proxy {
        return Vec::new();
    }
    let mut frontends = Vec::new();
    for port in &service.ports {
        let choose = |local: bool| {
            let scope = if local { BackendScope::Node(node.name) } else { BackendScope::Cluster(node) };
            choose_backends(catalogue, key, service, port, scope)
        };
        let internal = backend_pool(service, port, choose(service.internal_local), service.internal_local, false);
        let cluster = || backend_pool(service, port, choose(false), false, false);
        frontends.push((frontend(Some(address), port), internal));
        if port.node_port.is_none() && service.external_ips.is_empty() {
            continue;
        }
        let external = backend_pool(service, port, choose(service.external_local), service.external_local, true);
        for address in &service.external_ips {
            let pool = match service.external_local {
                true => split_by_client(external.clone(), cluster()),
                false => external.clone(),
            };
            frontends.push((frontend(Some(*address), port), pool));
        }
        if let Some(number) = port.node_port {
            frontends.push((Frontend { address: None, protocol: port.protocol, port: number }, external));
        }
    }
    frontends
}

/// `externalTrafficPolicy: Local` at an external address: clients outside get backends of this node, which see the
/// client's address, and that only the kernel data path can do. Clients inside the cluster get all backends.
fn split_by_client(external: BackendPool, internal: BackendPool) -> BackendPool {
    BackendPool { through_user_space: false, internal: Some(Box::new(internal)), ..external }
}

fn frontend(address: Option<Ipv4Addr>, port: &ServicePort) -> Frontend {
    Frontend { address, protocol: port.protocol, port: port.port }
}

fn can_hold(service: &Service, port: &ServicePort) -> bool {
    port.protocol == Protocol::Tcp && !service.hold.is_zero()
}

fn backend_pool(
    service: &Service,
    port: &ServicePort,
    Candidates { backends, terminating }: Candidates,
    local: bool,
    from_outside: bool,
) -> BackendPool {
    BackendPool {
        backends: backends.into_iter().collect(),
        terminating: terminating.into_iter().collect(),
        affinity: service.affinity,
        // Backends of this node only: replies come back through it anyway, and they see the client's address.
        masquerade: from_outside && !local,
        through_user_space: service.through_user_space && port.protocol == Protocol::Tcp,
        without_backends: match (local, can_hold(service, port)) {
            (true, _) => WithoutBackends::Drop,
            (false, true) => WithoutBackends::Hold(service.hold),
            (false, false) => WithoutBackends::Reject,
        },
        internal: None,
    }
}

/// Which endpoints may be backends.
#[derive(Clone, Copy)]
enum BackendScope<'a> {
    /// Those on this node (traffic policy `Local`).
    Node(&'a str),
    /// Those of the whole cluster, or those that topology hints say are for this node or its zone.
    Cluster(LocalNode<'a>),
}

/// The endpoints that a frontend may use.
#[derive(Default)]
struct Candidates {
    backends: BTreeSet<SocketAddrV4>,
    /// Used when connections were held for a while.
    terminating: BTreeSet<SocketAddrV4>,
}

/// The ready endpoints. If none is ready, those that are terminating but still serve: at once, or, where connections
/// are held, after a while.
fn choose_backends(
    catalogue: &CatalogueState,
    key: &Key,
    service: &Service,
    port: &ServicePort,
    scope: BackendScope<'_>,
) -> Candidates {
    let slices = catalogue.slices_of(key).filter_map(|slice| {
        let mut ports = slice.ports.iter();
        let target = ports.find(|other| other.name == port.name && other.protocol == port.protocol)?;
        Some((target.port, &slice.endpoints))
    });
    let all = slices.flat_map(|(port, endpoints)| endpoints.iter().map(move |endpoint| (port, endpoint)));
    let in_scope = |endpoint: &Endpoint| match scope {
        BackendScope::Node(name) => endpoint.node.as_deref() == Some(name),
        BackendScope::Cluster(_) => true,
    };
    let (ready, others): (Vec<_>, Vec<_>) = all.filter(|(_, e)| in_scope(e)).partition(|(_, endpoint)| endpoint.ready);
    let holds = can_hold(service, port) && matches!(scope, BackendScope::Cluster(_));
    let addresses = |chosen: Vec<(u16, &Endpoint)>| {
        chosen.into_iter().map(|(port, endpoint)| SocketAddrV4::new(endpoint.address, port)).collect()
    };
    if ready.is_empty() {
        let terminating = addresses(others.into_iter().filter(|(_, e)| e.serving && e.terminating).collect());
        return match holds {
            true => Candidates { terminating, ..Candidates::default() },
            false => Candidates { backends: terminating, ..Candidates::default() },
        };
    }
    let chosen = match scope {
        BackendScope::Cluster(node) => apply_hints(ready, node),
        BackendScope::Node(_) => ready,
    };
    Candidates { backends: addresses(chosen), ..Candidates::default() }
}

/// Topology hints, as kube-proxy applies them: the endpoints for this node, if there are any and all endpoints have hints
/// for nodes; else those for its zone, likewise; else all.
fn apply_hints<'a>(ready: Vec<(u16, &'a Endpoint)>, node: LocalNode<'_>) -> Vec<(u16, &'a Endpoint)> {
    let levels: [(HintedNames, Option<&str>); 2] =
        [(|hints| &hints.nodes, Some(node.name)), (|hints| &hints.zones, node.zone)];
    for (names, own) in levels {
        let hints = |endpoint: &'a Endpoint| endpoint.hints.as_deref().map(names).unwrap_or_default();
        let is_meant = |endpoint: &'a Endpoint| hints(endpoint).iter().any(|name| Some(&**name) == own);
        let all_have_hints = ready.iter().all(|(_, endpoint)| !hints(endpoint).is_empty());
        if all_have_hints && ready.iter().any(|(_, endpoint)| is_meant(endpoint)) {
            return ready.into_iter().filter(|(_, endpoint)| is_meant(endpoint)).collect();
        }
    }
    ready
}

/// What an endpoint's hints name: zones or nodes.
type HintedNames = fn(&TopologyHints) -> &[Arc<str>];

#[cfg(test)]
mod tests;
