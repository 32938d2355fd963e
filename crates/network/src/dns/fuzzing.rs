//! Entrances for the fuzz targets of DNS: a packet of a stranger, and what must hold of what is made of it.

use std::sync::{Arc, LazyLock};

use hickory_proto::op::Message;

use super::{
    DnsSettings,
    forward::{Forwarder, Question, fuzzing::read_answer},
    name::Name,
    query::{EDNS_UDP_SIZE, RecordType, parse_query},
    response::{Age, Transport, write_response},
    server::{Reply, Server},
    zones::{ShuffleRng, Zones},
};
use crate::{
    Protocol,
    catalogue::{Catalogue, Endpoint, HOLD, Key, Service, ServiceKind, ServicePort, Slice, SlicePort},
};

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let address = [10, 96, 0, 10].into();
    let settings = DnsSettings {
        address,
        port: 53,
        domain: "cluster.local".into(),
        alias_domain: "consul".into(),
        datacentre: "dc1".into(),
        upstreams: Vec::new(),
    };
    let zones = Zones::new(&settings).expect("names of zones");
    let forwarder = Arc::new(Forwarder::new((address, 53).into(), Vec::new()));
    Server { zones, catalogue: Arc::new(sample_catalogue()), forwarder }
});

/// A Service of each kind, and endpoints.
fn sample_catalogue() -> Catalogue {
    let service = |kind, port: u16| Service {
        kind,
        ports: [ServicePort { name: "http".into(), protocol: Protocol::Tcp, port, node_port: None }].into(),
        external_ips: Vec::new(),
        affinity: None,
        internal_local: false,
        external_local: false,
        hold: HOLD,
        through_user_space: false,
        publish_not_ready: false,
        has_other_proxy: false,
        tags: ["blue".into()].into(),
    };
    let endpoint = |last: u8| Endpoint {
        address: [10, 244, 0, last].into(),
        ready: true,
        serving: true,
        terminating: false,
        node: None,
        hostname: Some(format!("db-{last}").into()),
        hints: None,
    };
    let catalogue = Catalogue::default();
    for (name, kind) in [
        ("web", ServiceKind::ClusterIp([10, 96, 0, 1].into())),
        ("db", ServiceKind::Headless),
        ("out", ServiceKind::ExternalName("www.example.com".into())),
        ("loop", ServiceKind::ExternalName("loop.default.svc.cluster.local".into())),
    ] {
        catalogue.set_service(Key::new("default", name), Some(service(kind, 80)));
    }
    let ports = [SlicePort { name: "http".into(), protocol: Protocol::Tcp, port: 8080 }].into();
    let slice = Slice { service: "db".into(), ports, endpoints: (1..60).map(endpoint).collect(), host: None };
    catalogue.set_slice(Key::new("default", "db-a"), Some(slice));
    catalogue.set_machine("m1", Some([192, 0, 2, 1].into()));
    catalogue
}

/// Answers a packet. A reply is well-formed, repeats the query's id and fits the transport.
pub fn reply_to_query(packet: &[u8]) {
    for transport in [Transport::Udp, Transport::Tcp] {
        let mut out = Vec::new();
        match SERVER.reply(packet, transport, &mut ShuffleRng::with_seed(1), &mut out) {
            Reply::Ignore | Reply::Forward(_) => assert!(out.is_empty(), "a reply that nobody asked for"),
            Reply::Written => {
                let reply = Message::from_vec(&out).unwrap_or_else(|error| panic!("{error} in {out:?}"));
                assert_eq!(reply.metadata.id.to_be_bytes(), packet[..2], "the id");
                assert!(transport == Transport::Tcp || out.len() <= usize::from(EDNS_UDP_SIZE), "{} bytes", out.len());
            }
        }
    }
}

/// Reads what an upstream server answers to a query of ours, and passes it on to a client. The first twelve bytes are the header, of which
/// id, QR and the number of questions are made to fit; the question is ours.
pub fn take_upstream_answer(packet: &[u8]) {
    let name = Name::parse("www.example.com").expect("a name");
    let question = Question { name, record_type: RecordType::A, dnssec: false, checking_disabled: false };
    let Some((query, answer)) = read_answer(&question, packet) else { return };
    let client = parse_query(&query).expect("a query of ours").expect("a query of ours");
    for transport in [Transport::Udp, Transport::Tcp] {
        let mut out = Vec::new();
        write_response(&client, &answer, Age::NEW, transport, &mut out);
        let passed_on = Message::from_vec(&out);
        assert!(passed_on.is_ok(), "{:?} in {out:?}", passed_on.err());
    }
}
