mod restart_all;

use std::collections::BTreeMap;

use mainstay_api::config_versions::ConfigVersions;
use mainstay_runtime::{ContainerStatus, PodUid, SandboxStatus, observed::PodRef, spec::Resources};
use proptest::prelude::*;

use super::*;
use crate::{
    dependencies::{NeedsObservation, UnmetNeed},
    heal::{Diagnosis, HealingObservation, RestartPermission, Step as LadderStep},
    probe,
    settings::RestartBackoff,
    worker::{
        drain_turns::DrainTurn,
        retry_state::{FailureKind, PodRetryState, Step, StepFailure},
        view::{PodView, ResizeRestarts, RestartAction, RestartPolicy, RestartRule, RestartRules},
        world::IDENTITY,
    },
};

const T0: Timestamp = Timestamp::UNIX_EPOCH;

fn at_second(seconds: u64) -> Timestamp {
    T0 + Duration::from_secs(seconds)
}

fn view(name: &str, role: Role) -> ContainerView {
    ContainerView {
        name: name.into(),
        role,
        image: "host".into(),
        identity: "v1".into(),
        resources: Resources::default(),
        resize_restarts: ResizeRestarts::default(),
        restart_rules: RestartRules::default(),
        made: 0,
    }
}

fn owner() -> PodRef {
    PodRef { namespace: "default".into(), name: "web".into(), uid: PodUid("u".into()) }
}

fn sandbox() -> SandboxStatus {
    SandboxStatus {
        id: SandboxId("s".into()),
        pod: owner(),
        attempt: 0,
        ready: true,
        created_at: T0,
        host_network: false,
        addresses: vec![],
        annotations: BTreeMap::new(),
    }
}

fn container(name: &str, attempt: u32, state: ContainerState) -> ContainerStatus {
    ContainerStatus {
        id: ContainerId(format!("{name}-{attempt}")),
        sandbox: SandboxId("s".into()),
        pod: owner(),
        name: name.into(),
        attempt,
        image: "host".into(),
        image_id: "host".into(),
        created_at: T0,
        state,
        annotations: BTreeMap::from([(IDENTITY.to_owned(), "v1".to_owned())]),
        log_path: "/log".into(),
        pid: None,
    }
}

fn running() -> ContainerState {
    ContainerState::Running { started_at: T0 }
}

fn exited(exit_code: i32, finished: u64) -> ContainerState {
    ContainerState::Exited {
        started_at: Some(T0),
        finished_at: at_second(finished),
        exit_code,
        signal: None,
        oom: false,
        message: String::new(),
    }
}

/// A pod with volumes and sandbox in place and none of its containers made.
fn world(restart: RestartPolicy, init: &[(&str, Role)], main: &[&str]) -> World {
    World {
        pod: PodView {
            restart,
            init: init.iter().map(|(name, role)| view(name, *role)).collect(),
            main: main.iter().map(|name| view(name, Role::Main)).collect(),
            ephemeral: vec![],
            grace: Duration::from_secs(30),
            ending: None,
            finished: false,
            has_config_versions: false,
        },
        sandboxes: vec![sandbox()],
        containers: BTreeMap::new(),
        probes: BTreeMap::new(),
        retry_state: PodRetryState { volumes: Step::Done, ..PodRetryState::default() },
        healing: HealingObservation::default(),
        restart_backoff: RestartBackoff::default(),
        pending_resize: None,
        drains_until: None,
        is_cut_off: false,
        needs: NeedsObservation::default(),
        config_versions: ConfigVersions::default(),
        turn: DrainTurn::default(),
    }
}

/// Of exit code 42, or of all others.
fn rule(action: RestartAction, negated: bool) -> RestartRule {
    RestartRule { action, exit_codes: vec![42], negated }
}

fn needing(message: &str, keep: bool) -> NeedsObservation {
    let unmet = vec![UnmetNeed { message: message.to_owned(), keep }];
    NeedsObservation { unmet, within: None, is_declared: true }
}

#[test]
fn a_pod_that_waits_for_its_needs_has_its_images_and_starts_nothing() {
    let mut waiting = world(RestartPolicy::Always, &[("i", Role::Init)], &["c"]);
    waiting.needs = needing("db: 0 of 1 ready", false);
    let pull = |name: &str| Action::PullImage { container: name.to_owned() };
    assert_eq!(plan(&waiting, at_second(0)).actions, [pull("i"), pull("c")]);
    for name in ["i", "c"] {
        waiting.retry_state.containers.entry(name.to_owned()).or_default().has_image = true;
    }
    assert_eq!(plan(&waiting, at_second(0)).actions, []);
    let met = World { needs: NeedsObservation { is_declared: true, ..NeedsObservation::default() }, ..waiting.clone() };
    assert_eq!(plan(&met, at_second(0)).actions, [Action::Start { container: "i".to_owned(), attempt: 0 }]);
    let begun = waiting.with(container("i", 0, exited(0, 5)));
    assert_eq!(
        plan(&begun, at_second(5)).actions,
        [Action::Start { container: "c".to_owned(), attempt: 0 }],
        "a pod that has begun to start is not stopped half-way"
    );
}

#[test]
fn a_liveness_failure_while_a_kept_need_is_unmet_draws_no_restart() {
    let failed =
        probe::FailedProbe { probe: ProbeKind::Liveness, why: "refused".to_owned(), since: T0, grace_seconds: None };
    let unhealthy = |needs| {
        let mut world = world(RestartPolicy::Always, &[], &["c"]).with(container("c", 0, running()));
        let id = world.newest("c").unwrap().id.clone();
        world.probes.insert(id, probe::Results { started: true, ready: false, failed: Some(failed.clone()) });
        world.needs = needs;
        plan(&world, at_second(60)).actions
    };
    assert_eq!(unhealthy(needing("db: 0 of 1 ready", true)), []);
    let restarts = |actions: Vec<Action>| {
        matches!(actions[..], [Action::Stop { why: StopWhy::Unhealthy(ProbeKind::Liveness), .. }])
    };
    assert!(restarts(unhealthy(needing("db: 0 of 1 ready", false))), "only a need that is to be kept counts");
    assert!(restarts(unhealthy(NeedsObservation::default())));
}

impl World {
    fn with(mut self, seen: ContainerStatus) -> Self {
        let results = probe::Results { started: seen.state.is_running(), ready: false, failed: None };
        self.probes.insert(seen.id.clone(), results);
        let list = self.containers.entry(seen.name.clone()).or_default();
        list.push(seen);
        list.sort_by_key(|c| std::cmp::Reverse(c.attempt));
        self
    }
}

/// Stopped for the node's lack of contact.
fn fenced(finished: u64) -> ContainerState {
    let ContainerState::Exited { started_at, finished_at, signal, oom, .. } = exited(137, finished) else {
        unreachable!()
    };
    let message = mainstay_runtime::fence::FENCED.to_owned();
    ContainerState::Exited { started_at, finished_at, exit_code: 137, signal, oom, message }
}

#[test]
fn what_was_stopped_for_lack_of_contact_starts_again_as_the_same_attempt_without_delay_or_blame() {
    for restart in [RestartPolicy::Always, RestartPolicy::OnFailure, RestartPolicy::Never] {
        let stopped = world(restart, &[], &["c"]).with(container("c", 3, fenced(10)));
        let again = plan(&stopped, at_second(10));
        assert_eq!((again.actions, again.healing), (vec![start("c", 3)], vec![]), "{restart:?}");
        assert_eq!(outcome(&stopped), None);
        let cut_off = World { is_cut_off: true, ..stopped };
        assert_eq!(plan(&cut_off, at_second(60)), Plan::default(), "not before there is contact");
    }
}

#[test]
fn nothing_of_a_unique_pod_is_started_on_a_node_without_contact() {
    let mut absent = World { is_cut_off: true, ..world(RestartPolicy::Always, &[], &["c"]) };
    assert_eq!(plan(&absent, at_second(0)).actions, []);
    absent.sandboxes.clear();
    absent.retry_state.volumes = Step::Undone;
    assert_eq!(plan(&absent, at_second(0)).actions, [], "neither volumes nor a sandbox");
    let crashed = World { is_cut_off: true, ..world(RestartPolicy::Always, &[], &["c", "d"]) }
        .with(container("c", 0, running()))
        .with(container("d", 0, exited(1, 5)));
    assert_eq!(plan(&crashed, at_second(60)).actions, [], "what runs is the shim's to stop");
}

fn start(name: &str, attempt: u32) -> Action {
    Action::Start { container: name.into(), attempt }
}

fn stopped(plan: &Plan) -> Vec<&str> {
    let stop = |action: &'_ Action| match action {
        Action::Stop { container, .. } => Some(container.clone()),
        _ => None,
    };
    plan.actions.iter().filter_map(|a| stop(a).map(|_| a)).filter_map(name_of).collect()
}

fn name_of(action: &Action) -> Option<&str> {
    match action {
        Action::Stop { container, .. } | Action::Start { container, .. } | Action::Resize { container, .. } => {
            Some(container)
        }
        _ => None,
    }
}

#[test]
fn a_containers_own_policy_and_rules_come_before_those_of_its_pod() {
    let rules = RestartRules { policy: Some(RestartPolicy::Never), rules: vec![rule(RestartAction::Restart, false)] };
    let outcome_with = |rules: &RestartRules, code: i32| {
        let mut world = world(RestartPolicy::Always, &[], &["a"]).with(container("a", 0, exited(code, 10)));
        world.pod.main[0].restart_rules = rules.clone();
        outcome(&world)
    };
    assert_eq!(outcome_with(&RestartRules::default(), 1), None, "the pod's policy starts it again");
    assert_eq!(outcome_with(&rules, 1), Some(Outcome::Failed));
    assert_eq!(outcome_with(&rules, 42), None, "a rule starts it again");
    let others = RestartRules { rules: vec![rule(RestartAction::Restart, true)], ..rules };
    assert_eq!((outcome_with(&others, 42), outcome_with(&others, 1)), (Some(Outcome::Failed), None));
}

#[test]
fn volumes_come_first_then_the_sandbox_then_containers() {
    let mut world = world(RestartPolicy::Always, &[], &["a", "b"]);
    world.sandboxes.clear();
    world.retry_state.volumes = Step::Undone;
    assert_eq!(plan(&world, T0).actions, [Action::PrepareVolumes]);
    world.retry_state.volumes = Step::Done;
    assert_eq!(plan(&world, T0).actions, [Action::CreateSandbox { attempt: 0 }]);
    world.sandboxes.push(sandbox());
    assert_eq!(plan(&world, T0).actions, [start("a", 0), start("b", 0)]);
}

#[test]
fn a_running_pod_is_left_alone_even_if_its_volumes_cannot_be_looked_after() {
    let mut world = world(RestartPolicy::Always, &[], &["a"]).with(container("a", 0, running()));
    assert_eq!(plan(&world, T0), Plan::default());
    world.retry_state.volumes = Step::Undone;
    world.retry_state.volumes.fail(FailureKind::Other, "no API".into(), T0);
    assert_eq!(plan(&world, T0).actions, []);
    let world = world.with(container("a", 1, exited(1, 1)));
    assert!(plan(&world, at_second(60)).actions.contains(&start("a", 2)));
}

#[test]
fn a_container_that_reads_versions_is_not_started_while_volumes_show_others() {
    let mut world = world(RestartPolicy::Always, &[], &["a", "b"]).with(container("b", 0, running()));
    world.pod.has_config_versions = true;
    let world = world.with(container("a", 0, exited(1, 1)));
    assert_eq!(plan(&world, at_second(60)).actions, [start("a", 1)]);
    let mut outdated = world.clone();
    outdated.retry_state.volumes = Step::Undone;
    assert_eq!(plan(&outdated, at_second(60)).actions, [Action::PrepareVolumes]);
    // And what runs is looked after as ever.
    outdated.retry_state.volumes.fail(FailureKind::Other, "no copy".into(), at_second(59));
    assert_eq!(plan(&outdated, at_second(59)).actions, []);
}

#[test]
fn a_pod_is_stopped_when_its_turn_comes_and_its_grace_runs_from_then() {
    let mut world = world(RestartPolicy::Always, &[], &["a"]).with(container("a", 0, running()));
    world.pod.ending = Some(Ending { why: EndingWhy::Deleted, deadline: at_second(30) });
    world.turn = DrainTurn::Waiting { why: "pod b is being stopped".into(), retry_at: at_second(10) };
    let waiting = plan(&world, at_second(5));
    assert_eq!((waiting.actions, waiting.wake_at), (vec![], Some(at_second(10))));
    assert_eq!(plan(&world, at_second(10)).actions, [Action::RequestTurn]);
    world.retry_state.in_progress.insert(Operation::TurnRequest);
    assert_eq!(plan(&world, at_second(10)).actions, [], "one request at a time");
    world.retry_state.in_progress.clear();
    // Long after its grace would have been over.
    world.turn = DrainTurn::Granted { deadline: at_second(150) };
    let stops = plan(&world, at_second(120)).actions;
    let [Action::Stop { grace, .. }] = &stops[..] else { panic!("{stops:?}") };
    assert_eq!(*grace, Duration::from_secs(30));
    // What does not run waits for nobody.
    world.turn = DrainTurn::Waiting { why: String::new(), retry_at: at_second(500) };
    let ended = world.with(container("a", 1, exited(0, 1)));
    let ended = World { containers: [("a".to_owned(), vec![container("a", 1, exited(0, 1))])].into(), ..ended };
    assert!(plan(&ended, at_second(121)).actions.iter().any(|action| matches!(action, Action::RemoveSandboxes { .. })));
}

#[test]
fn init_containers_run_one_after_the_other_and_sidecars_stay() {
    let inits = [("one", Role::Init), ("side", Role::Sidecar), ("two", Role::Init)];
    let world = world(RestartPolicy::Always, &inits, &["main"]);
    assert_eq!(plan(&world, T0).actions, [start("one", 0)]);
    let world = world.with(container("one", 0, running()));
    assert_eq!(plan(&world, T0).actions, []);
    let mut world = world;
    world.containers.clear();
    let world = world.with(container("one", 0, exited(0, 1)));
    assert_eq!(plan(&world, T0).actions, [start("side", 0)]);
    let mut world = world.with(container("side", 0, running()));
    assert_eq!(plan(&world, T0).actions, [start("two", 0)]);
    world.probes.insert(ContainerId("side-0".into()), probe::Results { started: false, ready: false, failed: None });
    assert_eq!(plan(&world, T0).actions, [], "a sidecar that has not started holds up what comes after it");
    world.probes.insert(ContainerId("side-0".into()), probe::Results { started: true, ready: true, failed: None });
    let world = world.with(container("two", 0, exited(0, 2)));
    assert_eq!(plan(&world, T0).actions, [start("main", 0)]);
}

#[test]
fn a_failed_init_container_is_tried_again_or_fails_the_pod() {
    let world = |policy| world(policy, &[("i", Role::Init)], &["m"]).with(container("i", 0, exited(3, 5)));
    assert_eq!(plan(&world(RestartPolicy::OnFailure), at_second(5)).actions, [start("i", 1)]);
    let never = world(RestartPolicy::Never);
    assert_eq!(outcome(&never), Some(Outcome::Failed));
    assert_eq!(plan(&never, at_second(5)).actions, []);
}

#[test]
fn restart_policies_decide_what_an_exit_means() {
    let after = |policy, code| {
        let world = world(policy, &[], &["a"]).with(container("a", 0, exited(code, 5)));
        (plan(&world, at_second(5)).actions, outcome(&world))
    };
    assert_eq!(after(RestartPolicy::Always, 0), (vec![start("a", 1)], None));
    assert_eq!(after(RestartPolicy::OnFailure, 1), (vec![start("a", 1)], None));
    assert_eq!(after(RestartPolicy::OnFailure, 0), (vec![], Some(Outcome::Succeeded)));
    assert_eq!(after(RestartPolicy::Never, 1), (vec![], Some(Outcome::Failed)));
}

#[test]
fn the_first_restart_is_immediate_and_later_ones_back_off() {
    let crash = |attempt| world(RestartPolicy::Always, &[], &["a"]).with(container("a", attempt, exited(1, 10)));
    assert_eq!(plan(&crash(0), at_second(10)).actions, [start("a", 1)]);
    let third = plan(&crash(3), at_second(10));
    assert_eq!((third.actions, third.wake_at), (vec![], Some(at_second(14))));
    assert_eq!(plan(&crash(3), at_second(14)).actions, [start("a", 4)]);
    let mut slower = crash(3);
    slower.restart_backoff.first = Duration::from_secs(10);
    assert_eq!(plan(&slower, at_second(10)).wake_at, Some(at_second(50)));
    slower.restart_backoff.reset_after = Duration::from_secs(5);
    assert_eq!(plan(&slower, at_second(10)).actions, [start("a", 4)], "it ran long enough to be healthy");
}

#[test]
fn each_failure_is_decided_once_and_climbs_the_ladder() {
    let mut world = world(RestartPolicy::Always, &[], &["a"]).with(container("a", 0, exited(1, 10)));
    let rung = |plan: &Plan| match &plan.healing[..] {
        [HealingDecision { diagnosis: Diagnosis::Failed { step: LadderStep { rung, .. }, .. }, .. }] => {
            Some(rung.clone())
        }
        _ => None,
    };
    for attempt in 0..5 {
        world.containers.insert("a".into(), vec![container("a", attempt, exited(1, 10))]);
        let next = plan(&world, at_second(10));
        assert_eq!(rung(&next), Some(Rung::Restart));
        record(&mut world, &next);
        assert_eq!(plan(&world, at_second(10)).healing, []);
    }
    world.containers.insert("a".into(), vec![container("a", 5, exited(1, 10))]);
    let next = plan(&world, at_second(10));
    assert!(matches!(rung(&next), Some(Rung::Recreate { .. })), "{next:?}");
    record(&mut world, &next);
    assert!(world.retry_state.recreate.is_some());

    // An agent that was restarted finds the decision in the record.
    world.retry_state = PodRetryState { volumes: Step::Done, ..PodRetryState::default() };
    let resumed = plan(&world, at_second(10)).healing;
    assert!(
        matches!(&resumed[..], [HealingDecision { diagnosis: Diagnosis::DecidedBefore(Rung::Recreate { .. }), .. }]),
        "{resumed:?}"
    );
}

#[test]
fn ends_that_are_no_failures_leave_the_ladder_alone() {
    let ended = |world: &World| match &plan(world, at_second(10)).healing[..] {
        [HealingDecision { diagnosis: Diagnosis::Ended { resets_backoff }, .. }] => Some(*resets_backoff),
        _ => None,
    };
    let done = world(RestartPolicy::Always, &[], &["a"]).with(container("a", 0, exited(0, 10)));
    assert_eq!(ended(&done), Some(false));
    let never = world(RestartPolicy::Never, &[], &["a"]).with(container("a", 0, exited(1, 10)));
    assert_eq!(ended(&never), Some(false));
    let mut changed = world(RestartPolicy::Always, &[], &["a"]).with(container("a", 0, exited(1, 10)));
    changed.pod.main[0].identity = "v2".into();
    assert_eq!(ended(&changed), Some(true));
    let mut stopped = world(RestartPolicy::Always, &[], &["a"]).with(container("a", 0, exited(137, 10)));
    stopped.retry_state.containers.entry("a".into()).or_default().stopped_on_purpose = Some(0);
    assert_eq!(ended(&stopped), Some(true));
}

#[test]
fn beginning_anew_waits_as_long_as_a_restart_would() {
    let mut world = world(RestartPolicy::Always, &[], &["a"]).with(container("a", 3, exited(1, 10)));
    let why = "crashes".to_owned();
    world.retry_state.recreate = Some(why.clone());
    world.retry_state.containers.entry("a".into()).or_default().decided = Some((3, Rung::Recreate { why }));
    let early = plan(&world, at_second(10));
    assert_eq!((early.actions, early.wake_at), (vec![], Some(at_second(14))));
    let due = plan(&world, at_second(14)).actions;
    assert!(matches!(&due[..], [Action::RemoveSandboxes { .. }]), "{due:?}");
}

#[test]
fn ten_minutes_of_health_and_changes_made_on_purpose_end_the_back_off() {
    let healthy = world(RestartPolicy::Always, &[], &["a"]).with(container("a", 9, exited(1, 600)));
    assert_eq!(plan(&healthy, at_second(600)).actions, [start("a", 10)]);
    let mut changed = world(RestartPolicy::Never, &[], &["a"]).with(container("a", 9, exited(1, 10)));
    changed.pod.main[0].identity = "v2".into();
    assert_eq!(plan(&changed, at_second(10)).actions, [start("a", 10)]);
    let mut forgiven = world(RestartPolicy::Always, &[], &["a"]).with(container("a", 9, exited(1, 10)));
    forgiven.retry_state.containers.entry("a".into()).or_default().forgiven = 9;
    assert_eq!(plan(&forgiven, at_second(10)).actions, [start("a", 10)]);
}

#[test]
fn a_changed_container_is_replaced_in_place() {
    let mut world = world(RestartPolicy::Always, &[], &["a"]).with(container("a", 0, running()));
    world.pod.main[0].identity = "v2".into();
    let actions = plan(&world, T0).actions;
    assert!(matches!(&actions[..], [Action::Stop { why: StopWhy::Changed, .. }]), "{actions:?}");
}

#[test]
fn a_container_whose_liveness_failed_is_stopped_only_with_permission_of_the_budget() {
    let mut world = world(RestartPolicy::Always, &[], &["a"]).with(container("a", 2, running()));
    let failed =
        probe::FailedProbe { probe: probe::ProbeKind::Liveness, why: "503".into(), since: T0, grace_seconds: Some(5) };
    let results = probe::Results { started: true, ready: false, failed: Some(failed) };
    world.probes.insert(ContainerId("a-2".into()), results);
    world.healing.permission = RestartPermission::NotRequested;
    assert_eq!(plan(&world, T0).actions, [Action::RequestRestart]);
    let mut asking = world.clone();
    asking.retry_state.in_progress.insert(Operation::RestartRequest);
    assert_eq!(plan(&asking, T0).actions, [], "one request at a time");

    let reason = "budget".to_owned();
    world.healing.permission = RestartPermission::Denied { reason: reason.clone(), retry_at: at_second(2) };
    let denied = plan(&world, T0);
    assert_eq!((&denied.actions[..], denied.wake_at), (&[][..], Some(at_second(2))));
    let newly_denied = |plan: &Plan| match &plan.healing[..] {
        [HealingDecision { diagnosis: Diagnosis::ProbeFailed { newly_denied, .. }, .. }] => Some(*newly_denied),
        _ => None,
    };
    assert_eq!(newly_denied(&denied), Some(true));
    denied.healing.iter().for_each(|decision| world.retry_state.apply(decision));
    assert_eq!(plan(&world, at_second(1)).healing, [], "nothing is decided twice");
    assert_eq!(plan(&world, at_second(2)).actions, [Action::RequestRestart]);
    world.healing.permission = RestartPermission::Denied { reason, retry_at: at_second(4) };
    assert_eq!(newly_denied(&plan(&world, at_second(3))), Some(false), "denied again");

    world.healing.permission = RestartPermission::Granted;
    let actions = plan(&world, T0).actions;
    let grace = Duration::from_secs(5);
    assert!(
        matches!(&actions[..], [Action::Stop { why: StopWhy::Unhealthy(_), grace: g, .. }] if *g == grace),
        "{actions:?}"
    );
}

#[test]
fn limits_are_changed_in_place_or_by_a_restart_as_asked() {
    let mut seen = container("a", 0, running());
    seen.annotations
        .insert(crate::worker::world::RESOURCES.into(), serde_json::to_string(&Resources::default()).unwrap());
    let mut world = world(RestartPolicy::Always, &[], &["a"]).with(seen);
    assert_eq!(plan(&world, T0).actions, []);
    world.pod.main[0].resources.memory_limit = Some(1 << 20);
    let id = ContainerId("a-0".into());
    world.pod.main[0].resize_restarts = ResizeRestarts { cpu: true, memory: false };
    assert_eq!(plan(&world, T0).actions, [Action::Resize { container: "a".into(), id: id.clone() }]);
    world.pod.main[0].resize_restarts = ResizeRestarts { cpu: false, memory: true };
    assert!(matches!(&plan(&world, T0).actions[..], [Action::Stop { why: StopWhy::Resized, .. }]));
    let applied = Some((id, world.pod.main[0].resources.clone()));
    world.retry_state.containers.entry("a".into()).or_default().applied = applied;
    assert_eq!(plan(&world, T0).actions, []);
}

#[test]
fn what_cannot_be_started_waits_but_a_missing_image_is_looked_for_soon() {
    let mut world = world(RestartPolicy::Always, &[], &["a"]);
    let trouble = StepFailure { kind: FailureKind::Pull, message: "no".into(), failures: 9, retry_at: at_second(60) };
    world.retry_state.containers.entry("a".into()).or_default().failure = Some(trouble);
    let waiting = plan(&world, T0);
    assert_eq!((waiting.actions, waiting.wake_at), (vec![], Some(at_second(2))));
    assert_eq!(plan(&world, at_second(60)).actions, [start("a", 0)]);
}

fn ending(mut world: World, why: EndingWhy, deadline: u64) -> World {
    world.pod.ending = Some(Ending { why, deadline: at_second(deadline) });
    world
}

#[test]
fn a_deleted_pod_is_not_asked_to_stop_while_machines_send_to_it_and_not_for_longer_than_it_may_wait() {
    let mut world = ending(world(RestartPolicy::Always, &[], &["a"]), EndingWhy::Deleted, 30);
    world = world.with(container("a", 0, running()));
    world.drains_until = Some(at_second(5));
    let waiting = plan(&world, at_second(2));
    assert_eq!((waiting.actions, waiting.wake_at, waiting.over), (vec![], Some(at_second(5)), false));
    assert_eq!(stopped(&plan(&world, at_second(5))), ["a"], "it has waited long enough");
    world.drains_until = None;
    assert_eq!(stopped(&plan(&world, at_second(2))), ["a"], "nobody sends to it");
}

#[test]
fn a_deleted_pod_stops_its_containers_together_and_its_sidecars_last_and_in_reverse() {
    let inits = [("s1", Role::Sidecar), ("s2", Role::Sidecar)];
    let mut world = ending(world(RestartPolicy::Always, &inits, &["a", "b"]), EndingWhy::Deleted, 30);
    for name in ["s1", "s2", "a", "b"] {
        world = world.with(container(name, 0, running()));
    }
    assert_eq!(stopped(&plan(&world, T0)), ["a", "b"]);
    for name in ["a", "b"] {
        world.containers.insert(name.into(), vec![container(name, 0, exited(0, 1))]);
    }
    assert_eq!(stopped(&plan(&world, T0)), ["s2"]);
    world.containers.insert("s2".into(), vec![container("s2", 0, exited(0, 1))]);
    assert_eq!(stopped(&plan(&world, T0)), ["s1"]);
    world.containers.insert("s1".into(), vec![container("s1", 0, exited(0, 1))]);
    let actions = plan(&world, T0).actions;
    assert!(matches!(&actions[..], [Action::RemoveSandboxes { .. }]), "{actions:?}");
    world.sandboxes.clear();
    world.containers.clear();
    assert_eq!(plan(&world, T0).actions, [Action::ReleaseVolumes]);
    world.retry_state.release = Step::Done;
    assert_eq!(plan(&world, T0).actions, [Action::RemoveFromApi]);
    world.retry_state.api_removal = Step::Done;
    assert!(plan(&world, T0).over);
}

#[test]
fn grace_is_what_is_left_of_it_and_a_stop_is_hurried_when_time_is_cut_short() {
    let mut world =
        ending(world(RestartPolicy::Always, &[], &["a"]), EndingWhy::Deleted, 30).with(container("a", 0, running()));
    let grace = |plan: &Plan| match &plan.actions[..] {
        [Action::Stop { grace, .. }] => Some(grace.as_secs()),
        _ => None,
    };
    assert_eq!(grace(&plan(&world, at_second(10))), Some(20));
    assert_eq!(grace(&plan(&world, at_second(40))), Some(0));
    world.retry_state.in_progress.insert(Operation::Container("a".into()));
    world.retry_state.containers.entry("a".into()).or_default().stop_deadline = Some(at_second(30));
    assert_eq!(plan(&world, at_second(10)).actions, []);
    world.pod.ending = Some(Ending { why: EndingWhy::Deleted, deadline: at_second(12) });
    assert_eq!(grace(&plan(&world, at_second(10))), Some(2));
}

#[test]
fn a_finished_pod_gives_everything_back_once_the_api_knows() {
    let inits = [("side", Role::Sidecar)];
    let mut world = world(RestartPolicy::Never, &inits, &["a"]).with(container("a", 0, exited(0, 1))).with(container(
        "side",
        0,
        running(),
    ));
    assert_eq!(stopped(&plan(&world, T0)), ["side"]);
    world.containers.insert("side".into(), vec![container("side", 0, exited(0, 1))]);
    assert_eq!(plan(&world, T0).actions, []);
    world.pod.finished = true;
    let actions = plan(&world, T0).actions;
    assert!(matches!(&actions[..], [Action::RemoveSandboxes { .. }]), "{actions:?}");
}

#[test]
fn a_broken_sandbox_is_replaced_with_everything_in_it() {
    let mut world = world(RestartPolicy::Always, &[], &["a"]).with(container("a", 0, exited(137, 1)));
    world.sandboxes[0].ready = false;
    let actions = plan(&world, T0).actions;
    assert!(matches!(&actions[..], [Action::RemoveSandboxes { .. }]), "{actions:?}");
}

#[test]
fn only_the_last_container_of_each_name_is_kept() {
    let world = world(RestartPolicy::Always, &[], &["a"])
        .with(container("a", 0, exited(1, 1)))
        .with(container("a", 1, exited(1, 2)))
        .with(container("a", 2, running()));
    let ids = vec![ContainerId("a-1".into()), ContainerId("a-0".into())];
    assert_eq!(plan(&world, T0).actions, [Action::Remove { ids }]);
}

/// Does to the world what writing the decisions down does.
fn record(world: &mut World, plan: &Plan) {
    for decision in &plan.healing {
        world.retry_state.apply(decision);
        if let Diagnosis::Failed { step, history, .. } = &decision.diagnosis {
            world.healing.record.history = history.clone();
            let decided = (decision.attempt, step.rung.clone());
            world.healing.record.decided.insert(decision.container.clone(), decided);
        }
    }
}

/// Does to the world what an action would do.
fn apply(world: &mut World, action: Action, now: Timestamp) {
    match action {
        Action::PrepareVolumes => world.retry_state.volumes = Step::Done,
        Action::CreateSandbox { .. } => world.sandboxes.push(sandbox()),
        Action::Start { container: name, attempt } => {
            let taken = world.containers.get(&name).into_iter().flatten().any(|c| c.attempt == attempt);
            assert!(!taken, "{name} {attempt} is made twice");
            let alive = world.containers.get(&name).into_iter().flatten().any(|c| c.state.is_running());
            assert!(!alive, "two of {name} would run");
            let seen = container(&name, attempt, ContainerState::Running { started_at: now });
            world.probes.insert(seen.id.clone(), probe::Results { started: true, ready: true, failed: None });
            world.containers.entry(name).or_default().insert(0, seen);
        }
        Action::Stop { container: name, id, why, .. } => {
            if matches!(why, StopWhy::AllRestart { .. }) {
                let attempt = world.newest(&name).map(|c| c.attempt);
                world.retry_state.containers.entry(name.clone()).or_default().stopped_on_purpose = attempt;
            }
            end(world, &name, &id, 143, now);
        }
        Action::PullImage { .. }
        | Action::Resize { .. }
        | Action::Move { .. }
        | Action::RequestRestart
        | Action::RequestTurn => {}
        Action::Remove { ids } => {
            let removed: Vec<_> = world.all().filter(|c| ids.contains(&c.id)).cloned().collect();
            removed.iter().for_each(|c| world.retry_state.record_removal(c));
            for list in world.containers.values_mut() {
                assert!(list.iter().all(|c| !(ids.contains(&c.id) && c.state.is_running())), "removed while running");
                list.retain(|c| !ids.contains(&c.id));
            }
        }
        Action::RemoveSandboxes { .. } => {
            assert!(world.all().all(|c| !c.state.is_running()), "removed below running containers");
            world.sandboxes.clear();
            for (name, list) in std::mem::take(&mut world.containers) {
                let made = list.iter().map(|c| c.attempt + 1).max().unwrap_or(0);
                let all = world.pod.init.iter_mut().chain(&mut world.pod.main);
                all.filter(|c| c.name == name).for_each(|c| c.made = c.made.max(made));
            }
        }
        Action::ReleaseVolumes => world.retry_state.release = Step::Done,
        Action::RemoveFromApi => world.retry_state.api_removal = Step::Done,
    }
}

fn end(world: &mut World, name: &str, id: &ContainerId, exit_code: i32, now: Timestamp) {
    for seen in world.containers.get_mut(name).into_iter().flatten().filter(|c| c.id == *id) {
        if let ContainerState::Running { started_at } = seen.state {
            seen.state = ContainerState::Exited {
                started_at: Some(started_at),
                finished_at: now,
                exit_code,
                signal: None,
                oom: false,
                message: String::new(),
            };
        }
    }
}

fn settle(world: &mut World, now: &mut Timestamp) -> bool {
    for _ in 0..500 {
        let next = plan(world, *now);
        record(world, &next);
        if world.retry_state.recreate.is_some() && world.sandboxes.is_empty() {
            world.retry_state.recreate = None;
        }
        // Init containers do their work as soon as they are let.
        let inits: Vec<ContainerStatus> = world
            .pod
            .init
            .iter()
            .filter(|c| c.role == Role::Init)
            .filter_map(|c| world.newest(&c.name).filter(|seen| seen.state.is_running()).cloned())
            .collect();
        let idle = next.actions.is_empty() && inits.is_empty();
        for seen in inits {
            end(world, &seen.name, &seen.id, 0, *now);
        }
        for action in next.actions {
            apply(world, action, *now);
        }
        match next.wake_at {
            Some(at) if idle => *now = at.max(*now),
            None if idle => {
                world.pod.finished |= outcome(world).is_some();
                if plan(world, *now).actions.is_empty() {
                    return true;
                }
            }
            Some(_) | None => *now += Duration::from_millis(10),
        }
    }
    false
}

proptest! {
    #[test]
    fn whatever_happens_the_pod_settles_and_then_rests(
        policy in prop_oneof![Just(RestartPolicy::Always), Just(RestartPolicy::OnFailure), Just(RestartPolicy::Never)],
        sidecar in any::<bool>(),
        faults in proptest::collection::vec((0_usize..4, 0_i32..3, any::<bool>()), 0..12),
        deleted in any::<bool>(),
        restarts_all in any::<bool>(),
    ) {
        let inits: &[(&str, Role)] =
            if sidecar { &[("i", Role::Init), ("s", Role::Sidecar)] } else { &[("i", Role::Init)] };
        let mut world = world(policy, inits, &["a", "b"]);
        if restarts_all {
            let rule = RestartRule { exit_codes: vec![2], ..rule(RestartAction::RestartAllContainers, false) };
            world.pod.main[0].restart_rules.rules.push(rule.clone());
            world.pod.init.last_mut().unwrap().restart_rules.rules.push(rule);
        }
        world.sandboxes.clear();
        world.retry_state.volumes = Step::Undone;
        let mut now = T0;
        prop_assert!(settle(&mut world, &mut now));
        for (which, code, breaks) in faults {
            let alive: Vec<ContainerStatus> = world.all().filter(|c| c.state.is_running()).cloned().collect();
            if let Some(victim) = alive.get(which) {
                end(&mut world, &victim.name, &victim.id, code, now);
            }
            if breaks && let Some(sandbox) = world.sandboxes.first_mut() {
                sandbox.ready = false;
            }
            prop_assert!(settle(&mut world, &mut now));
        }
        if policy == RestartPolicy::Always {
            let up = world.all().filter(|c| c.state.is_running()).count();
            prop_assert_eq!(up, if sidecar { 3 } else { 2 });
        }
        if deleted {
            world.pod.ending = Some(Ending { why: EndingWhy::Deleted, deadline: now + Duration::from_secs(30) });
            prop_assert!(settle(&mut world, &mut now));
            prop_assert!(world.sandboxes.is_empty() && world.retry_state.release.is_done());
            prop_assert!(plan(&world, now).over);
        }
    }
}

#[test]
fn a_pod_that_does_not_start_is_reported_with_the_step_it_hangs_in() {
    use super::super::slow_start::judge;
    use crate::metrics::StartStep;
    let (start, limit) = (Timestamp::UNIX_EPOCH, Duration::from_secs(120));
    let late = start + limit;
    let mut hangs = world(RestartPolicy::Always, &[], &["c"]);
    hangs.sandboxes.clear();
    hangs.retry_state = PodRetryState::default();
    assert_eq!(judge(&hangs, start, limit, start), Err(Some(late)), "there is time");
    assert_eq!(judge(&hangs, start, Duration::ZERO, late), Err(None), "nobody wants to know");
    assert_eq!(judge(&hangs, start, limit, late).map(|slow| slow.step), Ok(StartStep::Volumes));
    hangs.retry_state.volumes = Step::Done;
    assert_eq!(judge(&hangs, start, limit, late).map(|slow| slow.step), Ok(StartStep::Sandbox));
}
