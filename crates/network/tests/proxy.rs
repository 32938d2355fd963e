//! Connections that nftables redirects to the user-space proxy, with real packets. Needs root.

mod netns;

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use mainstay_network::{
    catalogue::Key,
    services::{
        Balancer, BalancerSettings,
        frontend::{BackendPool, Frontend, WithoutBackends},
    },
};
use netns::{
    Netns,
    services::{EchoReply, MACHINE, SERVICE, TestCluster, connect, pool, read, tcp},
};

const LONG: WithoutBackends = WithoutBackends::Hold(Duration::from_secs(30));

struct Balanced {
    world: TestCluster,
    balancer: Arc<Balancer>,
}

impl Balanced {
    fn new(pods: usize) -> Self {
        let world = TestCluster::new(pods);
        let (services, pods) = ("10.96.0.0/16".parse().unwrap(), "10.244.0.0/16".parse().unwrap());
        let settings = BalancerSettings { instance: "mainstay".into(), services, pods };
        let balancer = world.machine.run(move || Balancer::start(settings).unwrap());
        Self { world, balancer }
    }

    /// The one Service there is has these frontends.
    fn apply(&self, frontends: Vec<(Frontend, BackendPool)>) {
        let balancer = self.balancer.clone();
        let service = vec![(Key::new("default", "web"), frontends)];
        self.world.machine.run_async(move || async move { balancer.apply(service).await.unwrap() });
    }

    fn serve(&self, backends: Vec<SocketAddrV4>, without_backends: WithoutBackends) {
        let pool = BackendPool { without_backends, ..pool(backends) };
        let outside = BackendPool { masquerade: true, ..pool.clone() };
        self.apply(vec![(tcp(SERVICE, 80), pool), (tcp(None, 30080), outside)]);
    }
}

/// Connects, and says so before it waits for an answer.
fn ask_in_background(place: &Netns, address: Ipv4Addr, port: u16) -> JoinHandle<io::Result<EchoReply>> {
    place.run(move || {
        let mut stream = connect(SocketAddrV4::new(address, port), Duration::from_secs(10)).unwrap();
        std::thread::spawn(move || read(&mut stream))
    })
}

#[test]
fn held_connections_are_delivered_from_pods_machine_and_outside() {
    let balanced = Balanced::new(2);
    let world = &balanced.world;
    balanced.serve(vec![], LONG);
    let waiting = [
        ask_in_background(&world.pods[1], SERVICE, 80),
        ask_in_background(&world.machine, SERVICE, 80),
        ask_in_background(&world.neighbour, MACHINE, 30080),
        ask_in_background(&world.machine, MACHINE, 30080),
    ];
    std::thread::sleep(Duration::from_millis(300));
    assert!(waiting.iter().all(|client| !client.is_finished()), "nobody is answered or refused");
    balanced.serve(world.backends([0]), LONG);
    for client in waiting {
        assert_eq!(client.join().unwrap().unwrap().by, world.addresses[0]);
    }
}

#[test]
fn clients_inside_are_held_where_those_outside_are_dropped() {
    let balanced = Balanced::new(2);
    let world = &balanced.world;
    let serve = |internal: Vec<SocketAddrV4>| {
        let internal = Some(Box::new(BackendPool { without_backends: LONG, ..pool(internal) }));
        let outside = BackendPool { without_backends: WithoutBackends::Drop, internal, ..pool([]) };
        balanced.apply(vec![(tcp(MACHINE, 80), outside)]);
    };
    serve(vec![]);
    let waiting = [&world.pods[1], &world.machine].map(|client| ask_in_background(client, MACHINE, 80));
    assert_eq!(world.neighbour.try_tcp(MACHINE, 80).unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert!(waiting.iter().all(|client| !client.is_finished()), "nobody is answered or refused");
    serve(world.backends([0]));
    for client in waiting {
        assert_eq!(client.join().unwrap().unwrap().by, world.addresses[0]);
    }
    assert_eq!(world.neighbour.try_tcp(MACHINE, 80).unwrap_err().kind(), io::ErrorKind::TimedOut);
}

#[test]
fn a_connection_is_reset_after_the_hold_time() {
    let balanced = Balanced::new(1);
    balanced.serve(vec![], WithoutBackends::Hold(Duration::from_millis(200)));
    let error = ask_in_background(&balanced.world.pods[0], SERVICE, 80).join().unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[test]
fn a_service_with_the_user_space_path_always_uses_it() {
    let balanced = Balanced::new(2);
    let world = &balanced.world;
    let through_us = BackendPool { through_user_space: true, without_backends: LONG, ..pool(world.backends([0])) };
    balanced.apply(vec![(tcp(SERVICE, 80), through_us)]);
    let answer = world.pods[1].ask_tcp(SERVICE, 80).unwrap();
    assert_eq!(answer.by, world.addresses[0]);
    assert_ne!(answer.to, world.addresses[1], "the backend sees the machine");
}

#[test]
fn a_service_whose_backends_come_and_go_loses_no_new_connection() {
    let balanced = Balanced::new(4);
    let world = &balanced.world;
    balanced.serve(vec![], LONG);
    let stop = Arc::new(AtomicBool::new(false));
    let ask_on = |place: &Netns, address: Ipv4Addr, port: u16| {
        let stop = stop.clone();
        place.run(move || {
            std::thread::spawn(move || {
                let mut asked = 0;
                while !stop.load(Ordering::Relaxed) {
                    let stream = connect(SocketAddrV4::new(address, port), Duration::from_secs(10));
                    stream.and_then(|mut stream| read(&mut stream)).unwrap_or_else(|error| panic!("{asked}: {error}"));
                    asked += 1;
                }
                asked
            })
        })
    };
    let clients = [
        ask_on(&world.pods[2], SERVICE, 80),
        ask_on(&world.pods[3], SERVICE, 80),
        ask_on(&world.machine, SERVICE, 80),
        ask_on(&world.neighbour, MACHINE, 30080),
    ];
    for change in 0..100 {
        let backends = [vec![], vec![0], vec![0, 1], vec![1]][change % 4].clone();
        balanced.serve(world.backends(backends), LONG);
        std::thread::sleep(Duration::from_millis(15));
    }
    balanced.serve(world.backends([1]), LONG);
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        let asked = client.join().unwrap();
        assert!(asked > 20, "only {asked} times");
    }
}
