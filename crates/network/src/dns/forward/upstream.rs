//! Queries upstream servers one after another.
//!
//! Against spoofed responses, every query has a random id, a random source port and random letter case (0x20), and
//! the response must repeat them all. A server that does not preserve the case is queried over TCP, and so is one
//! whose response is truncated. Responses are parsed by `hickory-proto`: it is strict with strangers' packets, and
//! here a network round trip outweighs its cost.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use hickory_proto::{
    op::{Message, MessageType, ResponseCode},
    rr::{DNSClass, RData, Record as UpstreamRecord, RecordType as ProtoRecordType},
    serialize::binary::{BinEncodable, BinEncoder, NameEncoding},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
    time::timeout,
};

use super::cache::Question;
use crate::dns::{
    name::Name,
    query::{EDNS_UDP_SIZE, Rcode, RecordType},
    response::{Owner, Record, RecordData, Response},
};

/// Timeout of one server, and of all together: clients repeat their query after 5 s.
const SERVER_TIMEOUT: Duration = Duration::from_millis(1500);
const TOTAL_TIMEOUT: Duration = Duration::from_millis(4500);

/// How often each server is queried.
const ROUNDS: usize = 2;

/// Upper limits of the TTLs of positive and negative answers, in seconds.
const MAX_TTL: u32 = 3600;
const MAX_NEGATIVE_TTL: u32 = 1800;

/// A response, and how long it may be cached.
pub struct UpstreamAnswer {
    pub response: Response,
    pub ttl: Duration,
    /// Size of the packet.
    pub bytes: usize,
}

/// `None` if no server answers.
pub async fn query_upstreams(upstreams: &[SocketAddr], question: &Question) -> Option<UpstreamAnswer> {
    let all = async {
        for upstream in upstreams.iter().cycle().take(upstreams.len() * ROUNDS) {
            match timeout(SERVER_TIMEOUT, exchange(*upstream, question)).await {
                Ok(Ok(answer)) => return Some(answer),
                Ok(Err(error)) => tracing::debug!(%upstream, name = %question.name, %error, "upstream server failed"),
                Err(_) => tracing::debug!(%upstream, name = %question.name, "upstream server did not answer in time"),
            }
        }
        None
    };
    timeout(TOTAL_TIMEOUT, all).await.ok().flatten()
}

#[derive(Debug, thiserror::Error)]
enum UpstreamError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the server answered {0}")]
    Rcode(ResponseCode),
    #[error("the response does not match the query")]
    Other,
}

async fn exchange(upstream: SocketAddr, question: &Question) -> Result<UpstreamAnswer, UpstreamError> {
    let mut query = UpstreamQuery::new(question, true);
    let mut message = query_udp(upstream, &query).await?;
    if let Some((answer, _)) = &message
        && answer.metadata.response_code == ResponseCode::FormErr
    {
        // The server does not know EDNS.
        query = UpstreamQuery::new(question, false);
        message = query_udp(upstream, &query).await?;
    }
    let (message, bytes) = match message {
        Some((message, bytes)) if !message.metadata.truncation => (message, bytes),
        _ => query_tcp(upstream, &query).await?,
    };
    UpstreamAnswer::new(&message, bytes)
}

impl UpstreamAnswer {
    fn new(message: &Message, bytes: usize) -> Result<Self, UpstreamError> {
        let rcode = match message.metadata.response_code {
            ResponseCode::NoError => Rcode::NoError,
            ResponseCode::NXDomain => Rcode::NxDomain,
            other => return Err(UpstreamError::Rcode(other)),
        };
        let seconds = answer_ttl(message, rcode);
        let (answers, mut authority) = (to_records(&message.answers), to_records(&message.authorities));
        // Clients, too, cache a negative answer no longer than the zone says.
        authority.iter_mut().for_each(|record| record.ttl = record.ttl.min(seconds));
        let ttl = Duration::from_secs(seconds.into());
        Ok(Self { response: Response { answers, authority, ..Response::with_rcode(rcode) }, ttl, bytes })
    }
}

/// A query as it is sent.
struct UpstreamQuery {
    id: u16,
    /// In random letter case.
    name: Vec<u8>,
    record_type: RecordType,
    packet: Vec<u8>,
}

impl UpstreamQuery {
    fn new(question: &Question, edns: bool) -> Self {
        let id: u16 = rand::random();
        let name = randomize_case(question.name.wire());
        let mut packet = Vec::with_capacity(12 + name.len() + 4 + 11);
        packet.extend(id.to_be_bytes());
        packet.extend([1, if question.checking_disabled { 0x10 } else { 0 }, 0, 1, 0, 0, 0, 0, 0, u8::from(edns)]);
        packet.extend_from_slice(&name);
        packet.extend(question.record_type.0.to_be_bytes());
        packet.extend([0, 1]);
        if edns {
            let ([high, low], dnssec) = (EDNS_UDP_SIZE.to_be_bytes(), if question.dnssec { 0x80 } else { 0 });
            packet.extend([0, 0, RecordType::OPT.0 as u8, high, low, 0, 0, dnssec, 0, 0, 0]);
        }
        Self { id, name, record_type: question.record_type, packet }
    }

    fn read(&self, packet: &[u8]) -> ReplyMatch {
        let Ok(message) = Message::from_vec(packet) else { return ReplyMatch::Mismatch };
        let [query] = &message.queries[..] else { return ReplyMatch::Mismatch };
        let name = wire_format(&query.name);
        let matches = message.metadata.id == self.id
            && message.metadata.message_type == MessageType::Response
            && query.query_type == ProtoRecordType::from(self.record_type.0)
            && query.query_class == DNSClass::IN
            && name.eq_ignore_ascii_case(&self.name);
        match matches {
            false => ReplyMatch::Mismatch,
            true if name == self.name => ReplyMatch::Matches(Box::new(message)),
            true => ReplyMatch::OtherCase(Box::new(message)),
        }
    }
}

enum ReplyMatch {
    Matches(Box<Message>),
    OtherCase(Box<Message>),
    Mismatch,
}

/// Every letter becomes upper case or stays, at random.
fn randomize_case(wire: &[u8]) -> Vec<u8> {
    let mut name = wire.to_vec();
    let mut at = 0;
    while name[at] != 0 {
        let label = usize::from(name[at]);
        for letter in &mut name[at + 1..=at + label] {
            if rand::random() {
                letter.make_ascii_uppercase();
            }
        }
        at += label + 1;
    }
    name
}

/// `None` if the query has to be repeated over TCP.
async fn query_udp(upstream: SocketAddr, query: &UpstreamQuery) -> Result<Option<(Message, usize)>, UpstreamError> {
    let any: SocketAddr = match upstream {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    // A socket per query: the kernel chooses an unpredictable port, and delivers packets of this server only.
    let socket = UdpSocket::bind(any).await?;
    socket.connect(upstream).await?;
    socket.send(&query.packet).await?;
    let mut buffer = [0; 4096];
    loop {
        let length = socket.recv(&mut buffer).await?;
        match query.read(&buffer[..length]) {
            ReplyMatch::Matches(message) => return Ok(Some((*message, length))),
            ReplyMatch::OtherCase(_) => return Ok(None),
            ReplyMatch::Mismatch => {}
        }
    }
}

async fn query_tcp(upstream: SocketAddr, query: &UpstreamQuery) -> Result<(Message, usize), UpstreamError> {
    let mut stream = TcpStream::connect(upstream).await?;
    let mut framed = (query.packet.len() as u16).to_be_bytes().to_vec();
    framed.extend_from_slice(&query.packet);
    stream.write_all(&framed).await?;
    let length = stream.read_u16().await?;
    let mut packet = vec![0; length.into()];
    stream.read_exact(&mut packet).await?;
    match query.read(&packet) {
        ReplyMatch::Matches(message) | ReplyMatch::OtherCase(message) => Ok((*message, packet.len())),
        ReplyMatch::Mismatch => Err(UpstreamError::Other),
    }
}

/// The TTL of a response in seconds: the lowest of its records, and for a negative answer that of the SOA.
fn answer_ttl(message: &Message, rcode: Rcode) -> u32 {
    let shortest = message.answers.iter().map(|record| record.ttl).min().unwrap_or(MAX_TTL);
    let asked = message.queries.first().map(|query| query.query_type);
    let is_positive =
        message.answers.iter().any(|record| asked == Some(record.record_type()) || asked == Some(ProtoRecordType::ANY));
    if rcode == Rcode::NoError && is_positive {
        return shortest.min(MAX_TTL);
    }
    let negative_ttl = message.authorities.iter().find_map(|record| match &record.data {
        RData::SOA(soa) => Some(record.ttl.min(soa.minimum)),
        _ => None,
    });
    // Without an SOA a negative answer is not cached (RFC 2308).
    shortest.min(negative_ttl.unwrap_or(0)).min(MAX_NEGATIVE_TTL)
}

fn to_records(read: &[UpstreamRecord]) -> Vec<Record> {
    read.iter().filter(|record| record.dns_class == DNSClass::IN).filter_map(to_record).collect()
}

fn to_record(read: &UpstreamRecord) -> Option<Record> {
    let owner = Owner::Name(Name::from_wire(&wire_format(&read.name))?);
    let data = match &read.data {
        RData::A(address) => RecordData::A(address.0),
        RData::CNAME(target) => RecordData::Cname(Name::from_wire(&wire_format(&target.0))?),
        data => {
            let mut bytes = Vec::new();
            let mut encoder = BinEncoder::new(&mut bytes);
            encoder.set_name_encoding(NameEncoding::Uncompressed);
            data.emit(&mut encoder).ok()?;
            RecordData::Opaque { record_type: RecordType(read.record_type().into()), bytes: Arc::from(bytes) }
        }
    };
    Some(Record { owner, ttl: read.ttl.min(MAX_TTL), data })
}

fn wire_format(name: &hickory_proto::rr::Name) -> Vec<u8> {
    let mut wire = Vec::with_capacity(name.len() + 1);
    for label in name.iter() {
        wire.push(label.len() as u8);
        wire.extend_from_slice(label);
    }
    wire.push(0);
    wire
}

/// Entrance for the fuzz target.
#[cfg(feature = "fuzzing")]
pub mod fuzzing {
    use super::{Question, ReplyMatch, Response, UpstreamAnswer, UpstreamQuery};

    /// A query and the response to it, whose header and records are those of `packet`.
    pub fn read_answer(question: &Question, packet: &[u8]) -> Option<(Vec<u8>, Response)> {
        let query = UpstreamQuery::new(question, false);
        let (header, records) = packet.split_at_checked(12)?;
        let mut answer = [header, &query.packet[12..], records].concat();
        answer[..2].copy_from_slice(&query.packet[..2]);
        answer[2] |= 0x80;
        answer[4..6].copy_from_slice(&[0, 1]);
        match query.read(&answer) {
            ReplyMatch::Matches(message) => {
                let read = UpstreamAnswer::new(&message, answer.len()).ok()?;
                Some((query.packet, read.response))
            }
            ReplyMatch::OtherCase(_) | ReplyMatch::Mismatch => None,
        }
    }
}

#[cfg(test)]
mod tests;
