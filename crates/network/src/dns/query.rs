//! What clients send.
//!
//! A question is read where it lies, in one pass, without copying anything but its name (into lower case). Only what
//! a resolver is asked by clients passes: one question, of class IN, and at most one OPT record behind it. Everything
//! else is refused with the code that says why, or, if no answer could be right, not answered at all.

use super::name::{self, LONGEST, Name};

pub const HEADER: usize = 12;

/// What a client takes by UDP if it does not say, and the least that it may say (RFC 1035, RFC 6891).
pub const PLAIN_UDP: u16 = 512;

/// What we send and say we take by UDP: it fits through every network in one piece.
pub const EDNS_UDP: u16 = 1232;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kind(pub u16);

impl Kind {
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

    /// Whether a question for this is answered by records of `kind`.
    pub fn wants(self, kind: Self) -> bool {
        self == kind || self == Self::ANY
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    Fine,
    Malformed,
    Failed,
    NoSuchName,
    NotImplemented,
    Refused,
    /// Of EDNS.
    BadVersion,
}

impl Code {
    pub fn number(self) -> u16 {
        match self {
            Self::Fine => 0,
            Self::Malformed => 1,
            Self::Failed => 2,
            Self::NoSuchName => 3,
            Self::NotImplemented => 4,
            Self::Refused => 5,
            Self::BadVersion => 16,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edns {
    pub udp: u16,
    pub dnssec: bool,
}

/// A packet that is to be answered.
#[derive(Clone, Debug)]
pub struct Query {
    pub id: u16,
    pub opcode: u8,
    pub recursion_desired: bool,
    pub checking_disabled: bool,
    pub edns: Option<Edns>,
    /// The name in the letters of the client, type and class: as it came; empty if it could not be read.
    pub question: Echo,
    pub kind: Kind,
}

/// A question as it was written, and its name in lower case.
#[derive(Clone, Debug)]
pub struct Echo {
    written: [u8; LONGEST + 4],
    lower: [u8; LONGEST],
    name: usize,
}

impl Echo {
    const NONE: Self = Self { written: [0; LONGEST + 4], lower: [0; LONGEST], name: 0 };

    pub fn written(&self) -> &[u8] {
        match self.name {
            0 => &[],
            length => &self.written[..length + 4],
        }
    }

    pub fn lower(&self) -> &[u8] {
        &self.lower[..self.name]
    }

    pub fn to_name(&self) -> Name {
        Name::from_wire(self.lower()).unwrap_or_else(Name::root)
    }
}

/// Nothing if it is no question at all, so that no two servers ever answer each other's answers.
pub fn read(packet: &[u8]) -> Option<Result<Query, (Query, Code)>> {
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
        question: Echo::NONE,
        kind: Kind(0),
    };
    let code = match query.opcode {
        0 => body(&mut query, &packet[HEADER..], [word(4), word(6), word(8), word(10)]),
        _ => Err(Code::NotImplemented),
    };
    Some(match code {
        Ok(()) => Ok(query),
        Err(code) => Err((query, code)),
    })
}

fn body(query: &mut Query, rest: &[u8], [questions, answers, authorities, additionals]: [u16; 4]) -> Result<(), Code> {
    if questions != 1 || answers != 0 || authorities != 0 {
        return Err(Code::Malformed);
    }
    let length = name::length(rest).ok_or(Code::Malformed)?;
    let asked = rest.get(..length + 4).ok_or(Code::Malformed)?;
    let question = &mut query.question;
    question.written[..asked.len()].copy_from_slice(asked);
    question.lower[..length].copy_from_slice(&asked[..length]);
    question.lower[..length].make_ascii_lowercase();
    question.name = length;
    query.kind = Kind(u16::from_be_bytes([asked[length], asked[length + 1]]));
    let class = u16::from_be_bytes([asked[length + 2], asked[length + 3]]);

    let mut rest = &rest[length + 4..];
    for _ in 0..additionals {
        rest = additional(query, rest)?;
    }
    match (class, query.kind) {
        (_, Kind::OPT) => Err(Code::Malformed),
        (1, Kind::AXFR | Kind::IXFR) => Err(Code::Refused),
        (1, _) => Ok(()),
        _ => Err(Code::Refused),
    }
}

/// Takes one record from the frontend, and what an OPT says.
fn additional<'a>(query: &mut Query, rest: &'a [u8]) -> Result<&'a [u8], Code> {
    let length = name::length(rest).ok_or(Code::Malformed)?;
    let (fixed, rest) = rest[length..].split_first_chunk::<10>().ok_or(Code::Malformed)?;
    let word = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
    let rest = rest.get(usize::from(word(8))..).ok_or(Code::Malformed)?;
    if Kind(word(0)) == Kind::OPT {
        if length != 1 || query.edns.is_some() {
            return Err(Code::Malformed);
        }
        query.edns = Some(Edns { udp: word(2).max(PLAIN_UDP), dnssec: fixed[6] & 0x80 != 0 });
        if fixed[5] != 0 {
            return Err(Code::BadVersion);
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
    fn a_question_is_read_with_its_letters_and_without() {
        let query = read(&packet([1, 0], [1, 0, 0, 0], WEB)).unwrap().unwrap();
        assert_eq!((query.id, query.recursion_desired, query.kind), (0xabcd, true, Kind::A));
        assert_eq!(query.question.written(), WEB);
        assert_eq!(query.question.lower(), b"\x03web\x03svc\0");
        assert_eq!(query.edns, None);
    }

    #[test]
    fn edns_says_what_the_client_takes() {
        let with = read(&packet([0, 0], [1, 0, 0, 1], &[WEB, OPT].concat())).unwrap().unwrap();
        assert_eq!(with.edns, Some(Edns { udp: 4096, dnssec: true }));
        let small = [WEB, b"\0\0\x29\0\x10\0\0\0\0\0\0"].concat();
        assert_eq!(read(&packet([0, 0], [1, 0, 0, 1], &small)).unwrap().unwrap().edns.unwrap().udp, PLAIN_UDP);
    }

    #[test]
    fn what_is_not_a_plain_question_is_refused_with_its_reason() {
        type Case<'a> = (&'a str, [u8; 2], [u8; 4], &'a [u8], Code);
        let cases: &[Case<'_>] = &[
            ("notify", [0x20, 0], [1, 0, 0, 0], WEB, Code::NotImplemented),
            ("no question", [0, 0], [0, 0, 0, 0], b"", Code::Malformed),
            ("two questions", [0, 0], [2, 0, 0, 0], &[WEB, WEB].concat(), Code::Malformed),
            ("an answer in it", [0, 0], [1, 1, 0, 0], WEB, Code::Malformed),
            ("cut in the name", [0, 0], [1, 0, 0, 0], b"\x03We", Code::Malformed),
            ("cut after the name", [0, 0], [1, 0, 0, 0], b"\x03WeB\0\0", Code::Malformed),
            ("a pointer to itself", [0, 0], [1, 0, 0, 0], b"\xc0\x0c\0\x01\0\x01", Code::Malformed),
            ("an OPT that is missing", [0, 0], [1, 0, 0, 1], WEB, Code::Malformed),
            ("two of OPT", [0, 0], [1, 0, 0, 2], &[WEB, OPT, OPT].concat(), Code::Malformed),
            (
                "an OPT of next year",
                [0, 0],
                [1, 0, 0, 1],
                &[WEB, b"\0\0\x29\x10\0\0\x01\0\0\0\0"].concat(),
                Code::BadVersion,
            ),
            ("chaos", [0, 0], [1, 0, 0, 0], b"\x01a\0\0\x10\0\x03", Code::Refused),
            ("a transfer", [0, 0], [1, 0, 0, 0], b"\x01a\0\0\xfc\0\x01", Code::Refused),
        ];
        for (what, flags, counts, body, code) in cases {
            let (_, refused) = read(&packet(*flags, *counts, body)).unwrap().unwrap_err();
            assert_eq!(refused, *code, "{what}");
        }
    }

    #[test]
    fn answers_and_scraps_are_met_with_silence() {
        assert!(read(&packet([0x80, 0], [1, 0, 0, 0], WEB)).is_none());
        assert!(read(b"").is_none());
        assert!(read(&[0; 11]).is_none());
    }
}
