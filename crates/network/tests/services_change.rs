//! The kernel data path while Services change, others change the table, and the table is removed. Needs root and `nft`.

mod netns;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddrV4},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use mainstay_network::{
    catalogue::Key,
    services::{
        Balancer, BalancerSettings, Drift, KernelProxy,
        frontend::{BackendPool, Frontend, WithoutBackends},
    },
};
use netns::{
    Netns,
    services::{MACHINE, Rules, SERVICE, TestCluster, command, connect, exchange, pool, read, settings, tcp, udp},
};

const TABLE: &str = "mainstay-services";

fn ruleset(place: &Netns) -> String {
    command(place, "nft list ruleset")
}

fn routes(place: &Netns) -> String {
    command(place, "ip -4 route show table all")
}

/// Connects again and again in a namespace until asked to end. What failed, and how many did not.
struct Client {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    thread: std::thread::JoinHandle<Vec<String>>,
}

impl Client {
    fn start(place: &Netns, to: SocketAddrV4) -> Self {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, count) = (stop.clone(), answered.clone());
        let thread = place.run(move || {
            std::thread::spawn(move || {
                let mut failed = Vec::new();
                while !stopped.load(Relaxed) {
                    match connect(to, Duration::from_secs(10)).and_then(|mut stream| read(&mut stream)) {
                        Ok(_) => drop(count.fetch_add(1, Relaxed)),
                        Err(error) => failed.push(error.to_string()),
                    }
                }
                failed
            })
        });
        Self { stop, answered, thread }
    }

    fn end(self) -> (usize, Vec<String>) {
        self.stop.store(true, Relaxed);
        let failed = self.thread.join().unwrap();
        (self.answered.load(Relaxed), failed)
    }
}

#[test]
fn no_connection_fails_while_backends_change_all_the_time() {
    let world = TestCluster::new(5);
    let (inside, node) = (tcp(SERVICE, 80), tcp(None, 30080));
    let with = |which: &[usize], sticky: bool| BackendPool {
        affinity: sticky.then_some(Duration::from_secs(30)),
        masquerade: true,
        ..pool(world.backends(which.iter().copied()))
    };
    world.rules.replace(&world.machine, [inside, node].map(|frontend| (frontend, with(&[0], false))));
    let clients = [
        Client::start(&world.pods[4], SocketAddrV4::new(SERVICE, 80)),
        Client::start(&world.machine, SocketAddrV4::new(SERVICE, 80)),
        Client::start(&world.neighbour, SocketAddrV4::new(MACHINE, 30080)),
    ];
    let sets: [&[usize]; 8] = [&[0, 1], &[1], &[1, 2, 3], &[3], &[0, 1, 2, 3], &[2, 3], &[0], &[0, 3]];
    let mut rounds = 0;
    while clients.iter().map(|client| client.answered.load(Relaxed)).sum::<usize>() < 2_000 {
        rounds += 1;
        let chosen = sets[rounds % sets.len()];
        let sticky = rounds % 3 == 0;
        if rounds % 50 == 0 {
            // As a new process does that finds what another left.
            let fresh = Rules::new(settings("mainstay", "10.96.0.0/16"));
            fresh.replace(&world.machine, [inside, node].map(|frontend| (frontend, with(chosen, sticky))));
            assert_eq!(fresh.reconcile(&world.machine), Drift::default());
            world.rules.replace(&world.machine, [inside, node].map(|frontend| (frontend, with(chosen, false))));
        } else {
            world.rules.apply(&world.machine, [inside, node].map(|frontend| (frontend, Some(with(chosen, sticky)))));
        }
    }
    for client in clients {
        let (answered, failed) = client.end();
        assert_eq!(failed, Vec::<String>::new(), "beside {answered} answered in {rounds} rounds");
        assert!(answered > 0);
    }
    assert_eq!(world.rules.reconcile(&world.machine), Drift::default(), "and all changes arrived");
}

#[test]
fn changes_by_others_are_repaired_and_counted() {
    let world = TestCluster::new(2);
    let (machine, rules) = (&world.machine, &world.rules);
    let sticky = BackendPool { affinity: Some(Duration::from_secs(60)), ..pool(world.backends(0..2)) };
    rules.replace(machine, [(tcp(SERVICE, 80), pool(world.backends(0..2))), (tcp(SERVICE, 81), sticky)]);
    assert_eq!(rules.reconcile(machine), Drift::default());
    let sound = ruleset(machine);
    let broken: [(&str, usize, usize); 7] = [
        ("nft delete element ip mainstay-services frontends { 10.96.0.1 . tcp . 80 }", 1, 0),
        ("nft add element ip mainstay-services frontends { 10.96.0.3 . tcp . 80 : 0 . 1 . 1 . 0 }", 0, 1),
        ("nft flush map ip mainstay-services backends", 2, 0),
        ("nft add rule ip mainstay-services output drop", 0, 1),
        ("nft flush chain ip mainstay-services postrouting", 4, 0),
        ("nft add chain ip mainstay-services stranger", 0, 1),
        ("nft flush chain ip mainstay-services balance-2", 3, 0),
    ];
    for (how, missing, surplus) in broken {
        command(machine, how);
        assert_eq!(rules.reconcile(machine), Drift { missing, surplus, dead_connections: 0 }, "{how}");
        assert_eq!(rules.reconcile(machine), Drift::default(), "{how}");
        assert_same(&ruleset(machine), &sound, how);
    }
    command(machine, "nft flush ruleset");
    assert!(world.pods[0].try_tcp(SERVICE, 80).is_err());
    let drift = rules.reconcile(machine);
    assert!(drift.missing > 5, "{drift:?}");
    assert!(world.pods[0].ask_tcp(SERVICE, 80).is_ok());
    let others = |text: String| text.split("table ip ").filter(|part| part.starts_with(TABLE)).collect::<String>();
    assert_same(&others(ruleset(machine)), &others(sound), "all of ours is back");
    // A change finds out as well.
    command(machine, "nft flush ruleset");
    rules.apply(machine, [(tcp(SERVICE, 82), Some(pool(world.backends([0]))))]);
    for port in [80, 81, 82] {
        assert!(world.pods[1].ask_tcp(SERVICE, port).is_ok(), "{port}");
    }
}

/// Elements are listed in any order, and those that clients are remembered by come and go.
fn sorted(ruleset: &str) -> BTreeMap<String, usize> {
    let words = ruleset.split([',', '\n', '{', '}']).map(str::trim);
    let lasting = words.filter(|part| !part.is_empty() && !part.contains("expires") && *part != "elements =");
    let mut counted = BTreeMap::new();
    lasting.for_each(|part| *counted.entry(part.to_owned()).or_default() += 1);
    counted
}

fn assert_same(found: &str, expected: &str, what: &str) {
    let (found, expected) = (sorted(found), sorted(expected));
    let differs: Vec<_> = found.iter().filter(|(part, count)| expected.get(*part) != Some(count)).collect();
    let lacks: Vec<_> = expected.keys().filter(|part| !found.contains_key(*part)).collect();
    assert!(differs.is_empty() && lacks.is_empty(), "{what}: differs {differs:?}, lacks {lacks:?}");
}

#[test]
fn reconcile_deletes_stale_udp_entries() {
    let world = TestCluster::new(3);
    let frontend = udp(SERVICE, 80);
    world.rules.replace(&world.machine, [(frontend, pool(world.backends([0])))]);
    let socket = world.pods[2].run(|| std::net::UdpSocket::bind("0.0.0.0:0").unwrap());
    socket.connect((SERVICE, 80)).unwrap();
    assert_eq!(exchange(&socket).unwrap().by, world.addresses[0]);
    // Somebody else's change is in force, but the flow goes on as before.
    let fresh = Rules::new(settings("mainstay", "10.96.0.0/16"));
    fresh.replace(&world.machine, [(frontend, pool(world.backends([1])))]);
    assert_eq!(exchange(&socket).unwrap().by, world.addresses[1], "found at the start");
    let drift = world.rules.reconcile(&world.machine);
    assert_eq!(drift.dead_connections, 1, "{drift:?}");
    assert_eq!(exchange(&socket).unwrap().by, world.addresses[0]);
}

#[test]
fn two_instances_leave_each_other_alone_and_removal_leaves_nothing() {
    let world = TestCluster::new(2);
    let machine = &world.machine;
    let (before, routes_before) = (ruleset(machine), routes(machine));
    let other = Rules::new(settings("mainstay-0a1b2c3d", "10.97.0.0/16"));
    let theirs = Ipv4Addr::new(10, 97, 0, 1);
    let frontends = |address, node, which: usize| {
        let sticky = BackendPool { affinity: Some(Duration::from_secs(60)), ..pool(world.backends([which])) };
        [(tcp(address, 80), pool(world.backends([which]))), (tcp(None, node), sticky)]
    };
    world.rules.replace(machine, frontends(SERVICE, 30080, 0));
    let (ours_alone, routes_alone) = (ruleset(machine), routes(machine));
    other.replace(machine, frontends(theirs, 30081, 1));
    for client in [&world.pods[0], &world.pods[1], machine] {
        assert_eq!(client.ask_tcp(SERVICE, 80).unwrap().by, world.addresses[0]);
        assert_eq!(client.ask_tcp(theirs, 80).unwrap().by, world.addresses[1]);
    }
    assert_eq!(world.neighbour.ask_tcp(MACHINE, 30080).unwrap().by, world.addresses[0]);
    assert_eq!(world.neighbour.ask_tcp(MACHINE, 30081).unwrap().by, world.addresses[1]);
    assert_eq!(world.rules.reconcile(machine), Drift::default());
    let remove =
        |instance: &'static str| machine.run_async(move || async move { KernelProxy::remove(instance).await.unwrap() });
    remove("mainstay-0a1b2c3d");
    assert_same(&ruleset(machine), &ours_alone, "only theirs is gone");
    assert_eq!(routes(machine), routes_alone);
    assert_eq!(world.pods[1].ask_tcp(SERVICE, 80).unwrap().by, world.addresses[0]);
    remove("mainstay");
    remove("mainstay");
    assert_eq!((ruleset(machine), routes(machine)), (before, routes_before));
}

#[test]
fn thirty_thousand_backends_are_loaded_changed_and_read_back() {
    let place = Netns::new();
    let rules = Rules::new(settings("mainstay", "10.96.0.0/16"));
    let frontends: BTreeMap<Frontend, BackendPool> = (0..3_000u32)
        .map(|service| {
            let address = Ipv4Addr::from(u32::from(SERVICE) + 10 + service);
            let backends = (0..10).map(|n| SocketAddrV4::new(Ipv4Addr::from(0x0af4_0000 + service * 10 + n), 80));
            (tcp(address, 80), pool(backends))
        })
        .collect();
    let some = *frontends.keys().nth(1_500).unwrap();
    rules.replace(&place, frontends);
    rules.apply(&place, [(some, Some(pool([SocketAddrV4::new([10, 1, 2, 3].into(), 80)])))]);
    assert_eq!(rules.reconcile(&place), Drift::default());
    command(&place, "nft add table ip somebody-elses");
    assert_eq!(rules.reconcile(&place), Drift::default(), "read back whole");
    command(&place, "nft flush map ip mainstay-services frontends");
    assert_eq!(rules.reconcile(&place), Drift { missing: 3_000, surplus: 0, dead_connections: 0 });
}

/// Both paths together, in the machine's namespace.
fn balancer(world: &TestCluster) -> (tokio::runtime::Runtime, Arc<Balancer>) {
    world.machine.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let balancer = runtime.block_on(async {
            let (services, pods) = ("10.96.0.0/16".parse().unwrap(), "10.244.0.0/16".parse().unwrap());
            let settings = BalancerSettings { instance: "mainstay".into(), services, pods };
            Balancer::start(settings).unwrap()
        });
        (runtime, balancer)
    })
}

#[test]
fn no_connection_fails_while_a_service_loses_and_regains_its_only_backend() {
    let world = TestCluster::new(3);
    let (runtime, balancer) = balancer(&world);
    let held = WithoutBackends::Hold(Duration::from_secs(10));
    let key = Key::new("default", "only");
    let with = |which: &[usize]| BackendPool {
        without_backends: held,
        masquerade: true,
        ..pool(world.backends(which.iter().copied()))
    };
    let runtime = Arc::new(runtime);
    let apply = |pool: BackendPool| {
        let (runtime, balancer, key) = (runtime.clone(), balancer.clone(), key.clone());
        let frontends = vec![(tcp(SERVICE, 80), pool.clone()), (tcp(None, 30080), pool)];
        world.machine.run(move || runtime.block_on(balancer.apply(vec![(key, frontends)])).unwrap());
    };
    apply(with(&[]));
    let clients = [
        Client::start(&world.pods[2], SocketAddrV4::new(SERVICE, 80)),
        Client::start(&world.machine, SocketAddrV4::new(SERVICE, 80)),
        Client::start(&world.neighbour, SocketAddrV4::new(MACHINE, 30080)),
    ];
    let total = || clients.iter().map(|client| client.answered.load(Relaxed)).sum::<usize>();
    assert_eq!(total(), 0, "nobody could answer");
    let mut rounds = 0;
    while total() < 2_000 {
        rounds += 1;
        apply(with(&[rounds % 2]));
        let before = total();
        while total() == before {
            std::thread::yield_now();
        }
        apply(with(&[]));
    }
    apply(with(&[0]));
    let mut all = BTreeSet::new();
    for (from, client) in ["a pod", "the machine", "outside"].into_iter().zip(clients) {
        let (answered, failed) = client.end();
        assert_eq!(failed, Vec::<String>::new(), "from {from}, beside {answered} answered in {rounds} rounds");
        all.insert(answered);
    }
    assert!(!all.contains(&0), "{all:?}");
}
