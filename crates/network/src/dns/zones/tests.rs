//! Every kind of name in our zones, as a table of queries and answers. Responses are written, and parsed again by a
//! library (`hickory-proto`).

use hickory_proto::{
    op::{Message, ResponseCode},
    rr::{RData, Record as Read},
};
use proptest::prelude::*;

use super::*;
use crate::{
    Protocol,
    catalogue::{self, Catalogue, HOLD, Key, Service, ServicePort, Slice, SlicePort},
    dns::{
        query::parse_query,
        response::{Age, Transport, write_response},
    },
};

pub fn settings() -> DnsSettings {
    DnsSettings {
        address: [10, 96, 0, 10].into(),
        port: 53,
        domain: "cluster.local".into(),
        alias_domain: "consul".into(),
        datacentre: "dc1".into(),
        upstreams: Vec::new(),
    }
}

fn service(kind: catalogue::ServiceKind, ports: &[(&str, Protocol, u16)], tags: &[&str]) -> Service {
    let port = |(name, protocol, port): &(&str, Protocol, u16)| ServicePort {
        name: (*name).into(),
        protocol: *protocol,
        port: *port,
        node_port: None,
    };
    Service {
        kind,
        ports: ports.iter().map(port).collect(),
        external_ips: Vec::new(),
        affinity: None,
        internal_local: false,
        external_local: false,
        hold: HOLD,
        through_user_space: false,
        publish_not_ready: false,
        has_other_proxy: false,
        tags: tags.iter().map(|tag| (*tag).into()).collect(),
    }
}

fn endpoint(address: [u8; 4], ready: bool, hostname: Option<&str>) -> Endpoint {
    let hostname = hostname.map(Arc::from);
    Endpoint { address: address.into(), ready, serving: ready, terminating: false, node: None, hostname, hints: None }
}

fn slice(service: &str, ports: &[(&str, Protocol, u16)], endpoints: Vec<Endpoint>) -> Slice {
    let port = |(name, protocol, port): &(&str, Protocol, u16)| SlicePort {
        name: (*name).into(),
        protocol: *protocol,
        port: *port,
    };
    Slice { service: service.into(), ports: ports.iter().map(port).collect(), endpoints, host: None }
}

/// A small cluster in which everything occurs once.
fn cluster() -> Catalogue {
    use catalogue::ServiceKind::{ClusterIp as Address, ExternalName as Alias, Headless};
    let (http, dns) = (("http", Protocol::Tcp, 80), ("dns", Protocol::Udp, 53));
    let catalogue = Catalogue::default();
    let services = [
        ("default", "web", service(Address([10, 96, 0, 1].into()), &[http, dns], &["blue", "v1"])),
        ("other", "web", service(Address([10, 96, 0, 3].into()), &[http], &[])),
        ("default", "bare", service(Address([10, 96, 0, 2].into()), &[("", Protocol::Tcp, 1)], &[])),
        ("default", "db", service(Headless, &[http], &[])),
        ("default", "idle", service(Headless, &[http], &[])),
        ("default", "out", service(Alias("www.example.com".into()), &[], &[])),
        ("default", "in", service(Alias("WEB.default.svc.cluster.local.".into()), &[], &[])),
        ("default", "hop", service(Alias("in.default.svc.cluster.local".into()), &[], &[])),
        ("default", "lost", service(Alias("none.default.svc.cluster.local".into()), &[], &[])),
        ("default", "loop", service(Alias("loop.default.svc.cluster.local".into()), &[], &[])),
        ("default", "digits", service(Alias("192.0.2.7".into()), &[], &[])),
        ("default", "host", service(Address([10, 96, 0, 4].into()), &[http], &[])),
    ];
    for (namespace, name, service) in services {
        catalogue.set_service(Key::new(namespace, name), Some(service));
    }
    let db = vec![endpoint([10, 244, 0, 5], true, None), endpoint([10, 244, 0, 6], true, Some("db-1"))];
    let web = vec![endpoint([10, 244, 0, 7], true, None), endpoint([10, 244, 0, 8], false, None)];
    let more = vec![endpoint([10, 244, 0, 6], true, Some("db-1")), endpoint([10, 244, 0, 9], false, Some("db-2"))];
    let slices = [
        ("default", "db-a", slice("db", &[("http", Protocol::Tcp, 8080)], db)),
        ("default", "db-b", slice("db", &[], more)),
        ("default", "web-a", slice("web", &[("http", Protocol::Tcp, 8081), ("dns", Protocol::Udp, 5353)], web)),
        ("other", "web-a", slice("web", &[("http", Protocol::Tcp, 8082)], vec![endpoint([10, 244, 1, 7], true, None)])),
        ("default", "idle-a", slice("idle", &[], vec![endpoint([10, 244, 0, 10], false, None)])),
        ("default", "host-a", slice("host", &[("http", Protocol::Tcp, 9)], vec![endpoint([192, 0, 2, 1], true, None)])),
    ];
    // Programs that are not pods: tags of their own, and machines with several interfaces.
    catalogue.set_service(Key::new("host-services", "mysql"), Some(service(Headless, &[], &[])));
    for (number, port, tag, ready) in
        [(30, 3306, "master", true), (31, 3307, "replica", true), (32, 3306, "replica", false)]
    {
        let hostname = format!("h{number}");
        let endpoints = vec![endpoint([192, 0, 2, number], ready, Some(&hostname))];
        let host = catalogue::HostInstance {
            tags: [tag.into()].into(),
            interfaces: [("eth0".into(), [192, 0, 2, number].into()), ("eth1".into(), [10, 9, 0, number].into())]
                .into(),
        };
        let mysql = Slice { host: Some(Box::new(host)), ..slice("mysql", &[("", Protocol::Tcp, port)], endpoints) };
        catalogue.set_slice(Key::new("host-services", &hostname), Some(mysql));
    }
    for (namespace, name, slice) in slices {
        catalogue.set_slice(Key::new(namespace, name), Some(slice));
    }
    catalogue.set_machine("m1", Some([192, 0, 2, 1].into()));
    catalogue.set_machine("m2.rack.example", Some([192, 0, 2, 2].into()));
    catalogue
}

fn packet(name: &str, kind: u16) -> Vec<u8> {
    let mut packet = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.trim_end_matches('.').split('.').filter(|label| !label.is_empty()) {
        packet.push(label.len() as u8);
        packet.extend_from_slice(label.as_bytes());
    }
    packet.extend([0, (kind >> 8) as u8, kind as u8, 0, 1]);
    packet
}

fn ask(catalogue: &CatalogueState, name: &str, kind: u16, transport: Transport) -> Result<Message, Name> {
    let query = parse_query(&packet(name, kind)).unwrap().unwrap();
    match Zones::new(&settings()).unwrap().resolve(catalogue, &query, &mut ShuffleRng::with_seed(1)) {
        Resolution::Local(answer) => {
            let mut out = Vec::new();
            write_response(&query, &answer, Age::NEW, transport, &mut out);
            Ok(Message::from_vec(&out).unwrap())
        }
        Resolution::Forward { name, .. } => Err(name),
    }
}

fn show(record: &Read) -> String {
    match &record.data {
        RData::SRV(srv) => format!("{}:{}", srv.target, srv.port),
        RData::SOA(_) => format!("{} soa", record.name),
        data => data.to_string(),
    }
}

/// Answers, sorted, and below them what else is in the packet.
fn resolve_text(name: &str, kind: u16) -> String {
    let catalogue = cluster();
    match ask(&catalogue.read(), name, kind, Transport::Tcp) {
        Err(name) => format!("forward {name}"),
        Ok(message) => {
            let mut answers: Vec<_> = message.answers.iter().map(show).collect();
            answers.sort();
            let others = message.authorities.iter().chain(&message.additionals).map(show);
            let mut others: Vec<_> = others.collect();
            others.sort();
            let code = match message.metadata.response_code {
                ResponseCode::NoError => String::new(),
                code => format!("{code:?} "),
            };
            format!("{code}{} | {}", answers.join(" "), others.join(" ")).trim().to_owned()
        }
    }
}

const A: u16 = 1;
const NS: u16 = 2;
const CNAME: u16 = 5;
const SOA: u16 = 6;
const PTR: u16 = 12;
const TXT: u16 = 16;
const AAAA: u16 = 28;
const SRV: u16 = 33;
const ANY: u16 = 255;

const NODATA: &str = "| cluster.local. soa";
const NXDOMAIN: &str = "NXDomain  | cluster.local. soa";
const CONSUL_NODATA: &str = "| consul. soa";
const CONSUL_NXDOMAIN: &str = "NXDomain  | consul. soa";

fn check(table: &[(&str, u16, &str)]) {
    for (name, kind, expected) in table {
        assert_eq!(resolve_text(name, *kind), *expected, "{name} {kind}");
    }
}

#[test]
fn service_names_resolve_to_the_cluster_ip_or_to_endpoints() {
    check(&[
        ("web.default.svc.cluster.local", A, "10.96.0.1 |"),
        ("WeB.dEFAULT.svc.Cluster.LOCAL", A, "10.96.0.1 |"),
        ("web.default.svc.cluster.local", ANY, "10.96.0.1 |"),
        ("web.default.svc.cluster.local", AAAA, NODATA),
        ("web.default.svc.cluster.local", TXT, NODATA),
        ("web.nowhere.svc.cluster.local", A, NXDOMAIN),
        ("none.default.svc.cluster.local", AAAA, NXDOMAIN),
        ("ccf_consul_srv.default.svc.cluster.local", A, NXDOMAIN),
        ("db.default.svc.cluster.local", A, "10.244.0.5 10.244.0.6 |"),
        ("db.default.svc.cluster.local", AAAA, NODATA),
        ("idle.default.svc.cluster.local", A, NXDOMAIN),
    ]);
}

#[test]
fn each_endpoint_has_a_name_of_its_own() {
    check(&[
        ("10-244-0-5.db.default.svc.cluster.local", A, "10.244.0.5 |"),
        ("db-1.db.default.svc.cluster.local", A, "10.244.0.6 |"),
        ("db-1.db.default.svc.cluster.local", AAAA, NODATA),
        ("10-244-0-7.web.default.svc.cluster.local", A, "10.244.0.7 |"),
        ("10-244-0-6.db.default.svc.cluster.local", A, NXDOMAIN),
        ("10-244-0-7.db.default.svc.cluster.local", A, NXDOMAIN),
        ("db-2.db.default.svc.cluster.local", A, NXDOMAIN),
        ("db-1.web.default.svc.cluster.local", A, NXDOMAIN),
        ("10-244-0-8.web.default.svc.cluster.local", A, NXDOMAIN),
        ("x.db-1.db.default.svc.cluster.local", A, NXDOMAIN),
    ]);
}

#[test]
fn srv_records_are_found_by_port_name_and_protocol() {
    let web = "web.default.svc.cluster.local.";
    check(&[
        ("_http._tcp.web.default.svc.cluster.local", SRV, &format!("{web}:80 | 10.96.0.1")),
        ("_dns._udp.web.default.svc.cluster.local", SRV, &format!("{web}:53 | 10.96.0.1")),
        ("_dns._tcp.web.default.svc.cluster.local", SRV, NXDOMAIN),
        ("http._tcp.web.default.svc.cluster.local", SRV, NXDOMAIN),
        ("_http._tcp.web.default.svc.cluster.local", A, NODATA),
        ("_tcp.web.default.svc.cluster.local", A, NODATA),
        ("_sctp.web.default.svc.cluster.local", A, NXDOMAIN),
        ("_tcp.bare.default.svc.cluster.local", A, NXDOMAIN),
        ("web.default.svc.cluster.local", SRV, &format!("{web}:53 {web}:80 | 10.96.0.1")),
        ("bare.default.svc.cluster.local", SRV, "bare.default.svc.cluster.local.:1 | 10.96.0.2"),
        (
            "_http._tcp.db.default.svc.cluster.local",
            SRV,
            "10-244-0-5.db.default.svc.cluster.local.:8080 db-1.db.default.svc.cluster.local.:8080 | 10.244.0.5 10.244.0.6",
        ),
        ("_http._tcp.idle.default.svc.cluster.local", SRV, NXDOMAIN),
    ]);
}

#[test]
fn cnames_are_followed() {
    check(&[
        ("out.default.svc.cluster.local", A, "forward www.example.com."),
        ("out.default.svc.cluster.local", CNAME, "www.example.com. |"),
        ("in.default.svc.cluster.local", A, "10.96.0.1 web.default.svc.cluster.local. |"),
        ("in.default.svc.cluster.local", AAAA, "web.default.svc.cluster.local. | cluster.local. soa"),
        (
            "hop.default.svc.cluster.local",
            A,
            "10.96.0.1 in.default.svc.cluster.local. web.default.svc.cluster.local. |",
        ),
        ("lost.default.svc.cluster.local", A, "NXDomain none.default.svc.cluster.local. | cluster.local. soa"),
        ("digits.default.svc.cluster.local", A, "192.0.2.7 |"),
        ("out.service.consul", CNAME, "www.example.com. |"),
    ]);
    assert_eq!(resolve_text("loop.default.svc.cluster.local", A).matches("loop").count(), MAX_CNAMES);
}

#[test]
fn names_between_labels_are_nodata() {
    check(&[
        ("svc.cluster.local", A, NODATA),
        ("default.svc.cluster.local", A, NODATA),
        ("nowhere.svc.cluster.local", A, NXDOMAIN),
        ("pod.cluster.local", A, NODATA),
        ("default.pod.cluster.local", A, NODATA),
        ("else.cluster.local", A, NXDOMAIN),
        ("cluster.local", A, NODATA),
        ("cluster.local", SOA, "cluster.local. soa |"),
        ("cluster.local", NS, "ns.dns.cluster.local. | 10.96.0.10"),
        ("ns.dns.cluster.local", A, "10.96.0.10 |"),
        ("dns.cluster.local", A, NODATA),
        ("dns-version.cluster.local", TXT, "1.1.0 |"),
        ("dns-version.cluster.local", A, NODATA),
        ("www.example.com", A, "forward www.example.com."),
        ("local", A, "forward local."),
        ("mycluster.local", A, "forward mycluster.local."),
    ]);
}

#[test]
fn pod_names_resolve_to_the_address_in_them() {
    check(&[
        ("10-244-3-4.default.pod.cluster.local", A, "10.244.3.4 |"),
        ("10-244-3-4.default.pod.cluster.local", AAAA, NODATA),
        ("10-244-3-256.default.pod.cluster.local", A, NXDOMAIN),
        ("10-244-3.default.pod.cluster.local", A, NXDOMAIN),
        ("10-244-3-4-5.default.pod.cluster.local", A, NXDOMAIN),
        ("10-244-3-4.de_fault.pod.cluster.local", A, NXDOMAIN),
    ]);
}

#[test]
fn ptr_records_give_names() {
    check(&[
        ("1.0.96.10.in-addr.arpa", PTR, "web.default.svc.cluster.local. |"),
        ("5.0.244.10.in-addr.arpa", PTR, "10-244-0-5.db.default.svc.cluster.local. |"),
        ("7.0.244.10.in-addr.arpa", PTR, "10-244-0-7.web.default.svc.cluster.local. |"),
        ("8.0.244.10.in-addr.arpa", PTR, "forward 8.0.244.10.in-addr.arpa."),
        ("1.2.0.192.in-addr.arpa", PTR, "m1.node.dc1.consul. |"),
        ("2.2.0.192.in-addr.arpa", PTR, "m2.rack.example.node.dc1.consul. |"),
        ("2.2.0.192.in-addr.arpa", A, "| in-addr.arpa. soa"),
        ("9.9.9.9.in-addr.arpa", PTR, "forward 9.9.9.9.in-addr.arpa."),
        ("244.10.in-addr.arpa", PTR, "forward 244.10.in-addr.arpa."),
    ]);
}

#[test]
fn programs_that_are_not_pods_have_names_tags_and_interfaces() {
    for (name, kind, expected) in [
        ("mysql.host-services.svc.cluster.local", A, "192.0.2.30 192.0.2.31 |"),
        ("h30.mysql.host-services.svc.cluster.local", A, "192.0.2.30 |"),
        ("h32.mysql.host-services.svc.cluster.local", A, NXDOMAIN),
        ("30.2.0.192.in-addr.arpa", PTR, "h30.mysql.host-services.svc.cluster.local. |"),
        ("mysql.service.consul", A, "192.0.2.30 192.0.2.31 |"),
        ("master.mysql.service.consul", A, "192.0.2.30 |"),
        ("replica.mysql.service.consul", A, "192.0.2.31 |"),
        ("other.mysql.service.consul", A, CONSUL_NXDOMAIN),
        ("eth1.mysql.service.consul", A, "10.9.0.30 10.9.0.31 |"),
        ("eth0.mysql.service.host-services.ns.consul", A, "192.0.2.30 192.0.2.31 |"),
        ("eth0.web.service.consul", A, CONSUL_NXDOMAIN),
    ] {
        assert_eq!(resolve_text(name, kind), expected, "{name}");
    }
    let targets = resolve_text("mysql.host-services.svc.cluster.local", SRV);
    assert!(targets.contains("h31.mysql.host-services.svc.cluster.local.:3307"), "{targets}");
    let tagged = resolve_text("_mysql._master.service.consul", SRV);
    assert!(tagged.contains("c000021e.addr.dc1.consul.:3306") && !tagged.contains("3307"), "{tagged}");
}

#[test]
fn consul_service_names_resolve_to_ready_endpoints() {
    check(&[
        ("web.service.consul", A, "10.244.0.7 10.244.1.7 |"),
        ("WEB.Service.DC1.consul", A, "10.244.0.7 10.244.1.7 |"),
        ("web.service.dc1.dc.consul", A, "10.244.0.7 10.244.1.7 |"),
        ("web.service.other.ns.consul", A, "10.244.1.7 |"),
        ("web.service.other.ns.dc1.dc.consul", A, "10.244.1.7 |"),
        ("web.service.consul", AAAA, CONSUL_NODATA),
        ("web.service.dc2.consul", A, CONSUL_NXDOMAIN),
        ("web.service.dc1.extra.consul", A, CONSUL_NXDOMAIN),
        ("blue.web.service.consul", A, "10.244.0.7 |"),
        ("red.web.service.dc1.consul", A, CONSUL_NXDOMAIN),
        ("db.service.consul", A, "10.244.0.5 10.244.0.6 |"),
        ("idle.service.consul", A, CONSUL_NXDOMAIN),
        ("none.service.consul", A, CONSUL_NXDOMAIN),
        ("service.consul", A, CONSUL_NODATA),
        ("dc1.consul", A, CONSUL_NODATA),
        ("dc2.consul", A, CONSUL_NXDOMAIN),
        ("consul", SOA, "consul. soa |"),
        ("default.ns.consul", A, CONSUL_NXDOMAIN),
    ]);
}

#[test]
fn consul_names_of_ports_machines_and_addresses() {
    let (default, other) = ("0af40007.addr.dc1.consul.", "0af40107.addr.dc1.consul.");
    let http = format!("{default}:8081 {other}:8082 | 10.244.0.7 10.244.1.7");
    check(&[
        ("_web._http.service.consul", SRV, &http),
        ("_web._tcp.service.dc1.consul", SRV, &http),
        ("_web._udp.service.consul", SRV, &format!("{default}:5353 | 10.244.0.7")),
        ("_web._v1.service.consul", SRV, &format!("{default}:5353 {default}:8081 | 10.244.0.7")),
        ("_web._udp.service.consul", A, "10.244.0.7 |"),
        ("_web._none.service.consul", SRV, CONSUL_NXDOMAIN),
        ("blue.web.service.consul", SRV, &format!("{default}:5353 {default}:8081 | 10.244.0.7")),
        ("host.service.consul", SRV, "m1.node.dc1.consul.:9 | 192.0.2.1"),
        ("0AF40007.addr.dc1.consul", A, "10.244.0.7 |"),
        ("0af4000.addr.dc1.consul", A, CONSUL_NXDOMAIN),
        ("+af40007.addr.dc1.consul", A, CONSUL_NXDOMAIN),
        ("m1.node.consul", A, "192.0.2.1 |"),
        ("m2.rack.example.node.dc1.consul", A, "192.0.2.2 |"),
        ("m1.node.dc2.consul", A, CONSUL_NXDOMAIN),
        ("m3.node.consul", A, CONSUL_NXDOMAIN),
    ]);
}

#[test]
fn a_zone_inside_another_wins_and_the_root_is_refused() {
    let zones = Zones::new(&DnsSettings { alias_domain: "consul.cluster.local".into(), ..settings() }).unwrap();
    let query = parse_query(&packet("service.consul.cluster.local", A)).unwrap().unwrap();
    let outcome = zones.resolve(&CatalogueState::default(), &query, &mut ShuffleRng::with_seed(1));
    assert!(matches!(outcome, Resolution::Local(Response { rcode: Rcode::NoError, .. })));
    for wrong in ["", ".", "a..b"] {
        assert!(Zones::new(&DnsSettings { domain: wrong.into(), ..settings() }).is_err(), "{wrong:?}");
        assert!(Zones::new(&DnsSettings { alias_domain: wrong.into(), ..settings() }).is_err(), "{wrong:?}");
    }
    assert!(Zones::new(&DnsSettings { datacentre: String::new(), ..settings() }).is_err());
}

#[test]
fn the_order_of_addresses_is_random() {
    let catalogue = Catalogue::default();
    catalogue.set_service(Key::new("a", "db"), Some(service(catalogue::ServiceKind::Headless, &[], &[])));
    let endpoints = (1..=9).map(|last| endpoint([10, 0, 0, last], true, None)).collect();
    catalogue.set_slice(Key::new("a", "s"), Some(slice("db", &[], endpoints)));
    let zones = Zones::new(&settings()).unwrap();
    let query = parse_query(&packet("db.a.svc.cluster.local", A)).unwrap().unwrap();
    let first = |seed| match zones.resolve(&catalogue.read(), &query, &mut ShuffleRng::with_seed(seed)) {
        Resolution::Local(answer) => format!("{:?}", answer.answers[0].data),
        Resolution::Forward { .. } => panic!("ours"),
    };
    let firsts: std::collections::BTreeSet<_> = (0..100).map(first).collect();
    assert_eq!(firsts.len(), 9);
}

#[test]
fn what_does_not_fit_sets_the_tc_flag() {
    let catalogue = Catalogue::default();
    let ports = [("http", Protocol::Tcp, 80)];
    catalogue.set_service(Key::new("a", "db"), Some(service(catalogue::ServiceKind::Headless, &ports, &[])));
    let endpoints = (1..=200).map(|last| endpoint([10, 0, 0, last], true, None)).collect();
    catalogue.set_slice(Key::new("a", "s"), Some(slice("db", &ports, endpoints)));
    for kind in [A, SRV] {
        let cut = ask(&catalogue.read(), "db.a.svc.cluster.local", kind, Transport::Udp).unwrap();
        assert!(cut.metadata.truncation && cut.answers.len() < 40 && !cut.answers.is_empty());
        let whole = ask(&catalogue.read(), "db.a.svc.cluster.local", kind, Transport::Tcp).unwrap();
        assert!(!whole.metadata.truncation && whole.answers.len() == 200);
        assert_eq!(whole.additionals.len(), if kind == SRV { 200 } else { 0 });
    }
}

#[test]
fn an_rrset_too_large_for_tcp_is_truncated() {
    let catalogue = Catalogue::default();
    catalogue.set_service(Key::new("a", "db"), Some(service(catalogue::ServiceKind::Headless, &[], &[])));
    let endpoints =
        (0..5000u16).map(|number| endpoint([10, 1, (number >> 8) as u8, number as u8], true, None)).collect();
    catalogue.set_slice(Key::new("a", "s"), Some(slice("db", &[], endpoints)));
    let message = ask(&catalogue.read(), "db.a.svc.cluster.local", A, Transport::Tcp).unwrap();
    assert!(message.answers.len() > 4000 && message.answers.len() < 5000);
}

#[test]
fn the_question_comes_back_in_its_own_letter_case() {
    let written = packet("WeB.dEfault.svC.cluster.LOCAL", A);
    let query = parse_query(&written).unwrap().unwrap();
    let mut out = Vec::new();
    write_response(&query, &Response::with_rcode(Rcode::NoError), Age::NEW, Transport::Udp, &mut out);
    assert_eq!(out[12..], written[12..]);
}

fn label() -> impl Strategy<Value = String> {
    prop_oneof![Just("db".into()), Just("web".into()), "[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?"]
}

prop_compose! {
    fn backend()(address in any::<[u8; 4]>(), ready in any::<bool>(), hostname in proptest::option::of(label())) -> Endpoint {
        endpoint(address, ready, hostname.as_deref())
    }
}

prop_compose! {
    /// Services with backends, several of which may share addresses and hostnames.
    fn world()(
        services in proptest::collection::vec((label(), label(), any::<Option<[u8; 4]>>()), 1..6),
        slices in proptest::collection::vec((any::<prop::sample::Index>(), proptest::collection::vec(backend(), 0..5)), 0..8),
        machines in proptest::collection::vec((label(), any::<[u8; 4]>()), 0..3),
    ) -> Catalogue {
        let catalogue = Catalogue::default();
        for (namespace, name, address) in &services {
            let kind = address.map_or(catalogue::ServiceKind::Headless, |address| catalogue::ServiceKind::ClusterIp(address.into()));
            catalogue.set_service(Key::new(namespace, name), Some(service(kind, &[("http", Protocol::Tcp, 80)], &[])));
        }
        for (number, (of, endpoints)) in slices.into_iter().enumerate() {
            let (namespace, name, _) = of.get(&services);
            let key = Key::new(namespace, &format!("{name}-{number}"));
            catalogue.set_slice(key, Some(slice(name, &[("http", Protocol::Tcp, 8080)], endpoints)));
        }
        for (name, address) in machines {
            catalogue.set_machine(&name, Some(address.into()));
        }
        catalogue
    }
}

fn addresses(catalogue: &CatalogueState, name: &str) -> Vec<Ipv4Addr> {
    let message = ask(catalogue, name, A, Transport::Tcp).unwrap();
    message
        .answers
        .iter()
        .filter_map(|record| record.data.ip_addr())
        .filter_map(|address| match address {
            std::net::IpAddr::V4(address) => Some(address),
            std::net::IpAddr::V6(_) => None,
        })
        .collect()
}

proptest! {
    #[test]
    fn every_ptr_name_resolves_to_its_address(catalogue in world()) {
        let catalogue = catalogue.read();
        let ready = catalogue.slices().flat_map(|(_, slice)| &slice.endpoints).filter(|endpoint| endpoint.ready);
        let all = ready.map(|endpoint| endpoint.address).chain(catalogue.machines().map(|(_, address)| address));
        for address in all {
            let [a, b, c, d] = address.octets();
            let names = ask(&catalogue, &format!("{d}.{c}.{b}.{a}.in-addr.arpa"), PTR, Transport::Tcp);
            let names = names.expect("an address of ours has a name").answers;
            prop_assert!(!names.is_empty());
            for name in names {
                prop_assert!(addresses(&catalogue, &name.data.to_string()).contains(&address), "{} {}", name.data, address);
            }
        }
    }

    #[test]
    fn every_srv_target_resolves_to_the_address_in_the_additional_section(catalogue in world()) {
        let catalogue = catalogue.read();
        for (key, _) in catalogue.services() {
            for name in [format!("{}.{}.svc.cluster.local", key.name, key.namespace), format!("{}.service.consul", key.name)] {
                let message = ask(&catalogue, &name, SRV, Transport::Tcp).unwrap();
                for beside in &message.additionals {
                    let address = beside.data.ip_addr().unwrap();
                    prop_assert!(addresses(&catalogue, &beside.name.to_string()).iter().any(|own| *own == address));
                }
                for target in &message.answers {
                    prop_assert!(message.additionals.iter().any(|beside| show(target).starts_with(&beside.name.to_string())));
                }
            }
        }
    }

    #[test]
    fn no_packet_makes_the_server_panic_or_write_an_invalid_response(
        bytes in proptest::collection::vec(any::<u8>(), 0..80), header in any::<bool>(), udp in any::<bool>()
    ) {
        let mut sent = if header { vec![0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0] } else { Vec::new() };
        sent.extend(bytes);
        let catalogue = cluster();
        let (query, answer) = match parse_query(&sent) {
            None => return Ok(()),
            Some(Err((query, code))) => (query, Response::with_rcode(code)),
            Some(Ok(query)) => match Zones::new(&settings()).unwrap().resolve(&catalogue.read(), &query, &mut ShuffleRng::new()) {
                Resolution::Local(answer) => (query, answer),
                Resolution::Forward { cnames, .. } => (query, Response { answers: cnames, ..Response::with_rcode(Rcode::ServFail) }),
            }
        };
        let mut out = Vec::new();
        let transport = if udp { Transport::Udp } else { Transport::Tcp };
        write_response(&query, &answer, Age::NEW, transport, &mut out);
        let read = Message::from_vec(&out).unwrap();
        prop_assert_eq!(read.metadata.id, query.id);
    }
}
