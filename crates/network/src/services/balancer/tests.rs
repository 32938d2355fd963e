use std::{
    net::{Ipv4Addr, SocketAddrV4},
    time::Duration,
};

use super::{super::frontend::WithoutBackends, *};
use crate::journal::Protocol;

fn state() -> State {
    let settings = KernelSettings {
        instance: "test".into(),
        services: "10.96.0.0/16".parse().unwrap(),
        pods: "10.244.0.0/16".parse().unwrap(),
        proxy_port: 1,
    };
    State::new(KernelProxy::new(settings))
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
        terminating: Vec::new(),
    }
}

fn change(state: &mut State, name: &str, frontends: &[(u16, u8)]) -> BTreeMap<Frontend, Option<BackendPool>> {
    let frontends = frontends.iter().map(|(port, backend)| (frontend(*port), pool(*backend))).collect();
    state.change(vec![(Key::new("default", name), frontends)], Instant::now())
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
    assert_eq!(state.change(both, Instant::now()), BTreeMap::new());
}

/// A pool whose only endpoint is terminating and still serves.
fn ending(hold: Duration) -> BackendPool {
    let terminating = pool(9).backends;
    BackendPool { backends: Vec::new(), terminating, without_backends: WithoutBackends::Hold(hold), ..pool(9) }
}

#[test]
fn terminating_endpoints_get_what_was_held_for_half_of_the_time() {
    let (mut state, start, hold) = (state(), Instant::now(), Duration::from_secs(10));
    let set = |state: &mut State, pool: BackendPool, now| {
        state.change(vec![(Key::new("default", "a"), vec![(frontend(80), pool)])], now)
    };
    set(&mut state, ending(hold), start);
    let due = start + hold / 2;
    assert_eq!(state.next_fallback(start), Some(due));
    assert_eq!(state.fall_back(start + hold / 4), BTreeMap::new(), "too early");
    assert_eq!(set(&mut state, ending(hold), start + hold / 4), BTreeMap::new(), "the same again starts nothing anew");
    let serving = BackendPool { backends: pool(9).backends, ..ending(hold) };
    assert_eq!(state.fall_back(due), BTreeMap::from([(frontend(80), Some(serving))]));
    assert_eq!(state.fall_back(due), BTreeMap::new());
    assert_eq!(set(&mut state, ending(hold), due + hold), BTreeMap::new(), "and they stay");
    assert_eq!(
        set(&mut state, pool(1), due + hold),
        BTreeMap::from([(frontend(80), Some(pool(1)))]),
        "until one is ready"
    );
    assert!(state.fallbacks.is_empty());
    set(&mut state, ending(hold), due + hold);
    assert_eq!(state.next_fallback(due + hold), Some(due + hold + hold / 2), "which ends the time that was held");
}
