//! With real mounts in a temporary directory, which only root can make.

mod cinder;
mod content;
mod places;
mod release;

use std::{fs, os::unix::fs::MetadataExt, path::PathBuf, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use mainstay_runtime::PodUid;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Volumes, table};
use crate::{
    objects::{Objects, fake::FakeApi},
    settings::{Eviction, Reserved, Settings},
    wake::Wake,
};

pub(crate) const MAPS: &str = "/api/v1/namespaces/ns/configmaps";
pub(crate) const SECRETS: &str = "/api/v1/namespaces/ns/secrets";

pub(crate) fn settings(directory: PathBuf) -> Settings {
    Settings {
        node_name: "here".to_owned(),
        addresses: vec!["192.0.2.1".parse().unwrap()],
        port: 10250,
        log_directory: directory.join("logs"),
        store_directory: None,
        runtime_directory: directory.join("runtime"),
        directory,
        instance: "mainstay-test".to_owned(),
        static_pods: None,
        labels: Vec::new(),
        taints: Vec::new(),
        max_pods: 110,
        reserved: Reserved { cpu_millis: 0, memory: 0, ephemeral_storage: 0 },
        eviction: Eviction::default(),
        offering: Default::default(),
        cluster_dns: vec!["10.96.0.10".parse().unwrap()],
        cluster_domain: "cluster.local".to_owned(),
        network: crate::settings::Network::Bridge,
        drain_timeout: std::time::Duration::ZERO,
        termination_grace: std::time::Duration::from_secs(30),
        restart_backoff: Default::default(),
        timing: Default::default(),
        route_check: Default::default(),
        disks_by_id: "/dev/disk/by-id".into(),
        slow_start_limit: std::time::Duration::from_secs(120),
        status_interval: std::time::Duration::from_secs(300),
        machine: Default::default(),
        machine_files: vec![],
    }
}

/// An agent's volumes on a directory of their own, unmounted and removed in the end.
pub(crate) struct Bench {
    pub(crate) api: FakeApi,
    pub(crate) wake: Wake,
    pub(crate) objects: Arc<Objects>,
    pub(crate) volumes: Arc<Volumes>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) directory: TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let (api, wake) = (FakeApi::default(), Wake::default());
        let objects = Arc::new(Objects::new(api.client(), wake.clone()));
        let directory = tempfile::tempdir().unwrap();
        let settings = Arc::new(settings(directory.path().join("agent")));
        let volumes = Arc::new(Volumes::new(&settings, objects.clone()));
        Self { api, wake, objects, volumes, settings, directory }
    }

    /// The same directory after a restart of the agent.
    pub(crate) fn restarted(&self) -> Volumes {
        Volumes::new(&self.settings, Arc::new(Objects::new(self.api.client(), self.wake.clone())))
    }

    fn volume(&self, name: &str) -> PathBuf {
        self.volumes.layout().volume(&uid(), name)
    }

    fn read(&self, volume: &str, file: &str) -> String {
        fs::read_to_string(self.volume(volume).join(file)).unwrap()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let directory = self.directory.path().canonicalize().unwrap();
        if let Err(stuck) = table::unmount_below(&directory) {
            eprintln!("{stuck:?}");
            _ = nix::mount::umount2(&stuck.path, nix::mount::MntFlags::MNT_DETACH);
        }
    }
}

fn uid() -> PodUid {
    PodUid("1234".to_owned())
}

fn pod(volumes: Value) -> Pod {
    with_spec(json!({"containers": [{"name": "main"}], "volumes": volumes}))
}

fn with_spec(spec: Value) -> Pod {
    let metadata = json!({"name": "web", "namespace": "ns", "uid": "1234", "labels": {"app": "web", "b": "a\"\n"}});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
}

fn mode(path: impl AsRef<std::path::Path>) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}
