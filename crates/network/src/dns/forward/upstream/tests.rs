use hickory_proto::{
    op::{OpCode, Query as Asks},
    rr::rdata::{A, AAAA, CNAME, MX, NS, NULL, SOA, SRV, TXT},
};
use proptest::prelude::*;

use super::*;
use crate::dns::{
    answer::{self, Age, Transport},
    query,
};

fn name(text: &str) -> hickory_proto::rr::Name {
    hickory_proto::rr::Name::from_ascii(text).unwrap()
}

fn question(text: &str, kind: u16) -> Question {
    Question { name: Name::parse(text).unwrap(), kind: Kind(kind), dnssec: false, checking_disabled: false }
}

/// An answer to a question for `kind`, as another server writes it.
fn message(asked: &Asked, answers: Vec<Read>, authorities: Vec<Read>) -> Message {
    let mut message = Message::new(asked.id, MessageType::Response, OpCode::Query);
    let letters: String = asked.name.iter().map(|byte| if *byte < 64 { '.' } else { char::from(*byte) }).collect();
    message.queries = vec![Asks::query(name(letters.trim_start_matches('.')), asked.kind.0.into())];
    message.answers = answers;
    message.authorities = authorities;
    message
}

fn soa(ttl: u32, minimum: u32) -> Read {
    let data = SOA::new(name("ns.example."), name("hostmaster.example."), 1, 2, 3, 4, minimum);
    Read::from_rdata(name("example."), ttl, RData::SOA(data))
}

#[test]
fn what_others_say_is_passed_on_unchanged() {
    let www = name("www.example.");
    let answers: Vec<_> = [
        RData::A(A::new(192, 0, 2, 1)),
        RData::AAAA(AAAA::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
        RData::CNAME(CNAME(name("web.example."))),
        RData::MX(MX::new(10, name("mail.www.example."))),
        RData::NS(NS(name("ns.example."))),
        RData::SRV(SRV::new(1, 2, 3, name("srv.example."))),
        RData::TXT(TXT::new(vec!["One".into(), "Two".into()])),
        RData::Unknown { code: RecordType::Unknown(65_280), rdata: NULL::with(vec![1, 2, 3]) },
    ]
    .into_iter()
    .map(|data| Read::from_rdata(www.clone(), 60, data))
    .collect();
    let asked = Asked::new(&question("www.example", 255), true);
    let sent = message(&asked, answers, vec![soa(60, 60)]);
    let Reading::Ours(heard) = asked.read(&sent.to_vec().unwrap()) else { panic!("ours") };
    let answer = Answer {
        answers: records(&heard.answers),
        authorities: records(&heard.authorities),
        ..Answer::only(Code::Fine)
    };
    let client = query::read(&asked.packet).unwrap().unwrap();
    let mut out = Vec::new();
    answer::write(&client, &answer, Age::NEW, Transport::Tcp, &mut out);
    let told = Message::from_vec(&out).unwrap();
    assert_eq!(told.answers, sent.answers);
    assert_eq!(told.authorities, sent.authorities);
}

#[test]
fn an_answer_lives_as_long_as_its_shortest_record() {
    let record = |ttl, data| Read::from_rdata(name("www.example."), ttl, data);
    let (address, alias) = (|| RData::A(A::new(192, 0, 2, 1)), || RData::CNAME(CNAME(name("web.example."))));
    let cases = [
        ("one", vec![record(60, address())], vec![], Code::Fine, 60),
        ("the shortest", vec![record(60, alias()), record(20, address())], vec![], Code::Fine, 20),
        ("capped", vec![record(1_000_000, address())], vec![], Code::Fine, LONGEST),
        ("no name", vec![], vec![soa(600, 40)], Code::NoSuchName, 40),
        ("no data", vec![], vec![soa(30, 600)], Code::Fine, 30),
        ("an alias of nothing", vec![record(10, alias())], vec![soa(30, 600)], Code::NoSuchName, 10),
        ("nothing, capped", vec![], vec![soa(1_000_000, 1_000_000)], Code::NoSuchName, LONGEST_NOT),
        ("nothing, unsaid", vec![], vec![], Code::NoSuchName, 0),
    ];
    let asked = Asked::new(&question("www.example", 1), true);
    for (what, answers, authorities, code, seconds) in cases {
        assert_eq!(lifetime(&message(&asked, answers, authorities), code), seconds, "{what}");
    }
}

#[test]
fn an_answer_must_repeat_number_name_and_kind() {
    let asked = Asked::new(&question("anameofmanyletters.example", 1), true);
    let well = message(&asked, Vec::new(), Vec::new());
    let read = |change: fn(&mut Message)| {
        let mut changed = well.clone();
        change(&mut changed);
        match asked.read(&changed.to_vec().unwrap()) {
            Reading::Ours(_) => "ours",
            Reading::OtherLetters(_) => "other letters",
            Reading::NotOurs => "not ours",
        }
    };
    assert_eq!(read(|_| {}), "ours");
    assert_eq!(read(|message| message.metadata.id ^= 1), "not ours");
    assert_eq!(read(|message| message.metadata.message_type = MessageType::Query), "not ours");
    assert_eq!(read(|message| message.queries[0].name = name("b.example.")), "not ours");
    assert_eq!(read(|message| message.queries[0].query_type = RecordType::AAAA), "not ours");
    assert_eq!(read(|message| message.queries.clear()), "not ours");
    assert_eq!(read(|message| message.queries[0].name = message.queries[0].name.to_lowercase()), "other letters");
}

proptest! {
    #[test]
    fn whatever_others_send_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200), begins_well in any::<bool>()) {
        let asked = Asked::new(&question("www.example", 1), false);
        let mut packet = if begins_well { asked.packet.clone() } else { Vec::new() };
        packet.extend(&bytes);
        if begins_well {
            packet[2] |= 0x80;
            packet[7] = bytes.first().copied().unwrap_or(0) % 4;
        }
        if let Reading::Ours(message) = asked.read(&packet) {
            let read = records(&message.answers);
            prop_assert!(read.len() <= message.answers.len());
        }
    }
}
