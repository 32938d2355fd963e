//! Specs for tests that are not part of the suite.

use std::{collections::BTreeMap, path::Path};

use mainstay_runtime::{
    ContainerSpec, PodUid, SandboxSpec,
    observed::PodRef,
    spec::{Dns, Mount, PidMode, Resources},
    suite::{Subject, image},
};

use crate::containerd::Containerd;

pub fn sandbox(d: &Containerd, name: &str) -> SandboxSpec {
    let uid = format!("{name}-{}", uuid::Uuid::new_v4());
    SandboxSpec {
        pod: PodRef { namespace: "test".to_owned(), name: name.to_owned(), uid: PodUid(uid.clone()) },
        attempt: 0,
        hostname: name.to_owned(),
        log_directory: d.scratch().join("logs").join(&uid),
        host_network: false,
        host_ipc: false,
        pid: PidMode::Container,
        users: None,
        runtime_handler: String::new(),
        selinux: None,
        cgroup: format!("burstable/pod{uid}"),
        resources: Resources::default(),
        sysctls: BTreeMap::new(),
        ports: Vec::new(),
        dns: Dns::default(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
    }
}

pub fn shell(d: &Containerd, pod: &SandboxSpec, name: &str, script: &str) -> ContainerSpec {
    std::fs::create_dir_all(d.scratch()).expect("make a directory");
    ContainerSpec {
        name: name.to_owned(),
        image: image::PLAIN.to_owned(),
        command: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        log_path: pod.log_directory.join(name).join("0.log"),
        ..ContainerSpec::default()
    }
}

pub fn bind(source: &Path, target: &str) -> Mount {
    Mount {
        source: source.to_owned(),
        target: target.into(),
        read_only: true,
        recursive_read_only: Default::default(),
        propagation: Default::default(),
    }
}
