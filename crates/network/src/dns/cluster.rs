//! Names as the Kubernetes DNS specification has them (1.1.0), and as CoreDNS where that says nothing.
//!
//! Addresses are those of the fourth version only, so there is no AAAA anywhere. A name below `pod` stands for the
//! address that is written in it, whether or not there is such a pod: what CoreDNS calls `pods insecure` and every
//! cluster is set up with. Backends without a hostname go by their address with dashes, so that each has a name.

use super::{
    answer::{Data, Record},
    name::Name,
    query::Kind,
    zones::{Chance, Found, Target, from_dashed, label_of},
};
use crate::{
    Protocol,
    catalogue::{self, CatalogueState, Endpoint, Key, Service},
};

/// Of the specification.
const VERSION: &str = "1.1.0";

pub fn find(domain: &Name, known: &CatalogueState, labels: &[&str], kind: Kind, chance: &mut Chance) -> Found {
    match *labels {
        ["dns-version"] => Found::one(kind, Kind::TXT, Data::Text(VERSION)),
        ["svc"] | ["pod"] => Found::NoData,
        [namespace, "svc"] if known.has_namespace(namespace) => Found::NoData,
        [service, namespace, "svc"] => match known.service_named(namespace, service) {
            Some(service) => of_service(domain, known, service, kind, chance),
            None => Found::NoSuchName,
        },
        [within, service, namespace, "svc"] => match known.service_named(namespace, service) {
            Some(service) => within_service(known, service, within, kind, chance),
            None => Found::NoSuchName,
        },
        [port, protocol, service, namespace, "svc"] => match known.service_named(namespace, service) {
            Some(service) => of_port(domain, known, service, port, protocol, kind, chance),
            None => Found::NoSuchName,
        },
        [namespace, "pod"] if is_label(namespace) => Found::NoData,
        [address, namespace, "pod"] if is_label(namespace) => match from_dashed(address) {
            Some(address) => Found::one(kind, Kind::A, Data::Address(address)),
            None => Found::NoSuchName,
        },
        _ => Found::NoSuchName,
    }
}

/// A Service as the catalogue has it.
type Entry<'a> = (&'a Key, &'a Service);

fn of_service(
    domain: &Name,
    known: &CatalogueState,
    (key, service): Entry<'_>,
    kind: Kind,
    chance: &mut Chance,
) -> Found {
    match &service.kind {
        catalogue::ServiceKind::ExternalName(target) => alias(target, kind),
        _ if kind == Kind::SRV => match (srv(domain, known, (key, service), chance, |_, _| true), &service.kind) {
            (Found::NoSuchName, catalogue::ServiceKind::ClusterIp(_)) => Found::NoData,
            (found, _) => found,
        },
        catalogue::ServiceKind::ClusterIp(address) => Found::one(kind, Kind::A, Data::Address(*address)),
        catalogue::ServiceKind::Headless => {
            Found::addresses(kind, ready(known, key).map(|endpoint| endpoint.address), chance)
        }
    }
}

fn within_service(
    known: &CatalogueState,
    (key, service): Entry<'_>,
    label: &str,
    kind: Kind,
    chance: &mut Chance,
) -> Found {
    if let Some(protocol) = label.strip_prefix('_') {
        let named = service.ports.iter().any(|port| !port.name.is_empty() && is(port.protocol, protocol));
        return if named { Found::NoData } else { Found::NoSuchName };
    }
    let called =
        known.backends_with_hostname(key, label).filter(|endpoint| endpoint.ready).map(|endpoint| endpoint.address);
    let at = from_dashed(label).filter(|address| {
        let mut here = known.backends_at(*address).filter(|(of, _, _)| *of == key);
        here.any(|(_, _, endpoint)| endpoint.ready && endpoint.hostname.is_none())
    });
    Found::addresses(kind, called.chain(at), chance)
}

fn of_port(
    domain: &Name,
    known: &CatalogueState,
    (key, service): Entry<'_>,
    port: &str,
    protocol: &str,
    kind: Kind,
    chance: &mut Chance,
) -> Found {
    let (Some(port), Some(protocol)) = (port.strip_prefix('_'), protocol.strip_prefix('_')) else {
        return Found::NoSuchName;
    };
    let wanted = |name: &str, of: Protocol| !name.is_empty() && name.eq_ignore_ascii_case(port) && is(of, protocol);
    let found = match &service.kind {
        catalogue::ServiceKind::ExternalName(target) => return alias(target, kind),
        _ => srv(domain, known, (key, service), chance, wanted),
    };
    match found {
        Found::Records { .. } if !kind.wants(Kind::SRV) => Found::NoData,
        other => other,
    }
}

/// The ports that `wanted` picks, by name and protocol: of the Service itself, or of each of its backends.
fn srv(
    domain: &Name,
    known: &CatalogueState,
    (key, service): Entry<'_>,
    chance: &mut Chance,
    wanted: impl Fn(&str, Protocol) -> bool,
) -> Found {
    let own = domain.below(&[&key.name, &key.namespace, "svc"]);
    let targets = match (&service.kind, own) {
        (catalogue::ServiceKind::ClusterIp(address), Some(own)) => {
            let ports = service.ports.iter().filter(|port| wanted(&port.name, port.protocol));
            ports.map(|port| Target { name: own.clone(), address: *address, port: port.port }).collect()
        }
        (catalogue::ServiceKind::Headless, Some(own)) => {
            let mut targets = Vec::new();
            for slice in known.slices_of(key) {
                for endpoint in slice.endpoints.iter().filter(|endpoint| endpoint.ready) {
                    let Some(name) = own.below(&[&label_of(endpoint)]) else { continue };
                    let ports = slice.ports.iter().filter(|port| wanted(&port.name, port.protocol));
                    let target = |port: u16| Target { name: name.clone(), address: endpoint.address, port };
                    targets.extend(ports.map(|port| target(port.port)));
                }
            }
            targets
        }
        (catalogue::ServiceKind::ExternalName(_), _) | (_, None) => Vec::new(),
    };
    Found::targets(targets, chance)
}

/// Where the name of a Service leads that is only another one; an address, if that is what it is.
pub fn alias(target: &str, kind: Kind) -> Found {
    match (target.parse(), Name::parse(target)) {
        (Ok(address), _) => Found::one(kind, Kind::A, Data::Address(address)),
        (Err(_), Ok(name)) if name != Name::root() => Found::Alias(name),
        (Err(_), _) => Found::NoData,
    }
}

pub fn ready<'a>(known: &'a CatalogueState, service: &Key) -> impl Iterator<Item = &'a Endpoint> {
    known.slices_of(service).flat_map(|slice| &slice.endpoints).filter(|endpoint| endpoint.ready)
}

pub fn is(protocol: Protocol, text: &str) -> bool {
    matches!((protocol, text), (Protocol::Tcp, "tcp") | (Protocol::Udp, "udp") | (Protocol::Sctp, "sctp"))
}

/// What may be the name of a namespace.
fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// The name of a backend, by which it is found again.
pub fn name_of(domain: &Name, service: &Key, endpoint: &Endpoint) -> Option<Record> {
    let name = domain.below(&[&label_of(endpoint), &service.name, &service.namespace, "svc"])?;
    Some(Record::here(Data::Pointer(name)))
}
