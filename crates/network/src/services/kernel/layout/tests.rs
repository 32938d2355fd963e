use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use proptest::prelude::*;

use super::*;

fn front() -> Front {
    Front { address: Some([10, 96, 0, 1].into()), protocol: Protocol::Tcp, port: 80 }
}

fn target(count: u8) -> Target {
    Target {
        backends: (0..count).map(|n| SocketAddrV4::new([10, 244, 0, n].into(), 8080)).collect(),
        affinity: None,
        masquerade: false,
        through_user_space: false,
        without_backends: WithoutBackends::Refuse,
        inside: None,
    }
}

#[test]
fn the_way_follows_from_backends_protocol_and_wishes() {
    let hold = WithoutBackends::Hold(Duration::from_secs(10));
    let udp = Front { protocol: Protocol::Udp, ..front() };
    let node = Front { address: None, ..front() };
    let way =
        |front: &Front, target: &Target| Way::all(front, target).map(|way| way.chain()).collect::<Vec<_>>().join(" ");
    assert_eq!(way(&front(), &target(3)), "pick-3");
    assert_eq!(way(&node, &target(3)), "node-pick-3");
    let sticky = Target { affinity: Some(Duration::from_secs(60)), ..target(2) };
    assert_eq!(way(&front(), &sticky), "stick-2-60");
    assert_eq!(way(&node, &sticky), "node-stick-2-60");
    assert_eq!(way(&front(), &Target { without_backends: hold, ..target(2) }), "pick-2");
    assert_eq!(way(&front(), &Target { without_backends: hold, ..target(0) }), "hold");
    assert_eq!(way(&node, &Target { without_backends: hold, ..target(0) }), "hold");
    assert_eq!(way(&udp, &Target { without_backends: hold, ..target(0) }), "refuse");
    assert_eq!(way(&front(), &Target { through_user_space: true, ..target(2) }), "hold");
    assert_eq!(way(&udp, &Target { through_user_space: true, ..target(2) }), "pick-2");
    assert_eq!(way(&front(), &target(0)), "refuse");
    let silent = Target { without_backends: WithoutBackends::Drop, ..target(0) };
    assert_eq!(way(&front(), &silent), "drop");
    assert_eq!(way(&front(), &Target { inside: Some(Box::new(target(2))), ..silent }), "outside-drop inside-pick-2");
    assert_eq!(
        way(&front(), &Target { inside: Some(Box::new(target(0))), ..target(1) }),
        "outside-pick-1 inside-refuse"
    );
}

#[test]
fn ways_have_keys_and_chains_of_their_own() {
    let then = [Then::Pick { count: 2 }, Then::Pick { count: 3 }, Then::Stick { count: 2, seconds: 5 }, Then::Hold];
    let rest = [Then::Stick { count: 2, seconds: 6 }, Then::Refuse, Then::Drop];
    let ways: Vec<Way> = then.into_iter().chain(rest).map(|then| Way { at: At::Address, then }).collect();
    let others = [At::Node, At::Inside, At::Outside].into_iter().flat_map(|at| {
        [Then::Pick { count: 2 }, Then::Stick { count: 2, seconds: 5 }, Then::Drop].map(|then| Way { at, then })
    });
    let ways: Vec<Way> = ways.into_iter().chain(others).collect();
    assert_eq!(ways.iter().map(Way::key).collect::<BTreeSet<_>>().len(), ways.len());
    assert_eq!(ways.iter().map(Way::chain).collect::<BTreeSet<_>>().len(), ways.len());
}

#[test]
fn an_element_reads_back_as_it_was_made() {
    let sticky = Target { affinity: Some(Duration::from_secs(60)), ..target(2) };
    let sticky = Target { inside: Some(Box::new(sticky.clone())), ..sticky };
    for element in elements(&front(), &sticky).into_iter().chain(constant_elements()) {
        let value = element.value().unwrap_or_default();
        assert_eq!(Element::read(element.key.set, element.key.bytes(), value), Some(element));
        assert_eq!(Element::read(element.key.set, &element.key.bytes()[1..], value), None);
    }
    let keys: Vec<Key> = elements(&front(), &sticky).iter().map(|element| element.key).collect();
    assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len(), "what is inside is apart");
}

fn backends() -> impl Strategy<Value = BTreeSet<SocketAddrV4>> {
    let one = (0u8..20).prop_map(|n| SocketAddrV4::new([10, 244, 0, n].into(), 80));
    proptest::collection::btree_set(one, 0..15)
}

proptest! {
    #[test]
    fn backends_are_placed_each_once_and_few_move(old in backends(), new in backends()) {
        let old: Vec<SocketAddrV4> = old.into_iter().rev().collect();
        let order = placed(&old, new.iter().copied().collect());
        prop_assert_eq!(order.len(), new.len());
        prop_assert_eq!(&order.iter().copied().collect::<BTreeSet<_>>(), &new);
        let written = order.iter().enumerate().filter(|(at, backend)| old.get(*at) != Some(backend)).count();
        let gone = old.iter().filter(|backend| !new.contains(backend)).count();
        let fresh = order.iter().filter(|backend| !old.contains(backend)).count();
        prop_assert!(written <= gone.max(fresh), "{written} of {gone} gone and {fresh} fresh");
    }

    #[test]
    fn numbers_of_backends_are_those_that_are_picked(count in 1u8..50, sticky: bool) {
        let target = Target { affinity: sticky.then_some(Duration::from_secs(9)), ..target(count) };
        let all = elements(&front(), &target);
        let by_key: BTreeMap<Key, Option<Vec<u8>>> =
            all.iter().map(|e| (e.key, e.value().map(<[u8]>::to_vec))).collect();
        prop_assert_eq!(by_key.len(), all.len(), "no key twice");
        let map = if sticky { Set::StickyBackends } else { Set::Backends };
        let numbers: BTreeSet<Vec<u8>> =
            all.iter().filter(|e| e.key.set == map).map(|e| e.key.bytes()[12..].to_vec()).collect();
        prop_assert_eq!(numbers, (0..u32::from(count)).map(|n| n.to_ne_bytes().to_vec()).collect());
    }
}
