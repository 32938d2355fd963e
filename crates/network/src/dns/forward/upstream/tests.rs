use hickory_proto::{
    op::{OpCode, Query as Asks},
    rr::rdata::{A, AAAA, CNAME, MX, NS, NULL, SOA, SRV, TXT},
};
use proptest::prelude::*;

use super::*;
use crate::dns::{
    query::parse_query,
    response::{Age, Transport, write_response},
};

fn name(text: &str) -> hickory_proto::rr::Name {
    hickory_proto::rr::Name::from_ascii(text).unwrap()
}

fn question(text: &str, kind: u16) -> Question {
    Question {
        name: Name::parse(text).unwrap(),
        record_type: RecordType(kind),
        dnssec: false,
        checking_disabled: false,
    }
}

/// An answer to a question for `kind`, as another server writes it.
fn message(query: &UpstreamQuery, answers: Vec<UpstreamRecord>, authority: Vec<UpstreamRecord>) -> Message {
    let mut message = Message::new(query.id, MessageType::Response, OpCode::Query);
    let letters: String = query.name.iter().map(|byte| if *byte < 64 { '.' } else { char::from(*byte) }).collect();
    message.queries = vec![Asks::query(name(letters.trim_start_matches('.')), query.record_type.0.into())];
    message.answers = answers;
    message.authorities = authority;
    message
}

fn soa(ttl: u32, minimum: u32) -> UpstreamRecord {
    let data = SOA::new(name("ns.example."), name("hostmaster.example."), 1, 2, 3, 4, minimum);
    UpstreamRecord::from_rdata(name("example."), ttl, RData::SOA(data))
}

#[test]
fn records_of_every_type_pass_through_unchanged() {
    let www = name("www.example.");
    let answers: Vec<_> = [
        RData::A(A::new(192, 0, 2, 1)),
        RData::AAAA(AAAA::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
        RData::CNAME(CNAME(name("web.example."))),
        RData::MX(MX::new(10, name("mail.www.example."))),
        RData::NS(NS(name("ns.example."))),
        RData::SRV(SRV::new(1, 2, 3, name("srv.example."))),
        RData::TXT(TXT::new(vec!["One".into(), "Two".into()])),
        RData::Unknown { code: ProtoRecordType::Unknown(65_280), rdata: NULL::with(vec![1, 2, 3]) },
    ]
    .into_iter()
    .map(|data| UpstreamRecord::from_rdata(www.clone(), 60, data))
    .collect();
    let query = UpstreamQuery::new(&question("www.example", 255), true);
    let sent = message(&query, answers, vec![soa(60, 60)]);
    let ReplyMatch::Matches(answer) = query.read(&sent.to_vec().unwrap()) else { panic!("no match") };
    let answer = Response {
        answers: to_records(&answer.answers),
        authority: to_records(&answer.authorities),
        ..Response::with_rcode(Rcode::NoError)
    };
    let client = parse_query(&query.packet).unwrap().unwrap();
    let mut out = Vec::new();
    write_response(&client, &answer, Age::NEW, Transport::Tcp, &mut out);
    let response = Message::from_vec(&out).unwrap();
    assert_eq!(response.answers, sent.answers);
    assert_eq!(response.authorities, sent.authorities);
}

#[test]
fn the_ttl_of_an_answer_is_that_of_its_shortest_record() {
    let record = |ttl, data| UpstreamRecord::from_rdata(name("www.example."), ttl, data);
    let (address, alias) = (|| RData::A(A::new(192, 0, 2, 1)), || RData::CNAME(CNAME(name("web.example."))));
    let cases = [
        ("one", vec![record(60, address())], vec![], Rcode::NoError, 60),
        ("the shortest", vec![record(60, alias()), record(20, address())], vec![], Rcode::NoError, 20),
        ("capped", vec![record(1_000_000, address())], vec![], Rcode::NoError, MAX_TTL),
        ("no name", vec![], vec![soa(600, 40)], Rcode::NxDomain, 40),
        ("no data", vec![], vec![soa(30, 600)], Rcode::NoError, 30),
        ("an alias of nothing", vec![record(10, alias())], vec![soa(30, 600)], Rcode::NxDomain, 10),
        ("nothing, capped", vec![], vec![soa(1_000_000, 1_000_000)], Rcode::NxDomain, MAX_NEGATIVE_TTL),
        ("nothing, unsaid", vec![], vec![], Rcode::NxDomain, 0),
    ];
    let query = UpstreamQuery::new(&question("www.example", 1), true);
    for (what, answers, authority, rcode, seconds) in cases {
        assert_eq!(answer_ttl(&message(&query, answers, authority), rcode), seconds, "{what}");
    }
}

#[test]
fn a_response_must_repeat_id_name_and_type() {
    let query = UpstreamQuery::new(&question("anameofmanyletters.example", 1), true);
    let well = message(&query, Vec::new(), Vec::new());
    let read = |change: fn(&mut Message)| {
        let mut changed = well.clone();
        change(&mut changed);
        match query.read(&changed.to_vec().unwrap()) {
            ReplyMatch::Matches(_) => "ours",
            ReplyMatch::OtherCase(_) => "other letters",
            ReplyMatch::Mismatch => "not ours",
        }
    };
    assert_eq!(read(|_| {}), "ours");
    assert_eq!(read(|message| message.metadata.id ^= 1), "not ours");
    assert_eq!(read(|message| message.metadata.message_type = MessageType::Query), "not ours");
    assert_eq!(read(|message| message.queries[0].name = name("b.example.")), "not ours");
    assert_eq!(read(|message| message.queries[0].query_type = ProtoRecordType::AAAA), "not ours");
    assert_eq!(read(|message| message.queries.clear()), "not ours");
    assert_eq!(read(|message| message.queries[0].name = message.queries[0].name.to_lowercase()), "other letters");
}

proptest! {
    #[test]
    fn whatever_others_send_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200), begins_well in any::<bool>()) {
        let query = UpstreamQuery::new(&question("www.example", 1), false);
        let mut packet = if begins_well { query.packet.clone() } else { Vec::new() };
        packet.extend(&bytes);
        if begins_well {
            packet[2] |= 0x80;
            packet[7] = bytes.first().copied().unwrap_or(0) % 4;
        }
        if let ReplyMatch::Matches(message) = query.read(&packet) {
            let read = to_records(&message.answers);
            prop_assert!(read.len() <= message.answers.len());
        }
    }
}
