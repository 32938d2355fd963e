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
    State {
        kernel: KernelProxy::new(settings),
        claims: BTreeMap::new(),
        frontends_of: HashMap::new(),
        is_initialized: false,
    }
}

fn frontend(port: u16) -> Frontend {
    Frontend { address: Some(Ipv4Addr::new(10, 96, 0, 1)), protocol: Protocol::Tcp, port }
}

fn pool(backend: u8) -> BackendPool {
    BackendPool {
        backends: vec![SocketAddrV4::new([10, 244, 0, backend].into(), 80)],
        affinity: None,
        masquerade: false,
        through_user_space: false,
        without_backends: WithoutBackends::Reject,
        internal: None,
    }
}

fn change(state: &mut State, name: &str, frontends: &[(u16, u8)]) -> BTreeMap<Frontend, Option<BackendPool>> {
    let frontends = frontends.iter().map(|(port, backend)| (frontend(*port), pool(*backend))).collect();
    state.change(vec![(Key::new("default", name), frontends)])
}

#[test]
fn only_differences_are_changes() {
    let mut state = state();
    assert_eq!(change(&mut state, "a", &[(80, 1), (81, 1)]).len(), 2);
    assert_eq!(change(&mut state, "a", &[(80, 1), (81, 1)]), BTreeMap::new());
    assert_eq!(change(&mut state, "a", &[(80, 1), (81, 2)]), BTreeMap::from([(frontend(81), Some(pool(2)))]));
    assert_eq!(change(&mut state, "a", &[(81, 2)]), BTreeMap::from([(frontend(80), None)]));
    assert_eq!(change(&mut state, "a", &[]), BTreeMap::from([(frontend(81), None)]));
    assert!(state.all().is_empty() && state.frontends_of.is_empty());
}

#[test]
fn of_two_services_with_one_frontend_the_first_in_order_has_it_and_the_other_inherits_it() {
    let mut state = state();
    assert_eq!(change(&mut state, "b", &[(80, 2)]), BTreeMap::from([(frontend(80), Some(pool(2)))]));
    assert_eq!(change(&mut state, "c", &[(80, 3)]), BTreeMap::new(), "it is taken");
    assert_eq!(change(&mut state, "a", &[(80, 1)]), BTreeMap::from([(frontend(80), Some(pool(1)))]));
    assert_eq!(state.all(), BTreeMap::from([(frontend(80), pool(1))]));
    assert_eq!(change(&mut state, "a", &[]), BTreeMap::from([(frontend(80), Some(pool(2)))]));
    assert_eq!(change(&mut state, "b", &[]), BTreeMap::from([(frontend(80), Some(pool(3)))]));
}

#[test]
fn a_frontend_that_moves_unchanged_to_another_service_is_no_change() {
    let mut state = state();
    change(&mut state, "a", &[(80, 1)]);
    let both = vec![(Key::new("default", "a"), Vec::new()), (Key::new("default", "b"), vec![(frontend(80), pool(1))])];
    assert_eq!(state.change(both), BTreeMap::new());
}
