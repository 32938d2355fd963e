use std::{sync::Arc, time::Duration};

use super::*;
use crate::catalogue::{Catalogue, Slice, SlicePort};

const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);

fn service(protocol: Protocol, hold: Duration) -> Service {
    Service {
        kind: Kind::Address(ADDRESS),
        ports: vec![ServicePort { name: "web".into(), protocol, port: 80, node_port: Some(30080) }],
        external_ips: vec![OUTSIDE],
        affinity: None,
        internal_local: false,
        external_local: false,
        hold,
        through_user_space: false,
        publish_not_ready: false,
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
        for_zones: Box::default(),
    }
}

/// The fronts of machine `here`.
fn of(service: Service, endpoints: Vec<Endpoint>) -> Vec<(Front, Target)> {
    let (catalogue, key) = (Catalogue::default(), Key::new("default", "web"));
    let ports = service.ports.iter();
    let ports = ports.map(|port| SlicePort { name: port.name.clone(), protocol: port.protocol, port: 8080 }).collect();
    let slice = Slice { service: "web".into(), ports, endpoints };
    catalogue.set_service(key.clone(), Some(service));
    catalogue.set_slice(Key::new("default", "web-1"), Some(slice));
    fronts(&catalogue.read(), &key, HERE)
}

const HERE: Here<'static> = Here { machine: "here", zone: Some("z1") };

fn backends(target: &Target) -> Vec<u8> {
    target.backends.iter().map(|backend| backend.ip().octets()[3]).collect()
}

const HOLD: Duration = Duration::from_secs(10);

#[test]
fn a_service_answers_at_its_address_outside_and_on_every_machine() {
    let ready = vec![endpoint(3, "there", true, false), endpoint(2, "here", true, false)];
    let found = of(service(Protocol::Tcp, HOLD), ready);
    let places: Vec<_> = found.iter().map(|(front, target)| (front.address, front.port, target.masquerade)).collect();
    assert_eq!(places, [(Some(ADDRESS), 80, false), (Some(OUTSIDE), 80, true), (None, 30080, true)]);
    for (_, target) in &found {
        assert_eq!(backends(target), [2, 3], "sorted");
        assert_eq!(target.backends[0].port(), 8080);
        assert_eq!(target.without_backends, WithoutBackends::Hold(HOLD));
    }
}

#[test]
fn local_means_backends_of_this_machine_who_see_who_asks_and_silence_without() {
    let all = || vec![endpoint(2, "here", true, false), endpoint(3, "there", true, false)];
    let found = of(Service { external_local: true, ..service(Protocol::Tcp, HOLD) }, all());
    assert_eq!(backends(&found[0].1), [2, 3], "inside as ever");
    for (_, target) in &found[1..] {
        assert_eq!((backends(target), target.masquerade), (vec![2], false));
        assert_eq!(target.without_backends, WithoutBackends::Drop);
    }
    let inside = found[1].1.inside.as_deref().unwrap();
    assert_eq!(
        (backends(inside), inside.masquerade),
        (vec![2, 3], false),
        "at external addresses, those inside have all"
    );
    assert_eq!(inside.without_backends, WithoutBackends::Hold(HOLD));
    assert!(found[0].1.inside.is_none() && found[2].1.inside.is_none());
    let found = of(Service { internal_local: true, ..service(Protocol::Tcp, HOLD) }, all());
    assert_eq!((backends(&found[0].1), backends(&found[1].1)), (vec![2], vec![2, 3]));
}

#[test]
fn those_that_are_ending_serve_only_where_nobody_would_wait() {
    let ending = || vec![endpoint(2, "here", false, true), endpoint(3, "here", false, false)];
    assert_eq!(backends(&of(service(Protocol::Tcp, HOLD), ending())[0].1), Vec::<u8>::new(), "held instead");
    let found = of(service(Protocol::Tcp, Duration::ZERO), ending());
    assert_eq!((backends(&found[0].1), found[0].1.without_backends), (vec![2], WithoutBackends::Refuse));
    let found = of(service(Protocol::Udp, HOLD), ending());
    assert_eq!((backends(&found[0].1), found[0].1.without_backends), (vec![2], WithoutBackends::Refuse));
    let mut both = ending();
    both.push(endpoint(4, "there", true, false));
    assert_eq!(backends(&of(service(Protocol::Udp, HOLD), both)[0].1), [4], "not beside one that is ready");
}

#[test]
fn what_has_no_address_has_no_fronts() {
    let ready = || vec![endpoint(2, "here", true, false)];
    assert!(of(Service { kind: Kind::Headless, ..service(Protocol::Tcp, HOLD) }, ready()).is_empty());
    let alias = Kind::Alias("example.com".into());
    assert!(of(Service { kind: alias, ..service(Protocol::Tcp, HOLD) }, ready()).is_empty());
    let catalogue = Catalogue::default();
    assert!(fronts(&catalogue.read(), &Key::new("default", "web"), HERE).is_empty());
}

#[test]
fn only_tcp_goes_through_our_own_process() {
    let found = |protocol| of(Service { through_user_space: true, ..service(protocol, HOLD) }, Vec::new());
    assert!(found(Protocol::Tcp)[0].1.is_in_user_space());
    assert!(!found(Protocol::Udp)[0].1.is_in_user_space());
    let local = Service { external_local: true, through_user_space: true, ..service(Protocol::Tcp, HOLD) };
    let outside = &of(local, Vec::new())[1].1;
    assert!(!outside.is_in_user_space(), "who is to see who asks");
    assert!(outside.inside.as_ref().unwrap().is_in_user_space());
}

#[test]
fn those_for_this_zone_are_preferred_if_all_are_for_zones_and_some_for_this() {
    let meant = |last, ready, zones: &[&str]| Endpoint {
        for_zones: zones.iter().map(|zone| Arc::from(*zone)).collect(),
        ..endpoint(last, "there", ready, false)
    };
    let found = |endpoints| backends(&of(service(Protocol::Tcp, HOLD), endpoints)[0].1);
    assert_eq!(found(vec![meant(2, true, &["z1"]), meant(3, true, &["z2"]), meant(4, true, &["z2", "z1"])]), [2, 4]);
    assert_eq!(found(vec![meant(2, true, &["z1"]), meant(3, true, &[])]), [2, 3], "one is for all");
    assert_eq!(found(vec![meant(2, true, &["z2"]), meant(3, true, &["z3"])]), [2, 3], "none is for this one");
    assert_eq!(found(vec![meant(2, false, &["z1"]), meant(3, true, &["z2"])]), [3], "only those that are ready count");
    let local = Service { internal_local: true, ..service(Protocol::Tcp, HOLD) };
    let own = Endpoint { node: Some("here".into()), ..meant(2, true, &["z2"]) };
    assert_eq!(backends(&of(local, vec![own, meant(3, true, &["z1"])])[0].1), [2], "local is nearer still");
}
