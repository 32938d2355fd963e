//! The kernel data path of Services, with real packets. Needs root and `nft`.

mod netns;

use std::{
    collections::BTreeSet,
    io::{ErrorKind, Write},
    net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket},
    time::{Duration, Instant},
};

use mainstay_network::services::{
    Drift,
    frontend::{BackendPool, Frontend, WithoutBackends},
};
use netns::{
    Netns, PATIENCE,
    services::{
        EchoReply, MACHINE, NEIGHBOUR, SERVICE, TestCluster, command, exchange, pool, read, serve, settings, tcp, udp,
    },
};
use nix::sys::socket::{getsockopt, sockopt};

const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 244, 3, 1);

fn responders(answers: &[EchoReply]) -> BTreeSet<Ipv4Addr> {
    answers.iter().map(|answer| answer.by).collect()
}

fn ask_many(client: &Netns, address: Ipv4Addr, port: u16, times: usize) -> Vec<EchoReply> {
    (0..times).map(|_| client.ask_tcp(address, port).unwrap()).collect()
}

#[test]
fn connections_and_datagrams_reach_every_backend_from_pods_machine_and_outside() {
    let world = TestCluster::new(4);
    let behind = || pool(world.backends(0..3));
    let frontends = [(tcp(SERVICE, 80), behind()), (udp(SERVICE, 80), behind()), (tcp(None, 30080), behind())];
    world.rules.replace(&world.machine, frontends);
    let client = &world.pods[3];
    let expected: BTreeSet<_> = world.addresses[..3].iter().copied().collect();
    let answers = ask_many(client, SERVICE, 80, 60);
    assert_eq!(responders(&answers), expected);
    assert!(answers.iter().all(|a| a.to == world.addresses[3]), "backends see who asks");
    let answers: Vec<_> = (0..60).map(|_| client.ask_udp(SERVICE, 80).unwrap()).collect();
    assert_eq!(responders(&answers), expected);
    assert_eq!(responders(&ask_many(&world.machine, SERVICE, 80, 60)), expected, "from the machine");
    assert!(world.machine.ask_udp(SERVICE, 80).is_ok());
    assert_eq!(world.neighbour.ask_tcp(MACHINE, 30080).unwrap().to, NEIGHBOUR, "not masqueraded unless asked");
    assert!(world.machine.ask_tcp(MACHINE, 30080).is_ok(), "from the machine");
    assert!(client.ask_tcp(MACHINE, 30080).is_ok(), "from a pod");
    assert!(client.ask_tcp(GATEWAY, 30080).is_ok(), "at any of its addresses");
}

#[test]
fn from_outside_a_frontend_masquerades_or_keeps_the_client_address() {
    let world = TestCluster::new(1);
    let external = Ipv4Addr::new(203, 0, 113, 7);
    command(&world.neighbour, "ip route add 203.0.113.0/24 via 192.168.77.1");
    let retained = || pool(world.backends([0]));
    let masqueraded = || BackendPool { masquerade: true, ..retained() };
    let frontends = [
        (tcp(None, 30001), masqueraded()),
        (udp(None, 30001), masqueraded()),
        (tcp(None, 30002), retained()),
        (udp(None, 30002), retained()),
        (tcp(external, 80), masqueraded()),
        (tcp(external, 81), retained()),
        (tcp(MACHINE, 82), masqueraded()),
    ];
    world.rules.replace(&world.machine, frontends);
    let observed = |port, address| world.neighbour.ask_tcp(address, port).unwrap().to;
    let seen_udp = |port| world.neighbour.ask_udp(MACHINE, port).unwrap().to;
    assert_eq!((observed(30001, MACHINE), seen_udp(30001)), (GATEWAY, GATEWAY));
    assert_eq!((observed(30002, MACHINE), seen_udp(30002)), (NEIGHBOUR, NEIGHBOUR));
    assert_eq!((observed(80, external), observed(81, external)), (GATEWAY, NEIGHBOUR));
    assert_eq!(observed(82, MACHINE), GATEWAY, "an address of the machine itself");
    assert!(world.machine.ask_tcp(external, 80).is_ok(), "from the machine");
    assert!(world.pods[0].ask_tcp(external, 81).is_ok(), "from a pod, that is itself the backend");
}

#[test]
fn clients_inside_may_have_other_backends_than_those_outside() {
    let world = TestCluster::new(4);
    let external = Ipv4Addr::new(203, 0, 113, 7);
    command(&world.neighbour, "ip route add 203.0.113.0/24 via 192.168.77.1");
    let apart = |local: &[usize], all: std::ops::Range<usize>, affinity| BackendPool {
        affinity,
        without_backends: WithoutBackends::Drop,
        internal: Some(Box::new(BackendPool { affinity, ..pool(world.backends(all)) })),
        ..pool(world.backends(local.iter().copied()))
    };
    let stay = Some(Duration::from_secs(60));
    let frontends = [
        (tcp(external, 80), apart(&[0], 0..3, None)),
        (udp(external, 80), apart(&[0], 0..3, None)),
        (tcp(external, 81), apart(&[], 0..3, None)),
        (tcp(external, 82), apart(&[0], 1..3, stay)),
        (tcp(external, 83), apart(&[0], 0..0, None)),
    ];
    world.rules.replace(&world.machine, frontends);
    let of = |which: std::ops::Range<usize>| world.addresses[which].iter().copied().collect::<BTreeSet<_>>();
    let (pod, machine, neighbour) = (&world.pods[3], &world.machine, &world.neighbour);

    let outside = EchoReply { by: world.addresses[0], to: NEIGHBOUR };
    assert!(ask_many(neighbour, external, 80, 30).iter().all(|answer| *answer == outside), "with its own address");
    assert_eq!(neighbour.ask_udp(external, 80).unwrap(), outside);
    let answers = ask_many(pod, external, 80, 60);
    assert_eq!(responders(&answers), of(0..3), "from a pod");
    assert!(answers.iter().all(|answer| answer.to == world.addresses[3]), "backends see which");
    assert_eq!(responders(&ask_many(machine, external, 80, 60)), of(0..3), "from the machine");
    let answers: Vec<_> = (0..60).map(|_| pod.ask_udp(external, 80).unwrap()).collect();
    assert_eq!(responders(&answers), of(0..3));
    assert!(
        ask_many(&world.pods[0], external, 80, 30).iter().any(|answer| answer.to == GATEWAY),
        "a pod reaches itself"
    );

    assert_eq!(neighbour.try_tcp(external, 81).unwrap_err().kind(), ErrorKind::TimedOut, "others may have some");
    assert_eq!(responders(&ask_many(pod, external, 81, 60)), of(0..3));
    for client in [pod, machine] {
        let stays = responders(&ask_many(client, external, 82, 20));
        assert!(stays.len() == 1 && stays.is_subset(&of(1..3)), "{stays:?}");
        assert_eq!(client.try_tcp(external, 83).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }
    assert_eq!(responders(&ask_many(neighbour, external, 82, 20)), of(0..1));
    assert_eq!(responders(&ask_many(neighbour, external, 83, 20)), of(0..1));

    command(machine, "nft list ruleset");
    assert_eq!(world.rules.reconcile(machine), Drift::default(), "as it should be");
    world.rules.apply(machine, [(tcp(external, 80), Some(apart(&[1], 1..4, None)))]);
    assert_eq!(
        (responders(&ask_many(neighbour, external, 80, 30)), responders(&ask_many(pod, external, 80, 60))),
        (of(1..2), of(1..4))
    );
    world.rules.apply(machine, [(tcp(external, 80), Some(pool(world.backends([2])))), (tcp(external, 81), None)]);
    assert_eq!(
        (responders(&ask_many(neighbour, external, 80, 9)), responders(&ask_many(pod, external, 80, 9))),
        (of(2..3), of(2..3))
    );
    assert_eq!(world.rules.reconcile(machine), Drift::default());
}

#[test]
fn a_pod_reaches_itself_through_its_service() {
    let world = TestCluster::new(2);
    let behind = || pool(world.backends([0]));
    let frontends = [(tcp(SERVICE, 80), behind()), (udp(SERVICE, 80), behind()), (tcp(None, 30080), behind())];
    world.rules.replace(&world.machine, frontends);
    let itself = EchoReply { by: world.addresses[0], to: GATEWAY };
    assert_eq!(world.pods[0].ask_tcp(SERVICE, 80).unwrap(), itself);
    assert_eq!(world.pods[0].ask_udp(SERVICE, 80).unwrap(), itself);
    assert_eq!(world.pods[0].ask_tcp(MACHINE, 30080).unwrap(), itself);
    assert_eq!(world.pods[1].ask_tcp(SERVICE, 80).unwrap().to, world.addresses[1], "others keep their address");
}

#[test]
fn without_backends_connections_are_rejected_or_dropped() {
    let world = TestCluster::new(1);
    let silent = BackendPool { without_backends: WithoutBackends::Drop, ..pool([]) };
    let frontends = [
        (tcp(SERVICE, 80), pool([])),
        (udp(SERVICE, 80), pool([])),
        (tcp(None, 30080), pool([])),
        (tcp(SERVICE, 81), silent.clone()),
        (udp(SERVICE, 81), silent),
    ];
    world.rules.replace(&world.machine, frontends);
    let (pod, unused) = (&world.pods[0], Ipv4Addr::new(10, 96, 7, 7));
    for (client, address, port) in [
        (pod, SERVICE, 80),
        (&world.machine, SERVICE, 80),
        (&world.neighbour, MACHINE, 30080),
        (pod, unused, 80),
        (&world.machine, unused, 80),
        (pod, SERVICE, 9999),
    ] {
        // Within the connect timeout: a dropped SYN would end in `TimedOut`.
        let refused = client.try_tcp(address, port).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{address}:{port}");
    }
    assert_eq!(pod.ask_udp(SERVICE, 80).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    assert_eq!(pod.ask_udp(unused, 80).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    assert_eq!(pod.try_tcp(SERVICE, 81).unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(pod.ask_udp(SERVICE, 81).unwrap_err().kind(), ErrorKind::WouldBlock);
}

/// Takes connections at a port and answers with where they were going.
fn hold(machine: &Netns) -> u16 {
    machine.run(|| {
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let address = getsockopt(&stream, sockopt::OriginalDst).unwrap();
                let to =
                    SocketAddrV4::new(u32::from_be(address.sin_addr.s_addr).into(), u16::from_be(address.sin_port));
                let _ = writeln!(stream, "{} {}", to.ip(), Ipv4Addr::from(u32::from(to.port())));
            }
        });
        port
    })
}

#[test]
fn held_connections_are_redirected_with_their_original_destination() {
    let mut world = TestCluster::new(1);
    let proxy_port = hold(&world.machine);
    world.rules = netns::services::Rules::new(mainstay_network::services::KernelSettings {
        proxy_port,
        ..settings("mainstay", "10.96.0.0/16")
    });
    let waits = BackendPool { without_backends: WithoutBackends::Hold(Duration::from_secs(1)), ..pool([]) };
    let always = BackendPool { through_user_space: true, ..pool(world.backends([0])) };
    let node = pool(world.backends([0]));
    let frontends = [
        (tcp(SERVICE, 80), waits.clone()),
        (tcp(SERVICE, 81), always),
        (tcp(None, 30080), waits),
        (tcp(None, 30081), node),
    ];
    world.rules.replace(&world.machine, frontends);
    let went = |client: &Netns, address, port: u16| {
        let held = client.ask_tcp(address, port).unwrap();
        assert_eq!(held, EchoReply { by: address, to: u32::from(port).into() });
    };
    for client in [&world.pods[0], &world.machine] {
        went(client, SERVICE, 80);
        went(client, SERVICE, 81);
    }
    went(&world.neighbour, MACHINE, 30080);
    went(&world.machine, Ipv4Addr::LOCALHOST, 30080);
    went(&world.machine, Ipv4Addr::new(127, 0, 0, 7), 30081);
    let nobody = world.machine.try_tcp(Ipv4Addr::LOCALHOST, 30082).unwrap_err();
    assert_eq!(nobody.kind(), ErrorKind::ConnectionRefused);
    let ready = pool(world.backends([0]));
    world.rules.apply(&world.machine, [(tcp(SERVICE, 80), Some(ready))]);
    assert_eq!(world.machine.ask_tcp(SERVICE, 80).unwrap().by, world.addresses[0], "no longer");
}

#[test]
fn a_removed_backend_gets_no_new_connections_and_keeps_its_old_ones() {
    let world = TestCluster::new(4);
    world.rules.replace(&world.machine, [(tcp(SERVICE, 80), pool(world.backends(0..3)))]);
    let client = &world.pods[3];
    let mut open: Vec<(TcpStream, EchoReply)> = (0..20)
        .map(|_| {
            client.run(|| {
                let mut stream = TcpStream::connect((SERVICE, 80)).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let answer = read(&mut stream).unwrap();
                (stream, answer)
            })
        })
        .collect();
    assert!(open.iter().any(|(_, answer)| answer.by == world.addresses[0]));
    world.rules.apply(&world.machine, [(tcp(SERVICE, 80), Some(pool(world.backends(1..3))))]);
    assert_eq!(responders(&ask_many(client, SERVICE, 80, 40)), world.addresses[1..3].iter().copied().collect());
    for (stream, before) in &mut open {
        stream.write_all(b"still there?\n").unwrap();
        assert_eq!(read(stream).unwrap(), *before);
    }
    world.rules.apply(&world.machine, [(tcp(SERVICE, 80), Some(pool([])))]);
    assert_eq!(client.try_tcp(SERVICE, 80).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    world.rules.apply(&world.machine, [(tcp(SERVICE, 80), None)]);
    assert_eq!(client.try_tcp(SERVICE, 80).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    for (stream, before) in &mut open {
        stream.write_all(b"still there?\n").unwrap();
        assert_eq!(read(stream).unwrap(), *before);
    }
}

/// A socket that keeps its port.
fn sender(client: &Netns, address: Ipv4Addr, port: u16) -> UdpSocket {
    client.run(move || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect((address, port)).unwrap();
        socket
    })
}

#[test]
fn a_udp_flow_leaves_a_removed_backend() {
    let world = TestCluster::new(3);
    let all = |frontend: Frontend, which: &[usize]| (frontend, Some(pool(world.backends(which.iter().copied()))));
    let (inside, node) = (udp(SERVICE, 80), udp(None, 30080));
    world.rules.replace(&world.machine, [inside, node].map(|frontend| (frontend, pool(world.backends(0..2)))));
    for (client, socket, frontend) in [
        (&world.pods[2], sender(&world.pods[2], SERVICE, 80), inside),
        (&world.machine, sender(&world.machine, SERVICE, 80), inside),
        (&world.neighbour, sender(&world.neighbour, MACHINE, 30080), node),
    ] {
        let first = exchange(&socket).unwrap().by;
        assert_eq!(exchange(&socket).unwrap().by, first, "a flow stays");
        let other = usize::from(first == world.addresses[0]);
        world.rules.apply(&world.machine, [all(frontend, &[other])]);
        assert_eq!(exchange(&socket).unwrap().by, world.addresses[other]);
        world.rules.apply(&world.machine, [all(frontend, &[0, 1])]);
        assert_eq!(exchange(&socket).unwrap().by, world.addresses[other], "a newcomer disturbs nobody");
        drop((client, socket));
    }
}

#[test]
fn a_udp_flow_older_than_its_frontend_is_balanced() {
    let world = TestCluster::new(1);
    world.rules.replace(&world.machine, []);
    let socket = sender(&world.neighbour, MACHINE, 30080);
    assert!(exchange(&socket).is_err());
    world.rules.apply(&world.machine, [(udp(None, 30080), Some(pool(world.backends([0]))))]);
    // An error of the first attempt is returned by the next call.
    let answer = exchange(&socket).or_else(|_| exchange(&socket)).unwrap();
    assert_eq!(answer.by, world.addresses[0]);
}

#[test]
fn session_affinity_ends_by_timeout_or_with_the_backend() {
    let world = TestCluster::new(4);
    let sticky = |which: std::ops::Range<usize>| BackendPool {
        affinity: Some(Duration::from_secs(2)),
        ..pool(world.backends(which))
    };
    let (inside, node) = (tcp(SERVICE, 80), tcp(None, 30080));
    world.rules.replace(&world.machine, [(inside, sticky(0..3)), (node, sticky(0..3))]);
    let client = &world.pods[3];
    let first = responders(&ask_many(client, SERVICE, 80, 20));
    assert_eq!(first.len(), 1, "one backend for one client");
    assert_eq!(responders(&ask_many(&world.neighbour, MACHINE, 30080, 20)).len(), 1);
    assert_eq!(responders(&ask_many(&world.machine, SERVICE, 80, 20)).len(), 1);
    let others = world.backends((0..3).filter(|n| !first.contains(&world.addresses[*n])));
    let rest = BackendPool { affinity: Some(Duration::from_secs(2)), ..pool(others) };
    world.rules.apply(&world.machine, [(inside, Some(rest))]);
    let second = responders(&ask_many(client, SERVICE, 80, 20));
    assert!(second.len() == 1 && second.is_disjoint(&first), "{second:?} after {first:?}");
    world.rules.apply(&world.machine, [(inside, Some(sticky(0..3)))]);
    assert_eq!(responders(&ask_many(client, SERVICE, 80, 20)), second, "newcomers take nobody away");
    let remembered = || command(&world.machine, "nft list map ip mainstay-services affinity");
    assert!(remembered().contains("expires"));
    let asked_last = Instant::now();
    while remembered().contains("expires") {
        assert!(asked_last.elapsed() < PATIENCE, "forgotten in time: {}", remembered());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(client.ask_tcp(SERVICE, 80).is_ok());
}

#[test]
fn the_address_of_dns_is_never_balanced() {
    let world = TestCluster::new(1);
    let dns = Ipv4Addr::new(10, 96, 0, 10);
    command(&world.machine, "ip address add 10.96.0.10/32 dev lo");
    serve(&world.machine, dns, 53);
    world.rules.replace(&world.machine, [(udp(dns, 53), pool([])), (tcp(SERVICE, 80), pool(world.backends([0])))]);
    world.rules.apply(&world.machine, [(tcp(dns, 53), Some(pool([])))]);
    for client in [&world.pods[0], &world.machine] {
        assert_eq!(client.ask_udp(dns, 53).unwrap().by, dns);
        assert_eq!(client.ask_tcp(dns, 53).unwrap().by, dns);
    }
    // With that address the machine would ask, had it not to leave.
    command(&world.machine, "ip route del default");
    assert_eq!(world.machine.ask_tcp(SERVICE, 80).unwrap(), EchoReply { by: world.addresses[0], to: GATEWAY });
    assert_eq!(world.machine.ask_udp(SERVICE, 80).unwrap_err().kind(), ErrorKind::PermissionDenied, "no such frontend");
}

#[test]
fn a_backend_on_the_machine_itself_is_reached_by_all() {
    let world = TestCluster::new(1);
    serve(&world.machine, MACHINE, 8080);
    let behind = || pool([SocketAddrV4::new(MACHINE, 8080)]);
    world.rules.replace(&world.machine, [(tcp(SERVICE, 80), behind()), (tcp(None, 30080), behind())]);
    assert_eq!(world.pods[0].ask_tcp(SERVICE, 80).unwrap(), EchoReply { by: MACHINE, to: world.addresses[0] });
    assert_eq!(world.machine.ask_tcp(SERVICE, 80).unwrap().by, MACHINE);
    assert_eq!(world.neighbour.ask_tcp(MACHINE, 30080).unwrap(), EchoReply { by: MACHINE, to: NEIGHBOUR });
    assert_eq!(world.machine.ask_tcp(MACHINE, 30080).unwrap().by, MACHINE);
}
