//! From a Service and its backends to fronts and targets. Pure.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddrV4},
};

use super::frontend::{Front, Target, WithoutBackends};
use crate::{
    catalogue::{Endpoint, Key, Kind, Known, Service, ServicePort},
    journal::Protocol,
};

/// All fronts of a Service as machine `here` has them; none if it has no address or does not exist.
pub fn fronts(known: &Known, key: &Key, here: &str) -> Vec<(Front, Target)> {
    let Some(service) = known.service(key) else { return Vec::new() };
    let Kind::Address(address) = service.kind else { return Vec::new() };
    let mut fronts = Vec::new();
    for port in &service.ports {
        let chosen = |local: bool| backends(known, key, service, port, local.then_some(here));
        let inside = target(service, port, chosen(service.internal_local), service.internal_local, false);
        let all = || target(service, port, chosen(false), false, false);
        fronts.push((front(Some(address), port), inside));
        if port.node_port.is_none() && service.external_ips.is_empty() {
            continue;
        }
        let outside = target(service, port, chosen(service.external_local), service.external_local, true);
        for address in &service.external_ips {
            let target = if service.external_local { apart(outside.clone(), all()) } else { outside.clone() };
            fronts.push((front(Some(*address), port), target));
        }
        if let Some(number) = port.node_port {
            fronts.push((Front { address: None, protocol: port.protocol, port: number }, outside));
        }
    }
    fronts
}

/// Those outside have backends of this machine, which are to see who asks: that only the kernel can do.
/// Those inside have all.
fn apart(outside: Target, inside: Target) -> Target {
    Target { through_user_space: false, inside: Some(Box::new(inside)), ..outside }
}

fn front(address: Option<Ipv4Addr>, port: &ServicePort) -> Front {
    Front { address, protocol: port.protocol, port: port.port }
}

fn target(
    service: &Service,
    port: &ServicePort,
    backends: BTreeSet<SocketAddrV4>,
    local: bool,
    from_outside: bool,
) -> Target {
    let may_wait = port.protocol == Protocol::Tcp && !service.hold.is_zero();
    Target {
        backends: backends.into_iter().collect(),
        affinity: service.affinity,
        // With backends of this machine only, they see who asks.
        masquerade: from_outside && !local,
        through_user_space: service.through_user_space && port.protocol == Protocol::Tcp,
        without_backends: match (local, may_wait) {
            (true, _) => WithoutBackends::Drop,
            (false, true) => WithoutBackends::Hold(service.hold),
            (false, false) => WithoutBackends::Refuse,
        },
        inside: None,
    }
}

/// Those that are ready. If none is, and nobody would wait for one, those that still answer although they are ending.
fn backends(
    known: &Known,
    key: &Key,
    service: &Service,
    port: &ServicePort,
    only_on: Option<&str>,
) -> BTreeSet<SocketAddrV4> {
    let all = |counts: fn(&Endpoint) -> bool| -> BTreeSet<SocketAddrV4> {
        let slices = known.slices_of(key).filter_map(|slice| {
            let mut ports = slice.ports.iter();
            let ours = ports.find(|other| other.name == port.name && other.protocol == port.protocol)?;
            Some((ours.port, &slice.endpoints))
        });
        let with_port = slices.flat_map(|(port, endpoints)| endpoints.iter().map(move |endpoint| (port, endpoint)));
        let wanted = with_port.filter(|(_, endpoint)| {
            counts(endpoint) && only_on.is_none_or(|node| endpoint.node.as_deref() == Some(node))
        });
        wanted.map(|(port, endpoint)| SocketAddrV4::new(endpoint.address, port)).collect()
    };
    let ready = all(|endpoint| endpoint.ready);
    let waits = port.protocol == Protocol::Tcp && !service.hold.is_zero() && only_on.is_none();
    if !ready.is_empty() || waits {
        return ready;
    }
    all(|endpoint| endpoint.serving && endpoint.terminating)
}

#[cfg(test)]
mod tests;
