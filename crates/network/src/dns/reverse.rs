//! From an address to the names that lead to it.
//!
//! A Service's own address gives the Service. A backend's gives its name within a headless Service, or within any if
//! it has a hostname or there is no better; a machine's gives the machine. Whatever comes out can be asked for, and
//! gives the address again. Other addresses are for others to name.

use std::net::Ipv4Addr;

use super::{
    answer::{Data, Record},
    cluster,
    query::Kind,
    zones::{Found, Zones},
};
use crate::catalogue::{self, CatalogueState};

/// Nothing if nobody here has the address.
pub fn find(zones: &Zones, known: &CatalogueState, labels: &[&str], kind: Kind) -> Option<Found> {
    let [d, c, b, a] = *labels else { return None };
    let address: Ipv4Addr = [a, b, c, d].join(".").parse().ok()?;
    let names = names(zones, known, address);
    match names.is_empty() {
        true => None,
        false if kind.wants(Kind::PTR) => Some(Found::records(names)),
        false => Some(Found::NoData),
    }
}

fn names(zones: &Zones, known: &CatalogueState, address: Ipv4Addr) -> Vec<Record> {
    let domain = &zones.cluster.apex;
    let services = known.services_at(address).filter_map(|key| domain.below(&[&key.name, &key.namespace, "svc"]));
    let services: Vec<_> = services.map(|name| Record::here(Data::Pointer(name))).collect();
    if !services.is_empty() {
        return services;
    }
    let backends = || known.backends_at(address).filter(|(_, _, endpoint)| endpoint.ready);
    let own = backends().filter(|(_, service, endpoint)| {
        service.kind == catalogue::ServiceKind::Headless || endpoint.hostname.is_some()
    });
    let machines = known.machines_at(address).filter_map(|machine| zones.consul.machine(machine));
    let mut names: Vec<_> = own.filter_map(|(key, _, endpoint)| cluster::name_of(domain, key, endpoint)).collect();
    names.extend(machines.map(|name| Record::here(Data::Pointer(name))));
    if names.is_empty() {
        names.extend(backends().filter_map(|(key, _, endpoint)| cluster::name_of(domain, key, endpoint)));
    }
    names
}
