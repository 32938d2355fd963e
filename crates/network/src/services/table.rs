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

/// The machine whose table this is.
#[derive(Clone, Copy, Debug)]
pub struct Here<'a> {
    pub machine: &'a str,
    pub zone: Option<&'a str>,
}

/// All fronts of a Service as machine `here` has them; none if it has no address or does not exist.
pub fn fronts(known: &Known, key: &Key, here: Here<'_>) -> Vec<(Front, Target)> {
    let Some(service) = known.service(key) else { return Vec::new() };
    let Kind::Address(address) = service.kind else { return Vec::new() };
    let mut fronts = Vec::new();
    for port in &service.ports {
        let chosen = |local: bool| {
            let of = if local { Of::Machine(here.machine) } else { Of::Cluster { zone: here.zone } };
            backends(known, key, service, port, of)
        };
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

/// Which backends count.
#[derive(Clone, Copy)]
enum Of<'a> {
    /// This machine's own.
    Machine(&'a str),
    /// Everybody's. Those that are meant for this zone, if all are meant for zones and some for this one.
    Cluster { zone: Option<&'a str> },
}

/// Those that are ready. If none is, and nobody would wait for one, those that still answer although they are ending.
fn backends(known: &Known, key: &Key, service: &Service, port: &ServicePort, of: Of<'_>) -> BTreeSet<SocketAddrV4> {
    let slices = known.slices_of(key).filter_map(|slice| {
        let mut ports = slice.ports.iter();
        let ours = ports.find(|other| other.name == port.name && other.protocol == port.protocol)?;
        Some((ours.port, &slice.endpoints))
    });
    let all = slices.flat_map(|(port, endpoints)| endpoints.iter().map(move |endpoint| (port, endpoint)));
    let on = |endpoint: &Endpoint| match of {
        Of::Machine(machine) => endpoint.node.as_deref() == Some(machine),
        Of::Cluster { .. } => true,
    };
    let (ready, others): (Vec<_>, Vec<_>) = all.filter(|(_, e)| on(e)).partition(|(_, endpoint)| endpoint.ready);
    let waits = port.protocol == Protocol::Tcp && !service.hold.is_zero() && matches!(of, Of::Cluster { .. });
    let counted = match of {
        _ if ready.is_empty() && waits => Vec::new(),
        _ if ready.is_empty() => others.into_iter().filter(|(_, e)| e.serving && e.terminating).collect(),
        Of::Cluster { zone: Some(zone) } => near(ready, zone),
        Of::Cluster { zone: None } | Of::Machine(_) => ready,
    };
    counted.into_iter().map(|(port, endpoint)| SocketAddrV4::new(endpoint.address, port)).collect()
}

/// Those for a zone, where there are some and none is for all.
fn near<'a>(ready: Vec<(u16, &'a Endpoint)>, zone: &str) -> Vec<(u16, &'a Endpoint)> {
    let is_near = |endpoint: &Endpoint| endpoint.for_zones.iter().any(|near| **near == *zone);
    let prefers = ready.iter().all(|(_, endpoint)| !endpoint.for_zones.is_empty());
    if !prefers || !ready.iter().any(|(_, endpoint)| is_near(endpoint)) {
        return ready;
    }
    ready.into_iter().filter(|(_, endpoint)| is_near(endpoint)).collect()
}

#[cfg(test)]
mod tests;
