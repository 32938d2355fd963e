use std::{sync::Arc, time::Duration};

use super::*;
use crate::catalogue::{Catalogue, Slice, SlicePort};

const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);

fn service(protocol: Protocol, hold: Duration) -> Service {
    Service {
        kind: ServiceKind::ClusterIp(ADDRESS),
        ports: vec![ServicePort { name: "web".into(), protocol, port: 80, node_port: Some(30080) }],
        external_ips: vec![OUTSIDE],
        affinity: None,
        internal_local: false,
        external_local: false,
        hold,
        through_user_space: false,
        publish_not_ready: false,
        has_other_proxy: false,
        tags: Vec::new(),
    }
}

fn endpoint(last: u8, node: &str, ready: bool, terminating: bool) -> Endpoint {
    Endpoint {
        address: [10, 244, 0, last].into(),
        ready,
        serving: ready || terminating,
        terminating,
        node: Some(node.into()),
        hostname: None,
        hints: None,
    }
}

/// The frontends on node `here`.
fn frontends_of(service: Service, endpoints: Vec<Endpoint>) -> Vec<(Frontend, BackendPool)> {
    let (catalogue, key) = (Catalogue::default(), Key::new("default", "web"));
    let ports = service.ports.iter();
    let ports = ports.map(|port| SlicePort { name: port.name.clone(), protocol: port.protocol, port: 8080 }).collect();
    let slice = Slice { service: "web".into(), ports, endpoints, host: None };
    catalogue.set_service(key.clone(), Some(service));
    catalogue.set_slice(Key::new("default", "web-1"), Some(slice));
    service_frontends(&catalogue.read(), &key, NODE)
}

const NODE: LocalNode<'static> = LocalNode { name: "here", zone: Some("z1") };

fn backends(pool: &BackendPool) -> Vec<u8> {
    pool.backends.iter().map(|backend| backend.ip().octets()[3]).collect()
}

const HOLD: Duration = Duration::from_secs(10);

#[test]
fn a_service_has_a_cluster_ip_external_ips_and_node_ports() {
    let ready = vec![endpoint(3, "there", true, false), endpoint(2, "here", true, false)];
    let found = frontends_of(service(Protocol::Tcp, HOLD), ready);
    let places: Vec<_> =
        found.iter().map(|(frontend, pool)| (frontend.address, frontend.port, pool.masquerade)).collect();
    assert_eq!(places, [(Some(ADDRESS), 80, false), (Some(OUTSIDE), 80, true), (None, 30080, true)]);
    for (_, pool) in &found {
        assert_eq!(backends(pool), [2, 3], "sorted");
        assert_eq!(pool.backends[0].port(), 8080);
        assert_eq!(pool.without_backends, WithoutBackends::Hold(HOLD));
    }
}

#[test]
fn traffic_policy_local_means_backends_of_this_node_without_masquerading_or_a_drop() {
    let all = || vec![endpoint(2, "here", true, false), endpoint(3, "there", true, false)];
    let found = frontends_of(Service { external_local: true, ..service(Protocol::Tcp, HOLD) }, all());
    assert_eq!(backends(&found[0].1), [2, 3], "the internal policy is Cluster");
    for (_, pool) in &found[1..] {
        assert_eq!((backends(pool), pool.masquerade), (vec![2], false));
        assert_eq!(pool.without_backends, WithoutBackends::Drop);
    }
    let internal = found[1].1.internal.as_deref().unwrap();
    assert_eq!(
        (backends(internal), internal.masquerade),
        (vec![2, 3], false),
        "at external addresses, clients inside the cluster have all"
    );
    assert_eq!(internal.without_backends, WithoutBackends::Hold(HOLD));
    assert!(found[0].1.internal.is_none() && found[2].1.internal.is_none());
    let found = frontends_of(Service { internal_local: true, ..service(Protocol::Tcp, HOLD) }, all());
    assert_eq!((backends(&found[0].1), backends(&found[1].1)), (vec![2], vec![2, 3]));
}

#[test]
fn terminating_endpoints_serve_while_nothing_is_ready_and_where_connections_are_held_after_a_while() {
    let ending = || vec![endpoint(2, "here", false, true), endpoint(3, "here", false, false)];
    let mut held = frontends_of(service(Protocol::Tcp, HOLD), ending()).swap_remove(0).1;
    assert_eq!((backends(&held), held.fallback_delay()), (Vec::new(), Some(HOLD / 2)), "held at first");
    held.fall_back();
    assert_eq!((backends(&held), held.fallback_delay()), (vec![2], None), "only what still serves");
    let none = frontends_of(service(Protocol::Tcp, HOLD), vec![endpoint(3, "here", false, false)]).swap_remove(0).1;
    assert_eq!(none.fallback_delay(), None, "nothing serves");
    let found = frontends_of(service(Protocol::Tcp, Duration::ZERO), ending());
    assert_eq!((backends(&found[0].1), found[0].1.without_backends), (vec![2], WithoutBackends::Reject));
    let found = frontends_of(service(Protocol::Udp, HOLD), ending());
    assert_eq!((backends(&found[0].1), found[0].1.without_backends), (vec![2], WithoutBackends::Reject));
    let mut both = ending();
    both.push(endpoint(4, "there", true, false));
    assert_eq!(backends(&frontends_of(service(Protocol::Udp, HOLD), both)[0].1), [4], "not beside a ready one");
}

#[test]
fn a_service_without_cluster_ip_has_no_frontends() {
    let ready = || vec![endpoint(2, "here", true, false)];
    assert!(frontends_of(Service { kind: ServiceKind::Headless, ..service(Protocol::Tcp, HOLD) }, ready()).is_empty());
    let external_name = ServiceKind::ExternalName("example.com".into());
    assert!(frontends_of(Service { kind: external_name, ..service(Protocol::Tcp, HOLD) }, ready()).is_empty());
    let catalogue = Catalogue::default();
    assert!(service_frontends(&catalogue.read(), &Key::new("default", "web"), NODE).is_empty());
}

#[test]
fn a_service_of_another_proxy_has_no_frontends() {
    let other = Service { has_other_proxy: true, ..service(Protocol::Tcp, HOLD) };
    assert!(frontends_of(other, vec![endpoint(2, "here", true, false)]).is_empty());
}

#[test]
fn only_tcp_goes_through_user_space() {
    let found = |protocol| frontends_of(Service { through_user_space: true, ..service(protocol, HOLD) }, Vec::new());
    assert!(found(Protocol::Tcp)[0].1.is_in_user_space());
    assert!(!found(Protocol::Udp)[0].1.is_in_user_space());
    let local = Service { external_local: true, through_user_space: true, ..service(Protocol::Tcp, HOLD) };
    let outside = &frontends_of(local, Vec::new())[1].1;
    assert!(!outside.is_in_user_space(), "backends are to see the client's address");
    assert!(outside.internal.as_ref().unwrap().is_in_user_space());
}

fn hinted(last: u8, ready: bool, zones: &[&str], nodes: &[&str]) -> Endpoint {
    let names = |names: &[&str]| names.iter().map(|name| Arc::from(*name)).collect();
    let hints = TopologyHints { zones: names(zones), nodes: names(nodes) };
    Endpoint { hints: Some(Box::new(hints)), ..endpoint(last, "there", ready, false) }
}

#[test]
fn hints_for_nodes_come_before_those_for_zones() {
    let found = |endpoints| backends(&frontends_of(service(Protocol::Tcp, HOLD), endpoints)[0].1);
    let here = |last, ready| hinted(last, ready, &["z1"], &["here"]);
    let near = |last, ready| hinted(last, ready, &["z1"], &["near"]);
    let far = |last, ready| hinted(last, ready, &["z2"], &["far"]);
    assert_eq!(found(vec![here(2, true), near(3, true), far(4, true), here(5, true)]), [2, 5]);
    assert_eq!(found(vec![here(2, false), near(3, true), far(4, true)]), [3], "none on this node: those of its zone");
    assert_eq!(found(vec![here(2, false), near(3, false), far(4, true)]), [4], "none in this zone either: all");
    let without_node = hinted(6, true, &["z2"], &[]);
    assert_eq!(found(vec![here(2, true), near(3, true), without_node]), [2, 3], "not all are for nodes: zones count");
    let without_zone = |last, node: &str| hinted(last, true, &[], &[node]);
    assert_eq!(found(vec![without_zone(2, "here"), without_zone(3, "near")]), [2], "nodes need no zones");
    let bare = endpoint(7, "here", true, false);
    assert_eq!(found(vec![here(2, true), far(4, true), bare]), [2, 4, 7], "one has no hints at all");
}

#[test]
fn topology_hints_count_if_all_endpoints_have_them_and_one_is_for_this_zone() {
    let hinted = |last, ready, zones: &[&str]| hinted(last, ready, zones, &[]);
    let found = |endpoints| backends(&frontends_of(service(Protocol::Tcp, HOLD), endpoints)[0].1);
    assert_eq!(found(vec![hinted(2, true, &["z1"]), hinted(3, true, &["z2"]), hinted(4, true, &["z2", "z1"])]), [2, 4]);
    assert_eq!(found(vec![hinted(2, true, &["z1"]), hinted(3, true, &[])]), [2, 3], "one has no hint");
    assert_eq!(found(vec![hinted(2, true, &["z2"]), hinted(3, true, &["z3"])]), [2, 3], "no hint is for this zone");
    assert_eq!(found(vec![hinted(2, false, &["z1"]), hinted(3, true, &["z2"])]), [3], "only ready endpoints count");
    let local = Service { internal_local: true, ..service(Protocol::Tcp, HOLD) };
    let own = Endpoint { node: Some("here".into()), ..hinted(2, true, &["z2"]) };
    assert_eq!(
        backends(&frontends_of(local, vec![own, hinted(3, true, &["z1"])])[0].1),
        [2],
        "the traffic policy comes first"
    );
}
