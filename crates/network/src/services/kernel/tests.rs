use super::{super::frontend::WithoutBackends, maps::constant_elements, *};
use crate::nft::tests::assert_golden;

fn settings() -> KernelSettings {
    KernelSettings {
        instance: "mainstay".into(),
        services: "10.96.0.0/16".parse().unwrap(),
        pods: "10.244.0.0/16".parse().unwrap(),
        proxy_port: 40_001,
    }
}

fn frontend(address: Option<[u8; 4]>, protocol: Protocol, port: u16) -> Frontend {
    Frontend { address: address.map(Ipv4Addr::from), protocol, port }
}

fn pool(count: u8, without_backends: WithoutBackends) -> BackendPool {
    BackendPool {
        backends: (2..2 + count).map(|n| SocketAddrV4::new([10, 244, 0, n].into(), 8080)).collect(),
        affinity: None,
        masquerade: false,
        through_user_space: false,
        without_backends,
        internal: None,
        terminating: Vec::new(),
    }
}

/// One frontend of each disposition.
fn every_frontend() -> BTreeMap<Frontend, BackendPool> {
    let hold = WithoutBackends::Hold(Duration::from_secs(10));
    let reject = WithoutBackends::Reject;
    let affinity = Some(Duration::from_secs(60));
    let service = |last| Some([10, 96, 0, last]);
    let external =
        BackendPool { internal: Some(Box::new(pool(3, hold))), masquerade: true, ..pool(1, WithoutBackends::Drop) };
    BTreeMap::from([
        (frontend(service(1), Protocol::Tcp, 80), pool(3, hold)),
        (frontend(service(1), Protocol::Udp, 53), pool(2, reject)),
        (frontend(service(1), Protocol::Sctp, 9), pool(1, reject)),
        (frontend(service(2), Protocol::Tcp, 80), BackendPool { affinity, ..pool(2, reject) }),
        (frontend(service(3), Protocol::Tcp, 80), pool(0, hold)),
        (frontend(service(4), Protocol::Tcp, 80), pool(0, reject)),
        (frontend(service(5), Protocol::Tcp, 80), pool(0, WithoutBackends::Drop)),
        (frontend(Some([203, 0, 113, 7]), Protocol::Tcp, 80), external),
        (frontend(None, Protocol::Tcp, 30080), BackendPool { masquerade: true, ..pool(2, hold) }),
        (frontend(None, Protocol::Udp, 30053), BackendPool { affinity, masquerade: true, ..pool(2, reject) }),
    ])
}

#[test]
fn the_bytes_of_the_services_table_are_the_golden_ones() {
    let (settings, timeout) = (settings(), Some(ConntrackTimeout::with_established(432_000)));
    let frontends = every_frontend();
    let dispositions: BTreeSet<Disposition> =
        frontends.iter().flat_map(|(frontend, pool)| Disposition::of_frontend(frontend, pool)).collect();
    let desired = |timeout| DesiredTable {
        settings: &settings,
        timeout,
        name: "mainstay-services",
        dispositions: dispositions.clone(),
        elements: frontends.iter().flat_map(|(frontend, pool)| frontend_elements(frontend, pool)),
    };
    let mut change =
        TableChange { first_used: dispositions.clone(), unused: dispositions.clone(), ..TableChange::default() };
    let (frontend, old) = frontends.first_key_value().unwrap();
    let new = BackendPool { backends: vec![SocketAddrV4::new([10, 244, 0, 9].into(), 8080)], ..old.clone() };
    change.replace_elements(frontend_elements(frontend, old), frontend_elements(frontend, &new));
    let batches = [
        ("the whole table", desired(timeout).create().finish()),
        ("without NF_CONNTRACK_TIMEOUT", desired(None).create().finish()),
        ("before a change", change.chains_batch("mainstay-services", &settings, timeout).finish()),
        ("a change", change.elements_batch("mainstay-services").finish()),
    ];
    assert_eq!(constant_elements().count(), 256);
    assert_golden("services.txt", include_str!("../../nft/tests/services.txt"), &batches);
}
