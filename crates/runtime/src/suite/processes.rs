//! Processes: how they are started, what they see of their image, how they end and what is reported of it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use nix::{sys::signal, unistd::Pid};

use crate::{
    RuntimeError,
    observed::ContainerState,
    spec::PidMode,
    suite::{
        Bench,
        bench::{BOX, code, eventually, text},
        image,
    },
};

pub async fn exit_codes_are_true(b: Arc<Bench>) {
    let pod = b.pod().await;
    for expected in [0, 1, 42, 255] {
        let status = pod.run(pod.shell(&format!("c{expected}"), &format!("exit {expected}"))).await;
        let ContainerState::Exited { started_at, finished_at, exit_code, signal, oom, .. } = status.state else {
            panic!("{status:?}")
        };
        assert_eq!((exit_code, signal, oom), (expected, None, false));
        assert!(started_at.expect("it began") <= finished_at);
    }
}

pub async fn death_by_signal_is_128_and_the_signal(b: Arc<Bench>) {
    let pod = b.pod().await;
    let id = pod.start(pod.sleeper("killed")).await;
    let pid = pod.status(&id).await.expect("is observed").pid.expect("its pid is known");
    signal::kill(Pid::from_raw(pid.cast_signed()), signal::SIGKILL).expect("send a signal");
    assert_eq!(code(&pod.ended(&id).await), 137);
    // The first process of a namespace is immune to its own signals, so this one is not first.
    let mut spec = b.pod_spec();
    spec.pid = PidMode::Pod;
    let pod = b.pod_of(spec).await;
    assert_eq!(code(&pod.run(pod.shell("aborted", "kill -ABRT $$; sleep 1000")).await), 134);
}

pub async fn the_stop_signal_is_honoured(b: Arc<Bench>) {
    let pod = b.pod().await;
    let id = pod.start(pod.shell("c", "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.05; done")).await;
    pod.says("c", "ready").await;
    b.runtime.stop_container(&id, Duration::from_secs(60)).await.expect("stop");
    assert_eq!(code(&pod.ended(&id).await), 7);
    pod.says("c", "bye").await;
}

pub async fn the_stop_signal_of_the_spec_wins(b: Arc<Bench>) {
    let pod = b.pod().await;
    let script = "trap 'exit 3' TERM; trap 'exit 9' USR1; trap 'exit 5' INT; echo ready; while :; do sleep 0.05; done";
    let mut spec = pod.shell("c", script);
    spec.stop_signal = Some("SIGINT".to_owned());
    let id = pod.start(spec).await;
    pod.says("c", "ready").await;
    b.runtime.stop_container(&id, Duration::from_secs(60)).await.expect("stop");
    assert_eq!(code(&pod.ended(&id).await), 5);
    if b.subject.has_configured_image() {
        let mut spec = pod.shell("d", script);
        spec.image = image::CONFIGURED.to_owned();
        let id = pod.start(spec).await;
        pod.says("d", "ready").await;
        b.runtime.stop_container(&id, Duration::from_secs(60)).await.expect("stop");
        assert_eq!(code(&pod.ended(&id).await), 9, "the image's own signal");
    }
}

pub async fn what_ignores_the_stop_signal_is_killed_after_its_grace(b: Arc<Bench>) {
    let pod = b.pod().await;
    let id = pod.start(pod.shell("c", "trap '' TERM; echo ready; while :; do sleep 1; done")).await;
    pod.says("c", "ready").await;
    let asked = Instant::now();
    b.runtime.stop_container(&id, Duration::from_secs(2)).await.expect("stop");
    let took = asked.elapsed();
    let status = pod.ended(&id).await;
    assert_eq!(code(&status), 137);
    assert!(!matches!(status.state, ContainerState::Exited { oom: true, .. }));
    assert!(took >= Duration::from_secs(2), "waited out its grace: {took:?}");
}

pub async fn no_grace_kills_at_once(b: Arc<Bench>) {
    let pod = b.pod().await;
    let id = pod.start(pod.shell("c", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done")).await;
    pod.says("c", "ready").await;
    b.runtime.stop_container(&id, Duration::ZERO).await.expect("stop");
    assert_eq!(code(&pod.ended(&id).await), 137);
}

pub async fn a_missing_program_is_a_failed_start(b: Arc<Bench>) {
    fails_to_start(b, "/box/no-such-program").await;
}

pub async fn a_file_that_is_no_program_is_a_failed_start(b: Arc<Bench>) {
    fails_to_start(b, "/etc/hosts-that-cannot-run").await;
}

async fn fails_to_start(b: Arc<Bench>, program: &str) {
    let pod = b.pod().await;
    let file = b.path("plain-text");
    std::fs::write(&file, "not a program\n").expect("write a file");
    let mut spec = pod.program("c", &[program]);
    spec.mounts.push(super::bench::bind(&file, "/etc/hosts-that-cannot-run", true));
    let id = pod.create(spec).await;
    let error = b.runtime.start_container(&id).await.expect_err("it cannot start");
    let RuntimeError::Start { why } = &error else { panic!("{error:?}") };
    assert!(why.contains(program), "{why}");
    let status = pod.ended(&id).await;
    let ContainerState::Exited { exit_code, message, .. } = &status.state else { panic!("{status:?}") };
    assert_ne!(*exit_code, 0);
    assert!(message.contains(program), "{message:?}");
    b.runtime.remove_container(&id).await.expect("remove it");
}

pub async fn the_environment_is_as_asked(b: Arc<Bench>) {
    let pod = b.pod().await;
    let mut spec = pod.program("c", &[BOX, "env"]);
    spec.env = vec![
        ("PLAIN".to_owned(), "value".to_owned()),
        ("ODD".to_owned(), "with = and spaces, ünïcode $(NOT) \"expanded\"".to_owned()),
        ("EMPTY".to_owned(), String::new()),
    ];
    let printed = pod.print(spec).await;
    for line in ["PLAIN=value", "ODD=with = and spaces, ünïcode $(NOT) \"expanded\"", "EMPTY="] {
        assert!(printed.lines().any(|l| l == line), "{line} in {printed}");
    }
    assert!(printed.lines().any(|l| l.starts_with("PATH=")), "a PATH is always there: {printed}");
}

pub async fn the_working_directory_is_as_asked(b: Arc<Bench>) {
    let pod = b.pod().await;
    let mut spec = pod.program("c", &[BOX, "pwd"]);
    spec.working_dir = "/tmp".to_owned();
    assert_eq!(pod.print(spec).await, "/tmp\n");
    let mut spec = pod.program("d", &[BOX, "pwd"]);
    spec.working_dir = "/made/for/me".to_owned();
    assert_eq!(pod.print(spec).await, "/made/for/me\n", "made if it is not there");
}

pub async fn the_image_says_what_the_spec_leaves_open(b: Arc<Bench>) {
    if !b.subject.has_configured_image() {
        return;
    }
    let pod = b.pod().await;
    let mut spec = pod.program("echo", &[]);
    spec.image = image::CONFIGURED.to_owned();
    assert_eq!(pod.print(spec).await, "entry args\n");
    let script = "echo $FROM $BOTH; pwd; id -u; id -g; id -G; cat /etc/marker";
    let mut spec = pod.shell("shell", script);
    spec.image = image::CONFIGURED.to_owned();
    spec.env = vec![("BOTH".to_owned(), "spec".to_owned())];
    assert_eq!(pod.print(spec).await, "image spec\n/srv/work\n1234\n1234\n1234 2345\nmade by the suite\n");
}

pub async fn a_command_replaces_entrypoint_and_arguments(b: Arc<Bench>) {
    if !b.subject.has_configured_image() {
        return;
    }
    let pod = b.pod().await;
    let mut spec = pod.program("c", &[BOX, "echo", "mine"]);
    spec.image = image::CONFIGURED.to_owned();
    assert_eq!(pod.print(spec).await, "mine\n");
    let mut spec = pod.program("d", &[BOX, "echo", "mine"]);
    spec.args = vec!["and".to_owned(), "yours".to_owned()];
    assert_eq!(pod.print(spec).await, "mine and yours\n");
}

pub async fn arguments_alone_keep_the_entrypoint(b: Arc<Bench>) {
    if !b.subject.has_configured_image() {
        return;
    }
    let pod = b.pod().await;
    let mut spec = pod.program("c", &[]);
    spec.image = image::CONFIGURED.to_owned();
    spec.args = vec!["yours".to_owned()];
    assert_eq!(pod.print(spec).await, "entry yours\n");
}

pub async fn the_first_process_is_number_one_and_known_outside(b: Arc<Bench>) {
    let pod = b.pod().await;
    let id = pod.start(pod.shell("c", "echo I am $$; sleep 100000 & wait")).await;
    pod.says("c", "I am 1\n").await;
    let pid = pod.status(&id).await.expect("is observed").pid.expect("its pid is known");
    let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).expect("its process is there");
    assert!(command.contains("I am"), "{command:?}");
}

pub async fn children_left_behind_are_killed_with_the_container(b: Arc<Bench>) {
    let pod = b.pod().await;
    let mark = format!("31415.{}", fastrand_like(&pod.spec.pod.uid.0));
    let id = pod.start(pod.shell("c", &format!("sleep {mark} & echo ready; sleep 0.2; exit 4"))).await;
    assert_eq!(code(&pod.ended(&id).await), 4);
    eventually("no process is left", async || (!anywhere(&mark)).then_some(())).await;
    assert_eq!(text(&pod.log_path("c", 0)), "ready\n");
}

/// Digits that no other test has.
fn fastrand_like(uid: &str) -> u64 {
    uid.bytes().fold(7, |n: u64, byte| n.wrapping_mul(31).wrapping_add(byte.into())) % 1_000_000_007
}

fn anywhere(argument: &str) -> bool {
    let processes = std::fs::read_dir("/proc").expect("list processes");
    processes.filter_map(Result::ok).any(|entry| {
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        command.split(|byte| *byte == 0).any(|part| part == argument.as_bytes())
    })
}

pub async fn an_exit_while_nobody_watches_is_reported_later(b: Arc<Bench>) {
    let pod = b.pod().await;
    let go = b.path("go");
    let directory = go.parent().expect("has a directory").to_owned();
    let mut spec = pod.shell("c", "until [ -e /claim/go ]; do sleep 0.02; done; exit 33");
    spec.mounts.push(super::bench::bind(&directory, "/claim", true));
    let id = pod.start(spec).await;
    let before = jiff::Timestamp::now();
    std::fs::write(&go, "").expect("let it go");
    let second = b.subject.reopen().await;
    let status = eventually("it has ended", async || {
        let found = second.observe(Some(pod.uid())).await.expect("observe").containers;
        found.into_iter().find(|c| c.id == id && c.state.has_ended())
    })
    .await;
    assert_eq!(code(&status), 33);
    let ContainerState::Exited { finished_at, .. } = status.state else { panic!("{status:?}") };
    assert!(finished_at >= before, "{finished_at} is after {before}");
}
