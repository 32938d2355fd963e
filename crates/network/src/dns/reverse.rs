//! PTR records: from an address to names in our zones.
//!
//! A cluster IP gives its Service. The address of an endpoint gives its name within a headless Service, or within any
//! Service if it has a hostname or there is no better name; the address of a machine gives its `.node` name. Each
//! name resolves to the address again. Other addresses are forwarded upstream.

use std::net::Ipv4Addr;

use super::{
    cluster,
    query::RecordType,
    response::{Record, RecordData},
    zones::{Lookup, Zones},
};
use crate::catalogue::{CatalogueState, ServiceKind};

/// `None` if the address is not ours.
pub fn lookup(zones: &Zones, catalogue: &CatalogueState, labels: &[&str], record_type: RecordType) -> Option<Lookup> {
    let [d, c, b, a] = *labels else { return None };
    let address: Ipv4Addr = [a, b, c, d].join(".").parse().ok()?;
    let names = ptr_records(zones, catalogue, address);
    match names.is_empty() {
        true => None,
        false if record_type.matches(RecordType::PTR) => Some(Lookup::records(names)),
        false => Some(Lookup::NoData),
    }
}

fn ptr_records(zones: &Zones, catalogue: &CatalogueState, address: Ipv4Addr) -> Vec<Record> {
    let domain = &zones.cluster.apex;
    let services = catalogue.services_at(address).filter_map(|key| domain.below(&[&key.name, &key.namespace, "svc"]));
    let services: Vec<_> = services.map(|name| Record::at_question(RecordData::Ptr(name))).collect();
    if !services.is_empty() {
        return services;
    }
    let backends = || catalogue.backends_at(address).filter(|(_, _, endpoint)| endpoint.ready);
    let named = backends()
        .filter(|(_, service, endpoint)| service.kind == ServiceKind::Headless || endpoint.hostname.is_some());
    let machines = catalogue.machines_at(address).filter_map(|machine| zones.consul.node_name(machine));
    let mut names: Vec<_> =
        named.filter_map(|(key, _, endpoint)| cluster::endpoint_ptr(domain, key, endpoint)).collect();
    names.extend(machines.map(|name| Record::at_question(RecordData::Ptr(name))));
    if names.is_empty() {
        names.extend(backends().filter_map(|(key, _, endpoint)| cluster::endpoint_ptr(domain, key, endpoint)));
    }
    names
}
