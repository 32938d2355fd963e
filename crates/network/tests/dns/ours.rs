//! Names of our own, asked for with `dig`.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use mainstay_network::{catalogue::ServiceKind, dns::Dns};

use crate::support::{Running, own_address, settings};

async fn cluster() -> Running {
    let dns = Running::start(Vec::new()).await;
    dns.add("web", ServiceKind::ClusterIp([10, 96, 0, 1].into()), [[10, 244, 0, 7]]);
    dns.add("db", ServiceKind::Headless, [[10, 244, 0, 5], [10, 244, 0, 6]]);
    dns.add("many", ServiceKind::Headless, (0..=255).map(|last| [10, 244, 9, last]));
    dns.catalogue.set_machine("m1", Some([192, 0, 2, 1].into()));
    dns
}

#[tokio::test(flavor = "multi_thread")]
async fn dig_resolves_services_endpoints_machines_and_ptr_records() {
    let dns = cluster().await;
    let table: &[(&str, &[&str])] = &[
        ("web.default.svc.cluster.local", &["10.96.0.1"]),
        ("+tcp web.default.svc.cluster.local", &["10.96.0.1"]),
        ("+noedns web.default.svc.cluster.local", &["10.96.0.1"]),
        ("-t aaaa web.default.svc.cluster.local", &[]),
        ("none.default.svc.cluster.local", &[]),
        ("db.default.svc.cluster.local", &["10.244.0.5", "10.244.0.6"]),
        ("10-244-0-5.db.default.svc.cluster.local", &["10.244.0.5"]),
        ("-t srv _http._tcp.web.default.svc.cluster.local", &["0 100 80 web.default.svc.cluster.local."]),
        (
            "-t srv _http._tcp.db.default.svc.cluster.local",
            &[
                "0 50 8080 10-244-0-5.db.default.svc.cluster.local.",
                "0 50 8080 10-244-0-6.db.default.svc.cluster.local.",
            ],
        ),
        ("-x 10.96.0.1", &["web.default.svc.cluster.local."]),
        ("-x 10.244.0.5", &["10-244-0-5.db.default.svc.cluster.local."]),
        ("-x 192.0.2.1", &["m1.node.dc1.consul."]),
        ("-t txt dns-version.cluster.local", &["\"1.1.0\""]),
        ("web.service.consul", &["10.244.0.7"]),
        ("blue.web.service.dc1.consul", &["10.244.0.7"]),
        ("-t srv _web._tcp.service.consul", &["0 100 8080 0af40007.addr.dc1.consul."]),
        ("0af40007.addr.dc1.consul", &["10.244.0.7"]),
        ("m1.node.consul", &["192.0.2.1"]),
    ];
    for (arguments, expected) in table {
        assert_eq!(dns.short(arguments).await, *expected, "{arguments}");
    }
    dns.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nxdomain_and_nodata_come_with_the_soa() {
    let dns = cluster().await;
    let none = dns.dig("none.default.svc.cluster.local").await;
    assert!(none.contains("status: NXDOMAIN") && none.contains("flags: qr aa rd ra;"), "{none}");
    assert!(none.contains("cluster.local. 5 IN SOA ns.dns.cluster.local. hostmaster.cluster.local."), "{none}");
    let empty = dns.dig("-t aaaa web.default.svc.cluster.local").await;
    assert!(empty.contains("status: NOERROR") && empty.contains("ANSWER: 0, AUTHORITY: 1"), "{empty}");
    dns.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_letter_case_of_the_question_comes_back() {
    let dns = cluster().await;
    let output = dns.dig("WeB.dEfault.SVC.cluster.LOCAL").await;
    assert!(output.contains("WeB.dEfault.SVC.cluster.LOCAL. 5 IN A 10.96.0.1"), "{output}");
    dns.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_rrset_too_large_for_udp_is_complete_over_tcp() {
    let dns = cluster().await;
    let plain = dns.dig("+noedns +ignore many.default.svc.cluster.local").await;
    assert!(plain.contains("flags: qr aa tc") && plain.contains("MSG SIZE rcvd: 5"), "{plain}");
    let edns = dns.dig("+ignore many.default.svc.cluster.local").await;
    assert!(edns.contains("flags: qr aa tc") && edns.contains("EDNS: version: 0, flags:; udp: 1232"), "{edns}");
    assert!(edns.matches("10.244.9.").count() > plain.matches("10.244.9.").count());
    assert_eq!(dns.short("many.default.svc.cluster.local").await.len(), 256);
    assert_eq!(dns.short("+tcp -t srv many.default.svc.cluster.local").await.len(), 256);
    dns.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_in_the_next_answer() {
    let dns = cluster().await;
    assert_eq!(dns.short("new.default.svc.cluster.local").await, [""; 0]);
    dns.add("new", ServiceKind::ClusterIp([10, 96, 0, 9].into()), []);
    assert_eq!(dns.short("new.default.svc.cluster.local").await, ["10.96.0.9"]);
    dns.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bind_errors_name_the_address_and_what_to_do() {
    let dns = cluster().await;
    let bind = async |address: Ipv4Addr, port: u16| {
        let wanted = mainstay_network::dns::DnsSettings { address, port, ..settings(Vec::new()) };
        Dns::bind(wanted, dns.catalogue.clone()).await.map(|_| ()).unwrap_err().to_string()
    };
    let taken = bind(own_address(), dns.address.port()).await;
    assert!(taken.contains(&dns.address.to_string()) && taken.contains("another program listens there"), "{taken}");
    let elsewhere = bind([203, 0, 113, 1].into(), 5353).await;
    assert!(elsewhere.contains("203.0.113.1:5353") && elsewhere.contains("no interface"), "{elsewhere}");

    // One that listens by UDP only, and would share.
    let other = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
    other.set_reuse_port(true).unwrap();
    other.bind(&SocketAddr::from((own_address(), 0)).into()).unwrap();
    let taken = bind(own_address(), other.local_addr().unwrap().as_socket().unwrap().port()).await;
    assert!(taken.contains("(UDP)") && taken.contains("another program listens there"), "{taken}");
    dns.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_clients_at_once_are_all_answered() {
    let dns = cluster().await;
    let clients = (0..200u16).map(|id| {
        let dns = &dns;
        let name = if id % 2 == 0 { "web.default.svc.cluster.local" } else { "none.default.svc.cluster.local" };
        async move {
            dns.send(&crate::support::question(id, name), Duration::from_secs(5)).await.map(|answer| answer.metadata.id)
        }
    });
    let answered = futures::future::join_all(clients).await;
    assert_eq!(answered, (0..200).map(Some).collect::<Vec<_>>());
    dns.stop().await;
}
