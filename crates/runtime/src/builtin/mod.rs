//! The built-in runtime: containers from nothing but the kernel.
//!
//! One [`shim`] process per pod holds its namespaces, is the parent of its containers and writes down what becomes of
//! them; it outlives the agent. This side makes records and asks shims. What it knows is in memory ([`state`]), read
//! from disk at the start and kept true by the shims, so that looking costs nothing.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use caps::CapsHashSet;
use mainstay_errors::with_path;
use mainstay_files::{Format, create_private_dir, mountinfo};
use parking_lot::Mutex;
use tokio::sync::broadcast;

pub mod apparmor;
mod capabilities;
mod containers;
#[cfg(test)]
mod format_fixtures;
mod mount_checks;
mod oci;
pub mod paths;
mod record;
mod rootfs_files;
mod sandboxes;
mod seccomp;
mod sessions;
pub mod shim;
mod shim_client;
mod signals;
mod staging;
mod state;
mod stats;
mod sys;
mod users;
mod wire;

use crate::{
    cgroup::{self, Cgroup},
    error::RuntimeError,
    images::{ImageStore, Images},
    observed::{ContainerId, ContainerStats, Observed, PodUid, SandboxId},
    port::{FenceSupport, PodNetwork, Result, Runtime, RuntimeVersion},
    session::{Attach, Exec, ExecOutput, Session, Tunnel},
    spec::{ContainerSpec, Resources, SandboxSpec},
};
use paths::{ContainerDir, Paths, SandboxDir};
pub(crate) use record::boot_id;
use record::{ContainerRecord, LaunchSpec, Record, RunRecord, SandboxRecord};
use state::RuntimeState;
use wire::Request;

/// As in a container's id, and as RuntimeClasses name it.
pub const NAME: &str = "mainstay";

/// Formats of everything that the runtime keeps on disk.
pub const FORMATS: [Format; 6] = [
    SandboxRecord::FORMAT,
    ContainerRecord::FORMAT,
    LaunchSpec::FORMAT,
    RunRecord::FORMAT,
    wire::PROTOCOL,
    crate::images::FORMAT,
];

/// Fails if there is a record below the runtime's directory that this program is too old for. Changes nothing.
pub fn check_formats(directory: &Path) -> io::Result<()> {
    for sandbox in list(&directory.join("sandboxes"))?.map(SandboxDir) {
        SandboxRecord::FORMAT.check_file(&sandbox.record())?;
        if let Ok(record) = record::read::<SandboxRecord>(&sandbox.record()) {
            let newer = wire::PROTOCOL.check_number(record.protocol, None);
            newer.map_err(|newer| with_path("read", &sandbox.record(), &io::Error::other(newer)))?;
        }
        for container in list(&sandbox.containers())?.map(ContainerDir) {
            ContainerRecord::FORMAT.check_file(&container.record())?;
            LaunchSpec::FORMAT.check_file(&container.launch())?;
            RunRecord::FORMAT.check_file(&container.run())?;
        }
    }
    Ok(())
}

fn list(directory: &Path) -> io::Result<impl Iterator<Item = PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        entries => Some(entries?),
    };
    Ok(entries.into_iter().flatten().flatten().map(|entry| entry.path()))
}

pub struct BuiltinSettings {
    /// What outlives a restart of the machine: `<data>/runtime`.
    pub directory: PathBuf,
    /// What does not: `/run/<instance>`.
    pub run_dir: PathBuf,
    /// The cgroup above all pods.
    pub cgroup_parent: String,
    /// The program, and its first arguments, that calls [`shim::main`] with those that follow.
    pub shim: Vec<OsString>,
    pub network: Arc<dyn PodNetwork>,
    pub images: Arc<ImageStore>,
}

#[derive(Clone)]
pub struct Builtin(Arc<Inner>);

struct Inner {
    paths: Paths,
    cgroup_parent: String,
    shim: Vec<OsString>,
    /// The shim is this very program.
    shim_is_own_program: bool,
    network: Arc<dyn PodNetwork>,
    images: Arc<ImageStore>,
    boot: String,
    capabilities: CapsHashSet,
    state: RuntimeState,
    pod_locks: PodLocks,
}

/// A lock for each pod.
#[derive(Default)]
struct PodLocks(Mutex<HashMap<PodUid, Arc<tokio::sync::Mutex<()>>>>);

impl PodLocks {
    async fn lock(&self, key: &PodUid) -> tokio::sync::OwnedMutexGuard<()> {
        let lock = {
            let mut all = self.0.lock();
            all.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(all.entry(key.clone()).or_default())
        };
        lock.lock_owned().await
    }
}

impl Builtin {
    /// Finds everything that an earlier one made.
    pub async fn open(settings: BuiltinSettings) -> Result<Self> {
        let missing = cgroup::what_is_missing();
        if !missing.is_empty() {
            return Err(RuntimeError::failed("find the machine's cgroups", missing.join("; ")));
        }
        let failed = |error: std::io::Error| RuntimeError::failed("open the runtime's directory", error);
        let paths = Paths { directory: settings.directory, run_dir: settings.run_dir };
        for dir in [paths.sandboxes(), paths.run_dir.clone(), paths.sockets(), paths.all_shm()] {
            create_private_dir(&dir).map_err(failed)?;
        }
        let inner = Arc::new(Inner {
            paths,
            cgroup_parent: settings.cgroup_parent,
            shim_is_own_program: std::env::current_exe().is_ok_and(|own| settings.shim.first() == Some(&own.into())),
            shim: settings.shim,
            network: settings.network,
            images: settings.images,
            boot: record::boot_id(),
            capabilities: capabilities::available(),
            state: RuntimeState::default(),
            pod_locks: PodLocks::default(),
        });
        inner.restore_all().await?;
        Cgroup::new(inner.cgroup_parent.clone()).remove_leftover_memory();
        inner.network.retain(&inner.state.ids().into_iter().collect()).await?;
        Ok(Self(inner))
    }

    /// Gives back what is left once the last sandbox is removed: for the end of the whole instance.
    pub async fn remove_leftovers(&self) -> Result<()> {
        if !self.0.state.ids().is_empty() {
            return Err(RuntimeError::Invalid { why: "there are still sandboxes".into() });
        }
        let inner = Arc::clone(&self.0);
        let swept = sandboxes::blocking(move || {
            Cgroup::new(inner.cgroup_parent.clone()).remove()?;
            mountinfo::remove_tree(&inner.paths.run_dir)
        });
        swept.await?.map_err(|error| RuntimeError::failed("remove what is left of the runtime", error))
    }
}

#[async_trait]
impl Runtime for Builtin {
    async fn version(&self) -> Result<RuntimeVersion> {
        Ok(RuntimeVersion { name: NAME.into(), version: env!("CARGO_PKG_VERSION").into() })
    }

    async fn observe(&self, pod: Option<&PodUid>) -> Result<Observed> {
        Ok(self.0.state.observe(pod))
    }

    fn wakeups(&self) -> broadcast::Receiver<PodUid> {
        self.0.state.wakeups()
    }

    async fn create_sandbox(&self, spec: &SandboxSpec) -> Result<SandboxId> {
        self.0.create_sandbox(spec).await
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<()> {
        self.0.remove_sandbox(id).await
    }

    async fn create_container(&self, sandbox: &SandboxId, spec: &ContainerSpec) -> Result<ContainerId> {
        self.0.create_container(sandbox, spec).await
    }

    async fn start_container(&self, id: &ContainerId) -> Result<()> {
        self.0.start_container(id).await
    }

    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        self.0.stop_container(id, grace).await
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<()> {
        self.0.remove_container(id).await
    }

    async fn update_container(&self, id: &ContainerId, resources: &Resources) -> Result<()> {
        self.0.update_container(id, resources).await
    }

    async fn update_sandbox(&self, id: &SandboxId, resources: &Resources) -> Result<()> {
        self.0.update_sandbox(id, resources).await
    }

    async fn reopen_log(&self, id: &ContainerId) -> Result<()> {
        let sandbox = self.0.state.sandbox_of(id)?;
        let request = Request::Reopen { container: id.clone() };
        shim_client::call(&self.0.paths.socket(&sandbox), &request, shim_client::RESPONSE_TIMEOUT).await.map(drop)
    }

    async fn exec(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Option<Duration>,
        limit: usize,
    ) -> Result<ExecOutput> {
        self.0.exec(id, command, timeout, limit).await
    }

    async fn open_exec(&self, id: &ContainerId, exec: &Exec) -> Result<Session> {
        self.0.open_exec(id, exec).await
    }

    async fn attach(&self, id: &ContainerId, attach: &Attach) -> Result<Session> {
        self.0.attach(id, attach).await
    }

    async fn connect(&self, sandbox: &SandboxId, port: u16) -> Result<Tunnel> {
        self.0.connect(sandbox, port).await
    }

    async fn stats(&self) -> Result<Vec<ContainerStats>> {
        self.0.stats().await
    }

    async fn fence_sandbox(&self, id: &SandboxId, is_fenced: bool) -> Result<FenceSupport> {
        self.0.fence_sandbox(id, is_fenced).await
    }

    fn images(&self) -> &dyn Images {
        &*self.0.images
    }
}
