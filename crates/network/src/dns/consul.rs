//! The same Services in the names that Consul gives them.
//!
//! * `[<tag>.]<service>.service[.<datacentre>]`: the addresses of the ready backends, not that of the Service. Services of
//!   one name in several namespaces are one here; `.service.<namespace>.ns` (as in Consul Enterprise, then with
//!   `.<datacentre>.dc`) means one of them.
//! * `_<service>._<tag, protocol or name of a port>.service…`: the same in the form of RFC 2782
//! * `<machine>.node…`, and `<address in hexadecimal digits>.addr…`, which is what SRV records point to when the address is
//!   not a machine's
//!
//! Without a ready backend a service does not exist, nor does anything in another datacentre (both as in Consul).

use std::net::Ipv4Addr;

use super::{
    answer::Data,
    cluster::{alias, is},
    name::{Name, NotAName},
    query::Kind,
    zones::{Chance, Found, Target, Zone},
};
use crate::catalogue::{self, CatalogueState, Endpoint, Key, Service, Slice, SlicePort};

pub struct Consul {
    pub zone: Zone,
    datacentre: String,
    /// `<datacentre>.<domain>`
    here: Name,
}

/// Which Services are meant, and which of their ports.
#[derive(Default)]
struct Wanted<'a> {
    service: &'a str,
    namespace: Option<&'a str>,
    tag: Option<String>,
    /// A tag, a protocol, or the name of a port.
    detail: Option<&'a str>,
}

impl Consul {
    pub fn new(zone: Zone, datacentre: &str) -> Result<Self, NotAName> {
        let here = zone.apex.below(&[datacentre]).ok_or_else(|| NotAName::of(datacentre))?;
        Ok(Self { zone, datacentre: datacentre.to_ascii_lowercase(), here })
    }

    pub fn machine(&self, name: &str) -> Option<Name> {
        let labels: Vec<_> = name.split('.').chain(["node"]).collect();
        self.here.below(&labels)
    }

    pub fn find(&self, known: &CatalogueState, labels: &[&str], kind: Kind, chance: &mut Chance) -> Found {
        let Some(place) = labels.iter().rposition(|label| ["service", "node", "addr"].contains(label)) else {
            return if self.is_here(labels) { Found::NoData } else { Found::NoSuchName };
        };
        let (before, after) = (&labels[..place], &labels[place + 1..]);
        let namespace = match after {
            [namespace, "ns", after @ ..] if self.is_here(after) => Some(*namespace),
            after if self.is_here(after) => None,
            _ => return Found::NoSuchName,
        };
        match (labels[place], before) {
            (_, []) => Found::NoData,
            ("node", name) => match known.machine(&name.join(".")) {
                Some(address) => Found::one(kind, Kind::A, Data::Address(address)),
                None => Found::NoSuchName,
            },
            ("addr", [digits]) => match from_digits(digits) {
                Some(address) => Found::one(kind, Kind::A, Data::Address(address)),
                None => Found::NoSuchName,
            },
            ("service", [service, detail]) if service.starts_with('_') && detail.starts_with('_') => {
                let wanted = Wanted { service: &service[1..], namespace, detail: Some(&detail[1..]), tag: None };
                self.members(known, &wanted, kind, chance)
            }
            ("service", [tag @ .., service]) => {
                let tag = (!tag.is_empty()).then(|| tag.join("."));
                self.members(known, &Wanted { service, namespace, tag, detail: None }, kind, chance)
            }
            _ => Found::NoSuchName,
        }
    }

    /// Whether what stands behind the kind of a name means this datacentre.
    fn is_here(&self, labels: &[&str]) -> bool {
        match labels {
            [] => true,
            [datacentre] | [datacentre, "dc"] => *datacentre == self.datacentre,
            _ => false,
        }
    }

    fn members(&self, known: &CatalogueState, wanted: &Wanted<'_>, kind: Kind, chance: &mut Chance) -> Found {
        let services: Vec<_> =
            known.services_named(wanted.service).filter(|service| wanted.includes(*service)).collect();
        if let [(_, Service { kind: catalogue::ServiceKind::ExternalName(target), .. })] = services[..] {
            return alias(target, kind);
        }
        let ready = services.iter().flat_map(|(key, service)| {
            let slices = known.slices_of(key).map(|slice| (*service, slice));
            slices.flat_map(|(service, slice)| {
                let ready = slice.endpoints.iter().filter(|endpoint| endpoint.ready);
                ready.map(move |endpoint| (service, slice, endpoint))
            })
        });
        let has_port = |service: &Service, slice: &Slice| {
            slice.ports.is_empty() && wanted.detail.is_none()
                || slice.ports.iter().any(|port| wanted.port(service, port))
        };
        if kind != Kind::SRV {
            let with_port = ready.filter(|(service, slice, _)| has_port(service, slice));
            return Found::addresses(kind, with_port.map(|(_, _, endpoint)| endpoint.address), chance);
        }
        let targets = ready.flat_map(|(service, slice, endpoint)| {
            let ports = slice.ports.iter().filter(|port| wanted.port(service, port));
            ports.filter_map(|port| self.target(known, endpoint, port.port))
        });
        Found::targets(targets.collect(), chance)
    }

    fn target(&self, known: &CatalogueState, endpoint: &Endpoint, port: u16) -> Option<Target> {
        let address = endpoint.address;
        let name = match known.machines_at(address).next() {
            Some(machine) => self.machine(machine)?,
            None => self.here.below(&[&digits(address), "addr"])?,
        };
        Some(Target { name, address, port })
    }
}

impl Wanted<'_> {
    fn includes(&self, (key, service): (&Key, &Service)) -> bool {
        let tagged = |tag: &str| service.tags.iter().any(|own| own.eq_ignore_ascii_case(tag));
        self.namespace.is_none_or(|namespace| *key.namespace == *namespace) && self.tag.as_deref().is_none_or(tagged)
    }

    fn port(&self, service: &Service, port: &SlicePort) -> bool {
        self.detail.is_none_or(|detail| {
            let tagged = service.tags.iter().any(|tag| tag.eq_ignore_ascii_case(detail));
            tagged || is(port.protocol, detail) || port.name.eq_ignore_ascii_case(detail)
        })
    }
}

/// `0a000001`
fn digits(address: Ipv4Addr) -> String {
    format!("{:08x}", address.to_bits())
}

fn from_digits(text: &str) -> Option<Ipv4Addr> {
    let digits = text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits.then(|| u32::from_str_radix(text, 16).ok().map(Ipv4Addr::from_bits)).flatten()
}
