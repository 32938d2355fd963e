use std::time::Duration;

use mainstay_api::config_versions::{self, CONTAINERS_CONDITION, ConfigVersions, FILES_CONDITION};
use mainstay_runtime::{
    ContainerState, ContainerStatus as ObservedContainer, PodUid, SandboxId, SandboxStatus, observed::PodRef,
    spec::Resources,
};
use serde_json::json;

use super::*;
use crate::{
    dependencies::{NeedsObservation, UnmetNeed},
    heal::HealingObservation,
    probe,
    settings::RestartBackoff,
    worker::{
        retry_state::{FailureKind, PodRetryState, StepFailure},
        view::{Ending, EndingWhy, PodView},
    },
};

fn at_second(seconds: u64) -> Timestamp {
    Timestamp::UNIX_EPOCH + Duration::from_secs(seconds)
}

fn pod(spec: serde_json::Value) -> Pod {
    let meta = json!({ "name": "web", "namespace": "default", "uid": "u", "generation": 3 });
    serde_json::from_value(json!({ "metadata": meta, "spec": spec })).expect("a pod")
}

fn container_status(name: &str, attempt: u32, state: ContainerState) -> ObservedContainer {
    ObservedContainer {
        id: ContainerId(format!("{name}-{attempt}")),
        sandbox: SandboxId("s".into()),
        pod: PodRef { namespace: "default".into(), name: "web".into(), uid: PodUid("u".into()) },
        name: name.into(),
        attempt,
        image: "app:1".into(),
        image_id: "sha256:1".into(),
        created_at: at_second(0),
        state,
        annotations: BTreeMap::new(),
        log_path: "/log".into(),
        pid: None,
    }
}

fn running() -> ContainerState {
    ContainerState::Running { started_at: at_second(1) }
}

fn exited(exit_code: i32, oom: bool) -> ContainerState {
    ContainerState::Exited {
        started_at: Some(at_second(1)),
        finished_at: at_second(5),
        exit_code,
        signal: None,
        oom,
        message: String::new(),
    }
}

fn world(pod: &Pod, containers: Vec<ObservedContainer>) -> World {
    let sandbox = SandboxStatus {
        id: SandboxId("s".into()),
        pod: PodRef { namespace: "default".into(), name: "web".into(), uid: PodUid("u".into()) },
        attempt: 0,
        ready: true,
        created_at: at_second(0),
        host_network: false,
        addresses: vec!["10.244.0.7".parse().unwrap()],
        annotations: BTreeMap::new(),
    };
    let ready = probe::Results { started: true, ready: true, failed: None };
    let probes = containers.iter().filter(|c| c.state.is_running()).map(|c| (c.id.clone(), ready.clone())).collect();
    let mut by_name: BTreeMap<String, Vec<ObservedContainer>> = BTreeMap::new();
    for container in containers {
        by_name.entry(container.name.clone()).or_default().push(container);
    }
    World {
        pod: PodView::from_pod(pod, |_| Resources::default(), None, at_second(6)),
        sandboxes: vec![sandbox],
        containers: by_name,
        probes,
        retry_state: PodRetryState::default(),
        healing: HealingObservation::default(),
        restart_backoff: RestartBackoff::default(),
        pending_resize: None,
        drains_until: None,
        is_cut_off: false,
        needs: NeedsObservation::default(),
        config_versions: ConfigVersions::default(),
        turn: Default::default(),
    }
}

#[test]
fn a_pod_that_waits_for_a_volume_names_it() {
    let pod = pod(json!({ "containers": [{ "name": "c", "image": "app:1" }] }));
    let mut waiting = World { sandboxes: vec![], ..world(&pod, vec![]) };
    waiting.retry_state.volumes.wait("volume \"pv\" is not attached to node \"n\" yet".into(), at_second(6));
    let find = |world: &World| {
        let status = computed(&pod, world);
        status.conditions.into_iter().flatten().find(|c| c.type_ == "PodReadyToStartContainers").unwrap()
    };
    let condition = find(&waiting);
    assert_eq!((condition.status.as_str(), condition.reason.as_deref()), ("False", Some("FailedMount")));
    assert!(condition.message.unwrap().contains("\"pv\""));
    assert_eq!(find(&world(&pod, vec![])).reason, None);
}

#[test]
fn a_pod_says_of_which_versions_its_files_are() {
    let pod = pod(json!({ "containers": [{ "name": "c", "image": "app:1" }] }));
    let versions = r#"{"configmap/zones":"zones-5f3a09c2d81b7e46"}"#;
    let shown = World { config_versions: versions.parse().unwrap(), ..world(&pod, vec![]) };
    let find = |status: &PodStatus| status.conditions.iter().flatten().find(|c| c.type_ == FILES_CONDITION).cloned();
    let condition = find(&computed(&pod, &shown)).unwrap();
    assert_eq!((condition.status.as_str(), condition.message.as_deref()), ("True", Some(versions)));
    assert_eq!(find(&computed(&pod, &world(&pod, vec![]))), None);
}

#[test]
fn a_pod_says_with_which_versions_its_containers_were_made() {
    let pod = pod(json!({ "containers": [{ "name": "a", "image": "app:1" }, { "name": "b", "image": "app:1" }] }));
    let (one, both) = (
        r#"{"configmap/zones":"zones-5f3a09c2d81b7e46"}"#,
        r#"{"configmap/zones":"zones-5f3a09c2d81b7e46","secret/key":"key-5f3a09c2d81b7e46"}"#,
    );
    let made = |name: &str, versions: &str| ObservedContainer {
        annotations: [(config_versions::ANNOTATION.to_owned(), versions.to_owned())].into(),
        ..container_status(name, 0, running())
    };
    let reported = |containers: Vec<ObservedContainer>| {
        let status = computed(&pod, &world(&pod, containers));
        let found = status.conditions.iter().flatten().find(|own| own.type_ == CONTAINERS_CONDITION).cloned();
        found.and_then(|own| own.message)
    };
    assert_eq!(reported(vec![made("a", both), made("b", both)]).as_deref(), Some(both));
    assert_eq!(reported(vec![made("a", both), made("b", one)]).as_deref(), Some(one), "as far as they agree");
    assert_eq!(reported(vec![made("a", one), container_status("b", 0, running())]), None, "one was made with none");
    assert_eq!(reported(vec![]), None);
}

#[test]
fn a_pod_says_what_it_waits_for_and_for_how_long_it_may() {
    let pod = pod(json!({ "containers": [{ "name": "c", "image": "app:1" }] }));
    let unmet = vec![UnmetNeed { message: "db: 0 of 1 ready".to_owned(), keep: true }];
    let needs = NeedsObservation { unmet, within: Some(Duration::from_secs(10)), is_declared: true };
    let waiting = World { needs: needs.clone(), ..world(&pod, vec![]) };
    let condition = |status: &PodStatus, kind: &str| {
        let found = status.conditions.iter().flatten().find(|c| c.type_ == kind).cloned().unwrap();
        (found.status, found.reason, found.message.unwrap_or_default())
    };
    let reason = |text: &str| Some(text.to_owned());
    let first = computed(&pod, &waiting);
    assert_eq!(
        condition(&first, "DependenciesMet"),
        ("False".to_owned(), reason("Waiting"), "db: 0 of 1 ready (since 1970-01-01T00:00:06Z)".to_owned())
    );
    let container = first.container_statuses.as_ref().unwrap()[0].state.as_ref().unwrap().waiting.as_ref().unwrap();
    assert_eq!(container.reason, reason("WaitingForDependencies"));
    assert_eq!(dependencies::due_at(&first, Duration::from_secs(10)), Some(at_second(16)));
    assert_eq!(dependencies::overdue(&first, Duration::from_secs(10), at_second(15)), None);
    assert!(dependencies::overdue(&first, Duration::from_secs(10), at_second(16)).is_some());
    let facts = Facts {
        pod: &pod,
        previous: &first,
        host_addresses: &[],
        runtime: "mainstay",
        messages: &BTreeMap::new(),
        now: at_second(16),
    };
    assert_eq!(condition(&status(&waiting, &facts), "DependenciesMet").1, reason("DependencyTimeout"));

    let started = World { needs, ..world(&pod, vec![container_status("c", 0, running())]) };
    assert_eq!(condition(&computed(&pod, &started), "DependenciesMet").0, "False", "the need is to be kept");
    let ready = condition(&computed(&pod, &started), "Ready");
    assert_eq!(ready, ("False".to_owned(), reason("DependenciesNotMet"), "waiting for db: 0 of 1 ready".to_owned()));
    let met = World { needs: NeedsObservation { is_declared: true, ..NeedsObservation::default() }, ..started };
    assert_eq!(condition(&computed(&pod, &met), "DependenciesMet").0, "True");
    assert_eq!(condition(&computed(&pod, &met), "Ready").0, "True");
    let nothing = World { needs: NeedsObservation::default(), ..met };
    assert!(computed(&pod, &nothing).conditions.unwrap().iter().all(|c| c.type_ != "DependenciesMet"));
}

fn computed(pod: &Pod, world: &World) -> PodStatus {
    let facts = Facts {
        pod,
        previous: &PodStatus::default(),
        host_addresses: &["192.0.2.1".parse().unwrap()],
        runtime: "mainstay",
        messages: &BTreeMap::new(),
        now: at_second(6),
    };
    status(world, &facts)
}

fn pod_with_policy(policy: &str) -> Pod {
    pod(json!({ "restartPolicy": policy, "containers": [{ "name": "app", "image": "app:1" }] }))
}

fn holds(status: &PodStatus, kind: &str) -> Option<bool> {
    let found = status.conditions.iter().flatten().find(|c| c.type_ == kind)?;
    Some(found.status == "True")
}

fn app(status: &PodStatus) -> ContainerStatus {
    status.container_statuses.as_ref().expect("statuses")[0].clone()
}

fn waiting(status: &ContainerStatus) -> (String, String) {
    let waiting = status.state.clone().and_then(|state| state.waiting).expect("waiting");
    (waiting.reason.unwrap_or_default(), waiting.message.unwrap_or_default())
}

#[test]
fn a_running_pod_is_ready_and_has_its_addresses() {
    let pod = pod_with_policy("Always");
    let status = computed(&pod, &world(&pod, vec![container_status("app", 0, running())]));
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(status.pod_ip.as_deref(), Some("10.244.0.7"));
    assert_eq!(status.host_ip.as_deref(), Some("192.0.2.1"));
    assert_eq!(status.observed_generation, Some(3));
    for kind in ["PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready", "PodScheduled"] {
        assert_eq!(holds(&status, kind), Some(true), "{kind}");
    }
    let app = app(&status);
    assert_eq!((app.ready, app.started, app.restart_count), (true, Some(true), 0));
    assert_eq!(app.container_id.as_deref(), Some("mainstay://app-0"));
}

#[test]
fn a_pod_that_is_being_made_says_so() {
    let pod = pod_with_policy("Always");
    let status = computed(&pod, &world(&pod, vec![]));
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    assert_eq!(waiting(&app(&status)).0, "ContainerCreating");
    assert_eq!(holds(&status, "Ready"), Some(false));
}

#[test]
fn nothing_of_a_rejected_pod_waits() {
    let pod = pod_with_policy("Always");
    let mut rejected = world(&pod, vec![]);
    let why = EndingWhy::Failed { reason: "AppArmor".into(), message: "Pod was rejected: no AppArmor".into() };
    rejected.pod.ending = Some(Ending { why, deadline: at_second(6) });
    let status = computed(&pod, &rejected);
    assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Failed"), Some("AppArmor")));
    assert_eq!(status.container_statuses, None, "kubectl would show what it waits for, not why it was rejected");
}

#[test]
fn a_crash_loop_shows_the_pause_and_how_the_last_one_ended() {
    let pod = pod_with_policy("Always");
    let status = computed(&pod, &world(&pod, vec![container_status("app", 4, exited(1, false))]));
    assert_eq!(status.phase.as_deref(), Some("Running"));
    let app = app(&status);
    let (reason, message) = waiting(&app);
    assert_eq!(reason, "CrashLoopBackOff");
    assert_eq!(message, "back-off 8s restarting failed container=app pod=web_default(u)");
    let last = app.last_state.clone().and_then(|state| state.terminated).expect("a last state");
    assert_eq!((last.exit_code, last.reason.as_deref()), (1, Some("Error")));
    assert_eq!(app.restart_count, 4);
}

#[test]
fn endings_have_the_words_users_grep_for() {
    let reason = |state| {
        let pod = pod_with_policy("Never");
        let status = computed(&pod, &world(&pod, vec![container_status("app", 0, state)]));
        let ended = app(&status).state.and_then(|state| state.terminated).expect("terminated");
        (status.phase.unwrap(), ended.reason.unwrap(), ended.exit_code)
    };
    assert_eq!(reason(exited(0, false)), ("Succeeded".into(), "Completed".into(), 0));
    assert_eq!(reason(exited(3, false)), ("Failed".into(), "Error".into(), 3));
    assert_eq!(reason(exited(137, true)), ("Failed".into(), "OOMKilled".into(), 137));
}

#[test]
fn trouble_with_images_and_configuration_is_named() {
    let reason = |kind, failures| {
        let pod = pod_with_policy("Always");
        let mut world = world(&pod, vec![]);
        let trouble = StepFailure { kind, message: "why".into(), failures, retry_at: at_second(60) };
        world.retry_state.containers.entry("app".into()).or_default().failure = Some(trouble);
        waiting(&app(&computed(&pod, &world)))
    };
    assert_eq!(reason(FailureKind::Pull, 1), ("ErrImagePull".into(), "why".into()));
    let (name, message) = reason(FailureKind::Pull, 2);
    assert_eq!(name, "ImagePullBackOff");
    assert_eq!(message, "Back-off pulling image \"app:1\": ErrImagePull: why");
    assert_eq!(reason(FailureKind::Config, 1).0, "CreateContainerConfigError");
    assert_eq!(reason(FailureKind::NeverPull, 1).0, "ErrImageNeverPull");
    assert_eq!(reason(FailureKind::InvalidImageName, 1).0, "InvalidImageName");
}

#[test]
fn a_pod_waits_for_its_init_containers_and_names_them() {
    let init = json!([{ "name": "first", "image": "i" }]);
    let pod = pod(json!({ "initContainers": init, "containers": [{ "name": "app", "image": "app:1" }] }));
    let status = computed(&pod, &world(&pod, vec![container_status("first", 0, running())]));
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    assert_eq!(waiting(&app(&status)).0, "PodInitializing");
    let condition = status.conditions.iter().flatten().find(|c| c.type_ == "Initialized").expect("Initialized");
    assert_eq!(condition.message.as_deref(), Some("containers with incomplete status: [first]"));
}

#[test]
fn readiness_gates_hold_back_readiness_alone() {
    let mut pod = pod_with_policy("Always");
    let gate = k8s_openapi::api::core::v1::PodReadinessGate { condition_type: "example.com/ok".into() };
    pod.spec.as_mut().unwrap().readiness_gates = Some(vec![gate]);
    let status = computed(&pod, &world(&pod, vec![container_status("app", 0, running())]));
    assert_eq!((holds(&status, "ContainersReady"), holds(&status, "Ready")), (Some(true), Some(false)));
}

#[test]
fn transition_times_change_only_with_the_status() {
    let pod = pod_with_policy("Always");
    let world = world(&pod, vec![container_status("app", 0, running())]);
    let first = computed(&pod, &world);
    let facts = Facts {
        pod: &pod,
        previous: &first,
        host_addresses: &["192.0.2.1".parse().unwrap()],
        runtime: "mainstay",
        messages: &BTreeMap::new(),
        now: at_second(100),
    };
    assert_eq!(status(&world, &facts), first, "nothing happened, so nothing is reported");
}

#[test]
fn containers_that_went_with_their_sandbox_keep_their_last_words() {
    let pod = pod_with_policy("Never");
    let before = computed(&pod, &world(&pod, vec![container_status("app", 0, exited(3, false))]));
    let mut gone = world(&pod, vec![]);
    gone.pod.finished = true;
    let facts = Facts {
        pod: &pod,
        previous: &before,
        host_addresses: &[],
        runtime: "mainstay",
        messages: &BTreeMap::new(),
        now: at_second(9),
    };
    let after = status(&gone, &facts);
    assert_eq!(after.phase.as_deref(), Some("Failed"));
    assert_eq!(app(&after).state, app(&before).state);
}

#[test]
fn a_terminal_phase_that_somebody_set_in_the_api_is_never_left() {
    let pod = pod_with_policy("Always");
    let mut ended = world(&pod, vec![container_status("app", 0, exited(143, false))]);
    ended.pod.finished = true;
    let reported = computed(&pod, &world(&pod, vec![container_status("app", 0, running())]));
    let text = |text: &str| Some(text.to_owned());
    let failed = PodStatus { phase: text("Failed"), reason: text("ByHand"), message: text("why"), ..reported.clone() };
    let facts = Facts {
        pod: &pod,
        previous: &keep_terminal_phase(reported, &failed),
        host_addresses: &[],
        runtime: "mainstay",
        messages: &BTreeMap::new(),
        now: at_second(9),
    };
    let after = status(&ended, &facts);
    let output = (after.phase.as_deref(), after.reason.as_deref(), after.message.as_deref());
    assert_eq!(output, (Some("Failed"), Some("ByHand"), Some("why")));
    assert!(app(&after).state.unwrap().terminated.is_some(), "it is not waiting for a restart");
}
