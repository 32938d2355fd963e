//! On paused time, with a runtime in memory whose commands answer as the test says.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicI32, AtomicUsize, Ordering},
    time::Duration,
};

use k8s_openapi::api::core::v1::{ContainerStatus, ExecAction, PodSpec, PodStatus, Probe};
use mainstay_api::heal::ANNOTATION;
use mainstay_events::EventWriter;
use mainstay_runtime::{
    ContainerSpec, SandboxSpec,
    fake::{Call, ExecResult, Fake},
    observed::PodRef,
};

use super::*;
use crate::task_scope::TaskScope;

/// One container `web` of one pod, whose probes' commands end with what `codes` say.
struct World {
    runtime: Arc<Fake>,
    probes: Probes,
    wake: Wake,
    recorded: EventWriter,
    codes: Arc<Codes>,
    running: Running,
    pod: Pod,
}

/// By probe, the exit code of its command.
#[derive(Default)]
struct Codes {
    startup: AtomicI32,
    liveness: AtomicI32,
    readiness: AtomicI32,
    takes: AtomicUsize,
}

impl World {
    async fn new(container: Container) -> Self {
        let runtime = Arc::new(Fake::new());
        let codes = Arc::new(Codes::default());
        let script = codes.clone();
        runtime.on_exec(move |_, command| {
            let code = match command[0].as_str() {
                "startup" => &script.startup,
                "liveness" => &script.liveness,
                _ => &script.readiness,
            };
            let mut executed = ExecResult::code(code.load(Ordering::SeqCst));
            executed.takes = Duration::from_secs(script.takes.load(Ordering::SeqCst) as u64);
            executed.output.stderr = b"not well".to_vec();
            Ok(executed)
        });
        let pod_ref = PodRef { namespace: "default".into(), name: "p".into(), uid: PodUid("u".into()) };
        let sandbox = runtime.create_sandbox(&sandbox(pod_ref)).await.expect("sandbox");
        let spec = ContainerSpec { name: "web".into(), image: "busybox".into(), ..Default::default() };
        let id = runtime.create_container(&sandbox, &spec).await.expect("container");
        runtime.start_container(&id).await.expect("start");
        let (events, recorded) = Events::new("m1");
        let wake = Wake::default();
        let policies = OwnerPolicies::new(None, TaskScope::default());
        let probes = Probes::new(runtime.clone(), events, wake.clone(), policies);
        let mut pod = Pod::default();
        pod.metadata.name = Some("p".into());
        pod.metadata.uid = Some("u".into());
        pod.spec =
            Some(PodSpec { containers: vec![Container { name: "web".into(), ..container }], ..Default::default() });
        let running = Running { name: "web".into(), id, started_at: Timestamp::now() };
        Self { runtime, probes, wake, recorded, codes, running, pod }
    }

    fn follow(&self) {
        self.probes.follow(&Arc::new(self.pod.clone()), std::slice::from_ref(&self.running), None);
    }

    fn results(&self) -> Results {
        self.probes.results(&PodUid("u".into())).remove(&self.running.id).expect("followed")
    }

    fn execs(&self, of: &str) -> usize {
        self.runtime.recorded_calls().iter().filter(|call| call.call == Call::Exec && call.command == [of]).count()
    }

    fn events(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.recorded.try_next())
            .map(|event| format!("{}: {}", event.note.reason, event.note.message))
            .collect()
    }
}

fn sandbox(pod: PodRef) -> SandboxSpec {
    SandboxSpec {
        pod,
        attempt: 0,
        hostname: "p".into(),
        log_directory: std::env::temp_dir(),
        host_network: true,
        host_ipc: false,
        pid: Default::default(),
        users: None,
        runtime_handler: String::new(),
        selinux: None,
        cgroup: String::new(),
        resources: Default::default(),
        sysctls: BTreeMap::new(),
        ports: Vec::new(),
        dns: Default::default(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
    }
}

fn exec(command: &str) -> Probe {
    Probe { exec: Some(ExecAction { command: Some(vec![command.into()]) }), ..Default::default() }
}

/// Lets this much time pass, and everything happen that is due until then.
async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds) + Duration::from_millis(500)).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
}

fn with_liveness(probe: Probe) -> Container {
    Container { liveness_probe: Some(probe), ..Default::default() }
}

#[tokio::test(start_paused = true)]
async fn the_first_attempt_waits_and_the_third_failure_in_a_row_counts() {
    let probe = Probe { initial_delay_seconds: Some(20), timeout_seconds: Some(10), ..exec("liveness") };
    let mut world = World::new(with_liveness(probe)).await;
    world.codes.liveness.store(1, Ordering::SeqCst);
    world.follow();
    pass(18).await;
    assert_eq!(world.execs("liveness"), 0);
    pass(19).await; // at 20 and 30
    assert_eq!(world.execs("liveness"), 2);
    assert_eq!(world.results(), Results { started: true, ready: true, failed: None });
    pass(4).await;
    let failed = world.results().failed.expect("failed three times");
    assert_eq!((failed.probe, failed.why.as_str()), (ProbeKind::Liveness, "not well"));
    assert!(world.wake.due().await.contains(&PodUid("u".into())));
    assert_eq!(world.events(), ["Unhealthy: Liveness probe failed: not well"; 3]);
}

#[tokio::test(start_paused = true)]
async fn one_failure_between_successes_changes_nothing() {
    let world = World::new(with_liveness(exec("liveness"))).await;
    world.follow();
    for code in [0, 1, 0, 1, 1, 0, 1] {
        world.codes.liveness.store(code, Ordering::SeqCst);
        pass(9).await;
    }
    assert_eq!(world.execs("liveness"), 7);
    assert_eq!(world.results().failed, None);
}

#[tokio::test(start_paused = true)]
async fn fifteen_seconds_of_trouble_restart_nothing_even_with_hasty_thresholds() {
    for probe in [exec("liveness"), Probe { period_seconds: Some(1), failure_threshold: Some(1), ..exec("liveness") }] {
        let mut world = World::new(with_liveness(probe)).await;
        world.follow();
        pass(4).await;
        world.codes.liveness.store(1, Ordering::SeqCst);
        for _ in 0..14 {
            pass(0).await;
            assert_eq!(world.results().failed, None);
        }
        world.codes.liveness.store(0, Ordering::SeqCst);
        pass(20).await;
        assert_eq!(world.results().failed, None);
        assert!(world.events().iter().any(|event| event.starts_with("Unhealthy: Liveness probe failed")));
    }
}

#[tokio::test(start_paused = true)]
async fn an_annotation_lets_liveness_fail_at_once_and_success_takes_it_back() {
    let probe = Probe {
        period_seconds: Some(1),
        failure_threshold: Some(2),
        termination_grace_period_seconds: Some(3),
        ..exec("liveness")
    };
    let mut world = World::new(with_liveness(probe)).await;
    world.pod.metadata.annotations = Some(BTreeMap::from([(ANNOTATION.to_owned(), "hold=0s".to_owned())]));
    world.codes.liveness.store(1, Ordering::SeqCst);
    world.follow();
    pass(1).await;
    assert_eq!(world.results().failed.expect("failed twice").grace_seconds, Some(3));
    world.codes.liveness.store(0, Ordering::SeqCst);
    pass(1).await;
    assert_eq!(world.results().failed, None);
}

#[tokio::test(start_paused = true)]
async fn nothing_else_is_asked_before_startup_has_succeeded() {
    let container = Container {
        startup_probe: Some(Probe { failure_threshold: Some(30), period_seconds: Some(2), ..exec("startup") }),
        readiness_probe: Some(exec("readiness")),
        liveness_probe: Some(exec("liveness")),
        ..Default::default()
    };
    let world = World::new(container).await;
    world.codes.startup.store(1, Ordering::SeqCst);
    world.follow();
    pass(29).await;
    assert_eq!(world.results(), Results { started: false, ready: false, failed: None });
    assert_eq!((world.execs("liveness"), world.execs("readiness")), (0, 0));
    world.codes.startup.store(0, Ordering::SeqCst);
    pass(2).await;
    assert_eq!(world.results(), Results { started: true, ready: true, failed: None });
    let asked = world.execs("startup");
    pass(30).await;
    assert_eq!(world.execs("startup"), asked, "startup is over");
    assert!(world.execs("liveness") >= 3 && world.execs("readiness") >= 3);
}

#[tokio::test(start_paused = true)]
async fn startup_that_never_comes_fails() {
    let probe = Probe { failure_threshold: Some(3), period_seconds: Some(2), ..exec("startup") };
    let world = World::new(Container { startup_probe: Some(probe), ..Default::default() }).await;
    world.codes.startup.store(1, Ordering::SeqCst);
    world.follow();
    pass(5).await;
    assert_eq!(world.results().failed.expect("failed").probe, ProbeKind::Startup);
}

#[tokio::test(start_paused = true)]
async fn readiness_begins_false_and_follows_both_thresholds() {
    let probe =
        Probe { success_threshold: Some(2), failure_threshold: Some(2), period_seconds: Some(5), ..exec("readiness") };
    let mut world = World::new(Container { readiness_probe: Some(probe), ..Default::default() }).await;
    world.follow();
    pass(0).await;
    assert!(!world.results().ready);
    pass(4).await;
    assert!(world.results().ready);
    world.codes.readiness.store(1, Ordering::SeqCst);
    pass(4).await;
    assert!(world.results().ready, "once is not twice");
    pass(4).await;
    assert!(!world.results().ready);
    assert_eq!(world.results().failed, None, "readiness never asks for a restart");
    assert_eq!(world.events(), ["Unhealthy: Readiness probe failed: not well"; 2]);
}

#[tokio::test(start_paused = true)]
async fn a_command_that_takes_too_long_has_failed() {
    let probe = Probe { timeout_seconds: Some(2), failure_threshold: Some(1), ..exec("readiness") };
    let mut world = World::new(Container { readiness_probe: Some(probe), ..Default::default() }).await;
    world.codes.takes.store(5, Ordering::SeqCst);
    world.follow();
    pass(4).await;
    let late = "Unhealthy: Readiness probe failed: command timed out: \"readiness\" timed out after 2s";
    assert_eq!(world.events(), [late]);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_asked_is_neither_good_nor_bad() {
    let probe = Probe { failure_threshold: Some(1), ..exec("readiness") };
    let mut world = World::new(Container { readiness_probe: Some(probe), ..Default::default() }).await;
    world.follow();
    pass(0).await;
    assert!(world.results().ready);
    world.runtime.unreachable(true);
    pass(19).await;
    assert!(world.results().ready);
    let recorded_events = world.events();
    assert!(
        recorded_events[0].starts_with("Unhealthy: Readiness probe errored and resulted in unknown state: "),
        "{recorded_events:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_container_that_is_gone_is_asked_no_more() {
    let world = World::new(with_liveness(exec("liveness"))).await;
    world.follow();
    pass(0).await;
    world.runtime.lose_container("web");
    pass(60).await;
    let asked = world.execs("liveness");
    pass(60).await;
    assert_eq!(world.execs("liveness"), asked);
    world.probes.follow(&Arc::new(world.pod.clone()), &[], None);
    assert!(world.probes.results(&PodUid("u".into())).is_empty());
}

#[tokio::test(start_paused = true)]
async fn following_again_disturbs_nothing_and_a_pod_that_ends_is_not_kept_alive() {
    let container = Container { readiness_probe: Some(exec("readiness")), ..with_liveness(exec("liveness")) };
    let mut world = World::new(container).await;
    world.follow();
    for _ in 0..10 {
        pass(1).await;
        world.follow();
    }
    assert_eq!(world.execs("liveness"), 2);
    world.pod.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::now()));
    world.follow();
    pass(30).await;
    assert_eq!(world.execs("liveness"), 2);
    assert!(world.execs("readiness") >= 4);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_returns_believes_what_was_known_of_the_same_container() {
    let container = Container {
        startup_probe: Some(exec("startup")),
        readiness_probe: Some(Probe { initial_delay_seconds: Some(5), ..exec("readiness") }),
        ..Default::default()
    };
    let mut world = World::new(container).await;
    let known = ContainerStatus {
        name: "web".into(),
        container_id: Some(format!("mainstay://{}", world.running.id)),
        ready: true,
        started: Some(true),
        ..Default::default()
    };
    world.pod.status = Some(PodStatus { container_statuses: Some(vec![known]), ..Default::default() });
    world.follow();
    assert_eq!(world.results(), Results { started: true, ready: true, failed: None });
    world.codes.readiness.store(1, Ordering::SeqCst);
    pass(30).await;
    assert!(!world.results().ready, "and finds out anew");
    assert_eq!(world.execs("startup"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_takes_a_moment_to_listen_is_ready_long_before_the_period_is_over() {
    for (kind, probe) in [("readiness", exec("readiness")), ("startup", exec("startup"))] {
        let container = match kind {
            "readiness" => Container { readiness_probe: Some(probe), ..Default::default() },
            _ => Container { startup_probe: Some(probe), ..Default::default() },
        };
        let mut world = World::new(container).await;
        world.codes.readiness.store(1, Ordering::SeqCst);
        world.codes.startup.store(1, Ordering::SeqCst);
        world.follow();
        tokio::time::sleep(Duration::from_millis(250)).await;
        assert!(!world.results().ready);
        world.codes.readiness.store(0, Ordering::SeqCst);
        world.codes.startup.store(0, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(world.results().ready, "{kind}");
        let name = if kind == "startup" { "Startup" } else { "Readiness" };
        assert_eq!(
            world.events(),
            [format!("Unhealthy: {name} probe failed: not well")],
            "extra attempts fail silently"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn extra_attempts_do_not_shorten_the_time_that_a_container_has_to_start() {
    let probe = Probe { failure_threshold: Some(3), period_seconds: Some(10), ..exec("startup") };
    let world = World::new(Container { startup_probe: Some(probe), ..Default::default() }).await;
    world.codes.startup.store(1, Ordering::SeqCst);
    world.follow();
    pass(18).await;
    assert!(world.execs("startup") > 3);
    assert_eq!(world.results().failed, None);
    pass(1).await;
    assert_eq!(world.results().failed.expect("three periods are over").probe, ProbeKind::Startup);
}

#[tokio::test(start_paused = true)]
async fn a_container_that_is_being_killed_is_not_asked_whether_it_lives() {
    let probe = Probe { period_seconds: Some(1), ..exec("liveness") };
    let mut world = World::new(with_liveness(probe)).await;
    world.follow();
    pass(2).await;
    world.codes.liveness.store(1, Ordering::SeqCst);
    let uid = PodUid("u".into());
    world.probes.set_stopping(&uid, &world.running.id, true);
    let asked = world.execs("liveness");
    pass(30).await;
    assert_eq!(world.execs("liveness"), asked);
    assert!(world.events().is_empty());
    world.probes.set_stopping(&uid, &world.running.id, false);
    pass(2).await;
    assert!(world.execs("liveness") > asked, "the kill failed, so it matters again");
}
