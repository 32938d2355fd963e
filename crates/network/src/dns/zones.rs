//! The zones that this server is authoritative for. A pure function of the catalogue.
//!
//! Two zones show the same Services, in the names of Kubernetes ([`cluster`]) and of Consul ([`consul`]), and
//! [`reverse`] has PTR records. No zone data is built: a name is split into labels, and the labels are looked up in
//! the catalogue, so a name that does not exist costs the same as one that does.

use std::{net::Ipv4Addr, sync::Arc};

use super::{
    DnsSettings, cluster,
    consul::Consul,
    name::{InvalidName, Name, labels_below},
    query::{Query, Rcode, RecordType},
    response::{Owner, Record, RecordData, Response, Soa},
    reverse,
};
use crate::catalogue::{CatalogueState, Endpoint};

/// Length of a chain of CNAMEs.
const MAX_CNAMES: usize = 8;

/// Shuffles the addresses of an answer.
pub type ShuffleRng = fastrand::Rng;

pub struct Zones {
    pub cluster: Zone,
    pub consul: Consul,
    reverse: Zone,
    /// The address of this server, for NS records.
    address: Ipv4Addr,
}

/// A zone.
pub struct Zone {
    pub apex: Name,
    soa: Arc<Soa>,
}

/// What a zone has at a name.
#[derive(Debug)]
pub enum Lookup {
    NxDomain,
    /// NODATA: the name exists, but not with this record type.
    NoData,
    Records {
        answers: Vec<Record>,
        additional: Vec<Record>,
    },
    Cname(Name),
}

impl Lookup {
    pub fn records(answers: Vec<Record>) -> Self {
        match answers.is_empty() {
            true => Self::NoData,
            false => Self::Records { answers, additional: Vec::new() },
        }
    }

    /// One record, if its type is asked for.
    pub fn single(wanted: RecordType, record_type: RecordType, data: RecordData) -> Self {
        match wanted.matches(record_type) {
            true => Self::records(vec![Record::at_question(data)]),
            false => Self::NoData,
        }
    }

    /// The addresses, each once, in random order.
    pub fn addresses(wanted: RecordType, addresses: impl Iterator<Item = Ipv4Addr>, rng: &mut ShuffleRng) -> Self {
        let mut addresses: Vec<_> = addresses.collect();
        if addresses.is_empty() {
            return Self::NxDomain;
        }
        if !wanted.matches(RecordType::A) {
            return Self::NoData;
        }
        addresses.sort_unstable();
        addresses.dedup();
        rng.shuffle(&mut addresses);
        Self::records(addresses.into_iter().map(|address| Record::at_question(RecordData::A(address))).collect())
    }
}

/// What an SRV record points to.
pub struct SrvTarget {
    pub name: Name,
    pub address: Ipv4Addr,
    pub port: u16,
}

impl Lookup {
    /// SRV records of equal weight in random order, with the addresses of their targets.
    pub fn srv(mut targets: Vec<SrvTarget>, rng: &mut ShuffleRng) -> Self {
        rng.shuffle(&mut targets);
        let weight = (100 / targets.len().max(1)).max(1) as u16;
        let (mut answers, mut additional, mut observed) = (Vec::new(), Vec::new(), std::collections::HashSet::new());
        for (index, SrvTarget { name, address, port }) in targets.into_iter().enumerate() {
            if observed.insert((name.clone(), address)) {
                additional.push(Record::new(Owner::SrvTarget(index), RecordData::A(address)));
            }
            answers.push(Record::at_question(RecordData::Srv { weight, port, target: name }));
        }
        match answers.is_empty() {
            true => Self::NxDomain,
            false => Self::Records { answers, additional },
        }
    }
}

/// How a query is answered.
pub enum Resolution {
    /// The answer of our zones.
    Local(Response),
    /// An upstream server knows the rest: the CNAMEs so far lead to this name.
    Forward { cnames: Vec<Record>, name: Name },
}

impl Zone {
    /// `None` for the root, or if the apex leaves no room for names below it.
    fn new(apex: Name) -> Option<Self> {
        if apex == Name::root() {
            return None;
        }
        let soa =
            Soa { zone: apex.clone(), primary: apex.below(&["ns", "dns"])?, mailbox: apex.below(&["hostmaster"])? };
        Some(Self { apex, soa: Arc::new(soa) })
    }

    fn soa_record(&self) -> Record {
        Record::new(Owner::Zone, RecordData::Soa(self.soa.clone()))
    }

    /// SOA, NS and the name server's address.
    fn apex_records(&self, labels: &[&str], record_type: RecordType, address: Ipv4Addr) -> Option<Lookup> {
        match labels {
            [] if record_type == RecordType::SOA => Some(Lookup::records(vec![self.soa_record()])),
            [] if record_type.matches(RecordType::NS) => Some(Lookup::Records {
                answers: vec![Record::at_question(RecordData::Ns(self.soa.primary.clone()))],
                additional: vec![Record::new(Owner::Name(self.soa.primary.clone()), RecordData::A(address))],
            }),
            [] | ["dns"] => Some(Lookup::NoData),
            ["ns", "dns"] => Some(Lookup::single(record_type, RecordType::A, RecordData::A(address))),
            _ => None,
        }
    }
}

impl Zones {
    pub fn new(settings: &DnsSettings) -> Result<Self, InvalidName> {
        let zone = |text: &str| {
            let apex = Name::parse(text)?;
            Zone::new(apex).ok_or_else(|| InvalidName::new(text))
        };
        Ok(Self {
            cluster: zone(&settings.domain)?,
            consul: Consul::new(zone(&settings.alias_domain)?, &settings.datacentre)?,
            reverse: zone("in-addr.arpa")?,
            address: settings.address,
        })
    }

    pub fn resolve(&self, catalogue: &CatalogueState, query: &Query, rng: &mut ShuffleRng) -> Resolution {
        let mut answer = Response { authoritative: true, ..Response::with_rcode(Rcode::NoError) };
        let mut alias: Option<Name> = None;
        loop {
            let name = alias.as_ref().map_or(query.question.lower_case(), Name::wire);
            let Some((zone, found)) = self.lookup(catalogue, name, query.record_type, rng) else {
                let name = alias.unwrap_or_else(|| query.question.to_name());
                return Resolution::Forward { cnames: answer.answers, name };
            };
            match found {
                Lookup::NxDomain | Lookup::NoData => {
                    if matches!(found, Lookup::NxDomain) {
                        answer.rcode = Rcode::NxDomain;
                    }
                    answer.authority = vec![zone.soa_record()];
                    return Resolution::Local(answer);
                }
                Lookup::Records { answers, additional } => {
                    let owned = answers.into_iter().map(|record| match (&alias, record.owner) {
                        (Some(name), Owner::Question) => Record { owner: Owner::Name(name.clone()), ..record },
                        (_, owner) => Record { owner, ..record },
                    });
                    answer.answers.extend(owned);
                    answer.additional = additional;
                    return Resolution::Local(answer);
                }
                Lookup::Cname(target) => {
                    let owner = alias.map_or(Owner::Question, Owner::Name);
                    answer.answers.push(Record::new(owner, RecordData::Cname(target.clone())));
                    if query.record_type.matches(RecordType::CNAME) || answer.answers.len() == MAX_CNAMES {
                        return Resolution::Local(answer);
                    }
                    alias = Some(target);
                }
            }
        }
    }

    /// `None` if the name is in none of our zones.
    fn lookup(
        &self,
        catalogue: &CatalogueState,
        name: &[u8],
        record_type: RecordType,
        rng: &mut ShuffleRng,
    ) -> Option<(&Zone, Lookup)> {
        // Where one zone lies within the other, the inner one is asked first.
        let consul_first = self.consul.zone.apex.wire().len() > self.cluster.apex.wire().len();
        let found = match consul_first {
            true => self
                .in_consul(catalogue, name, record_type, rng)
                .or_else(|| self.in_cluster(catalogue, name, record_type, rng)),
            false => self
                .in_cluster(catalogue, name, record_type, rng)
                .or_else(|| self.in_consul(catalogue, name, record_type, rng)),
        };
        found.or_else(|| {
            let labels = labels_below(name, &self.reverse.apex)?;
            Some((&self.reverse, reverse::lookup(self, catalogue, &labels, record_type)?))
        })
    }

    fn in_cluster(
        &self,
        catalogue: &CatalogueState,
        name: &[u8],
        record_type: RecordType,
        rng: &mut ShuffleRng,
    ) -> Option<(&Zone, Lookup)> {
        let zone = &self.cluster;
        let labels = labels_below(name, &zone.apex)?;
        let own = zone.apex_records(&labels, record_type, self.address);
        Some((zone, own.unwrap_or_else(|| cluster::lookup(&zone.apex, catalogue, &labels, record_type, rng))))
    }

    fn in_consul(
        &self,
        catalogue: &CatalogueState,
        name: &[u8],
        record_type: RecordType,
        rng: &mut ShuffleRng,
    ) -> Option<(&Zone, Lookup)> {
        let zone = &self.consul.zone;
        let labels = labels_below(name, &zone.apex)?;
        let own = zone.apex_records(&labels, record_type, self.address);
        Some((zone, own.unwrap_or_else(|| self.consul.lookup(catalogue, &labels, record_type, rng))))
    }
}

/// `10-0-0-1`, the label of an endpoint without hostname.
pub fn dashed(address: Ipv4Addr) -> String {
    let [a, b, c, d] = address.octets();
    format!("{a}-{b}-{c}-{d}")
}

pub fn from_dashed(text: &str) -> Option<Ipv4Addr> {
    (!text.contains('.')).then(|| text.replace('-', ".").parse().ok()).flatten()
}

pub fn endpoint_label(endpoint: &Endpoint) -> String {
    endpoint.hostname.as_deref().map_or_else(|| dashed(endpoint.address), str::to_owned)
}

#[cfg(test)]
mod tests;
