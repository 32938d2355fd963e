//! Names of the Kubernetes DNS specification (1.1.0), and of CoreDNS where that says nothing.
//!
//! Only IPv4, so there is_protocol no AAAA anywhere. A name below `pod` resolves to the address in it, whether or not
//! there is_protocol such a pod: CoreDNS's `pods insecure`, the usual setup. Endpoints without hostname have their
//! address with dashes as a label.

use super::{
    name::Name,
    query::RecordType,
    response::{Record, RecordData},
    zones::{Lookup, ShuffleRng, SrvTarget, endpoint_label, from_dashed},
};
use crate::{
    Protocol,
    catalogue::{CatalogueState, Endpoint, Key, Service, ServiceKind},
};

/// Of the specification.
const VERSION: &str = "1.1.0";

pub fn lookup(
    domain: &Name,
    catalogue: &CatalogueState,
    labels: &[&str],
    record_type: RecordType,
    rng: &mut ShuffleRng,
) -> Lookup {
    match *labels {
        ["dns-version"] => Lookup::single(record_type, RecordType::TXT, RecordData::Txt(VERSION)),
        ["svc"] | ["pod"] => Lookup::NoData,
        [namespace, "svc"] if catalogue.has_namespace(namespace) => Lookup::NoData,
        [service, namespace, "svc"] => match catalogue.service_named(namespace, service) {
            Some(service) => service_records(domain, catalogue, service, record_type, rng),
            None => Lookup::NxDomain,
        },
        [within, service, namespace, "svc"] => match catalogue.service_named(namespace, service) {
            Some(service) => endpoint_records(catalogue, service, within, record_type, rng),
            None => Lookup::NxDomain,
        },
        [port, protocol, service, namespace, "svc"] => match catalogue.service_named(namespace, service) {
            Some(service) => port_records(domain, catalogue, service, port, protocol, record_type, rng),
            None => Lookup::NxDomain,
        },
        [namespace, "pod"] if is_dns_label(namespace) => Lookup::NoData,
        [address, namespace, "pod"] if is_dns_label(namespace) => match from_dashed(address) {
            Some(address) => Lookup::single(record_type, RecordType::A, RecordData::A(address)),
            None => Lookup::NxDomain,
        },
        _ => Lookup::NxDomain,
    }
}

/// A Service and its key.
type Entry<'a> = (&'a Key, &'a Service);

fn service_records(
    domain: &Name,
    catalogue: &CatalogueState,
    (key, service): Entry<'_>,
    record_type: RecordType,
    rng: &mut ShuffleRng,
) -> Lookup {
    match &service.kind {
        ServiceKind::ExternalName(target) => external_name(target, record_type),
        _ if record_type == RecordType::SRV => {
            match (srv(domain, catalogue, (key, service), rng, |_, _| true), &service.kind) {
                (Lookup::NxDomain, ServiceKind::ClusterIp(_)) => Lookup::NoData,
                (found, _) => found,
            }
        }
        ServiceKind::ClusterIp(address) => Lookup::single(record_type, RecordType::A, RecordData::A(*address)),
        ServiceKind::Headless => {
            Lookup::addresses(record_type, ready_endpoints(catalogue, key).map(|endpoint| endpoint.address), rng)
        }
    }
}

fn endpoint_records(
    catalogue: &CatalogueState,
    (key, service): Entry<'_>,
    label: &str,
    record_type: RecordType,
    rng: &mut ShuffleRng,
) -> Lookup {
    if let Some(protocol) = label.strip_prefix('_') {
        let named = service.ports.iter().any(|port| !port.name.is_empty() && is_protocol(port.protocol, protocol));
        return if named { Lookup::NoData } else { Lookup::NxDomain };
    }
    let called =
        catalogue.backends_with_hostname(key, label).filter(|endpoint| endpoint.ready).map(|endpoint| endpoint.address);
    let at = from_dashed(label).filter(|address| {
        let mut here = catalogue.backends_at(*address).filter(|(of, _, _)| *of == key);
        here.any(|(_, _, endpoint)| endpoint.ready && endpoint.hostname.is_none())
    });
    Lookup::addresses(record_type, called.chain(at), rng)
}

fn port_records(
    domain: &Name,
    catalogue: &CatalogueState,
    (key, service): Entry<'_>,
    port: &str,
    protocol: &str,
    record_type: RecordType,
    rng: &mut ShuffleRng,
) -> Lookup {
    let (Some(port), Some(protocol)) = (port.strip_prefix('_'), protocol.strip_prefix('_')) else {
        return Lookup::NxDomain;
    };
    let wanted =
        |name: &str, of: Protocol| !name.is_empty() && name.eq_ignore_ascii_case(port) && is_protocol(of, protocol);
    let found = match &service.kind {
        ServiceKind::ExternalName(target) => return external_name(target, record_type),
        _ => srv(domain, catalogue, (key, service), rng, wanted),
    };
    match found {
        Lookup::Records { .. } if !record_type.matches(RecordType::SRV) => Lookup::NoData,
        other => other,
    }
}

/// SRV records of the ports that `wanted` accepts by name and protocol: of the Service itself, or of each endpoint of
/// a headless one.
fn srv(
    domain: &Name,
    catalogue: &CatalogueState,
    (key, service): Entry<'_>,
    rng: &mut ShuffleRng,
    wanted: impl Fn(&str, Protocol) -> bool,
) -> Lookup {
    let own = domain.below(&[&key.name, &key.namespace, "svc"]);
    let targets = match (&service.kind, own) {
        (ServiceKind::ClusterIp(address), Some(own)) => {
            let ports = service.ports.iter().filter(|port| wanted(&port.name, port.protocol));
            ports.map(|port| SrvTarget { name: own.clone(), address: *address, port: port.port }).collect()
        }
        (ServiceKind::Headless, Some(own)) => {
            let mut targets = Vec::new();
            for slice in catalogue.slices_of(key) {
                for endpoint in slice.endpoints.iter().filter(|endpoint| endpoint.ready) {
                    let Some(name) = own.below(&[&endpoint_label(endpoint)]) else { continue };
                    let ports = slice.ports.iter().filter(|port| wanted(&port.name, port.protocol));
                    let target = |port: u16| SrvTarget { name: name.clone(), address: endpoint.address, port };
                    targets.extend(ports.map(|port| target(port.port)));
                }
            }
            targets
        }
        (ServiceKind::ExternalName(_), _) | (_, None) => Vec::new(),
    };
    Lookup::srv(targets, rng)
}

/// An ExternalName: CNAME of a name, or A record of an address.
pub fn external_name(target: &str, record_type: RecordType) -> Lookup {
    match (target.parse(), Name::parse(target)) {
        (Ok(address), _) => Lookup::single(record_type, RecordType::A, RecordData::A(address)),
        (Err(_), Ok(name)) if name != Name::root() => Lookup::Cname(name),
        (Err(_), _) => Lookup::NoData,
    }
}

pub fn ready_endpoints<'a>(catalogue: &'a CatalogueState, service: &Key) -> impl Iterator<Item = &'a Endpoint> {
    catalogue.slices_of(service).flat_map(|slice| &slice.endpoints).filter(|endpoint| endpoint.ready)
}

pub fn is_protocol(protocol: Protocol, text: &str) -> bool {
    matches!((protocol, text), (Protocol::Tcp, "tcp") | (Protocol::Udp, "udp") | (Protocol::Sctp, "sctp"))
}

/// Whether it may be the name of a namespace.
fn is_dns_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// The PTR record of an endpoint.
pub fn endpoint_ptr(domain: &Name, service: &Key, endpoint: &Endpoint) -> Option<Record> {
    let name = domain.below(&[&endpoint_label(endpoint), &service.name, &service.namespace, "svc"])?;
    Some(Record::at_question(RecordData::Ptr(name)))
}
