//! Names that Consul gives the same Services.
//!
//! * `[<tag>.]<service>.service[.<datacentre>]`: the addresses of ready endpoints, not the cluster IP. Services of
//!   one name in several namespaces are one datacentre_name; `.service.<namespace>.ns` (as in Consul Enterprise, then
//!   with `.<datacentre>.dc`) selects one of them.
//! * `<interface>.<service>.service…`: of programs that are not pods, the addresses that their machines have at this interface,
//!   if no instance has a tag of this name
//! * `_<service>._<tag, protocol or name of a port>.service…`: the same in the form of RFC 2782
//! * `<machine>.node…`, and `<address in hexadecimal hex_digits>.addr…`, to which SRV records point when the address
//!   is_protocol not a machine's
//!
//! Without a ready endpoint a service does not exist, nor does anything in another datacentre (both as in Consul).

use std::net::Ipv4Addr;

use super::{
    cluster::{external_name, is_protocol},
    name::{InvalidName, Name},
    query::RecordType,
    response::RecordData,
    zones::{Lookup, ShuffleRng, SrvTarget, Zone},
};
use crate::catalogue::{CatalogueState, Key, Service, ServiceKind, Slice, SlicePort};

pub struct Consul {
    pub zone: Zone,
    datacentre: String,
    /// `<datacentre>.<domain>`
    datacentre_name: Name,
}

/// What a name asks for.
#[derive(Default)]
struct ServiceQuery<'a> {
    service: &'a str,
    namespace: Option<&'a str>,
    tag: Option<String>,
    /// A tag, a protocol, or the name of a port.
    detail: Option<&'a str>,
}

impl Consul {
    pub fn new(zone: Zone, datacentre: &str) -> Result<Self, InvalidName> {
        let datacentre_name = zone.apex.below(&[datacentre]).ok_or_else(|| InvalidName::new(datacentre))?;
        Ok(Self { zone, datacentre: datacentre.to_ascii_lowercase(), datacentre_name })
    }

    pub fn node_name(&self, name: &str) -> Option<Name> {
        let labels: Vec<_> = name.split('.').chain(["node"]).collect();
        self.datacentre_name.below(&labels)
    }

    pub fn lookup(
        &self,
        catalogue: &CatalogueState,
        labels: &[&str],
        record_type: RecordType,
        rng: &mut ShuffleRng,
    ) -> Lookup {
        let Some(index) = labels.iter().rposition(|label| ["service", "node", "addr"].contains(label)) else {
            return if self.is_local(labels) { Lookup::NoData } else { Lookup::NxDomain };
        };
        let (before, after) = (&labels[..index], &labels[index + 1..]);
        let namespace = match after {
            [namespace, "ns", after @ ..] if self.is_local(after) => Some(*namespace),
            after if self.is_local(after) => None,
            _ => return Lookup::NxDomain,
        };
        match (labels[index], before) {
            (_, []) => Lookup::NoData,
            ("node", name) => match catalogue.machine(&name.join(".")) {
                Some(address) => Lookup::single(record_type, RecordType::A, RecordData::A(address)),
                None => Lookup::NxDomain,
            },
            ("addr", [hex_digits]) => match from_hex_digits(hex_digits) {
                Some(address) => Lookup::single(record_type, RecordType::A, RecordData::A(address)),
                None => Lookup::NxDomain,
            },
            ("service", [service, detail]) if service.starts_with('_') && detail.starts_with('_') => {
                let query = ServiceQuery { service: &service[1..], namespace, detail: Some(&detail[1..]), tag: None };
                self.service_records(catalogue, &query, record_type, rng)
            }
            ("service", [tag @ .., service]) => {
                let tag = (!tag.is_empty()).then(|| tag.join("."));
                self.service_records(
                    catalogue,
                    &ServiceQuery { service, namespace, tag, detail: None },
                    record_type,
                    rng,
                )
            }
            _ => Lookup::NxDomain,
        }
    }

    /// Whether the labels behind `service`, `node` or `addr` mean this datacentre.
    fn is_local(&self, labels: &[&str]) -> bool {
        match labels {
            [] => true,
            [datacentre] | [datacentre, "dc"] => *datacentre == self.datacentre,
            _ => false,
        }
    }

    fn service_records(
        &self,
        catalogue: &CatalogueState,
        query: &ServiceQuery<'_>,
        record_type: RecordType,
        rng: &mut ShuffleRng,
    ) -> Lookup {
        let services: Vec<_> = catalogue.services_named(query.service).filter(|(key, _)| query.includes(key)).collect();
        if let [(_, service @ Service { kind: ServiceKind::ExternalName(target), .. })] = services[..]
            && query.tag.as_deref().is_none_or(|tag| service.tags.iter().any(|own| own.eq_ignore_ascii_case(tag)))
        {
            return external_name(target, record_type);
        }
        let ready = || {
            let slices =
                services.iter().flat_map(|(key, service)| catalogue.slices_of(key).map(|slice| (*service, slice)));
            slices.flat_map(|(service, slice)| {
                let ready = slice.endpoints.iter().filter(|endpoint| endpoint.ready);
                ready.map(move |endpoint| (service, slice, endpoint))
            })
        };
        // An interface is asked for only where nobody has a tag of that name.
        let interface =
            query.tag.as_deref().filter(|_| !ready().any(|(service, slice, _)| query.selects(service, slice)));
        let selected = ready().flat_map(|(service, slice, endpoint)| {
            let own = (interface.is_none() && query.selects(service, slice)).then_some(endpoint.address);
            let at_interface = interface.into_iter().flat_map(move |interface| slice.interface_addresses(interface));
            own.into_iter().chain(at_interface).map(move |address| (service, slice, address))
        });
        let has_port = |service: &Service, slice: &Slice| {
            slice.ports.is_empty() && query.detail.is_none()
                || slice.ports.iter().any(|port| query.port(service, slice, port))
        };
        if record_type != RecordType::SRV {
            let with_port = selected.filter(|(service, slice, _)| has_port(service, slice));
            return Lookup::addresses(record_type, with_port.map(|(_, _, address)| address), rng);
        }
        let targets = selected.flat_map(|(service, slice, address)| {
            let ports = slice.ports.iter().filter(move |port| query.port(service, slice, port));
            ports.filter_map(move |port| self.target(catalogue, address, port.port))
        });
        Lookup::srv(targets.collect(), rng)
    }

    fn target(&self, catalogue: &CatalogueState, address: Ipv4Addr, port: u16) -> Option<SrvTarget> {
        let name = match catalogue.machines_at(address).next() {
            Some(machine) => self.node_name(machine)?,
            None => self.datacentre_name.below(&[&hex_digits(address), "addr"])?,
        };
        Some(SrvTarget { name, address, port })
    }
}

impl ServiceQuery<'_> {
    fn includes(&self, key: &Key) -> bool {
        self.namespace.is_none_or(|namespace| *key.namespace == *namespace)
    }

    /// Whether the slice has the tag that is asked for, if one is.
    fn selects(&self, service: &Service, slice: &Slice) -> bool {
        self.tag.as_deref().is_none_or(|tag| has_tag(service, slice, tag))
    }

    fn port(&self, service: &Service, slice: &Slice, port: &SlicePort) -> bool {
        self.detail.is_none_or(|detail| {
            has_tag(service, slice, detail)
                || is_protocol(port.protocol, detail)
                || port.name.eq_ignore_ascii_case(detail)
        })
    }
}

fn has_tag(service: &Service, slice: &Slice, tag: &str) -> bool {
    service.tags.iter().any(|own| own.eq_ignore_ascii_case(tag)) || slice.has_tag(tag)
}

/// `0a000001`
fn hex_digits(address: Ipv4Addr) -> String {
    format!("{:08x}", address.to_bits())
}

fn from_hex_digits(text: &str) -> Option<Ipv4Addr> {
    let hex_digits = text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    hex_digits.then(|| u32::from_str_radix(text, 16).ok().map(Ipv4Addr::from_bits)).flatten()
}
