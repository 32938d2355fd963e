//! Holds every later version to reading what this one writes: records on disk and the protocol of shims, which outlive the agent.

use std::collections::BTreeMap;

use jiff::Timestamp;
use mainstay_testing::format_fixture;

use super::{
    record::{
        ContainerRecord, ExitRecord, LaunchSpec, Phase, ProcessIdentity, Record, RunRecord, SandboxRecord, SharedMount,
        StagedMount, Staging,
    },
    shim::StartupReport,
    wire::{FailureKind, Request, Response, Streams},
};
use crate::{
    observed::{ContainerId, PodRef, PodUid, SandboxId},
    spec::{
        ContainerSpec, Dns, HostPort, LogLimit, Mount, PidMode, Propagation, Protocol, RecursiveReadOnly, Resources,
        SandboxSpec, Seccomp, Security,
    },
};

fn pod() -> PodRef {
    PodRef {
        namespace: "default".into(),
        name: "web-0".into(),
        uid: PodUid("0b4d5c1e-0000-4000-8000-000000000001".into()),
    }
}

fn sandbox() -> SandboxRecord {
    SandboxRecord {
        id: SandboxId("5a0b".into()),
        spec: SandboxSpec {
            pod: pod(),
            attempt: 1,
            hostname: "web-0".into(),
            log_directory: "/var/lib/mainstay/logs/default_web-0".into(),
            host_network: false,
            host_ipc: false,
            pid: PidMode::Pod,
            users: None,
            runtime_handler: String::new(),
            selinux: None,
            cgroup: "burstable/pod0b4d".into(),
            resources: resources(),
            sysctls: BTreeMap::from([("net.core.somaxconn".into(), "1024".into())]),
            ports: vec![HostPort {
                protocol: Protocol::Tcp,
                container_port: 80,
                host_port: 8080,
                host_ip: String::new(),
            }],
            dns: Dns {
                servers: vec!["10.96.0.10".into()],
                searches: vec!["svc".into()],
                options: vec!["ndots:5".into()],
            },
            labels: BTreeMap::from([("app".into(), "web".into())]),
            annotations: BTreeMap::new(),
        },
        created_at: Timestamp::UNIX_EPOCH,
        boot: "b007".into(),
        pod_cgroup: "mainstay/burstable/pod0b4d".into(),
        ready: true,
        addresses: vec!["10.244.0.7".parse().unwrap()],
        shim: Some(ProcessIdentity { pid: 4711, begun: 99 }),
        reaper: Some(4712),
        users: None,
        protocol: 1,
    }
}

fn resources() -> Resources {
    Resources {
        cpu_shares: Some(512),
        cpu_quota: Some(50_000),
        cpu_period: Some(100_000),
        memory_limit: Some(64 << 20),
        pids_limit: None,
        oom_score_adj: Some(900),
        hugepages: BTreeMap::from([("2Mi".into(), 4 << 20)]),
    }
}

fn container() -> ContainerRecord {
    let mount = Mount {
        source: "/var/lib/mainstay/agent/pods/u/volumes/data".into(),
        target: "/data".into(),
        read_only: true,
        recursive_read_only: RecursiveReadOnly::IfPossible,
        propagation: Propagation::HostToContainer,
    };
    ContainerRecord {
        id: ContainerId("c0".into()),
        sandbox: SandboxId("5a0b".into()),
        pod: pod(),
        spec: ContainerSpec {
            name: "web".into(),
            attempt: 2,
            image: "host".into(),
            image_id: "host".into(),
            command: vec!["sh".into(), "-c".into(), "sleep 1000".into()],
            env: vec![("A".into(), "b".into())],
            mounts: vec![mount],
            resources: resources(),
            security: Security { run_as_user: Some(1000), read_only_root: true, ..Security::default() },
            log_path: "/var/lib/mainstay/logs/default_web-0/web/2.log".into(),
            ..ContainerSpec::default()
        },
        created_at: Timestamp::UNIX_EPOCH,
        stop_signal: 15,
    }
}

fn launch() -> LaunchSpec {
    LaunchSpec {
        log_path: "/var/lib/mainstay/logs/default_web-0/web/2.log".into(),
        log_limit: LogLimit::default(),
        tty: false,
        stdin: true,
        stdin_once: true,
        cgroup: "mainstay/burstable/pod0b4d/5a0b/c0".into(),
        resources: resources(),
        capabilities: vec!["CAP_CHOWN".into()],
        no_new_privileges: true,
        seccomp: Seccomp::Localhost("/etc/profile.json".into()),
        own_pids: true,
        private: vec!["/data".into()],
        shared: vec![SharedMount { source: "/mnt".into(), stage: "/run/stage".into() }],
        stdio_owner: 1000,
        staging: Some(Staging {
            holder: ProcessIdentity { pid: 4712, begun: 100 },
            directory: "/run/mainstay/staging".into(),
            mounts: vec![StagedMount { source: "/layer".into(), name: "rootfs".into(), idmapped: true }],
        }),
    }
}

fn run(phase: Phase) -> RunRecord {
    let process = Some(ProcessIdentity { pid: 4713, begun: 101 });
    RunRecord { container: ContainerId("c0".into()), version: 3, process, phase, log_lost: 7 }
}

fn exited() -> Phase {
    Phase::Exited(ExitRecord {
        started_at: Some(Timestamp::UNIX_EPOCH),
        finished_at: Timestamp::UNIX_EPOCH,
        exit_code: 137,
        signal: Some(9),
        oom: true,
        message: "killed".into(),
    })
}

/// What is written today is the fixture, and the fixture is read as what was written.
fn assert_format_held<T: Record + std::fmt::Debug>(name: &str, record: &T) {
    let written = T::FORMAT.encode(record).unwrap();
    let fixture = format_fixture(env!("CARGO_MANIFEST_DIR"), &format!("format-1/{name}.json"), &written);
    let read: T = T::FORMAT.decode(&fixture).unwrap();
    assert_eq!(format!("{read:?}"), format!("{record:?}"));
}

#[test]
fn records_of_format_1_are_read() {
    assert_format_held("sandbox", &sandbox());
    assert_format_held("container", &container());
    assert_format_held("launch", &launch());
    assert_format_held("run", &run(exited()));
}

#[test]
fn messages_of_protocol_1_are_understood() {
    let id = || ContainerId("c0".into());
    let streams = Streams { stdin: true, stdout: true, stderr: false };
    let requests = [
        Request::Watch,
        Request::Start { container: id() },
        Request::Kill { container: id(), signal: 15, all: true },
        Request::Exec { container: id(), command: vec!["true".into()], tty: true, streams, timeout_ms: Some(500) },
        Request::Attach { container: id(), streams },
        Request::Resize { width: 80, height: 24 },
        Request::Reopen { container: id() },
        Request::Forget { container: id() },
        Request::Shutdown,
    ];
    let responses = [
        Response::Done,
        Response::Runs(vec![run(Phase::Starting), run(exited())]),
        Response::Started(run(Phase::Running { started_at: Timestamp::UNIX_EPOCH })),
        Response::Begun,
        Response::Ended { exit_code: 1, timed_out: true },
        Response::Failed { why: FailureKind::NotFound, text: "no such container".into() },
    ];
    assert_eq!(lines("requests", &requests), requests);
    assert_eq!(lines("responses", &responses), responses);
    let reports = [
        StartupReport::Ready { reaper: Some(4712), users: None, protocol: 1 },
        StartupReport::Failed("make the pod's namespaces".into()),
    ];
    assert_eq!(format!("{:?}", lines("startup", &reports)), format!("{reports:?}"));
}

fn lines<T: serde::Serialize + serde::de::DeserializeOwned>(name: &str, messages: &[T]) -> Vec<T> {
    let written: Vec<u8> =
        messages.iter().flat_map(|m| [serde_json::to_vec(m).unwrap(), b"\n".to_vec()].concat()).collect();
    let fixture = format_fixture(env!("CARGO_MANIFEST_DIR"), &format!("protocol-1/{name}.jsonl"), &written);
    let lines = fixture.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
}
