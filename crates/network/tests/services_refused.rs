//! Who is refused by a backend that crashed, or gets no answer from one that is gone, gets another with the next try.
//! Real packets; needs root and `nft`.

mod netns;

use std::{
    io::{self, ErrorKind},
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use mainstay_network::services::{
    Drift,
    frontend::{BackendPool, WithoutBackends},
};
use mainstay_testing::eventually;
use netns::{
    Netns, PATIENCE,
    services::{EchoReply, MACHINE, SERVICE, TestCluster, command, connect, exchange, pool, read, serve, tcp, udp},
};
use nix::sys::socket::{setsockopt, sockopt};

/// What a Service may ask for besides.
type Wish = fn(BackendPool) -> BackendPool;

fn patient(backends: impl IntoIterator<Item = SocketAddrV4>) -> BackendPool {
    BackendPool { without_backends: WithoutBackends::Hold(Duration::from_secs(10)), ..pool(backends) }
}

/// The address of a pod whose server has ended.
fn crashed(world: &TestCluster) -> SocketAddrV4 {
    SocketAddrV4::new(world.addresses[0], 8080)
}

/// Asks beside what else is done there.
fn spawn_client(client: &Netns, to: SocketAddrV4) -> JoinHandle<io::Result<EchoReply>> {
    client.run(move || thread::spawn(move || read(&mut connect(to, PATIENCE)?)))
}

#[test]
fn after_an_rst_the_next_syn_finds_the_new_backend() {
    let world = TestCluster::new(3);
    let masqueraded = |pool| BackendPool { masquerade: true, ..pool };
    let stays = |pool| BackendPool { affinity: Some(Duration::from_secs(60)), ..pool };
    let (in_pod, on_machine) = (crashed(&world), SocketAddrV4::new(MACHINE, 8080));
    let plain: Wish = |pool| pool;
    let cases = [
        (&world.pods[2], tcp(SERVICE, 80), SERVICE, in_pod, plain),
        (&world.pods[1], tcp(SERVICE, 81), SERVICE, in_pod, stays),
        (&world.machine, tcp(SERVICE, 82), SERVICE, in_pod, plain),
        (&world.neighbour, tcp(None, 30083), MACHINE, in_pod, plain),
        (&world.neighbour, tcp(None, 30084), MACHINE, in_pod, masqueraded),
        (&world.pods[2], tcp(SERVICE, 85), SERVICE, on_machine, plain),
        (&world.machine, tcp(SERVICE, 86), SERVICE, on_machine, plain),
        (&world.neighbour, tcp(None, 30087), MACHINE, on_machine, plain),
    ];
    world.rules.replace(&world.machine, []);
    for (client, frontend, address, gone, as_asked) in cases {
        let set = |backends| world.rules.apply(&world.machine, [(frontend, Some(as_asked(patient(backends))))]);
        let attempt = || {
            set(vec![gone]);
            let listed = || command(&world.machine, "nft list set ip mainstay-services recent-rsts");
            let refused = || listed().matches(&format!(". {} ", frontend.port)).count();
            let (before, began) = (refused(), Instant::now());
            let asking = spawn_client(client, SocketAddrV4::new(address, frontend.port));
            while refused() == before {
                assert!(began.elapsed() < PATIENCE, "{frontend:?} was not refused: {}", listed());
            }
            set(world.backends([1]));
            asking.join().unwrap()
        };
        // On a busy machine the second may be over before the table has changed.
        let answer = attempt().or_else(|_| attempt()).or_else(|_| attempt());
        assert_eq!(answer.unwrap().by, world.addresses[1], "{frontend:?}");
    }
    command(&world.machine, "nft list ruleset");
    assert_eq!(world.rules.reconcile(&world.machine), Drift::default());
}

#[test]
fn a_second_rst_is_passed_on_and_without_hold_so_is_the_first() {
    let world = TestCluster::new(2);
    let refuses = crashed(&world);
    world.rules.replace(&world.machine, [(tcp(SERVICE, 80), patient([refuses])), (tcp(SERVICE, 81), pool([refuses]))]);
    let refused = |address: Ipv4Addr, port| {
        let began = Instant::now();
        let why = world.pods[1].ask_tcp(address, port).unwrap_err();
        assert_eq!(why.kind(), ErrorKind::ConnectionRefused, "{address}:{port}");
        began.elapsed()
    };
    let tried_again = refused(SERVICE, 80);
    assert!(tried_again >= Duration::from_millis(900), "heard after {tried_again:?}");
    refused(SERVICE, 81);
    refused(*refuses.ip(), refuses.port());
    let dropped = command(&world.machine, "nft list set ip mainstay-services recent-rsts");
    assert!(dropped.contains(". 10.96.0.1 . 80"), "{dropped}");
    assert!(!dropped.contains(". 10.96.0.1 . 81"), "the first RST is passed on where nothing is held: {dropped}");
}

#[test]
fn after_icmp_unreachable_the_next_syn_finds_the_new_backend() {
    let world = TestCluster::new(2);
    let gone = Ipv4Addr::new(10, 244, 3, 200);
    let cases = [
        (&world.pods[0], tcp(SERVICE, 80), SERVICE),
        (&world.machine, tcp(SERVICE, 81), SERVICE),
        (&world.neighbour, tcp(None, 30082), MACHINE),
    ];
    let dead = || patient([SocketAddrV4::new(gone, 80)]);
    world.rules.replace(&world.machine, cases.map(|(_, frontend, _)| (frontend, dead())));
    let asking =
        cases.map(|(client, frontend, address)| spawn_client(client, SocketAddrV4::new(address, frontend.port)));
    let began = Instant::now();
    // By then the machine has said that it is not reached.
    let neighbours = || command(&world.machine, &format!("ip neighbour show {gone}"));
    while !neighbours().contains("FAILED") {
        assert!(began.elapsed() < PATIENCE, "{}", neighbours());
    }
    let alive = cases.map(|(_, frontend, _)| (frontend, Some(patient(world.backends([1])))));
    world.rules.apply(&world.machine, alive);
    for asking in asking {
        assert_eq!(asking.join().unwrap().unwrap().by, world.addresses[1]);
    }
    command(&world.machine, "nft list ruleset");
}

#[test]
fn udp_clients_receive_icmp_unreachable() {
    let world = TestCluster::new(1);
    let gone = SocketAddrV4::new([10, 244, 3, 200].into(), 80);
    world.rules.replace(&world.machine, [(udp(SERVICE, 80), pool([gone]))]);
    let received = world.pods[0].run(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        setsockopt(&socket, sockopt::Ipv4RecvErr, &true).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.connect((SERVICE, 80)).unwrap();
        socket.send(b"who are you?").unwrap();
        socket.recv(&mut [0; 100]).unwrap_err().kind()
    });
    assert_eq!(received, ErrorKind::HostUnreachable);
}

#[test]
fn a_retransmitted_syn_ends_session_affinity() {
    let world = TestCluster::new(4);
    let gone = SocketAddrV4::new([10, 244, 3, 200].into(), 80);
    let stays =
        |backends: Vec<SocketAddrV4>| BackendPool { affinity: Some(Duration::from_secs(600)), ..patient(backends) };
    let frontends = [(tcp(SERVICE, 80), SERVICE, &world.pods[0]), (tcp(None, 30081), MACHINE, &world.neighbour)];
    world.rules.replace(&world.machine, frontends.map(|(frontend, ..)| (frontend, stays(vec![gone]))));
    let asking =
        frontends.map(|(frontend, address, client)| spawn_client(client, SocketAddrV4::new(address, frontend.port)));
    let began = Instant::now();
    let known = || command(&world.machine, "nft list map ip mainstay-services affinity");
    while known().matches("10.244.3.200").count() < 2 {
        assert!(began.elapsed() < PATIENCE, "{}", known());
    }
    let with_others = || stays(world.backends(1..4).into_iter().chain([gone]).collect());
    world.rules.apply(&world.machine, frontends.map(|(frontend, ..)| (frontend, Some(with_others()))));
    for ((frontend, address, client), asking) in frontends.into_iter().zip(asking) {
        let first = asking.join().unwrap().unwrap().by;
        for _ in 0..10 {
            assert_eq!(client.ask_tcp(address, frontend.port).unwrap().by, first, "it stays with that one");
        }
    }
    command(&world.machine, "nft list ruleset");
}

#[test]
fn the_ct_timeout_follows_the_sysctl() {
    let world = TestCluster::new(1);
    let frontend = tcp(SERVICE, 80);
    world.rules.replace(&world.machine, [(frontend, pool(world.backends([0])))]);
    let established = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established";
    world.machine.run(move || std::fs::write(established, "4242").unwrap());
    assert_ne!(world.rules.reconcile(&world.machine), Drift::default(), "the rules know another limit");
    assert_eq!(world.rules.reconcile(&world.machine), Drift::default());
    let open = world.pods[0].run(|| connect(SocketAddrV4::new(SERVICE, 80), PATIENCE).unwrap());
    let (known, entry) = (command(&world.machine, "cat /proc/net/nf_conntrack"), "ESTABLISHED src=10.244.3.");
    let limit = known.lines().find(|line| line.contains(entry) && line.contains("dst=10.96.0.1")).unwrap();
    let left: u32 = limit.split_whitespace().nth(4).unwrap().parse().unwrap();
    assert!((4_000..=4_242).contains(&left), "{limit}");
    drop(open);
}

/// The rules outlive the agent, which serves DNS.
#[test]
fn while_no_agent_runs_dns_clients_receive_no_error_and_repeat_their_query() {
    let world = TestCluster::new(1);
    world.rules.replace(&world.machine, []);
    let dns = Ipv4Addr::new(10, 96, 0, 10);
    command(&world.machine, &format!("ip address add {dns}/32 dev lo"));
    let clients = [&world.pods[0], &world.machine];
    let sockets = clients.map(|client| {
        client.run(move || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect((dns, 53)).unwrap();
            socket.send(b"query").unwrap();
            socket
        })
    });
    let connecting = clients.map(|client| spawn_client(client, SocketAddrV4::new(dns, 53)));
    // Both kinds of queries have arrived at a machine on which nobody listens.
    let counted = |protocol: &str, name: &str| {
        let counters = command(&world.machine, "cat /proc/net/snmp");
        let mut rows = counters.lines().filter_map(|line| line.strip_prefix(protocol));
        let [names, values] = [rows.next(), rows.next()].map(|row| row.expect("names, then values").split_whitespace());
        let (_, value) = names.zip(values).find(|(own, _)| *own == name).expect("a counter of this name");
        value.parse::<u32>().expect("a number")
    };
    eventually("queries are dropped", || counted("Udp:", "NoPorts") >= 2 && counted("Tcp:", "OutRsts") >= 2);
    // Nobody else at that address is spared the error.
    for client in clients {
        assert_eq!(client.ask_udp(dns, 54).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        assert_eq!(client.ask_tcp(dns, 54).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }
    serve(&world.machine, dns, 53);
    for socket in sockets {
        assert_eq!(exchange(&socket).expect("an error was received").by, dns);
    }
    for connecting in connecting {
        assert_eq!(connecting.join().unwrap().expect("the SYN was refused").by, dns);
    }
    command(&world.machine, "nft list ruleset");
    assert_eq!(world.rules.reconcile(&world.machine), Drift::default());
}
