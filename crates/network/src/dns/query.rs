//! Parses DNS queries from clients.
//!
//! A query is parsed in one pass where it lies; only its name is copied (in lower case). What is accepted is what
//! stub resolvers send: one question of class IN, and at most one OPT record behind it. Everything else gets the
//! RCODE that says why, or no response at all where any could be wrong.
//!
//! This parser and the writer in `response.rs` are our own, beside `hickory-proto`, which parses the responses of
//! upstream servers. They are on the path of every lookup of every pod: the parser allocates nothing, and the writer
//! needs no tree of messages. The rate in `mod.rs` is that of loops, parser and writer together; the parsers alone were
//! not compared.

use super::name::{self, MAX_NAME, Name};

pub const HEADER: usize = 12;

/// The size of a UDP message without EDNS, and the least that EDNS may say (RFC 1035, RFC 6891).
pub const UDP_SIZE: u16 = 512;

/// The UDP payload size that we use and advertise: it fits through every network unfragmented.
pub const EDNS_UDP_SIZE: u16 = 1232;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordType(pub u16);

impl RecordType {
    pub const A: Self = Self(1);
    pub const NS: Self = Self(2);
    pub const CNAME: Self = Self(5);
    pub const SOA: Self = Self(6);
    pub const PTR: Self = Self(12);
    pub const TXT: Self = Self(16);
    pub const SRV: Self = Self(33);
    pub const OPT: Self = Self(41);
    pub const IXFR: Self = Self(251);
    pub const AXFR: Self = Self(252);
    pub const ANY: Self = Self(255);

    /// Whether a question for this type is answered by records of `other`.
    pub fn matches(self, other: Self) -> bool {
        self == other || self == Self::ANY
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rcode {
    NoError,
    FormErr,
    ServFail,
    NxDomain,
    NotImp,
    Refused,
    /// EDNS
    BadVers,
}

impl Rcode {
    pub fn number(self) -> u16 {
        match self {
            Self::NoError => 0,
            Self::FormErr => 1,
            Self::ServFail => 2,
            Self::NxDomain => 3,
            Self::NotImp => 4,
            Self::Refused => 5,
            Self::BadVers => 16,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edns {
    pub udp: u16,
    pub dnssec: bool,
}

/// A query that gets a response.
#[derive(Clone, Debug)]
pub struct Query {
    pub id: u16,
    pub opcode: u8,
    pub recursion_desired: bool,
    pub checking_disabled: bool,
    pub edns: Option<Edns>,
    /// The question as it came: name, type and class; empty if it could not be parsed.
    pub question: QuestionBytes,
    pub record_type: RecordType,
}

/// The question section as the client wrote it, and its name in lower case.
#[derive(Clone, Debug)]
pub struct QuestionBytes {
    as_sent: [u8; MAX_NAME + 4],
    lower_case: [u8; MAX_NAME],
    name: usize,
}

impl QuestionBytes {
    const NONE: Self = Self { as_sent: [0; MAX_NAME + 4], lower_case: [0; MAX_NAME], name: 0 };

    pub fn as_sent(&self) -> &[u8] {
        match self.name {
            0 => &[],
            length => &self.as_sent[..length + 4],
        }
    }

    pub fn lower_case(&self) -> &[u8] {
        &self.lower_case[..self.name]
    }

    pub fn to_name(&self) -> Name {
        Name::from_wire(self.lower_case()).unwrap_or_else(Name::root)
    }
}

/// `None` if it is a response or too short: two servers must never answer each other's responses.
pub fn parse_query(packet: &[u8]) -> Option<Result<Query, (Query, Rcode)>> {
    let header: &[u8; HEADER] = packet.first_chunk()?;
    let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    if header[2] & 0x80 != 0 {
        return None;
    }
    let mut query = Query {
        id: word(0),
        opcode: (header[2] >> 3) & 0xf,
        recursion_desired: header[2] & 0x01 != 0,
        checking_disabled: header[3] & 0x10 != 0,
        edns: None,
        question: QuestionBytes::NONE,
        record_type: RecordType(0),
    };
    let code = match query.opcode {
        0 => parse_body(&mut query, &packet[HEADER..], [word(4), word(6), word(8), word(10)]),
        _ => Err(Rcode::NotImp),
    };
    Some(match code {
        Ok(()) => Ok(query),
        Err(code) => Err((query, code)),
    })
}

fn parse_body(
    query: &mut Query,
    rest: &[u8],
    [questions, answers, authorities, additionals]: [u16; 4],
) -> Result<(), Rcode> {
    if questions != 1 || answers != 0 || authorities != 0 {
        return Err(Rcode::FormErr);
    }
    let length = name::wire_length(rest).ok_or(Rcode::FormErr)?;
    let asked = rest.get(..length + 4).ok_or(Rcode::FormErr)?;
    let question = &mut query.question;
    question.as_sent[..asked.len()].copy_from_slice(asked);
    question.lower_case[..length].copy_from_slice(&asked[..length]);
    question.lower_case[..length].make_ascii_lowercase();
    question.name = length;
    query.record_type = RecordType(u16::from_be_bytes([asked[length], asked[length + 1]]));
    let class = u16::from_be_bytes([asked[length + 2], asked[length + 3]]);

    let mut rest = &rest[length + 4..];
    for _ in 0..additionals {
        rest = parse_additional(query, rest)?;
    }
    match (class, query.record_type) {
        (_, RecordType::OPT) => Err(Rcode::FormErr),
        (1, RecordType::AXFR | RecordType::IXFR) => Err(Rcode::Refused),
        (1, _) => Ok(()),
        _ => Err(Rcode::Refused),
    }
}

/// Skips one record of the additional section; takes the fields of an OPT.
fn parse_additional<'a>(query: &mut Query, rest: &'a [u8]) -> Result<&'a [u8], Rcode> {
    let length = name::wire_length(rest).ok_or(Rcode::FormErr)?;
    let (fixed, rest) = rest[length..].split_first_chunk::<10>().ok_or(Rcode::FormErr)?;
    let word = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
    let rest = rest.get(usize::from(word(8))..).ok_or(Rcode::FormErr)?;
    if RecordType(word(0)) == RecordType::OPT {
        if length != 1 || query.edns.is_some() {
            return Err(Rcode::FormErr);
        }
        query.edns = Some(Edns { udp: word(2).max(UDP_SIZE), dnssec: fixed[6] & 0x80 != 0 });
        if fixed[5] != 0 {
            return Err(Rcode::BadVers);
        }
    }
    Ok(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(flags: [u8; 2], counts: [u8; 4], body: &[u8]) -> Vec<u8> {
        let mut packet = vec![0xab, 0xcd, flags[0], flags[1]];
        counts.iter().for_each(|count| packet.extend([0, *count]));
        packet.extend_from_slice(body);
        packet
    }

    const WEB: &[u8] = b"\x03WeB\x03svc\0\0\x01\0\x01";
    const OPT: &[u8] = b"\0\0\x29\x10\0\0\0\x80\0\0\0";

    #[test]
    fn a_question_is_kept_as_sent_and_in_lower_case() {
        let query = parse_query(&packet([1, 0], [1, 0, 0, 0], WEB)).unwrap().unwrap();
        assert_eq!((query.id, query.recursion_desired, query.record_type), (0xabcd, true, RecordType::A));
        assert_eq!(query.question.as_sent(), WEB);
        assert_eq!(query.question.lower_case(), b"\x03web\x03svc\0");
        assert_eq!(query.edns, None);
    }

    #[test]
    fn edns_gives_the_payload_size_and_the_do_bit() {
        let with = parse_query(&packet([0, 0], [1, 0, 0, 1], &[WEB, OPT].concat())).unwrap().unwrap();
        assert_eq!(with.edns, Some(Edns { udp: 4096, dnssec: true }));
        let small = [WEB, b"\0\0\x29\0\x10\0\0\0\0\0\0"].concat();
        assert_eq!(parse_query(&packet([0, 0], [1, 0, 0, 1], &small)).unwrap().unwrap().edns.unwrap().udp, UDP_SIZE);
    }

    #[test]
    fn what_is_not_a_plain_query_gets_the_rcode_that_says_why() {
        type Case<'a> = (&'a str, [u8; 2], [u8; 4], &'a [u8], Rcode);
        let cases: &[Case<'_>] = &[
            ("notify", [0x20, 0], [1, 0, 0, 0], WEB, Rcode::NotImp),
            ("no question", [0, 0], [0, 0, 0, 0], b"", Rcode::FormErr),
            ("two questions", [0, 0], [2, 0, 0, 0], &[WEB, WEB].concat(), Rcode::FormErr),
            ("an answer in it", [0, 0], [1, 1, 0, 0], WEB, Rcode::FormErr),
            ("cut in the name", [0, 0], [1, 0, 0, 0], b"\x03We", Rcode::FormErr),
            ("cut after the name", [0, 0], [1, 0, 0, 0], b"\x03WeB\0\0", Rcode::FormErr),
            ("a pointer to itself", [0, 0], [1, 0, 0, 0], b"\xc0\x0c\0\x01\0\x01", Rcode::FormErr),
            ("an OPT that is missing", [0, 0], [1, 0, 0, 1], WEB, Rcode::FormErr),
            ("two of OPT", [0, 0], [1, 0, 0, 2], &[WEB, OPT, OPT].concat(), Rcode::FormErr),
            (
                "an OPT of another version",
                [0, 0],
                [1, 0, 0, 1],
                &[WEB, b"\0\0\x29\x10\0\0\x01\0\0\0\0"].concat(),
                Rcode::BadVers,
            ),
            ("chaos", [0, 0], [1, 0, 0, 0], b"\x01a\0\0\x10\0\x03", Rcode::Refused),
            ("a transfer", [0, 0], [1, 0, 0, 0], b"\x01a\0\0\xfc\0\x01", Rcode::Refused),
        ];
        for (what, flags, counts, body, code) in cases {
            let (_, refused) = parse_query(&packet(*flags, *counts, body)).unwrap().unwrap_err();
            assert_eq!(refused, *code, "{what}");
        }
    }

    #[test]
    fn responses_and_fragments_get_no_response() {
        assert!(parse_query(&packet([0x80, 0], [1, 0, 0, 0], WEB)).is_none());
        assert!(parse_query(b"").is_none());
        assert!(parse_query(&[0; 11]).is_none());
    }
}
