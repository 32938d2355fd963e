//! Asking one resolver after another.
//!
//! Against answers that somebody else slips in: every question has a number, a port and capital letters that nobody can
//! guess, and the answer must repeat them all. A resolver that does not keep the letters is asked by TCP, and so is
//! one whose answer does not fit into a packet. Packets of others are taken apart by `hickory-proto`.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use hickory_proto::{
    op::{Message, MessageType, ResponseCode},
    rr::{DNSClass, RData, Record as Read, RecordType},
    serialize::binary::{BinEncodable, BinEncoder, NameEncoding},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
    time::timeout,
};

use super::cache::Question;
use crate::dns::{
    answer::{Answer, Data, Owner, Record},
    name::Name,
    query::{Code, EDNS_UDP, Kind},
};

/// How long one may take, and all of them together: clients ask again after 5 s.
const ONE: Duration = Duration::from_millis(1500);
const ALL: Duration = Duration::from_millis(4500);

/// Each is asked so often.
const ROUNDS: usize = 2;

/// What is said to be true for longer is looked at again after so many seconds; likewise what is said not to be.
const LONGEST: u32 = 3600;
const LONGEST_NOT: u32 = 1800;

/// What was heard, and for how long it may be kept.
pub struct Heard {
    pub answer: Answer,
    pub keep: Duration,
    /// In the packet.
    pub bytes: usize,
}

/// Nothing if none of them answers.
pub async fn ask(upstreams: &[SocketAddr], question: &Question) -> Option<Heard> {
    let all = async {
        for upstream in upstreams.iter().cycle().take(upstreams.len() * ROUNDS) {
            match timeout(ONE, exchange(*upstream, question)).await {
                Ok(Ok(heard)) => return Some(heard),
                Ok(Err(error)) => tracing::debug!(%upstream, name = %question.name, %error, "upstream resolver"),
                Err(_) => tracing::debug!(%upstream, name = %question.name, "upstream resolver is silent"),
            }
        }
        None
    };
    timeout(ALL, all).await.ok().flatten()
}

#[derive(Debug, thiserror::Error)]
enum UpstreamError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("answered {0}")]
    Code(ResponseCode),
    #[error("answered something else")]
    Other,
}

async fn exchange(upstream: SocketAddr, question: &Question) -> Result<Heard, UpstreamError> {
    let mut asked = Asked::new(question, true);
    let mut message = by_udp(upstream, &asked).await?;
    if let Some((answer, _)) = &message
        && answer.metadata.response_code == ResponseCode::FormErr
    {
        // It is older than EDNS.
        asked = Asked::new(question, false);
        message = by_udp(upstream, &asked).await?;
    }
    let (message, bytes) = match message {
        Some((message, bytes)) if !message.metadata.truncation => (message, bytes),
        _ => by_tcp(upstream, &asked).await?,
    };
    let code = match message.metadata.response_code {
        ResponseCode::NoError => Code::Fine,
        ResponseCode::NXDomain => Code::NoSuchName,
        other => return Err(UpstreamError::Code(other)),
    };
    let lifetime = lifetime(&message, code);
    let (answers, mut authorities) = (records(&message.answers), records(&message.authorities));
    // So that clients, too, keep absence no longer than the domain says.
    authorities.iter_mut().for_each(|record| record.ttl = record.ttl.min(lifetime));
    let keep = Duration::from_secs(lifetime.into());
    Ok(Heard { answer: Answer { answers, authorities, ..Answer::only(code) }, keep, bytes })
}

/// A question as it is sent.
struct Asked {
    id: u16,
    /// In letters of chance.
    name: Vec<u8>,
    kind: Kind,
    packet: Vec<u8>,
}

impl Asked {
    fn new(question: &Question, edns: bool) -> Self {
        let id: u16 = rand::random();
        let name = mixed(question.name.wire());
        let mut packet = Vec::with_capacity(12 + name.len() + 4 + 11);
        packet.extend(id.to_be_bytes());
        packet.extend([1, if question.checking_disabled { 0x10 } else { 0 }, 0, 1, 0, 0, 0, 0, 0, u8::from(edns)]);
        packet.extend_from_slice(&name);
        packet.extend(question.kind.0.to_be_bytes());
        packet.extend([0, 1]);
        if edns {
            let ([high, low], dnssec) = (EDNS_UDP.to_be_bytes(), if question.dnssec { 0x80 } else { 0 });
            packet.extend([0, 0, Kind::OPT.0 as u8, high, low, 0, 0, dnssec, 0, 0, 0]);
        }
        Self { id, name, kind: question.kind, packet }
    }

    fn read(&self, packet: &[u8]) -> Reading {
        let Ok(message) = Message::from_vec(packet) else { return Reading::NotOurs };
        let [query] = &message.queries[..] else { return Reading::NotOurs };
        let name = wire(&query.name);
        let ours = message.metadata.id == self.id
            && message.metadata.message_type == MessageType::Response
            && query.query_type == RecordType::from(self.kind.0)
            && query.query_class == DNSClass::IN
            && name.eq_ignore_ascii_case(&self.name);
        match ours {
            false => Reading::NotOurs,
            true if name == self.name => Reading::Ours(Box::new(message)),
            true => Reading::OtherLetters(Box::new(message)),
        }
    }
}

enum Reading {
    Ours(Box<Message>),
    OtherLetters(Box<Message>),
    NotOurs,
}

/// The same name with every letter large or small by chance.
fn mixed(wire: &[u8]) -> Vec<u8> {
    let mut mixed = wire.to_vec();
    let mut at = 0;
    while mixed[at] != 0 {
        let label = usize::from(mixed[at]);
        for letter in &mut mixed[at + 1..=at + label] {
            if rand::random() {
                letter.make_ascii_uppercase();
            }
        }
        at += label + 1;
    }
    mixed
}

/// Nothing if TCP is to be tried.
async fn by_udp(upstream: SocketAddr, asked: &Asked) -> Result<Option<(Message, usize)>, UpstreamError> {
    let any: SocketAddr = match upstream {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    // A socket for each question: the kernel chooses a port that nobody knows, and hears only this one resolver.
    let socket = UdpSocket::bind(any).await?;
    socket.connect(upstream).await?;
    socket.send(&asked.packet).await?;
    let mut buffer = [0; 4096];
    loop {
        let length = socket.recv(&mut buffer).await?;
        match asked.read(&buffer[..length]) {
            Reading::Ours(message) => return Ok(Some((*message, length))),
            Reading::OtherLetters(_) => return Ok(None),
            Reading::NotOurs => {}
        }
    }
}

async fn by_tcp(upstream: SocketAddr, asked: &Asked) -> Result<(Message, usize), UpstreamError> {
    let mut stream = TcpStream::connect(upstream).await?;
    let mut framed = (asked.packet.len() as u16).to_be_bytes().to_vec();
    framed.extend_from_slice(&asked.packet);
    stream.write_all(&framed).await?;
    let length = stream.read_u16().await?;
    let mut packet = vec![0; length.into()];
    stream.read_exact(&mut packet).await?;
    match asked.read(&packet) {
        Reading::Ours(message) | Reading::OtherLetters(message) => Ok((*message, packet.len())),
        Reading::NotOurs => Err(UpstreamError::Other),
    }
}

/// Seconds for which the answer is true: as its shortest record says, and, of what is not there, as the domain says.
fn lifetime(message: &Message, code: Code) -> u32 {
    let shortest = message.answers.iter().map(|record| record.ttl).min().unwrap_or(LONGEST);
    let asked = message.queries.first().map(|query| query.query_type);
    let there =
        message.answers.iter().any(|record| asked == Some(record.record_type()) || asked == Some(RecordType::ANY));
    if code == Code::Fine && there {
        return shortest.min(LONGEST);
    }
    let of_nothing = message.authorities.iter().find_map(|record| match &record.data {
        RData::SOA(soa) => Some(record.ttl.min(soa.minimum)),
        _ => None,
    });
    // Without the word of a domain, absence is not kept (RFC 2308).
    shortest.min(of_nothing.unwrap_or(0)).min(LONGEST_NOT)
}

fn records(read: &[Read]) -> Vec<Record> {
    read.iter().filter(|record| record.dns_class == DNSClass::IN).filter_map(record).collect()
}

fn record(read: &Read) -> Option<Record> {
    let owner = Owner::Name(Name::from_wire(&wire(&read.name))?);
    let data = match &read.data {
        RData::A(address) => Data::Address(address.0),
        RData::CNAME(target) => Data::Alias(Name::from_wire(&wire(&target.0))?),
        data => {
            let mut bytes = Vec::new();
            let mut encoder = BinEncoder::new(&mut bytes);
            encoder.set_name_encoding(NameEncoding::Uncompressed);
            data.emit(&mut encoder).ok()?;
            Data::Foreign { kind: Kind(read.record_type().into()), bytes: Arc::from(bytes) }
        }
    };
    Some(Record { owner, ttl: read.ttl.min(LONGEST), data })
}

fn wire(name: &hickory_proto::rr::Name) -> Vec<u8> {
    let mut wire = Vec::with_capacity(name.len() + 1);
    for label in name.iter() {
        wire.push(label.len() as u8);
        wire.extend_from_slice(label);
    }
    wire.push(0);
    wire
}

#[cfg(test)]
mod tests;
