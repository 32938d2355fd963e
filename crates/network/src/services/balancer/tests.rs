use std::net::{Ipv4Addr, SocketAddrV4};

use super::{super::frontend::WithoutBackends, *};
use crate::journal::Protocol;

fn state() -> State {
    let settings = KernelSettings {
        instance: "test".into(),
        services: "10.96.0.0/16".parse().unwrap(),
        pods: "10.244.0.0/16".parse().unwrap(),
        proxy_port: 1,
    };
    State { kernel: Kernel::new(settings), wanted: BTreeMap::new(), fronts_of: HashMap::new(), begun: false }
}

fn front(port: u16) -> Front {
    Front { address: Some(Ipv4Addr::new(10, 96, 0, 1)), protocol: Protocol::Tcp, port }
}

fn target(backend: u8) -> Target {
    Target {
        backends: vec![SocketAddrV4::new([10, 244, 0, backend].into(), 80)],
        affinity: None,
        masquerade: false,
        through_user_space: false,
        without_backends: WithoutBackends::Refuse,
        inside: None,
    }
}

fn change(state: &mut State, name: &str, fronts: &[(u16, u8)]) -> BTreeMap<Front, Option<Target>> {
    let fronts = fronts.iter().map(|(port, backend)| (front(*port), target(*backend))).collect();
    state.change(vec![(Key::new("default", name), fronts)])
}

#[test]
fn only_what_differs_is_a_change() {
    let mut state = state();
    assert_eq!(change(&mut state, "a", &[(80, 1), (81, 1)]).len(), 2);
    assert_eq!(change(&mut state, "a", &[(80, 1), (81, 1)]), BTreeMap::new());
    assert_eq!(change(&mut state, "a", &[(80, 1), (81, 2)]), BTreeMap::from([(front(81), Some(target(2)))]));
    assert_eq!(change(&mut state, "a", &[(81, 2)]), BTreeMap::from([(front(80), None)]));
    assert_eq!(change(&mut state, "a", &[]), BTreeMap::from([(front(81), None)]));
    assert!(state.all().is_empty() && state.fronts_of.is_empty());
}

#[test]
fn of_two_that_ask_for_one_front_the_first_in_order_has_it_and_the_other_inherits_it() {
    let mut state = state();
    assert_eq!(change(&mut state, "b", &[(80, 2)]), BTreeMap::from([(front(80), Some(target(2)))]));
    assert_eq!(change(&mut state, "c", &[(80, 3)]), BTreeMap::new(), "it is taken");
    assert_eq!(change(&mut state, "a", &[(80, 1)]), BTreeMap::from([(front(80), Some(target(1)))]));
    assert_eq!(state.all(), BTreeMap::from([(front(80), target(1))]));
    assert_eq!(change(&mut state, "a", &[]), BTreeMap::from([(front(80), Some(target(2)))]));
    assert_eq!(change(&mut state, "b", &[]), BTreeMap::from([(front(80), Some(target(3)))]));
}

#[test]
fn a_front_that_passes_from_one_to_another_unchanged_is_no_change() {
    let mut state = state();
    change(&mut state, "a", &[(80, 1)]);
    let both = vec![(Key::new("default", "a"), Vec::new()), (Key::new("default", "b"), vec![(front(80), target(1))])];
    assert_eq!(state.change(both), BTreeMap::new());
}
