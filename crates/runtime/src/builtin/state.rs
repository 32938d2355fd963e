//! The sandboxes and containers of this runtime, in memory: read from disk when it is opened, updated by reports of the shims.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{broadcast, watch};

use super::{
    cgroup::Cgroup,
    record::{ContainerRecord, RunRecord, SandboxRecord},
    stats::MeasuredContainer,
};
use crate::{
    error::RuntimeError,
    observed::{ContainerId, ContainerStats, ContainerStatus, Observed, PodUid, SandboxId, SandboxStatus},
    port::Result,
};

/// Wake-ups are worth nothing once missed: who lags looks at everything anyway.
const WAKEUPS: usize = 1024;

pub struct RuntimeState {
    sandboxes: Mutex<BTreeMap<SandboxId, Sandbox>>,
    wake: broadcast::Sender<PodUid>,
}

pub struct Sandbox {
    pub record: SandboxRecord,
    /// Its shim answers.
    pub alive: bool,
    pub containers: BTreeMap<ContainerId, ContainerEntry>,
    /// Held by whoever changes what is in it.
    pub lock: Arc<tokio::sync::Mutex<()>>,
    pub changed: watch::Sender<()>,
}

pub struct ContainerEntry {
    pub record: ContainerRecord,
    pub run: Option<RunRecord>,
}

impl Sandbox {
    pub fn new(record: SandboxRecord) -> Self {
        Self {
            record,
            alive: false,
            containers: BTreeMap::new(),
            lock: Arc::default(),
            changed: watch::Sender::new(()),
        }
    }

    pub fn is_ready(&self) -> bool {
        self.alive && self.record.ready
    }
}

impl Default for RuntimeState {
    fn default() -> Self {
        Self { sandboxes: Mutex::default(), wake: broadcast::Sender::new(WAKEUPS) }
    }
}

impl RuntimeState {
    pub fn wakeups(&self) -> broadcast::Receiver<PodUid> {
        self.wake.subscribe()
    }

    pub fn insert(&self, sandbox: Sandbox) {
        self.sandboxes.lock().insert(sandbox.record.id.clone(), sandbox);
    }

    pub fn remove(&self, id: &SandboxId) {
        let removed = self.sandboxes.lock().remove(id);
        if let Some(sandbox) = removed {
            self.wake_watchers(&sandbox);
        }
    }

    pub fn ids(&self) -> Vec<SandboxId> {
        self.sandboxes.lock().keys().cloned().collect()
    }

    /// Reads a sandbox.
    pub fn read_sandbox<T>(&self, id: &SandboxId, read: impl FnOnce(&Sandbox) -> T) -> Result<T> {
        let sandboxes = self.sandboxes.lock();
        let sandbox = sandboxes.get(id).ok_or_else(|| RuntimeError::NotFound { what: "sandbox", id: id.0.clone() })?;
        Ok(read(sandbox))
    }

    /// Changes a sandbox, and wakes whoever waits for it.
    pub fn change_sandbox<T>(&self, id: &SandboxId, change: impl FnOnce(&mut Sandbox) -> T) -> Result<T> {
        let mut sandboxes = self.sandboxes.lock();
        let sandbox =
            sandboxes.get_mut(id).ok_or_else(|| RuntimeError::NotFound { what: "sandbox", id: id.0.clone() })?;
        let result = change(sandbox);
        self.wake_watchers(sandbox);
        Ok(result)
    }

    fn wake_watchers(&self, sandbox: &Sandbox) {
        sandbox.changed.send_replace(());
        let _ = self.wake.send(sandbox.record.spec.pod.uid.clone());
    }

    /// Takes in a report of a shim; versions older than the known ones are ignored.
    pub fn apply_runs(&self, id: &SandboxId, runs: Vec<RunRecord>) {
        let _ = self.change_sandbox(id, |sandbox| {
            for run in runs {
                if let Some(known) = sandbox.containers.get_mut(&run.container)
                    && known.run.as_ref().is_none_or(|have| have.version < run.version)
                {
                    known.run = Some(run);
                }
            }
        });
    }

    pub fn sandbox_of(&self, id: &ContainerId) -> Result<SandboxId> {
        let sandboxes = self.sandboxes.lock();
        let found = sandboxes.iter().find(|(_, sandbox)| sandbox.containers.contains_key(id));
        found.map(|(id, _)| id.clone()).ok_or_else(|| RuntimeError::NotFound { what: "container", id: id.0.clone() })
    }

    /// Reads a container, in its sandbox.
    pub fn read_container<T>(&self, id: &ContainerId, read: impl FnOnce(&Sandbox, &ContainerEntry) -> T) -> Result<T> {
        let sandboxes = self.sandboxes.lock();
        let found = sandboxes.values().find_map(|sandbox| Some((sandbox, sandbox.containers.get(id)?)));
        let (sandbox, known) = found.ok_or_else(|| RuntimeError::NotFound { what: "container", id: id.0.clone() })?;
        Ok(read(sandbox, known))
    }

    /// The sandbox made for this attempt of this pod.
    pub fn find_sandbox(&self, pod: &PodUid, attempt: u32) -> Option<SandboxId> {
        let sandboxes = self.sandboxes.lock();
        let made =
            sandboxes.values().find(|made| made.record.spec.pod.uid == *pod && made.record.spec.attempt == attempt);
        made.map(|sandbox| sandbox.record.id.clone())
    }

    /// Where to measure what runs, or ran and was not removed.
    pub fn measurable(&self) -> Vec<MeasuredContainer> {
        let sandboxes = self.sandboxes.lock();
        let of = |sandbox: &Sandbox| {
            let group = sandbox.record.cgroup();
            let started = sandbox.containers.values().filter(|known| known.is_running() || known.has_ended());
            started.map(|known| known.measured(&group)).collect::<Vec<_>>()
        };
        sandboxes.values().flat_map(of).collect()
    }

    pub fn observe(&self, pod: Option<&PodUid>) -> Observed {
        let mut observed = Observed::default();
        for sandbox in self.sandboxes.lock().values() {
            let record = &sandbox.record;
            if pod.is_some_and(|pod| *pod != record.spec.pod.uid) {
                continue;
            }
            observed.sandboxes.push(SandboxStatus {
                id: record.id.clone(),
                pod: record.spec.pod.clone(),
                attempt: record.spec.attempt,
                ready: sandbox.is_ready(),
                created_at: record.created_at,
                host_network: record.spec.host_network,
                addresses: record.addresses.clone(),
                annotations: record.spec.annotations.clone(),
            });
            observed.containers.extend(sandbox.containers.values().map(ContainerEntry::status));
        }
        observed
    }
}

impl ContainerEntry {
    fn status(&self) -> ContainerStatus {
        let record = &self.record;
        ContainerStatus {
            id: record.id.clone(),
            sandbox: record.sandbox.clone(),
            pod: record.pod.clone(),
            name: record.spec.name.clone(),
            attempt: record.spec.attempt,
            image: record.spec.image.clone(),
            image_id: record.spec.image_id.clone(),
            created_at: record.created_at,
            state: RunRecord::state(self.run.as_ref()),
            annotations: record.spec.annotations.clone(),
            log_path: record.spec.log_path.clone(),
            pid: self.run.as_ref().and_then(|run| run.process).map(|process| process.pid as u32),
        }
    }

    fn measured(&self, group: &Path) -> MeasuredContainer {
        let record = &self.record;
        MeasuredContainer {
            id: record.id.clone(),
            group: Cgroup::new(group.join(&record.id.0)),
            stats: ContainerStats {
                pod: Some(record.pod.clone()),
                name: record.spec.name.clone(),
                ended: self.has_ended(),
                ..Default::default()
            },
            log: record.spec.log_path.clone(),
        }
    }

    pub fn is_running(&self) -> bool {
        RunRecord::state(self.run.as_ref()).is_running()
    }

    fn has_ended(&self) -> bool {
        self.run.as_ref().is_some_and(RunRecord::has_ended)
    }
}
