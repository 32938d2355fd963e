//! Pods for these tests: a sandbox, and shell scripts as containers.

use std::{collections::BTreeMap, path::PathBuf};

use mainstay_runtime::{
    ContainerId, ContainerSpec, ContainerState, PodUid, Runtime, SandboxId, SandboxSpec,
    builtin::Builtin,
    observed::{ContainerStatus, PodRef},
    spec::{Dns, LogLimit, PidMode, Resources},
    suite,
};
use mainstay_testing::until;

use crate::subject::Subject;

pub fn sandbox(subject: &Subject, name: &str) -> SandboxSpec {
    let uid = uuid::Uuid::new_v4().to_string();
    SandboxSpec {
        cgroup: format!("burstable/pod{uid}"),
        pod: PodRef { namespace: "test".into(), name: name.into(), uid: PodUid(uid) },
        attempt: 0,
        hostname: name.into(),
        log_directory: subject.directory.path().join("logs").join(name),
        host_network: false,
        host_ipc: false,
        pid: PidMode::Container,
        users: None,
        runtime_handler: String::new(),
        selinux: None,
        resources: Resources::default(),
        sysctls: BTreeMap::new(),
        ports: Vec::new(),
        dns: Dns::default(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
    }
}

pub async fn shell(runtime: &Builtin, sandbox: &SandboxSpec, name: &str, script: &str) -> ContainerSpec {
    let image = runtime.images().find(suite::image::PLAIN).await.expect("ask for an image").expect("is there");
    ContainerSpec {
        name: name.into(),
        image: suite::image::PLAIN.into(),
        image_id: image.id,
        command: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        log_path: sandbox.log_directory.join(name).join("0.log"),
        log_limit: LogLimit::default(),
        ..Default::default()
    }
}

pub async fn start(runtime: &Builtin, id: &SandboxId, spec: &ContainerSpec) -> ContainerId {
    let container = runtime.create_container(id, spec).await.expect("create a container");
    runtime.start_container(&container).await.expect("start a container");
    container
}

pub async fn status(runtime: &Builtin, id: &ContainerId) -> Option<ContainerStatus> {
    let observed = runtime.observe(None).await.expect("observe");
    observed.containers.into_iter().find(|container| container.id == *id)
}

/// How it ended, once it has.
pub async fn ended(runtime: &Builtin, id: &ContainerId) -> (i32, bool, String) {
    let what = format!("{id} ends");
    let asked = async || Some(status(runtime, id).await?.state).filter(ContainerState::has_ended);
    let state = until(&what, asked).await;
    let ContainerState::Exited { exit_code, oom, message, .. } = state else { unreachable!() };
    (exit_code, oom, message)
}

pub async fn says(path: &PathBuf, what: &str) -> String {
    let text = async || std::fs::read_to_string(path).ok().filter(|text| text.contains(what));
    let wanted = format!("{} says {what:?}", path.display());
    until(&wanted, text).await
}
