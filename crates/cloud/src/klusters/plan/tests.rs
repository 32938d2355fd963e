use mainstay_api::cloud::kluster::{DEORBIT_FINALIZER, LAUNCH_FINALIZER};
use serde_json::json;

use super::*;

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().expect("a time")
}

fn kluster(phase: &str, finalizers: &[&str]) -> Kluster {
    let object = json!({
        "apiVersion": "mainstay.dev/v1", "kind": "Kluster",
        "metadata": {"name": "k", "namespace": "ns", "resourceVersion": "7", "uid": "u", "finalizers": finalizers},
        "spec": {"name": "k", "version": "1.37.0", "openstack": {"projectID": "p"}},
        "status": {"phase": phase, "specVersion": LATEST, "version": "1.37.0"},
    });
    serde_json::from_value(object).expect("a Kluster")
}

fn running_plane() -> ControlPlane {
    ControlPlane {
        exists: true,
        has_authorities: true,
        has_service_user: true,
        needs_service_user: true,
        renew_at: Some(now() + SignedDuration::from_hours(24 * 200)),
        url: Some("https://10.96.0.7:6443".to_owned()),
        is_current: true,
        ready: true,
        api_version: Some("1.37.0".to_owned()),
    }
}

fn world(phase: &str, control_plane: ControlPlane) -> KlusterWorld {
    KlusterWorld {
        kluster: kluster(phase, &[GROUND_FINALIZER]),
        discovery: Discovery::NotNeeded,
        control_plane,
        newest_version: Some("1.37.0".to_owned()),
        is_offered: true,
    }
}

fn phase(plan: &Plan<Action, Report>) -> Option<KlusterPhase> {
    plan.status.as_ref().and_then(|report| report.phase)
}

#[test]
fn a_new_kluster_is_held_before_anything_is_made_for_it() {
    let mut world = world("Pending", ControlPlane::default());
    world.kluster.metadata.finalizers = None;
    world.kluster.status = None;
    let plan = plan(&world, now());
    assert_eq!(plan.actions, [Action::AddFinalizer { version: "7".to_owned() }]);
    assert_eq!(plan.status.and_then(|report| report.spec_version), Some(LATEST), "it needs no migration");
}

#[test]
fn a_project_that_does_not_say_which_keeps_it_pending() {
    let mut world = world("Pending", ControlPlane::default());
    world.discovery = Discovery::Refused("project p has 2 routers".to_owned());
    let plan = plan(&world, now());
    assert_eq!(plan.actions, []);
    let report = plan.status.expect("a report");
    assert_eq!(report.phase, Some(KlusterPhase::Pending));
    assert_eq!(report.warning.map(|warning| warning.reason), Some("ConfigurationError"));
    assert_eq!(report.message, "project p has 2 routers");
}

#[test]
fn ids_and_version_are_filled_in_together_before_anything_is_made() {
    let mut world = world("Pending", ControlPlane::default());
    let found = Box::new(OpenStackSpec { router_id: "r".to_owned(), ..OpenStackSpec::default() });
    world.discovery = Discovery::Found(found.clone());
    world.kluster.spec.version = String::new();
    let version = Some("1.37.0".to_owned());
    assert_eq!(plan(&world, now()).actions, [Action::FillSpec { openstack: Some(found), version }]);
    world.newest_version = None;
    let refused = plan(&world, now());
    assert_eq!(
        (refused.actions.len(), refused.status.and_then(|r| r.warning).map(|w| w.reason)),
        (0, Some(CONFIGURATION_ERROR))
    );
}

#[test]
fn parts_are_made_in_order_and_then_it_is_creating() {
    let mut world = world("Pending", ControlPlane { needs_service_user: true, ..ControlPlane::default() });
    assert_eq!(
        plan(&world, now()).actions,
        [Action::MakeAuthorities, Action::MakeServiceUser, Action::ApplyService],
        "no server before its address is known"
    );
    world.control_plane =
        ControlPlane { renew_at: None, is_current: false, ready: false, api_version: None, ..running_plane() };
    assert_eq!(plan(&world, now()).actions, [Action::WriteKubeconfig, Action::ApplyWorkload]);
    world.control_plane = ControlPlane { ready: false, api_version: None, ..running_plane() };
    let done = plan(&world, now());
    assert_eq!((done.actions.len(), phase(&done)), (0, Some(KlusterPhase::Creating)));
}

#[test]
fn it_runs_once_its_pods_are_ready_and_its_api_answers() {
    let cases = [
        (true, Some("1.37.0"), KlusterPhase::Running),
        (false, Some("1.37.0"), KlusterPhase::Creating),
        (true, None, KlusterPhase::Creating),
        (true, Some("1.36.0"), KlusterPhase::Creating),
    ];
    for (ready, answers, expected) in cases {
        let plane = ControlPlane { ready, api_version: answers.map(str::to_owned), ..running_plane() };
        let plan = plan(&world("Creating", plane), now());
        assert_eq!(phase(&plan), Some(expected), "ready {ready}, answers {answers:?}");
        let version = plan.status.and_then(|report| report.version);
        assert_eq!(version.is_some(), expected == KlusterPhase::Running);
    }
}

#[test]
fn a_running_one_rests_and_renews_its_certificate_in_time() {
    let plan_of = |plane: ControlPlane| plan(&world("Running", plane), now());
    let rest = plan_of(running_plane());
    assert_eq!((rest.actions.len(), phase(&rest)), (0, Some(KlusterPhase::Running)));
    assert_eq!(rest.requeue_at, Some(now() + RESYNC));
    let due = plan_of(ControlPlane { renew_at: Some(now()), ..running_plane() });
    assert_eq!(due.actions, [Action::WriteKubeconfig]);
    let soon = now() + SignedDuration::from_secs(60);
    assert_eq!(plan_of(ControlPlane { renew_at: Some(soon), ..running_plane() }).requeue_at, Some(soon));
    let changed = plan_of(ControlPlane { is_current: false, ..running_plane() });
    assert_eq!(changed.actions, [Action::ApplyWorkload], "what somebody changed is changed back");
}

#[test]
fn versions_change_by_the_rule_of_upgrades() {
    let cases = [
        ("1.10.1", "1.10.2", true, Some(KlusterPhase::Upgrading)),
        ("1.10.1", "1.11.2", true, Some(KlusterPhase::Upgrading)),
        ("1.10.1", "1.12.2", true, None),
        ("1.10.2", "1.10.1", true, Some(KlusterPhase::Upgrading)),
        ("1.10.2", "1.9.2", true, None),
        ("1.10.1", "1.10.2", false, None),
    ];
    for (from, to, is_offered, expected) in cases {
        let mut world = world("Running", running_plane());
        world.is_offered = is_offered;
        world.kluster.spec.version = to.to_owned();
        world.kluster.status.as_mut().expect("a status").version = from.to_owned();
        let report = plan(&world, now()).status.expect("a report");
        match expected {
            Some(phase) => assert_eq!(report.phase, Some(phase), "{from} to {to}"),
            None => {
                assert_eq!(report.phase, Some(KlusterPhase::Running), "{from} to {to}");
                assert_eq!(report.warning.map(|warning| warning.reason), Some("failedUpgrade"), "{from} to {to}");
            }
        }
    }
}

fn deleted(phase: &str, finalizers: &[&str]) -> KlusterWorld {
    let mut world = world(phase, running_plane());
    world.kluster = kluster(phase, finalizers);
    world.kluster.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()));
    world
}

#[test]
fn ground_acts_when_it_is_the_last_to_hold() {
    let first = plan(&deleted("Running", &[GROUND_FINALIZER]), now());
    assert_eq!((first.actions.len(), phase(&first)), (0, Some(KlusterPhase::Terminating)));
    for others in [DEORBIT_FINALIZER, LAUNCH_FINALIZER] {
        let plan = plan(&deleted("Terminating", &[others, GROUND_FINALIZER]), now());
        assert_eq!(plan.actions, [], "{others} still holds it");
        assert!(plan.status.expect("a report").message.contains(others));
    }
    let last = plan(&deleted("Terminating", &[GROUND_FINALIZER]), now());
    assert_eq!(last.actions, [Action::RemoveServiceUser, Action::RemoveControlPlane]);
    let mut gone = deleted("Terminating", &[GROUND_FINALIZER]);
    gone.control_plane = ControlPlane { needs_service_user: true, ..ControlPlane::default() };
    let drop = Action::DropFinalizer { version: "7".to_owned() };
    assert_eq!(plan(&gone, now()).actions, [Action::RemoveServiceUser, drop]);
}

#[test]
fn nothing_of_a_protected_one_is_touched() {
    let mut world = deleted("Running", &[GROUND_FINALIZER]);
    let protection = mainstay_api::cloud::kluster::TERMINATION_PROTECTION.to_owned();
    world.kluster.metadata.annotations = Some([(protection, "yes".to_owned())].into());
    let plan = plan(&world, now());
    assert_eq!((plan.actions.len(), phase(&plan)), (0, Some(KlusterPhase::Running)));
}

#[test]
fn migrations_come_first_and_one_at_a_time() {
    let mut world = world("Running", running_plane());
    world.kluster.status.as_mut().expect("a status").spec_version = None;
    let plan = plan(&world, now());
    assert!(matches!(plan.actions[..], [Action::Migrate { number: 1, .. }]), "{:?}", plan.actions);
    let report = plan.status.expect("a report");
    assert_eq!((report.spec_version, report.migrations_pending), (Some(1), true));
}
