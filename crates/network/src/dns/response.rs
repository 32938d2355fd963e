//! DNS responses: records, and how they are written into a packet.
//!
//! The question section is copied from the client's own packet, so that its letter case comes back as it was (0x20),
//! and most records point at it. What does not fit is left out: additional records silently, others with the TC flag,
//! which sends the client to TCP.

use std::{net::Ipv4Addr, sync::Arc};

use super::{
    name::Name,
    query::{EDNS_UDP_SIZE, HEADER, Query, Rcode, RecordType, UDP_SIZE},
};

/// TTL in seconds of our own answers, positive and negative. CoreDNS's own figure; endpoints change often, and asking
/// again costs a packet on the same machine.
pub const TTL: u32 = 5;

/// The SOA record of a zone, for negative answers.
#[derive(Debug)]
pub struct Soa {
    pub zone: Name,
    pub primary: Name,
    pub mailbox: Name,
}

#[derive(Clone, Debug)]
pub enum Owner {
    /// The name in the question section.
    Question,
    Name(Name),
    /// The apex of the zone that the SOA is of.
    Zone,
    /// The target of the SRV record with this index in the answer section.
    SrvTarget(usize),
}

#[derive(Clone, Debug)]
pub enum RecordData {
    A(Ipv4Addr),
    Srv {
        weight: u16,
        port: u16,
        target: Name,
    },
    Ptr(Name),
    Cname(Name),
    Ns(Name),
    Txt(&'static str),
    Soa(Arc<Soa>),
    /// The RDATA that an upstream server sent, uncompressed.
    Opaque {
        record_type: RecordType,
        bytes: Arc<[u8]>,
    },
}

#[derive(Clone, Debug)]
pub struct Record {
    pub owner: Owner,
    pub ttl: u32,
    pub data: RecordData,
}

impl Record {
    pub fn at_question(data: RecordData) -> Self {
        Self { owner: Owner::Question, ttl: TTL, data }
    }

    pub fn new(owner: Owner, data: RecordData) -> Self {
        Self { owner, ttl: TTL, data }
    }
}

#[derive(Clone, Debug)]
pub struct Response {
    pub rcode: Rcode,
    /// The AA flag.
    pub authoritative: bool,
    pub answers: Vec<Record>,
    pub authority: Vec<Record>,
    pub additional: Vec<Record>,
}

impl Response {
    pub fn with_rcode(rcode: Rcode) -> Self {
        Self { rcode, authoritative: false, answers: Vec::new(), authority: Vec::new(), additional: Vec::new() }
    }
}

/// How old an answer is, for its TTLs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    Seconds(u32),
    /// Expired, but better than none (serve-stale, RFC 8767).
    Stale,
}

impl Age {
    pub const NEW: Self = Self::Seconds(0);

    /// The TTL that RFC 8767 recommends for stale answers; it must not be zero.
    pub const STALE_TTL: u32 = 30;

    pub fn remaining(self, ttl: u32) -> u32 {
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
    fn limit(self, query: &Query) -> usize {
        usize::from(match (self, query.edns) {
            (Self::Udp, None) => UDP_SIZE,
            (Self::Udp, Some(edns)) => edns.udp.min(EDNS_UDP_SIZE),
            (Self::Tcp, _) => u16::MAX,
        })
    }
}

/// Appends the packet to `out`.
pub fn write_response(query: &Query, answer: &Response, age: Age, transport: Transport, out: &mut Vec<u8>) {
    let opt = if query.edns.is_some() { 11 } else { 0 };
    let begin = out.len();
    let limit = transport.limit(query) - opt;
    out.resize(begin + HEADER, 0);
    out.extend_from_slice(query.question.as_sent());
    let question = query.question.lower_case();
    let mut packet = Writer { out, begin, limit, question, targets: Vec::new(), written: CompressionTable::default() };

    let (answers, all_answers) = packet.section(&answer.answers, age);
    let (authority, all_authorities) = packet.section(&answer.authority, age);
    // Beside answers, the authority section is optional.
    let whole = all_answers && (all_authorities || answers > 0);
    let (mut additional, _) = if whole { packet.section(&answer.additional, age) } else { (0, true) };
    if let Some(edns) = query.edns {
        let extended = (answer.rcode.number() >> 4) as u8;
        let dnssec = if edns.dnssec { 0x80 } else { 0 };
        let [high, low] = EDNS_UDP_SIZE.to_be_bytes();
        out.extend([0, 0, RecordType::OPT.0 as u8, high, low, extended, 0, dnssec, 0, 0, 0]);
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
    header[3] = 0x80 | flag(query.checking_disabled, 0x10) | (answer.rcode.number() & 0xf) as u8;
    header[5] = u8::from(!query.question.as_sent().is_empty());
    for (at, count) in [(6, answers), (8, authority), (10, additional)] {
        header[at..at + 2].copy_from_slice(&count.to_be_bytes());
    }
}

struct Writer<'a> {
    out: &'a mut Vec<u8>,
    begin: usize,
    /// Size limit of the packet.
    limit: usize,
    question: &'a [u8],
    /// Offsets of the targets of SRV records in the answer section.
    targets: Vec<Option<u16>>,
    written: CompressionTable<'a>,
}

impl<'a> Writer<'a> {
    /// Returns how many records fit, and whether that is all of them.
    fn section(&mut self, records: &'a [Record], age: Age) -> (u16, bool) {
        let fits = records.iter().take_while(|record| self.record(record, age)).count();
        (fits as u16, fits == records.len())
    }

    /// Returns whether it fits; otherwise nothing of it was written.
    fn record(&mut self, record: &'a Record, age: Age) -> bool {
        let (before, targets) = (self.out.len(), self.targets.len());
        match (&record.owner, &record.data) {
            (Owner::Question, _) => self.pointer(HEADER as u16),
            (Owner::Name(name), _) => self.name(name),
            (Owner::Zone, RecordData::Soa(soa)) => self.name(&soa.zone),
            (Owner::SrvTarget(index), _) => match self.targets.get(*index) {
                Some(Some(at)) => self.pointer(*at),
                _ => return false,
            },
            (Owner::Zone, _) => return false,
        }
        let record_type = type_of(&record.data);
        self.fixed(record_type, age.remaining(record.ttl));
        let length_at = self.out.len();
        self.out.extend([0, 0]);
        let mut target = None;
        match &record.data {
            RecordData::A(address) => self.out.extend(address.octets()),
            RecordData::Srv { weight, port, target: name } => {
                self.out.extend([0, 0]);
                self.out.extend(weight.to_be_bytes());
                self.out.extend(port.to_be_bytes());
                // RFC 2782 forbids compression of this name. Others may point at it.
                target = u16::try_from(self.out.len() - self.begin).ok().filter(|at| *at < POINTER_LIMIT);
                self.out.extend_from_slice(name.wire());
            }
            RecordData::Ptr(name) | RecordData::Cname(name) | RecordData::Ns(name) => self.name(name),
            RecordData::Txt(text) => {
                self.out.push(text.len() as u8);
                self.out.extend_from_slice(text.as_bytes());
            }
            RecordData::Soa(soa) => self.soa(soa),
            RecordData::Opaque { bytes, .. } => self.out.extend_from_slice(bytes),
        }
        if record_type == RecordType::SRV {
            self.targets.push(target);
        }
        let fits = self.close(length_at);
        if !fits {
            self.out.truncate(before);
            self.targets.truncate(targets);
            self.written.truncate(before - self.begin);
        }
        fits
    }

    fn soa(&mut self, soa: &'a Soa) {
        self.name(&soa.primary);
        self.name(&soa.mailbox);
        // There are no secondary servers, so the first four say nothing; the last is the negative TTL.
        for number in [1, 7200, 1800, 86400, TTL] {
            self.out.extend(number.to_be_bytes());
        }
    }

    fn fixed(&mut self, record_type: RecordType, ttl: u32) {
        self.out.extend(record_type.0.to_be_bytes());
        self.out.extend([0, 1]);
        self.out.extend(ttl.to_be_bytes());
    }

    /// Fills in RDLENGTH, whose place this is.
    fn close(&mut self, length_at: usize) -> bool {
        let length = self.out.len() - length_at - 2;
        self.out[length_at..length_at + 2].copy_from_slice(&(length as u16).to_be_bytes());
        self.out.len() - self.begin <= self.limit
    }

    fn pointer(&mut self, at: u16) {
        self.out.extend((0xc000 | at).to_be_bytes());
    }

    /// Writes the name, its end replaced by a pointer where the same end was written before.
    fn name(&mut self, name: &'a Name) {
        let wire = name.wire();
        let begin = self.out.len() - self.begin;
        let mut at = 0;
        while wire[at] != 0 {
            if let Some(earlier) = self.find_earlier(&wire[at..]) {
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

    fn find_earlier(&self, suffix: &[u8]) -> Option<u16> {
        // A suffix in the question section is one only where a label begins.
        if let Some(start) = self.question.len().checked_sub(suffix.len())
            && self.question[start..] == *suffix
            && begins_label(self.question, start)
        {
            return Some((HEADER + start) as u16);
        }
        self.written.find(suffix)
    }
}

/// A compression pointer has 14 bits.
const POINTER_LIMIT: u16 = 0x4000;

fn begins_label(wire: &[u8], place: usize) -> bool {
    let mut at = 0;
    while at < place {
        at += 1 + usize::from(wire[at]);
    }
    at == place
}

fn type_of(data: &RecordData) -> RecordType {
    match data {
        RecordData::A(_) => RecordType::A,
        RecordData::Srv { .. } => RecordType::SRV,
        RecordData::Ptr(_) => RecordType::PTR,
        RecordData::Cname(_) => RecordType::CNAME,
        RecordData::Ns(_) => RecordType::NS,
        RecordData::Txt(_) => RecordType::TXT,
        RecordData::Soa(_) => RecordType::SOA,
        RecordData::Opaque { record_type, .. } => *record_type,
    }
}

/// Names written so far and their offsets, for compression. A few are enough: the records of an RRset share theirs.
#[derive(Default)]
struct CompressionTable<'a>(Vec<(u16, &'a [u8])>);

impl<'a> CompressionTable<'a> {
    const MOST: usize = 24;

    /// Adds all suffixes of the name at `begin` that were written out, up to `fresh`.
    fn push(&mut self, begin: usize, wire: &'a [u8], fresh: usize) {
        let mut at = 0;
        while at < fresh && self.0.len() < Self::MOST && begin + at < usize::from(POINTER_LIMIT) {
            self.0.push(((begin + at) as u16, &wire[at..]));
            at += 1 + usize::from(wire[at]);
        }
    }

    fn find(&self, suffix: &[u8]) -> Option<u16> {
        self.0.iter().find(|(_, name)| *name == suffix).map(|(at, _)| *at)
    }

    fn truncate(&mut self, place: usize) {
        self.0.retain(|(at, _)| usize::from(*at) < place);
    }
}
