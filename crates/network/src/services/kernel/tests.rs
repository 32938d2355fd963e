use super::{
    super::frontend::WithoutBackends,
    layout::{constant_elements, elements},
    *,
};
use crate::nft::tests::assert_golden;

fn settings() -> KernelSettings {
    KernelSettings {
        instance: "mainstay".into(),
        services: "10.96.0.0/16".parse().unwrap(),
        pods: "10.244.0.0/16".parse().unwrap(),
        proxy_port: 40_001,
    }
}

fn front(address: Option<[u8; 4]>, protocol: Protocol, port: u16) -> Front {
    Front { address: address.map(Ipv4Addr::from), protocol, port }
}

fn target(count: u8, without_backends: WithoutBackends) -> Target {
    Target {
        backends: (2..2 + count).map(|n| SocketAddrV4::new([10, 244, 0, n].into(), 8080)).collect(),
        affinity: None,
        masquerade: false,
        through_user_space: false,
        without_backends,
        inside: None,
    }
}

/// One front of each disposition.
fn every_front() -> BTreeMap<Front, Target> {
    let hold = WithoutBackends::Hold(Duration::from_secs(10));
    let refuse = WithoutBackends::Refuse;
    let affinity = Some(Duration::from_secs(60));
    let service = |last| Some([10, 96, 0, last]);
    let outside =
        Target { inside: Some(Box::new(target(3, hold))), masquerade: true, ..target(1, WithoutBackends::Drop) };
    BTreeMap::from([
        (front(service(1), Protocol::Tcp, 80), target(3, hold)),
        (front(service(1), Protocol::Udp, 53), target(2, refuse)),
        (front(service(1), Protocol::Sctp, 9), target(1, refuse)),
        (front(service(2), Protocol::Tcp, 80), Target { affinity, ..target(2, refuse) }),
        (front(service(3), Protocol::Tcp, 80), target(0, hold)),
        (front(service(4), Protocol::Tcp, 80), target(0, refuse)),
        (front(service(5), Protocol::Tcp, 80), target(0, WithoutBackends::Drop)),
        (front(Some([203, 0, 113, 7]), Protocol::Tcp, 80), outside),
        (front(None, Protocol::Tcp, 30080), Target { masquerade: true, ..target(2, hold) }),
        (front(None, Protocol::Udp, 30053), Target { affinity, masquerade: true, ..target(2, refuse) }),
    ])
}

#[test]
fn the_bytes_of_the_services_table_are_the_golden_ones() {
    let (settings, again) = (settings(), Some(Again::with_established(432_000)));
    let fronts = every_front();
    let ways: BTreeSet<Way> = fronts.iter().flat_map(|(front, target)| Way::all(front, target)).collect();
    let wanted = |again| Wanted {
        settings: &settings,
        again,
        table: "mainstay-services",
        ways: ways.clone(),
        elements: fronts.iter().flat_map(|(front, target)| elements(front, target)),
    };
    let mut change = Change { begin: ways.clone(), end: ways.clone(), ..Change::default() };
    let (front, old) = fronts.first_key_value().unwrap();
    let new = Target { backends: vec![SocketAddrV4::new([10, 244, 0, 9].into(), 8080)], ..old.clone() };
    change.elements(elements(front, old), elements(front, &new));
    let batches = [
        ("the whole table", wanted(again).anew().finish()),
        ("without NF_CONNTRACK_TIMEOUT", wanted(None).anew().finish()),
        ("before a change", change.preparation("mainstay-services", &settings, again).finish()),
        ("a change", change.batch("mainstay-services").finish()),
    ];
    assert_eq!(constant_elements().count(), 256);
    assert_golden("services.txt", include_str!("../../nft/tests/services.txt"), &batches);
}
