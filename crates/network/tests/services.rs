//! Services by the kernel's packet rules, with real packets. Needs root.

mod places;

use std::collections::BTreeSet;

use places::services::{MACHINE, NEIGHBOUR, SERVICE, World, target, tcp, udp};

#[test]
fn connections_and_datagrams_reach_every_backend_from_pods_machine_and_outside() {
    let world = World::new(4);
    let behind = || target(world.backends(0..3));
    let fronts = [(tcp(SERVICE, 80), behind()), (udp(SERVICE, 80), behind()), (tcp(None, 30080), behind())];
    world.rules.replace(&world.machine, fronts);
    let client = &world.pods[3];
    let expected: BTreeSet<_> = world.addresses[..3].iter().copied().collect();
    let answers: Vec<_> = (0..60).map(|_| client.ask_tcp(SERVICE, 80).unwrap()).collect();
    assert_eq!(answers.iter().map(|a| a.by).collect::<BTreeSet<_>>(), expected);
    assert!(answers.iter().all(|a| a.to == world.addresses[3]), "backends see who asks");
    let answers: Vec<_> = (0..60).map(|_| client.ask_udp(SERVICE, 80).unwrap()).collect();
    assert_eq!(answers.iter().map(|a| a.by).collect::<BTreeSet<_>>(), expected);
    let answers: Vec<_> = (0..60).map(|_| world.machine.ask_tcp(SERVICE, 80).unwrap()).collect();
    assert_eq!(answers.iter().map(|a| a.by).collect::<BTreeSet<_>>(), expected, "from the machine");
    assert!(world.machine.ask_udp(SERVICE, 80).is_ok());
    let answer = world.neighbour.ask_tcp(MACHINE, 30080).unwrap();
    assert_eq!(answer.to, NEIGHBOUR, "not masqueraded unless asked");
    assert!(world.machine.ask_tcp(MACHINE, 30080).is_ok(), "from the machine");
    assert!(client.ask_tcp(MACHINE, 30080).is_ok(), "from a pod");
}
