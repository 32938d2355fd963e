use mainstay_api::machine::{MachineSpec, MachineState, MachineStatus, MachineVersion};
use proptest::{prelude::*, strategy::Strategy as Generator};
use serde_json::json;

use super::*;

fn time(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn release(spec: serde_json::Value) -> Release {
    let mut object = json!({"metadata": {"name": "all", "generation": 1}, "spec": {"version": "v2", "selector": {}}});
    object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(object).unwrap()
}

fn state(state: StateValue, message: &str, second: i64) -> Option<MachineState> {
    Some(MachineState { state, since: Time(time(second)), message: message.to_owned(), output: String::new() })
}

/// Machines that run a version, each valid.
fn machines(count: usize, version: &str) -> Vec<Machine> {
    let machine = |number: usize| {
        let mut machine = Machine::new(&format!("m{number:05}"), MachineSpec::default());
        machine.status = Some(MachineStatus {
            seen: state(StateValue::Success, "", 0),
            configured: state(StateValue::Success, "", 0),
            validated: state(StateValue::Success, "", 0),
            version: Some(MachineVersion { running: Some(version.to_owned()), ..MachineVersion::default() }),
            ..MachineStatus::default()
        });
        machine
    };
    (0..count).map(machine).collect()
}

/// A Release and its machines, as they change each other.
struct Fleet {
    release: Release,
    machines: Vec<Machine>,
    gates: Vec<Gate>,
    now: i64,
    /// Names of machines that fail validation at v2.
    broken: Vec<&'static str>,
}

impl Fleet {
    fn new(spec: serde_json::Value, count: usize) -> Self {
        Self { release: release(spec), machines: machines(count, "v1"), gates: vec![], now: 0, broken: vec![] }
    }

    fn plan(&self) -> ReleasePlan {
        let views: Vec<MachineView<'_>> =
            self.machines.iter().map(|machine| MachineView { machine, takes_pods: true }).collect();
        let world = ReleaseWorld {
            release: &self.release,
            machines: &views,
            workloads: &[],
            overlap: None,
            problem: None,
            gates: &self.gates,
        };
        plan(&world, time(self.now))
    }

    /// Plans and writes what was planned.
    fn reconcile(&mut self) -> ReleasePlan {
        let plan = self.plan();
        self.release.status = Some(plan.status.clone());
        for Move { machine, version, .. } in &plan.moves {
            let own = self.machines.iter_mut().find(|own| own.name() == machine).unwrap();
            (own.spec.version, own.spec.version_since) = (Some(version.clone()), Some(Time(time(self.now))));
        }
        for Recall { machine, running } in &plan.recalls {
            let own = self.machines.iter_mut().find(|own| own.name() == machine).unwrap();
            (own.spec.version, own.spec.version_since) = (running.clone(), Some(Time(time(self.now))));
        }
        plan
    }

    /// A machine does as it was asked.
    fn obey(&mut self, index: usize) {
        let (broken, now) = (self.broken.clone(), self.now);
        let machine = &mut self.machines[index];
        let Some(wanted) = machine.spec.version.clone() else { return };
        let fails = wanted == "v2" && broken.contains(&machine.name());
        let status = machine.status.as_mut().unwrap();
        let version = status.version.as_mut().unwrap();
        if version.wanted.as_ref() == Some(&wanted) {
            return;
        }
        version.wanted = Some(wanted.clone());
        if fails {
            status.validated = state(StateValue::Failed, "check disk: exit code 1", now);
        } else {
            (version.running, version.running_since) = (Some(wanted), Some(Time(time(now))));
            status.validated = state(StateValue::Success, "", now);
        }
    }

    /// Reconciles and lets machines obey until nothing changes any more; returns how often.
    fn settle(&mut self) -> usize {
        for turn in 0..10_000 {
            let (plan, before) = (self.reconcile(), self.machines.clone());
            (0..self.machines.len()).for_each(|index| self.obey(index));
            let soaks = plan.status.phase == "Soaking";
            if plan.moves.is_empty() && before == self.machines && !soaks && plan.wake_at != Some(time(self.now)) {
                return turn;
            }
            self.now += 1;
        }
        panic!("never rests: {:?}", self.status());
    }

    fn status(&self) -> &ReleaseStatus {
        self.release.status.as_ref().unwrap()
    }

    fn count_running(&self, version: &str) -> usize {
        self.machines.iter().filter(|machine| machine.running_version() == Some(version)).count()
    }
}

#[test]
fn machines_that_were_never_validated_are_available_until_they_move() {
    let mut fleet = Fleet::new(json!({"maxUnavailable": 1}), 3);
    for machine in &mut fleet.machines {
        let status = machine.status.as_mut().unwrap();
        (status.validated, status.configured, status.version) = (None, None, Some(MachineVersion::default()));
    }
    let moved = |plan: &ReleasePlan| plan.moves.iter().map(|step| step.machine.clone()).collect::<Vec<_>>();
    assert_eq!(moved(&fleet.reconcile()), ["m00000"]);
    assert_eq!(fleet.reconcile().moves, [], "the first is not valid at the new version yet");
    fleet.obey(0);
    assert_eq!(moved(&fleet.reconcile()), ["m00001"]);
}

#[test]
fn machines_move_in_waves_until_all_are_there() {
    let mut fleet = Fleet::new(json!({"waves": [{"machines": ["m00002"]}, {"upTo": "50%"}], "maxUnavailable": 2}), 6);
    let first = fleet.reconcile();
    assert_eq!(first.moves, [Move { machine: "m00002".to_owned(), version: "v2".to_owned(), drain: false }]);
    assert_eq!((first.status.phase.as_str(), first.status.wave), ("Progressing", Some(0)));
    let ends = |status: &ReleaseStatus| status.waves.iter().map(|wave| wave.machines).collect::<Vec<_>>();
    assert_eq!(ends(&first.status), [1, 3, 6]);
    fleet.settle();
    let status = fleet.status();
    assert_eq!((status.phase.as_str(), status.updated, fleet.count_running("v2")), ("Complete", 6, 6));
    assert_eq!((status.last_complete_version.as_deref(), status.history.len()), (Some("v2"), 1));
    let before = fleet.release.clone();
    fleet.now += 100;
    fleet.reconcile();
    assert_eq!(fleet.release, before, "and then it rests");
}

#[test]
fn the_progress_of_a_wave_counts_its_own_members_and_not_others() {
    let mut fleet = Fleet::new(json!({"waves": [{"machines": ["m00002"]}]}), 3);
    for machine in &mut fleet.machines[..2] {
        machine.status.as_mut().unwrap().version.as_mut().unwrap().running = Some("v2".to_owned());
    }
    fleet.reconcile();
    (0..2).for_each(|index| fleet.obey(index));
    let progress: Vec<_> = fleet.reconcile().status.waves.iter().map(|wave| (wave.updated, wave.machines)).collect();
    assert_eq!(progress, [(0, 1), (2, 3)], "two run the version already, and the canary does not");
}

#[test]
fn a_failed_validation_halts_it_and_says_who_failed_and_why() {
    let mut fleet = Fleet::new(json!({"waves": [{"machines": ["m00000"]}]}), 5);
    fleet.broken = vec!["m00000"];
    fleet.settle();
    let status = fleet.status();
    assert_eq!((status.phase.as_str(), status.failed, fleet.count_running("v2")), ("Stuck", 1, 0));
    assert_eq!(status.failures[0].message, "check disk: exit code 1");
    assert!(status.message.contains("m00000 (check disk: exit code 1)"), "{}", status.message);
    assert_eq!(fleet.release.condition(STUCK).unwrap().status, "True");
    // It heals, and the release goes on.
    fleet.broken.clear();
    fleet.machines[0].status.as_mut().unwrap().version.as_mut().unwrap().wanted = None;
    fleet.settle();
    assert_eq!((fleet.status().phase.as_str(), fleet.release.condition(STUCK)), ("Complete", None));
}

#[test]
fn a_wave_that_used_up_its_own_budget_stops_the_release_although_more_machines_may_fail_in_all() {
    let waves = json!([{"upTo": 4, "maxFailed": 1}]);
    let mut fleet = Fleet::new(json!({"waves": waves, "maxFailed": 3, "maxUnavailable": 4}), 10);
    fleet.broken = vec!["m00001"];
    fleet.settle();
    assert_eq!((fleet.status().phase.as_str(), fleet.count_running("v2")), ("Complete", 9));

    let mut fleet = Fleet::new(json!({"waves": waves, "maxFailed": 3, "maxUnavailable": 4}), 10);
    fleet.broken = vec!["m00001", "m00002"];
    fleet.settle();
    let status = fleet.status();
    assert_eq!((status.phase.as_str(), status.failed, fleet.count_running("v2")), ("Stuck", 2, 2));
    assert!(
        status.message.starts_with("stopped in wave 1: 2 failed, 1 of this wave may: m00001"),
        "{}",
        status.message
    );
    assert!(fleet.machines[4..].iter().all(|machine| machine.spec.version.is_none()), "others are left alone");
}

#[test]
fn a_version_that_is_gone_back_to_waits_for_no_gates_and_has_the_waves_of_a_rollback() {
    let spec = json!({
        "version": "v1", "waves": [{"upTo": 1}], "soakSeconds": 600, "rollbackMaxUnavailable": "100%", "rollbackVersion": "v1",
    });
    let closed = || Gate::Closed { why: "nobody has approved it".to_owned() };
    let mut fleet = Fleet::new(spec, 5);
    fleet.machines = machines(5, "v2");
    fleet.gates = vec![closed()];
    assert_eq!(fleet.reconcile().moves.len(), 5, "all at once");
    // The next version is a release like any other.
    fleet.release.spec.version = "v3".to_owned();
    let plan = fleet.reconcile();
    assert_eq!((plan.status.phase.as_str(), plan.moves.len()), ("Gated", 0));
    // And so is going back where nothing is said of how.
    let mut plain = Fleet::new(json!({"version": "v1", "waves": [{"upTo": 1}], "rollbackVersion": "v1"}), 5);
    (plain.machines, plain.gates) = (machines(5, "v2"), vec![closed()]);
    assert_eq!(plain.reconcile().status.phase, "Gated");
}

#[test]
fn a_release_that_turns_back_is_never_shown_as_stuck() {
    let mut fleet = Fleet::new(json!({"version": "v1", "onStuck": "Rollback"}), 3);
    fleet.settle();
    fleet.broken = vec!["m00000"];
    fleet.release.spec.version = "v2".to_owned();
    let mut phases: Vec<String> = Vec::new();
    for _ in 0..20 {
        let phase = fleet.reconcile().status.phase;
        phases.extend(Some(phase).filter(|phase| phases.last() != Some(phase)));
        (0..3).for_each(|index| fleet.obey(index));
        fleet.now += 1;
    }
    assert_eq!(phases, ["Progressing", "RollingBack", "RolledBack"]);
}

#[test]
fn what_is_stuck_is_rolled_back_to_the_last_version_that_all_ran() {
    let mut fleet = Fleet::new(json!({"version": "v1", "onStuck": "Rollback", "maxUnavailable": 2}), 6);
    fleet.settle();
    assert_eq!(fleet.status().last_complete_version.as_deref(), Some("v1"));
    fleet.broken = vec!["m00003"];
    fleet.release.spec.version = "v2".to_owned();
    fleet.settle();
    let status = fleet.status();
    assert_eq!((status.phase.as_str(), status.target.as_str(), fleet.count_running("v1")), ("RolledBack", "v1", 6));
    assert!(status.rollback.as_ref().unwrap().reason.contains("m00003"));
    let results: Vec<_> = status.history.iter().map(|own| (own.version.as_str(), own.result.as_str())).collect();
    assert_eq!(results, [("v1", "Complete"), ("v2", "RolledBack")]);
    fleet.release.spec.version = "v3".to_owned();
    fleet.settle();
    assert_eq!(
        (fleet.status().phase.as_str(), fleet.count_running("v3"), &fleet.status().rollback),
        ("Complete", 6, &None)
    );
}

#[test]
fn a_machine_that_fails_or_falls_silent_after_completion_takes_nothing_from_the_others() {
    let mut fleet = Fleet::new(json!({"version": "v1", "onStuck": "Rollback", "progressDeadlineSeconds": 60}), 3);
    fleet.settle();
    fleet.release.spec.version = "v2".to_owned();
    fleet.settle();
    assert_eq!(fleet.status().phase, "Complete");
    fleet.now += 1_000_000;
    let now = fleet.now;
    fleet.machines[0].status.as_mut().unwrap().validated = state(StateValue::Failed, "disk", now);
    fleet.machines[1].status.as_mut().unwrap().seen = state(StateValue::Failed, "", now);
    fleet.now += 1_000;
    let plan = fleet.plan();
    assert_eq!((plan.status.phase.as_str(), plan.status.target.as_str(), plan.moves.len()), ("Stuck", "v2", 0));
    assert_eq!(plan.status.rollback, None);
}

#[test]
fn a_cordoned_machine_is_unavailable_and_has_not_failed() {
    let mut fleet = Fleet::new(json!({"version": "v1", "progressDeadlineSeconds": 60}), 2);
    fleet.settle();
    fleet.now += 1_000_000;
    let views = [false, true].into_iter().zip(&fleet.machines);
    let views: Vec<_> = views.map(|(takes_pods, machine)| MachineView { machine, takes_pods }).collect();
    let world = ReleaseWorld {
        release: &fleet.release,
        machines: &views,
        workloads: &[],
        overlap: None,
        problem: None,
        gates: &[],
    };
    let planned = plan(&world, time(fleet.now)).status;
    assert_eq!((planned.phase.as_str(), planned.failed, planned.unavailable), ("Progressing", 0, 1));
}

#[test]
fn a_first_release_that_is_stuck_has_nowhere_to_go_back_to() {
    let mut fleet = Fleet::new(json!({"onStuck": "Rollback"}), 2);
    fleet.broken = vec!["m00000"];
    fleet.settle();
    assert_eq!(fleet.status().phase, "Stuck");
    assert!(fleet.status().message.ends_with("no version that all machines ran to roll back to"));
}

#[test]
fn a_newer_version_overtakes_and_machines_skip_to_it() {
    let mut fleet = Fleet::new(json!({"maxUnavailable": 2}), 6);
    fleet.reconcile();
    fleet.release.spec.version = "v3".to_owned();
    fleet.settle();
    assert_eq!((fleet.status().phase.as_str(), fleet.count_running("v3")), ("Complete", 6));
    let results: Vec<_> =
        fleet.status().history.iter().map(|own| (own.version.as_str(), own.result.as_str())).collect();
    assert_eq!(results, [("v2", "Superseded"), ("v3", "Complete")]);
    let asked: Vec<_> = fleet.machines.iter().map(|machine| machine.spec.version.as_deref()).collect();
    assert_eq!(asked, [Some("v3"); 6]);
}

impl Fleet {
    fn silence(&mut self, index: usize) {
        self.machines[index].status.as_mut().unwrap().seen = state(StateValue::Failed, "", self.now);
    }

    fn bring_back(&mut self, index: usize) {
        self.machines[index].status.as_mut().unwrap().seen = state(StateValue::Success, "", self.now);
    }
}

#[test]
fn a_machine_that_falls_silent_before_it_hears_of_a_version_does_not_go_through_it_on_its_return() {
    let mut fleet = Fleet::new(json!({"progressDeadlineSeconds": 60}), 3);
    assert_eq!(fleet.reconcile().moves[0].machine, "m00000");
    fleet.silence(0);
    fleet.release.spec.version = "v3".to_owned();
    let plan = fleet.reconcile();
    assert_eq!(plan.recalls, [Recall { machine: "m00000".to_owned(), running: Some("v1".to_owned()) }]);
    assert_eq!(fleet.reconcile().recalls, [], "once");
    (1..3).for_each(|index| fleet.obey(index));
    fleet.now += 1_000_000;
    assert_eq!(fleet.machines[0].spec.version.as_deref(), Some("v1"));
    assert_eq!(fleet.reconcile().status.failed, 0, "it is away, and has not failed");
    fleet.bring_back(0);
    assert_eq!(fleet.reconcile().moves.last().unwrap().version, "v3");
    fleet.settle();
    assert_eq!((fleet.status().phase.as_str(), fleet.count_running("v3")), ("Complete", 3));
}

#[test]
fn a_silent_machine_half_way_to_a_version_is_asked_for_the_newest_unless_nothing_may_start() {
    let mut fleet = Fleet::new(json!({"progressDeadlineSeconds": 60}), 3);
    fleet.reconcile();
    let version = fleet.machines[0].status.as_mut().unwrap().version.as_mut().unwrap();
    version.wanted = Some("v2".to_owned());
    fleet.silence(0);
    (fleet.release.spec.version, fleet.release.spec.paused) = ("v3".to_owned(), true);
    let plan = fleet.reconcile();
    assert_eq!((plan.moves, plan.recalls), (vec![], vec![]));
    fleet.release.spec.paused = false;
    let plan = fleet.reconcile();
    assert_eq!(plan.moves[0], Move { machine: "m00000".to_owned(), version: "v3".to_owned(), drain: false });
    assert_eq!(plan.recalls, []);
    // Its time counts from its return, and others are not kept waiting meanwhile.
    fleet.now += 1_000_000;
    let plan = fleet.reconcile();
    assert_eq!((plan.status.failed, plan.status.moving), (0, 0), "{}", plan.status.message);
    fleet.bring_back(0);
    let plan = fleet.reconcile();
    assert_eq!((plan.status.failed, plan.status.moving), (0, 1), "{}", plan.status.message);
    fleet.settle();
    assert_eq!((fleet.status().phase.as_str(), fleet.count_running("v3")), ("Complete", 3));
}

#[test]
fn nothing_is_started_while_it_is_paused_held_aborted_or_outside_of_its_windows() {
    for (spec, phase, words) in [
        (json!({"paused": true}), "Paused", "paused: mainstay release resume"),
        (json!({"hold": {"reason": "holidays"}}), "Paused", "paused: held: holidays"),
        (json!({"hold": {"reason": "x", "until": time(60)}}), "Paused", "paused: held until"),
        (json!({"abortedVersion": "v2"}), "Aborted", "the release of v2 was aborted"),
        (json!({"windows": [{"from": "00:00", "to": "00:01"}]}), "Paused", "outside of its windows until"),
    ] {
        let fleet = Fleet::new(spec.clone(), 3);
        let plan = fleet.plan();
        assert_eq!((plan.moves.len(), plan.status.phase.as_str()), (0, phase), "{spec}");
        assert!(plan.status.message.contains(words), "{}", plan.status.message);
    }
    let mut held = Fleet::new(json!({"hold": {"reason": "x", "until": time(60)}}), 3);
    assert_eq!(held.plan().wake_at, Some(time(60)));
    held.now = 60;
    assert_eq!(held.plan().moves.len(), 1);
    let mut aborted = Fleet::new(json!({"abortedVersion": "v2"}), 3);
    aborted.release.spec.version = "v3".to_owned();
    assert_eq!(aborted.plan().moves.len(), 1, "of another version");
}

#[test]
fn a_closed_gate_keeps_its_wave_back_and_is_looked_at_again() {
    let mut fleet = Fleet::new(json!({"waves": [{"upTo": 1}, {"upTo": "100%", "gates": [{"approval": true}]}]}), 3);
    fleet.gates = vec![Gate::Open, Gate::Closed { why: "nobody has approved it".to_owned() }];
    fleet.settle();
    assert_eq!((fleet.status().phase.as_str(), fleet.count_running("v2")), ("Gated", 1));
    assert!(fleet.status().message.contains("nobody has approved it"));
    assert_eq!(fleet.plan().wake_at, Some(time(fleet.now) + GATE_INTERVAL));
    fleet.gates = vec![Gate::Open, Gate::Open];
    fleet.settle();
    assert_eq!(fleet.status().phase, "Complete");
}

#[test]
fn a_release_without_machines_or_with_those_of_another_is_refused_with_a_condition() {
    let nothing = Fleet::new(json!({}), 0).plan();
    assert_eq!(
        (nothing.status.phase.as_str(), nothing.status.conditions[0].reason.as_str()),
        ("Refused", SELECTS_NOTHING)
    );
    let fleet = Fleet::new(json!({}), 1);
    let views = [MachineView { machine: &fleet.machines[0], takes_pods: true }];
    let overlap = Some(Overlap { release: "web".to_owned(), member: "machine m00000".to_owned() });
    let world =
        ReleaseWorld { release: &fleet.release, machines: &views, workloads: &[], overlap, problem: None, gates: &[] };
    let refused = plan(&world, time(0));
    assert!(refused.moves.is_empty());
    assert!(
        refused.status.conditions[0].message.contains("the Release \"web\" too"),
        "{:?}",
        refused.status.conditions
    );
}

#[test]
fn a_rollback_goes_back_in_waves_of_its_own() {
    let spec = json!({
        "version": "v1", "onStuck": "Rollback", "maxUnavailable": 3, "maxFailed": 0, "soakSeconds": 600,
        "rollbackWaves": [{"machines": ["m00005"]}, {"upTo": "100%"}], "rollbackMaxUnavailable": 6, "rollbackSoakSeconds": 5,
    });
    let mut fleet = Fleet::new(spec, 6);
    fleet.settle();
    fleet.broken = vec!["m00005"];
    fleet.release.spec.version = "v2".to_owned();
    let (mut order, mut soaked) = (Vec::new(), false);
    for _ in 0..2_000 {
        let plan = fleet.reconcile();
        let is_back = plan.status.phase == "RollingBack" || plan.status.phase == "RolledBack";
        soaked |= is_back && plan.status.message.contains("is healthy and is watched until");
        order.extend(plan.moves.iter().filter(|own| own.version == "v1").map(|own| own.machine.clone()));
        (0..6).for_each(|index| fleet.obey(index));
        fleet.now += 1;
        if plan.status.phase == "RolledBack" {
            break;
        }
    }
    assert_eq!(fleet.status().phase, "RolledBack");
    assert_eq!((fleet.count_running("v1"), soaked), (6, true));
    assert_eq!(order.first().map(String::as_str), Some("m00005"), "its own first wave: {order:?}");
}

fn workload(name: &str, mark: Option<crate::workloads::ReleaseMark>) -> WorkloadView {
    let progress = crate::workloads::WorkloadProgress::Settled;
    let (name, change) = (format!("deployment/shop/{name}"), "c".to_owned());
    WorkloadView { name, mark, history: Default::default(), progress, change }
}

#[test]
fn workloads_move_in_the_waves_of_machines() {
    let spec =
        json!({"waves": [{"workloads": ["deployment/shop/canary"]}, {"machines": ["m00001"]}], "maxUnavailable": 9});
    let fleet = Fleet::new(spec, 2);
    let views: Vec<_> = fleet.machines.iter().map(|machine| MachineView { machine, takes_pods: true }).collect();
    let mark = |arrived: Option<i64>| crate::workloads::ReleaseMark {
        release: "all".into(),
        version: "v2".into(),
        change: "c".into(),
        since: Time(time(0)),
        arrived: arrived.map(|second| Time(time(second))),
        unready: None,
        error: None,
    };
    let planned = |workloads: &[WorkloadView], machines: &[MachineView<'_>]| {
        let world =
            ReleaseWorld { release: &fleet.release, machines, workloads, overlap: None, problem: None, gates: &[] };
        plan(&world, time(50))
    };
    let workloads = [workload("canary", None), workload("web", None)];
    let first = planned(&workloads, &views);
    let change =
        |name: &str| WorkloadMove::Change { workload: format!("deployment/shop/{name}"), version: "v2".to_owned() };
    assert_eq!((first.moves.len(), first.workload_moves), (0, vec![change("canary")]));
    assert_eq!((first.status.machines, first.status.workloads), (2, 2));
    let ends: Vec<i32> = first.status.waves.iter().map(|wave| wave.machines).collect();
    assert_eq!(ends, [1, 2, 4]);
    let second = planned(&[workload("canary", Some(mark(Some(9)))), workload("web", None)], &views);
    assert_eq!((second.moves.len(), second.workload_moves.len()), (1, 0), "the machine of the second wave");

    // A workload that cannot be changed stops everything, like a machine that fails.
    let broken = crate::workloads::ReleaseMark { error: Some("spec.containers: Invalid".into()), ..mark(None) };
    let stuck = planned(&[workload("canary", Some(broken)), workload("web", None)], &views);
    assert_eq!((stuck.status.phase.as_str(), stuck.moves.len(), stuck.workload_moves.len()), ("Stuck", 0, 0));
    assert_eq!(stuck.status.failures[0].machine, "deployment/shop/canary");
}

#[test]
fn the_first_release_of_workloads_can_be_rolled_back_to_what_they_were() {
    let mut fleet = Fleet::new(json!({"onStuck": "Rollback"}), 0);
    fleet.release.spec.selector = None;
    let mut own = workload("web", None);
    own.history = own.history.with(UNRELEASED, json!({}));
    own.mark = Some(crate::workloads::ReleaseMark {
        release: "all".into(),
        version: "v2".into(),
        change: "c".into(),
        since: Time(time(0)),
        arrived: None,
        unready: None,
        error: Some("no such image".into()),
    });
    let plan_with = |fleet: &Fleet, own: &WorkloadView| {
        let world = ReleaseWorld {
            release: &fleet.release,
            machines: &[],
            workloads: std::slice::from_ref(own),
            overlap: None,
            problem: None,
            gates: &[],
        };
        plan(&world, time(9))
    };
    fleet.release.status = Some(plan_with(&fleet, &own).status);
    assert_eq!(fleet.status().rollback.as_ref().unwrap().to, UNRELEASED);
    let back = plan_with(&fleet, &own);
    let (workload, version) = ("deployment/shop/web".to_owned(), UNRELEASED.to_owned());
    assert_eq!(back.workload_moves, [WorkloadMove::Restore { workload, version: version.clone(), recorded: version }]);
    assert_eq!(back.status.phase, "RollingBack");
}

#[test]
fn changes_that_select_nothing_or_do_not_apply_are_refused_with_a_condition() {
    let fleet = Fleet::new(json!({}), 1);
    let views = [MachineView { machine: &fleet.machines[0], takes_pods: true }];
    let why = "has no container \"db\"".to_owned();
    let does_not_apply = WorkloadProblem::DoesNotApply { workload: "deployment/shop/web".to_owned(), why };
    for (problem, reason, words) in [
        (
            WorkloadProblem::SelectsNothing { change: 1 },
            SELECTS_NOTHING,
            "no workload is selected by spec.workloads[1]",
        ),
        (does_not_apply, CHANGE_DOES_NOT_APPLY, "deployment/shop/web has no container \"db\""),
    ] {
        let (release, problem) = (&fleet.release, Some(problem));
        let world = ReleaseWorld { release, machines: &views, workloads: &[], overlap: None, problem, gates: &[] };
        let refused = plan(&world, time(0));
        assert_eq!((refused.moves.len(), refused.status.phase.as_str()), (0, "Refused"));
        assert_eq!((refused.status.conditions[0].reason.as_str(), refused.status.message.as_str()), (reason, words));
    }
}

/// A machine whose clock is wrong by a day is soaked from when it was asked, by the server's clock.
#[test]
fn clocks_that_are_apart_neither_stop_a_release_nor_cut_its_soak_short() {
    for skew in [-86_400, 86_400] {
        let mut fleet = Fleet::new(
            json!({"waves": [{"machines": ["m00000"]}], "soakSeconds": 30, "progressDeadlineSeconds": 60}),
            3,
        );
        let mut moved = Vec::new();
        for _ in 0..400 {
            let plan = fleet.reconcile();
            assert_ne!(plan.status.phase, "Stuck", "{}", plan.status.message);
            moved.extend(plan.moves.iter().map(|own| (fleet.now, own.machine.clone())));
            // They obey by a clock of their own.
            let now = fleet.now;
            fleet.now += skew;
            (0..3).for_each(|index| fleet.obey(index));
            fleet.now = now + 1;
        }
        let (first, rest) = moved.split_first().unwrap();
        assert_eq!(first.1, "m00000");
        assert!(rest.iter().all(|(at, _)| at - first.0 >= 30), "{skew}: the soak is not cut short: {moved:?}");
        assert_eq!((fleet.status().phase.as_str(), fleet.count_running("v2")), ("Complete", 3), "{skew}");
    }
}

#[test]
fn machines_that_run_the_version_already_are_not_moved_one_by_one() {
    let mut fleet = Fleet::new(json!({"version": "v1"}), 50);
    assert_eq!(fleet.reconcile().moves.len(), 50);
    assert_eq!(fleet.settle(), 1);
}

#[test]
fn a_machine_that_goes_back_has_not_arrived_before_it_is_validated_again() {
    let mut fleet = Fleet::new(json!({"version": "v1"}), 1);
    fleet.machines[0].spec.version = Some("v1".to_owned());
    let status = fleet.machines[0].status.as_mut().unwrap();
    status.version.as_mut().unwrap().wanted = Some("v1".to_owned());
    status.validated = state(StateValue::Pending, "", 0);
    let plan = fleet.plan();
    assert_eq!((plan.status.moving, plan.status.updated), (1, 0), "it runs v1 by its file, and is half way to v2");
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Obey(usize),
    Silence(usize),
    Return(usize),
    Fail(usize),
    Heal(usize),
    Wait(u8),
    Release(u8),
    Pause(bool),
}

fn event() -> impl Generator<Value = Event> {
    prop_oneof![
        4 => (0..12_usize).prop_map(Event::Obey),
        1 => (0..12_usize).prop_map(Event::Silence),
        2 => (0..12_usize).prop_map(Event::Return),
        1 => (0..12_usize).prop_map(Event::Fail),
        2 => (0..12_usize).prop_map(Event::Heal),
        1 => any::<u8>().prop_map(Event::Wait),
        1 => (2..5_u8).prop_map(Event::Release),
        1 => any::<bool>().prop_map(Event::Pause),
    ]
}

proptest! {
    /// Whatever machines do: what is started never makes more of them unavailable than allowed, a machine is asked for the target
    /// and nothing else, and once all of them obey the release ends, or says what it waits for.
    #[test]
    fn it_never_goes_too_far_and_always_ends(events in prop::collection::vec(event(), 0..80), limit in 1..5_i32) {
        let mut fleet = Fleet::new(json!({
            "maxUnavailable": limit, "maxFailed": "100%", "waves": [{"machines": ["m00003"]}, {"upTo": "50%"}],
        }), 12);
        for event in events {
            let status = |fleet: &mut Fleet, index: usize, change: &dyn Fn(&mut MachineStatus)| {
                change(fleet.machines[index].status.as_mut().unwrap());
            };
            let now = fleet.now;
            match event {
                Event::Obey(index) => fleet.obey(index),
                Event::Silence(index) => status(&mut fleet, index, &|own| own.seen = state(StateValue::Failed, "", now)),
                Event::Return(index) => status(&mut fleet, index, &|own| own.seen = state(StateValue::Success, "", now)),
                Event::Fail(index) => status(&mut fleet, index, &|own| own.validated = state(StateValue::Failed, "x", now)),
                Event::Heal(index) => status(&mut fleet, index, &|own| own.validated = state(StateValue::Success, "", now)),
                Event::Wait(seconds) => fleet.now += i64::from(seconds),
                Event::Release(version) => fleet.release.spec.version = format!("v{version}"),
                Event::Pause(paused) => fleet.release.spec.paused = paused,
            }
            let is_available = |machine: &Machine| {
                let valid = |axis| machine.state(axis).is_some_and(|own| own.state == StateValue::Success);
                let version = machine.status.as_ref().unwrap().version.as_ref().unwrap();
                let rests = machine.spec.version.is_none() || machine.spec.version == version.wanted;
                valid(MachineAxis::Seen) && valid(MachineAxis::Validated) && rests
            };
            let before: Vec<bool> = fleet.machines.iter().map(is_available).collect();
            let plan = fleet.reconcile();
            let after = fleet.machines.iter().filter(|machine| !is_available(machine)).count();
            let was = before.iter().filter(|available| !**available).count();
            prop_assert!(after <= was.max(limit as usize), "{was} -> {after} of {limit}: {:?}", plan.moves);
            prop_assert!(plan.moves.iter().all(|own| own.version == fleet.release.spec.version));
            prop_assert!(!plan.status.message.is_empty());
        }
        fleet.release.spec.paused = false;
        for machine in &mut fleet.machines {
            machine.status.as_mut().unwrap().seen = state(StateValue::Success, "", fleet.now);
            machine.status.as_mut().unwrap().validated = state(StateValue::Success, "", fleet.now);
        }
        fleet.settle();
        prop_assert_eq!(&fleet.status().phase, "Complete", "{}", &fleet.status().message);
        prop_assert_eq!(fleet.count_running(&fleet.release.spec.version), 12);
    }
}

/// How a Release of the size that we promise is planned; `bench/` measures how fast.
#[test]
fn ten_thousand_machines_move_in_waves_of_five_percent() {
    let waves: Vec<_> = (1..=20).map(|wave| json!({"upTo": format!("{}%", wave * 5)})).collect();
    let mut fleet = Fleet::new(json!({"waves": waves, "maxUnavailable": "5%"}), 10_000);
    let plan = fleet.reconcile();
    assert_eq!((plan.moves.len(), plan.status.waves.len()), (500, 20));
}
