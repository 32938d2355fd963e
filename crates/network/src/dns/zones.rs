//! Which names are ours, and what is said of them: a function of what is known and of nothing else.
//!
//! Two domains show the same Services, in the words of Kubernetes ([`cluster`]) and of Consul ([`consul`]), and
//! [`reverse`] leads from addresses back to names. There are no zones to build or to search: a name is taken apart, its
//! parts are looked up, and a name that does not exist costs the same.

use std::{net::Ipv4Addr, sync::Arc};

use super::{
    DnsSettings,
    answer::{Answer, Data, Owner, Record, Soa},
    cluster,
    consul::Consul,
    name::{Name, NotAName, labels_below},
    query::{Code, Kind, Query},
    reverse,
};
use crate::catalogue::{CatalogueState, Endpoint};

/// As many names may stand for one another.
const LONGEST_CHAIN: usize = 8;

/// Where chance comes from; the order of addresses in an answer is no more than that.
pub type Chance = fastrand::Rng;

pub struct Zones {
    pub cluster: Zone,
    pub consul: Consul,
    reverse: Zone,
    /// Ours, for those who ask who speaks for the domains.
    address: Ipv4Addr,
}

/// A domain.
pub struct Zone {
    pub apex: Name,
    soa: Arc<Soa>,
}

/// What a domain has at a name.
#[derive(Debug)]
pub enum Found {
    NoSuchName,
    /// The name exists, but not with records of this kind.
    NoData,
    Records {
        answers: Vec<Record>,
        additional: Vec<Record>,
    },
    /// The name stands for another one.
    Alias(Name),
}

impl Found {
    pub fn records(answers: Vec<Record>) -> Self {
        match answers.is_empty() {
            true => Self::NoData,
            false => Self::Records { answers, additional: Vec::new() },
        }
    }

    /// One record, if its kind is wanted.
    pub fn one(wanted: Kind, kind: Kind, data: Data) -> Self {
        match wanted.wants(kind) {
            true => Self::records(vec![Record::here(data)]),
            false => Self::NoData,
        }
    }

    /// The addresses, each once, in any order.
    pub fn addresses(wanted: Kind, addresses: impl Iterator<Item = Ipv4Addr>, chance: &mut Chance) -> Self {
        let mut addresses: Vec<_> = addresses.collect();
        if addresses.is_empty() {
            return Self::NoSuchName;
        }
        if !wanted.wants(Kind::A) {
            return Self::NoData;
        }
        addresses.sort_unstable();
        addresses.dedup();
        chance.shuffle(&mut addresses);
        Self::records(addresses.into_iter().map(|address| Record::here(Data::Address(address))).collect())
    }
}

/// A place that a client may connect to, by a name that is its own.
pub struct Target {
    pub name: Name,
    pub address: Ipv4Addr,
    pub port: u16,
}

impl Found {
    /// SRV records of equal weight, in any order, with the addresses of their targets.
    pub fn targets(mut targets: Vec<Target>, chance: &mut Chance) -> Self {
        chance.shuffle(&mut targets);
        let weight = (100 / targets.len().max(1)).max(1) as u16;
        let (mut answers, mut additional, mut told) = (Vec::new(), Vec::new(), std::collections::HashSet::new());
        for (place, Target { name, address, port }) in targets.into_iter().enumerate() {
            if told.insert((name.clone(), address)) {
                additional.push(Record::of(Owner::TargetOf(place), Data::Address(address)));
            }
            answers.push(Record::here(Data::Service { weight, port, target: name }));
        }
        match answers.is_empty() {
            true => Self::NoSuchName,
            false => Self::Records { answers, additional },
        }
    }
}

/// What becomes of a question.
pub enum Outcome {
    Answer(Answer),
    /// Others know the rest: the question led, by the records so far, to this name.
    Elsewhere {
        so_far: Vec<Record>,
        name: Name,
    },
}

impl Zone {
    /// Nothing if the name leaves no room below it, or is everything there is.
    fn new(apex: Name) -> Option<Self> {
        if apex == Name::root() {
            return None;
        }
        let soa =
            Soa { zone: apex.clone(), primary: apex.below(&["ns", "dns"])?, mailbox: apex.below(&["hostmaster"])? };
        Some(Self { apex, soa: Arc::new(soa) })
    }

    fn authority(&self) -> Record {
        Record::of(Owner::Zone, Data::Authority(self.soa.clone()))
    }

    /// What every domain has of itself.
    fn own(&self, labels: &[&str], kind: Kind, address: Ipv4Addr) -> Option<Found> {
        match labels {
            [] if kind == Kind::SOA => Some(Found::records(vec![self.authority()])),
            [] if kind.wants(Kind::NS) => Some(Found::Records {
                answers: vec![Record::here(Data::Nameserver(self.soa.primary.clone()))],
                additional: vec![Record::of(Owner::Name(self.soa.primary.clone()), Data::Address(address))],
            }),
            [] | ["dns"] => Some(Found::NoData),
            ["ns", "dns"] => Some(Found::one(kind, Kind::A, Data::Address(address))),
            _ => None,
        }
    }
}

impl Zones {
    pub fn new(settings: &DnsSettings) -> Result<Self, NotAName> {
        let zone = |text: &str| {
            let apex = Name::parse(text)?;
            Zone::new(apex).ok_or_else(|| NotAName::of(text))
        };
        Ok(Self {
            cluster: zone(&settings.domain)?,
            consul: Consul::new(zone(&settings.alias_domain)?, &settings.datacentre)?,
            reverse: zone("in-addr.arpa")?,
            address: settings.address,
        })
    }

    pub fn answer(&self, known: &CatalogueState, query: &Query, chance: &mut Chance) -> Outcome {
        let mut answer = Answer { authoritative: true, ..Answer::only(Code::Fine) };
        let mut alias: Option<Name> = None;
        loop {
            let name = alias.as_ref().map_or(query.question.lower(), Name::wire);
            let Some((zone, found)) = self.find(known, name, query.kind, chance) else {
                let name = alias.unwrap_or_else(|| query.question.to_name());
                return Outcome::Elsewhere { so_far: answer.answers, name };
            };
            match found {
                Found::NoSuchName | Found::NoData => {
                    if matches!(found, Found::NoSuchName) {
                        answer.code = Code::NoSuchName;
                    }
                    answer.authorities = vec![zone.authority()];
                    return Outcome::Answer(answer);
                }
                Found::Records { answers, additional } => {
                    let owned = answers.into_iter().map(|record| match (&alias, record.owner) {
                        (Some(name), Owner::Question) => Record { owner: Owner::Name(name.clone()), ..record },
                        (_, owner) => Record { owner, ..record },
                    });
                    answer.answers.extend(owned);
                    answer.additional = additional;
                    return Outcome::Answer(answer);
                }
                Found::Alias(target) => {
                    let owner = alias.map_or(Owner::Question, Owner::Name);
                    answer.answers.push(Record::of(owner, Data::Alias(target.clone())));
                    if query.kind.wants(Kind::CNAME) || answer.answers.len() == LONGEST_CHAIN {
                        return Outcome::Answer(answer);
                    }
                    alias = Some(target);
                }
            }
        }
    }

    /// Nothing if the name is not ours.
    fn find(&self, known: &CatalogueState, name: &[u8], kind: Kind, chance: &mut Chance) -> Option<(&Zone, Found)> {
        // Where one domain lies within the other, the inner one counts.
        let consul_first = self.consul.zone.apex.wire().len() > self.cluster.apex.wire().len();
        let found = match consul_first {
            true => self.in_consul(known, name, kind, chance).or_else(|| self.in_cluster(known, name, kind, chance)),
            false => self.in_cluster(known, name, kind, chance).or_else(|| self.in_consul(known, name, kind, chance)),
        };
        found.or_else(|| {
            let labels = labels_below(name, &self.reverse.apex)?;
            Some((&self.reverse, reverse::find(self, known, &labels, kind)?))
        })
    }

    fn in_cluster(
        &self,
        known: &CatalogueState,
        name: &[u8],
        kind: Kind,
        chance: &mut Chance,
    ) -> Option<(&Zone, Found)> {
        let zone = &self.cluster;
        let labels = labels_below(name, &zone.apex)?;
        let own = zone.own(&labels, kind, self.address);
        Some((zone, own.unwrap_or_else(|| cluster::find(&zone.apex, known, &labels, kind, chance))))
    }

    fn in_consul(
        &self,
        known: &CatalogueState,
        name: &[u8],
        kind: Kind,
        chance: &mut Chance,
    ) -> Option<(&Zone, Found)> {
        let zone = &self.consul.zone;
        let labels = labels_below(name, &zone.apex)?;
        let own = zone.own(&labels, kind, self.address);
        Some((zone, own.unwrap_or_else(|| self.consul.find(known, &labels, kind, chance))))
    }
}

/// `10-0-0-1`, for what has no name of its own.
pub fn dashed(address: Ipv4Addr) -> String {
    let [a, b, c, d] = address.octets();
    format!("{a}-{b}-{c}-{d}")
}

pub fn from_dashed(text: &str) -> Option<Ipv4Addr> {
    (!text.contains('.')).then(|| text.replace('-', ".").parse().ok()).flatten()
}

pub fn label_of(endpoint: &Endpoint) -> String {
    endpoint.hostname.as_deref().map_or_else(|| dashed(endpoint.address), str::to_owned)
}

#[cfg(test)]
mod tests;
