use super::*;
use crate::{node::pressure::Amount, testing::settings};

fn facts() -> Facts {
    Facts { cpus: 4, memory: 8 << 30, hostname: "host".into(), boot_id: "b".into(), ..Facts::default() }
}

fn observed() -> MachineObservation {
    let disk = Amount { capacity: 100 << 30, available: 50 << 30 };
    MachineObservation {
        runtime: Ok(RuntimeVersion { name: "mainstay".into(), version: "0.1.0".into() }),
        measured: NodeMeasurement { disk, ..NodeMeasurement::default() },
        pressures: BTreeSet::new(),
        images: vec![],
        suspect: None,
        route_problem: None,
        route_check: None,
    }
}

fn at_second(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn made(observed: &MachineObservation, before: Option<&NodeStatus>, now: i64) -> NodeStatus {
    status(&settings(), &facts(), observed, before, at_second(now))
}

#[test]
fn a_node_without_routes_says_so_and_that_they_are_back() {
    let network = |status: &NodeStatus| {
        let found = condition(status, NETWORK_UNAVAILABLE)?;
        Some((found.status.clone(), found.reason.clone().unwrap(), found.message.clone().unwrap()))
    };
    let first = made(&observed(), None, 0);
    assert_eq!(network(&first), None, "nothing was ever wrong");
    let cut_off = MachineObservation { route_problem: Some("no route to b".into()), ..observed() };
    let cut_off = made(&cut_off, Some(&first), 10);
    let expected = ("True".to_owned(), "NoRouteCreated".to_owned(), "no route to b".to_owned());
    assert_eq!(network(&cut_off), Some(expected));
    let back = network(&made(&observed(), Some(&cut_off), 20)).unwrap();
    assert_eq!((back.0.as_str(), back.1.as_str()), ("False", "RouteCreated"));
}

#[test]
fn what_the_route_controller_reports_is_left_to_it() {
    let of_controller = NodeCondition {
        type_: NETWORK_UNAVAILABLE.to_owned(),
        status: "True".to_owned(),
        message: Some("RouteController failed to create a route: full".to_owned()),
        ..NodeCondition::default()
    };
    let before = NodeStatus { conditions: Some(vec![of_controller]), ..NodeStatus::default() };
    assert_eq!(condition(&made(&observed(), Some(&before), 10), NETWORK_UNAVAILABLE), None, "neither cleared nor kept");
    let cut_off = MachineObservation { route_problem: Some("no route to b".into()), ..observed() };
    let cut_off = made(&cut_off, Some(&before), 10);
    assert_eq!(condition(&cut_off, NETWORK_UNAVAILABLE).unwrap().message.as_deref(), Some("no route to b"));
}

#[test]
fn a_route_that_was_measured_is_a_condition() {
    assert_eq!(condition(&made(&observed(), None, 10), route_broken::TYPE), None, "not measured");
    let measured = |is_broken, reason| {
        let route_check = Some(RouteMeasurement { is_broken, reason, message: "as measured".to_owned() });
        let status = made(&MachineObservation { route_check, ..observed() }, None, 10);
        let found = condition(&status, route_broken::TYPE).unwrap();
        (found.status.clone(), found.reason.clone().unwrap())
    };
    assert_eq!(measured(true, route_broken::REDIRECT_FAILED), ("True".to_owned(), "RedirectFailed".to_owned()));
    assert_eq!(measured(false, route_broken::REDIRECT_OK), ("False".to_owned(), "RedirectOK".to_owned()));
}

#[test]
fn what_is_reserved_or_has_to_stay_free_is_not_allocatable() {
    let status = made(&observed(), None, 0);
    let text = |list: &Option<BTreeMap<String, Quantity>>, name: &str| list.as_ref().unwrap()[name].0.clone();
    assert_eq!(text(&status.capacity, "cpu"), "4");
    assert_eq!(text(&status.allocatable, "cpu"), "3900m");
    assert_eq!(text(&status.capacity, "memory"), format!("{}Ki", 8 << 20));
    assert_eq!(text(&status.allocatable, "memory"), format!("{}Ki", (8 << 20) - (356 << 10)));
    let (disk, reserved) = (100u64 << 30, 1u64 << 30);
    assert_eq!(text(&status.allocatable, "ephemeral-storage"), (disk - disk / 100 * 10 - reserved).to_string());
    assert_eq!(text(&status.allocatable, "pods"), "110");
}

#[test]
fn a_condition_remembers_since_when() {
    let first = made(&observed(), None, 10);
    let second = made(&observed(), Some(&first), 20);
    let ready = condition(&second, "Ready").unwrap();
    assert_eq!((ready.status.as_str(), ready.reason.as_deref()), ("True", Some("KubeletReady")));
    assert_eq!(ready.last_transition_time, Some(Time(at_second(10))));
    assert_eq!(ready.last_heartbeat_time, Some(Time(at_second(20))));
    assert!(!differs(&first, &second), "only the time has passed");
    let pressed = MachineObservation { pressures: ["MemoryPressure"].into(), ..observed() };
    let third = made(&pressed, Some(&second), 30);
    assert!(differs(&second, &third));
    let memory = condition(&third, "MemoryPressure").unwrap();
    assert_eq!(memory.message.as_deref(), Some("kubelet has insufficient memory available"));
    assert_eq!(memory.last_transition_time, Some(Time(at_second(30))));
}

#[test]
fn a_machine_whose_runtime_is_down_is_not_ready_but_keeps_its_name() {
    let first = made(&observed(), None, 10);
    let down = made(&MachineObservation { runtime: Err("no answer".into()), ..observed() }, Some(&first), 20);
    let ready = condition(&down, "Ready").unwrap();
    assert_eq!((ready.status.as_str(), ready.reason.as_deref()), ("False", Some("KubeletNotReady")));
    assert_eq!(ready.message.as_deref(), Some("container runtime is down: no answer"));
    assert_eq!(down.node_info.unwrap().container_runtime_version, "mainstay://0.1.0");
}

#[test]
fn suspicion_is_reported_and_withdrawn() {
    let first = made(&observed(), None, 10);
    assert!(condition(&first, "Suspect").is_none());
    let second =
        made(&MachineObservation { suspect: Some("three pods moved away".into()), ..observed() }, Some(&first), 20);
    assert_eq!(condition(&second, "Suspect").unwrap().status, "True");
    let third = made(&observed(), Some(&second), 30);
    assert_eq!(condition(&third, "Suspect").unwrap().status, "False");
}

#[test]
fn images_are_reported_the_largest_first_and_not_without_end() {
    let image = |n: u64| Image { id: format!("sha256:{n}"), tags: vec![format!("i:{n}")], size: n, ..Image::default() };
    let listed = images(&(0..80).map(image).collect::<Vec<_>>());
    assert_eq!(listed.len(), MOST_IMAGES);
    assert_eq!((listed[0].size_bytes, listed[0].names.clone()), (Some(79), Some(vec!["i:79".to_owned()])));
}

#[test]
fn a_patch_replaces_addresses_and_drops_resources_that_are_gone() {
    let mut before = made(&observed(), None, 0);
    before.capacity.as_mut().unwrap().insert("hugepages-2Mi".into(), Quantity("4Mi".into()));
    let patch = patch(&before, &made(&observed(), Some(&before), 1));
    assert_eq!(patch["capacity"]["hugepages-2Mi"], Value::Null);
    assert_eq!(patch["addresses"][0], json!({ "$patch": "replace" }));
    assert_eq!(patch["addresses"][1], json!({ "type": "InternalIP", "address": "10.0.0.5" }));
}

#[test]
fn extended_resources_that_others_set_stay_and_become_allocatable() {
    let mut before = made(&observed(), None, 0);
    before.capacity.as_mut().unwrap().insert("example.com/dongle".into(), Quantity("3".into()));
    let after = made(&observed(), Some(&before), 1);
    assert!(differs(&before, &after), "it is not allocatable yet");
    let patch = patch(&before, &after);
    assert_eq!(
        (&patch["capacity"]["example.com/dongle"], &patch["allocatable"]["example.com/dongle"]),
        (&json!("3"), &json!("3"))
    );
    let mut removed = after.clone();
    removed.capacity.as_mut().unwrap().remove("example.com/dongle");
    let gone = super::patch(&removed, &made(&observed(), Some(&removed), 2));
    assert_eq!(gone["allocatable"]["example.com/dongle"], Value::Null);
}

#[test]
fn conditions_of_others_change_nothing() {
    let first = made(&observed(), None, 10);
    let mut mixed = first.clone();
    let other = NodeCondition { type_: "Other".into(), status: "True".into(), ..NodeCondition::default() };
    mixed.conditions.as_mut().unwrap().insert(0, other);
    assert!(!differs(&mixed, &made(&observed(), Some(&first), 20)));
}
