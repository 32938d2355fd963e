use super::*;

/// A Tuesday, 10:00 in Berlin.
const TUESDAY: &str = "2026-11-17T09:00:00Z";

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn node(name: &str, kubelet: &str) -> ServicedNode {
    ServicedNode {
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        kubelet_version: kubelet.to_owned(),
        os_image: "Flatcar Container Linux by Kinvolk 3815.2.0 (Oklo)".to_owned(),
        ready: true,
        allow_reboot: true,
        allow_replace: true,
        ..ServicedNode::default()
    }
}

fn world(nodes: Vec<ServicedNode>) -> ServicingWorld {
    ServicingWorld {
        phase: KlusterPhase::Running,
        annotations: BTreeMap::new(),
        labels: BTreeMap::new(),
        zone: TimeZone::get(ZONE).unwrap(),
        api_version: "v1.36.2".to_owned(),
        stable_system: Some("3815.2.0".to_owned()),
        nodes,
    }
}

fn annotate(map: &mut BTreeMap<String, String>, name: &str, value: &str) {
    map.insert(name.to_owned(), value.to_owned());
}

fn begin(node: &str, update: Update) -> Vec<ServicingAction> {
    vec![ServicingAction::Begin { node: node.to_owned(), update }]
}

#[test]
fn each_gate_keeps_servicing_from_beginning() {
    let old = || world(vec![node("a", "v1.36.1")]);
    let now = time(TUESDAY);
    assert_eq!(plan(&old(), now).actions, begin("a", Update::Replace));
    let with = |change: fn(&mut ServicingWorld)| {
        let mut world = old();
        change(&mut world);
        plan(&world, now)
    };
    let gate = |change: fn(&mut ServicingWorld)| {
        let plan = with(change);
        assert_eq!(plan.actions, [], "{:?}", plan.gate);
        plan.gate.unwrap()
    };
    assert_eq!(gate(|world| world.phase = KlusterPhase::Upgrading), Gate::NotRunning);
    assert_eq!(gate(|world| annotate(&mut world.annotations, SERVICING, "disabled")), Gate::Disabled);
    assert_eq!(gate(|world| annotate(&mut world.labels, MAINTENANCE_PROFILE, "own")), Gate::MaintenanceProfile);
    assert_eq!(
        gate(|world| annotate(&mut world.annotations, SERVICING_TIMESTAMP, "2026-11-17T08:40:01Z")),
        Gate::Interval
    );
    assert_eq!(
        gate(|world| world.nodes.push(ServicedNode { ready: false, ..node("b", "v1.36.2") })),
        Gate::NodeNotReady
    );
    assert_eq!(gate(|world| world.nodes[0].kubelet_version = "v1.36.2".to_owned()), Gate::NothingToDo);
    let elapsed = with(|world| annotate(&mut world.annotations, SERVICING_TIMESTAMP, "2026-11-17T08:40:00Z"));
    assert_eq!(elapsed.actions, begin("a", Update::Replace));
    assert_eq!(with(|world| annotate(&mut world.annotations, SERVICING_TIMESTAMP, "nonsense")).gate, None);
}

#[test]
fn servicing_begins_in_office_hours_of_berlin_in_summer_and_winter() {
    let old = world(vec![node("a", "v1.36.1")]);
    for (now, expected) in [
        ("2026-11-17T07:59:59Z", false), // Tuesday 08:59:59, winter time
        ("2026-11-17T08:00:00Z", true),
        ("2026-11-17T13:59:59Z", true),
        ("2026-11-17T14:00:00Z", false),
        ("2026-07-14T06:59:59Z", false), // Tuesday 08:59:59, summer time
        ("2026-07-14T07:00:00Z", true),
        ("2026-11-20T10:00:00Z", true),  // Friday
        ("2026-11-21T10:00:00Z", false), // Saturday
        ("2026-11-22T10:00:00Z", false), // Sunday
    ] {
        assert_eq!(plan(&old, time(now)).gate.is_none(), expected, "{now}");
    }
    let mut always = old;
    annotate(&mut always.annotations, IGNORE_SERVICING_TIME, "true");
    assert_eq!(plan(&always, time("2026-11-22T03:00:00Z")).gate, None);
}

#[test]
fn replacements_follow_versions_annotations_and_permission() {
    let now = time(TUESDAY);
    for (kubelet, annotation, allow, expected) in [
        ("v1.36.1", None, true, true),
        ("v1.35.9", None, true, true),
        ("v1.36.2", None, true, false),
        ("v1.36.3", None, true, false),
        ("v1.36.2", Some(FORCE_REPLACE), true, true),
        ("v1.36.1", Some(SKIP_REPLACE), true, false),
        ("v1.36.1", None, false, false),
        ("v1.36.2", Some(FORCE_REPLACE), false, false),
        ("?", None, true, false),
    ] {
        let mut node = node("a", kubelet);
        node.allow_replace = allow;
        if let Some(name) = annotation {
            annotate(&mut node.annotations, name, "true");
        }
        let plan = plan(&world(vec![node]), now);
        assert_eq!(plan.actions == begin("a", Update::Replace), expected, "{kubelet} {annotation:?} {allow}");
    }
}

#[test]
fn reboots_follow_the_stable_system_and_permission() {
    let now = time(TUESDAY);
    for (stable, os, allow, expected) in [
        (Some("3815.2.1"), "Flatcar Container Linux by Kinvolk 3815.2.0 (Oklo)", true, true),
        (Some("3815.2.0"), "Flatcar Container Linux by Kinvolk 3815.2.0 (Oklo)", true, false),
        (Some("3815.2.1"), "Flatcar Container Linux by Kinvolk 3815.2.0 (Oklo)", false, false),
        (Some("3815.2.1"), "Debian GNU/Linux 12 (bookworm)", true, false),
        (None, "Flatcar Container Linux by Kinvolk 3000.0.0 (Oklo)", true, false),
    ] {
        let mut world =
            world(vec![ServicedNode { os_image: os.to_owned(), allow_reboot: allow, ..node("a", "v1.36.2") }]);
        world.stable_system = stable.map(str::to_owned);
        assert_eq!(plan(&world, now).actions == begin("a", Update::Reboot), expected, "{stable:?} {os}");
    }
}

#[test]
fn one_machine_at_a_time_and_replacement_before_reboot() {
    let mut both = world(vec![node("a", "v1.36.2"), node("b", "v1.36.1"), node("c", "v1.36.1")]);
    both.stable_system = Some("9999.0.0".to_owned());
    assert_eq!(plan(&both, time(TUESDAY)).actions, begin("b", Update::Replace));
    annotate(&mut both.nodes[1].annotations, UPDATE_TIMESTAMP, "2026-11-17T08:59:00Z");
    both.nodes[1].pods_left = 3;
    let busy = plan(&both, time(TUESDAY));
    assert_eq!(
        (busy.actions, busy.gate),
        (vec![ServicingAction::Evict { node: "b".to_owned() }], Some(Gate::Updating))
    );
}

/// A machine that is being updated since the given time.
fn updating(since: &str, change: impl FnOnce(&mut ServicedNode)) -> ServicingWorld {
    let mut node = ServicedNode { unschedulable: true, ..node("a", "v1.36.1") };
    annotate(&mut node.annotations, UPDATE_TIMESTAMP, since);
    change(&mut node);
    world(vec![node])
}

#[test]
fn a_machine_is_drained_then_replaced() {
    let name = "a".to_owned();
    let now = time(TUESDAY);
    let draining = updating("2026-11-17T08:56:00Z", |node| node.pods_left = 1);
    assert_eq!(plan(&draining, now).actions, [ServicingAction::Evict { node: name.clone() }]);
    let drained = updating("2026-11-17T08:56:00Z", |_| {});
    assert_eq!(plan(&drained, now).actions, [ServicingAction::Replace { node: name.clone() }]);
    let stuck = updating("2026-11-17T08:54:59Z", |node| node.pods_left = 1);
    let release = ServicingAction::Release { node: name, result: UpdateResult::DrainFailed };
    assert_eq!(plan(&stuck, now).actions, [release]);
}

#[test]
fn a_machine_is_rebooted_once_and_takes_pods_again_when_it_is_current_and_ready() {
    let now = time(TUESDAY);
    let mut world = updating("2026-11-17T08:58:00Z", |node| node.kubelet_version = "v1.36.2".to_owned());
    world.stable_system = Some("3815.2.1".to_owned());
    assert_eq!(plan(&world, now).actions, [ServicingAction::Reboot { node: "a".to_owned() }]);
    annotate(&mut world.nodes[0].annotations, REBOOT_TIMESTAMP, TUESDAY);
    assert_eq!(plan(&world, now).actions, []);
    world.nodes[0].os_image = "Flatcar Container Linux by Kinvolk 3815.2.1 (Oklo)".to_owned();
    world.nodes[0].ready = false;
    assert_eq!(plan(&world, now).actions, []);
    world.nodes[0].ready = true;
    let release = ServicingAction::Release { node: "a".to_owned(), result: UpdateResult::Successful };
    assert_eq!(plan(&world, now).actions, [release]);
}

#[test]
fn an_update_that_takes_too_long_has_failed_and_stops_servicing() {
    let mut world = updating("2026-11-17T05:44:59Z", |_| {});
    world.nodes.push(node("b", "v1.36.1"));
    let plan = plan(&world, time(TUESDAY));
    assert_eq!((plan.actions, plan.gate), (vec![], Some(Gate::UpdateFailed)));
}
