//! What is sent back: records, and how they become a packet.
//!
//! The question is copied from the client's own packet, so its letters come back as they were, and most records
//! only point at it. What does not fit into the client's packet is left out: additional records silently, others
//! with the flag that sends the client to TCP.

use std::{net::Ipv4Addr, sync::Arc};

use super::{
    name::Name,
    query::{Code, EDNS_UDP, HEADER, Kind, PLAIN_UDP, Query},
};

/// Seconds that clients keep an answer of ours, and that there was none. CoreDNS's own figure; endpoints change often,
/// and asking again costs a packet on the same machine.
pub const TTL: u32 = 5;

/// Of a domain, for those who ask what does not exist in it.
#[derive(Debug)]
pub struct Soa {
    pub zone: Name,
    pub primary: Name,
    pub mailbox: Name,
}

#[derive(Clone, Debug)]
pub enum Owner {
    /// The name that was asked for.
    Question,
    Name(Name),
    /// The domain of which the record tells.
    Zone,
    /// What the SRV record at this place among the answers names.
    TargetOf(usize),
}

#[derive(Clone, Debug)]
pub enum Data {
    Address(Ipv4Addr),
    Service {
        weight: u16,
        port: u16,
        target: Name,
    },
    Pointer(Name),
    Alias(Name),
    Nameserver(Name),
    Text(&'static str),
    Authority(Arc<Soa>),
    /// Whatever another server said, without compression.
    Foreign {
        kind: Kind,
        bytes: Arc<[u8]>,
    },
}

#[derive(Clone, Debug)]
pub struct Record {
    pub owner: Owner,
    pub ttl: u32,
    pub data: Data,
}

impl Record {
    pub fn here(data: Data) -> Self {
        Self { owner: Owner::Question, ttl: TTL, data }
    }

    pub fn of(owner: Owner, data: Data) -> Self {
        Self { owner, ttl: TTL, data }
    }
}

#[derive(Clone, Debug)]
pub struct Answer {
    pub code: Code,
    /// Nobody knows better.
    pub authoritative: bool,
    pub answers: Vec<Record>,
    pub authorities: Vec<Record>,
    pub additional: Vec<Record>,
}

impl Answer {
    pub fn only(code: Code) -> Self {
        Self { code, authoritative: false, answers: Vec::new(), authorities: Vec::new(), additional: Vec::new() }
    }
}

/// What is said of how long an answer may be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    Seconds(u32),
    /// Out of date, but better than none (RFC 8767).
    Stale,
}

impl Age {
    pub const NEW: Self = Self::Seconds(0);

    /// RFC 8767 asks for so many seconds, and that they be not none.
    pub const STALE_TTL: u32 = 30;

    pub fn of(self, ttl: u32) -> u32 {
        match self {
            Self::Seconds(age) => ttl.saturating_sub(age),
            Self::Stale => Self::STALE_TTL,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Udp,
    Tcp,
}

impl Transport {
    fn room(self, query: &Query) -> usize {
        usize::from(match (self, query.edns) {
            (Self::Udp, None) => PLAIN_UDP,
            (Self::Udp, Some(edns)) => edns.udp.min(EDNS_UDP),
            (Self::Tcp, _) => u16::MAX,
        })
    }
}

/// Writes the packet to the end of `out`, of which everything before it is left alone.
pub fn write(query: &Query, answer: &Answer, age: Age, transport: Transport, out: &mut Vec<u8>) {
    let opt = if query.edns.is_some() { 11 } else { 0 };
    let begin = out.len();
    let limit = transport.room(query) - opt;
    out.resize(begin + HEADER, 0);
    out.extend_from_slice(query.question.written());
    let question = query.question.lower();
    let mut packet = Writer { out, begin, limit, question, targets: Vec::new(), written: Seen::default() };

    let (answers, all_answers) = packet.section(&answer.answers, age);
    let (authorities, all_authorities) = packet.section(&answer.authorities, age);
    // Beside answers, what others say of the domain is no more than extra.
    let whole = all_answers && (all_authorities || answers > 0);
    let (mut additional, _) = if whole { packet.section(&answer.additional, age) } else { (0, true) };
    if let Some(edns) = query.edns {
        let extended = (answer.code.number() >> 4) as u8;
        let dnssec = if edns.dnssec { 0x80 } else { 0 };
        let [high, low] = EDNS_UDP.to_be_bytes();
        out.extend([0, 0, Kind::OPT.0 as u8, high, low, extended, 0, dnssec, 0, 0, 0]);
        additional += 1;
    }

    let truncated = !whole && transport == Transport::Udp;
    let flag = |set: bool, bit: u8| if set { bit } else { 0 };
    let header = &mut out[begin..begin + HEADER];
    header[..2].copy_from_slice(&query.id.to_be_bytes());
    header[2] = 0x80
        | (query.opcode << 3)
        | flag(answer.authoritative, 0x04)
        | flag(truncated, 0x02)
        | flag(query.recursion_desired, 0x01);
    header[3] = 0x80 | flag(query.checking_disabled, 0x10) | (answer.code.number() & 0xf) as u8;
    header[5] = u8::from(!query.question.written().is_empty());
    for (at, count) in [(6, answers), (8, authorities), (10, additional)] {
        header[at..at + 2].copy_from_slice(&count.to_be_bytes());
    }
}

struct Writer<'a> {
    out: &'a mut Vec<u8>,
    begin: usize,
    /// As many bytes as the packet may have.
    limit: usize,
    question: &'a [u8],
    /// Where the names are that SRV records among the answers point to.
    targets: Vec<Option<u16>>,
    written: Seen<'a>,
}

impl<'a> Writer<'a> {
    /// How many fitted, and whether that is all of them.
    fn section(&mut self, records: &'a [Record], age: Age) -> (u16, bool) {
        let fits = records.iter().take_while(|record| self.record(record, age)).count();
        (fits as u16, fits == records.len())
    }

    /// Whether it fitted; otherwise nothing of it was written.
    fn record(&mut self, record: &'a Record, age: Age) -> bool {
        let (before, targets) = (self.out.len(), self.targets.len());
        match (&record.owner, &record.data) {
            (Owner::Question, _) => self.pointer(HEADER as u16),
            (Owner::Name(name), _) => self.name(name),
            (Owner::Zone, Data::Authority(soa)) => self.name(&soa.zone),
            (Owner::TargetOf(place), _) => match self.targets.get(*place) {
                Some(Some(at)) => self.pointer(*at),
                _ => return false,
            },
            (Owner::Zone, _) => return false,
        }
        let kind = kind(&record.data);
        self.fixed(kind, age.of(record.ttl));
        let length_at = self.out.len();
        self.out.extend([0, 0]);
        let mut target = None;
        match &record.data {
            Data::Address(address) => self.out.extend(address.octets()),
            Data::Service { weight, port, target: name } => {
                self.out.extend([0, 0]);
                self.out.extend(weight.to_be_bytes());
                self.out.extend(port.to_be_bytes());
                // RFC 2782 wants this name whole. Others may point at it.
                target = u16::try_from(self.out.len() - self.begin).ok().filter(|at| *at < POINTER);
                self.out.extend_from_slice(name.wire());
            }
            Data::Pointer(name) | Data::Alias(name) | Data::Nameserver(name) => self.name(name),
            Data::Text(text) => {
                self.out.push(text.len() as u8);
                self.out.extend_from_slice(text.as_bytes());
            }
            Data::Authority(soa) => self.soa(soa),
            Data::Foreign { bytes, .. } => self.out.extend_from_slice(bytes),
        }
        if kind == Kind::SRV {
            self.targets.push(target);
        }
        let fits = self.close(length_at);
        if !fits {
            self.out.truncate(before);
            self.targets.truncate(targets);
            self.written.forget_from(before - self.begin);
        }
        fits
    }

    fn soa(&mut self, soa: &'a Soa) {
        self.name(&soa.primary);
        self.name(&soa.mailbox);
        // Nobody copies these domains, so the first four say nothing; the last is what absence is worth.
        for number in [1, 7200, 1800, 86400, TTL] {
            self.out.extend(number.to_be_bytes());
        }
    }

    fn fixed(&mut self, kind: Kind, ttl: u32) {
        self.out.extend(kind.0.to_be_bytes());
        self.out.extend([0, 1]);
        self.out.extend(ttl.to_be_bytes());
    }

    /// Fills in how long the data became that begins behind this place.
    fn close(&mut self, length_at: usize) -> bool {
        let length = self.out.len() - length_at - 2;
        self.out[length_at..length_at + 2].copy_from_slice(&(length as u16).to_be_bytes());
        self.out.len() - self.begin <= self.limit
    }

    fn pointer(&mut self, at: u16) {
        self.out.extend((0xc000 | at).to_be_bytes());
    }

    /// The name, its end replaced by a pointer to where the same stands already.
    fn name(&mut self, name: &'a Name) {
        let wire = name.wire();
        let begin = self.out.len() - self.begin;
        let mut at = 0;
        while wire[at] != 0 {
            if let Some(earlier) = self.earlier(&wire[at..]) {
                self.out.extend_from_slice(&wire[..at]);
                self.pointer(earlier);
                self.written.push(begin, wire, at);
                return;
            }
            at += 1 + usize::from(wire[at]);
        }
        self.out.extend_from_slice(wire);
        self.written.push(begin, wire, at);
    }

    fn earlier(&self, suffix: &[u8]) -> Option<u16> {
        // In the question, whose letters may be other ones, a suffix is one only where a label begins.
        if let Some(start) = self.question.len().checked_sub(suffix.len())
            && self.question[start..] == *suffix
            && begins_label(self.question, start)
        {
            return Some((HEADER + start) as u16);
        }
        self.written.find(suffix)
    }
}

/// Pointers have 14 bits.
const POINTER: u16 = 0x4000;

fn begins_label(wire: &[u8], place: usize) -> bool {
    let mut at = 0;
    while at < place {
        at += 1 + usize::from(wire[at]);
    }
    at == place
}

fn kind(data: &Data) -> Kind {
    match data {
        Data::Address(_) => Kind::A,
        Data::Service { .. } => Kind::SRV,
        Data::Pointer(_) => Kind::PTR,
        Data::Alias(_) => Kind::CNAME,
        Data::Nameserver(_) => Kind::NS,
        Data::Text(_) => Kind::TXT,
        Data::Authority(_) => Kind::SOA,
        Data::Foreign { kind, .. } => *kind,
    }
}

/// Names that were written, and where, for later ones to point at. A few are enough: records of a set share theirs.
#[derive(Default)]
struct Seen<'a>(Vec<(u16, &'a [u8])>);

impl<'a> Seen<'a> {
    const MOST: usize = 24;

    /// All ends of the name that begins at `begin` and is written out up to `fresh`.
    fn push(&mut self, begin: usize, wire: &'a [u8], fresh: usize) {
        let mut at = 0;
        while at < fresh && self.0.len() < Self::MOST && begin + at < usize::from(POINTER) {
            self.0.push(((begin + at) as u16, &wire[at..]));
            at += 1 + usize::from(wire[at]);
        }
    }

    fn find(&self, suffix: &[u8]) -> Option<u16> {
        self.0.iter().find(|(_, name)| *name == suffix).map(|(at, _)| *at)
    }

    fn forget_from(&mut self, place: usize) {
        self.0.retain(|(at, _)| usize::from(*at) < place);
    }
}
