//! Creates, restores and removes pod sandboxes of the built-in runtime.
//!
//! A sandbox is its directory. It is made not ready, and only made ready when everything is there; its shim ends before
//! anything is taken away, and its record is the last that goes. So whatever interrupts, what is found is
//! either whole or good for removal, and removal can be repeated from any point.
//!
//! Removal writes nothing: on a full disk it is what makes room. That it has begun need not be recorded, because a
//! sandbox without its shim is not ready, whatever its record says.

use std::{ffi::OsStr, fs, io, path::Path, process::Stdio, sync::Arc, time::Duration};

use jiff::Timestamp;
use mainstay_errors::with_path;
use mainstay_files::{create_private_dir, is_newer, mountinfo};
use nix::{
    mount::{MsFlags, mount},
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
    signal::unix::{SignalKind, signal},
    time::timeout,
};

use super::{
    Inner,
    cgroup::Cgroup,
    paths::fence_file,
    record::{self, ContainerRecord, ProcessIdentity, RunRecord, SandboxRecord},
    shim::StartupReport,
    shim_client::{self, ShimClient},
    state::{ContainerEntry, Sandbox},
    wire::{PROTOCOL, Request, Response},
};
use crate::{
    error::RuntimeError,
    images::VOLUME_PREFIX,
    observed::{ContainerId, SandboxId},
    port::{FenceSupport, Result},
    spec::SandboxSpec,
};

/// For a shim to make the pod's namespaces. Long, because a machine can be very busy.
const SHIM_START_TIMEOUT: Duration = Duration::from_secs(30);
/// For all that is left in a sandbox to end once killed.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Between attempts to reach a shim that does not answer.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);
/// The pod's shared memory, as others have it.
const SHM: &str = "mode=1777,size=65536k";

impl Inner {
    pub async fn create_sandbox(self: &Arc<Self>, spec: &SandboxSpec) -> Result<SandboxId> {
        if !matches!(spec.runtime_handler.as_str(), "" | super::NAME) {
            return Err(RuntimeError::Invalid {
                why: format!("no runtime for {:?} is configured", spec.runtime_handler),
            });
        }
        // Two calls for one pod make one sandbox.
        let _making = self.pod_locks.lock(&spec.pod.uid).await;
        if let Some(id) = self.state.find_sandbox(&spec.pod.uid, spec.attempt) {
            if self.state.read_sandbox(&id, Sandbox::is_ready)? {
                return Ok(id);
            }
            self.remove_sandbox(&id).await?;
        }
        let id = SandboxId(uuid::Uuid::new_v4().simple().to_string());
        match self.set_up_sandbox(&id, spec).await {
            Ok(()) => Ok(id),
            Err(error) => {
                if let Err(left) = self.remove_sandbox(&id).await {
                    tracing::warn!(sandbox = %id, error = %left, "cannot remove a sandbox that failed to start");
                }
                Err(error)
            }
        }
    }

    async fn set_up_sandbox(self: &Arc<Self>, id: &SandboxId, spec: &SandboxSpec) -> Result<()> {
        let mut record = SandboxRecord {
            id: id.clone(),
            spec: spec.clone(),
            created_at: Timestamp::now(),
            boot: self.boot.clone(),
            pod_cgroup: Path::new(&self.cgroup_parent).join(spec.cgroup.trim_start_matches('/')),
            ready: false,
            addresses: Vec::new(),
            shim: None,
            reaper: None,
            users: None,
            protocol: PROTOCOL.number,
        };
        self.state.insert(Sandbox::new(record.clone()));
        let made = record.clone();
        let inner = Arc::clone(self);
        blocking(move || inner.make_directories(&made))
            .await?
            .map_err(|error| RuntimeError::failed("make a sandbox", error))?;
        let shim = self.spawn_shim(id).await?;
        (record.shim, record.reaper, record.users) = (shim.process, shim.reaper, shim.users);
        record.protocol = shim.protocol;
        self.save(&record)?;
        let shim = record.shim.ok_or_else(|| RuntimeError::failed("start the pod's shim", "it ended at once"))?;
        self.watch(id).await?;
        if !spec.host_network {
            let netns = format!("/proc/{}/ns/net", shim.pid);
            record.addresses = self.network.attach(id, Path::new(&netns), spec).await?;
        }
        record.ready = true;
        self.save(&record)
    }

    fn make_directories(&self, record: &SandboxRecord) -> io::Result<()> {
        let dir = self.paths.sandbox(&record.id);
        create_private_dir(&dir.containers()).map_err(|error| with_path("make", &dir.containers(), &error))?;
        record::write(&dir.record(), record).map_err(|error| with_path("write", &dir.record(), &error))?;
        let pod = Cgroup::new(record.pod_cgroup.clone());
        pod.create()?;
        pod.limit(&record.spec.resources)?;
        if !record.spec.host_ipc {
            let shm = self.paths.shm(&record.id);
            create_private_dir(&shm).map_err(|error| with_path("make", &shm, &error))?;
            mount(
                Some("shm"),
                &shm,
                Some("tmpfs"),
                MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC,
                Some(SHM),
            )
            .map_err(|error| with_path("mount a tmpfs at", &shm, &error.into()))?;
        }
        Ok(())
    }

    fn save(&self, record: &SandboxRecord) -> Result<()> {
        record::write(&self.paths.sandbox(&record.id).record(), record)
            .map_err(|error| RuntimeError::failed("record a sandbox", error))?;
        self.state.change_sandbox(&record.id, |sandbox| sandbox.record = record.clone())
    }

    async fn spawn_shim(&self, id: &SandboxId) -> Result<StartedShim> {
        let failed = |error: io::Error| RuntimeError::failed("start the pod's shim", error);
        let (program, arguments) =
            self.shim.split_first().ok_or_else(|| failed(io::Error::other("no shim was named")))?;
        // The file may have been replaced by an upgrade: a shim of the agent's own version is wanted all the same.
        let mut child = Command::new(if self.shim_is_own_program { OsStr::new("/proc/self/exe") } else { program })
            .arg0(program)
            .args(arguments)
            .arg(&self.paths.sandbox(id).0)
            .arg(self.paths.socket(id))
            .env_clear()
            // Huge pages would make a process of a few hundred KiB one of several MiB.
            .env("MIMALLOC_ALLOW_THP", "0")
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let process = child.id().and_then(|pid| ProcessIdentity::read(pid as i32));
        let stdout = child.stdout.take().ok_or_else(|| failed(io::Error::other("it has no output")))?;
        // As long as we live it is our child, and ours to bury.
        tokio::spawn(async move { child.wait().await });
        let mut line = String::new();
        let read = timeout(SHIM_START_TIMEOUT, BufReader::new(stdout).read_line(&mut line)).await;
        let startup = match read {
            Ok(read) => {
                read.map_err(failed)?;
                serde_json::from_str(&line).unwrap_or_else(|_| StartupReport::Failed("it ended without a word".into()))
            }
            Err(_) => {
                if let Some(process) = process.filter(|process| process.is_alive()) {
                    let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
                }
                return Err(RuntimeError::Timeout { doing: "start the pod's shim".into(), after: SHIM_START_TIMEOUT });
            }
        };
        match startup {
            StartupReport::Ready { reaper, users, protocol } => {
                PROTOCOL
                    .check_number(protocol, None)
                    .map_err(|newer| RuntimeError::failed("start the pod's shim", newer))?;
                Ok(StartedShim { process, reaper, users: users.and_then(ProcessIdentity::read), protocol })
            }
            StartupReport::Failed(why) => Err(RuntimeError::failed("start the pod's shim", why)),
        }
    }

    /// Connects to the shim; from then on its sandbox is as it says.
    pub async fn watch(self: &Arc<Self>, id: &SandboxId) -> Result<()> {
        let unreachable = |error: io::Error| RuntimeError::failed("reach the pod's shim", error);
        let mut client = ShimClient::connect(&self.paths.socket(id)).await.map_err(unreachable)?;
        let (first, _) = client.call(&Request::Watch, &[], shim_client::RESPONSE_TIMEOUT).await?;
        self.state.change_sandbox(id, |sandbox| sandbox.alive = true)?;
        if let Response::Runs(runs) = first {
            self.state.apply_runs(id, runs);
        }
        let (inner, id) = (Arc::downgrade(self), id.clone());
        tokio::spawn(async move {
            while let Ok(Some((answer, _))) = client.receive().await {
                let Some(inner) = inner.upgrade() else { return };
                if let Response::Runs(runs) = answer {
                    inner.state.apply_runs(&id, runs);
                }
            }
            if let Some(inner) = inner.upgrade() {
                inner.handle_lost_shim(&id).await;
            }
        });
        Ok(())
    }

    /// Without its shim a sandbox is not ready, and nothing in it may go on unwatched.
    async fn handle_lost_shim(self: &Arc<Self>, id: &SandboxId) {
        let Ok(record) = self.state.change_sandbox(id, |sandbox| {
            sandbox.alive = false;
            sandbox.record.clone()
        }) else {
            return; // removed: as it should be
        };
        if let Some(shim) = record.shim.filter(|shim| shim.is_alive()) {
            let _ = kill(Pid::from_raw(shim.pid), Signal::SIGKILL);
        }
        let group = Cgroup::new(record.cgroup());
        let _ = blocking(move || group.kill_all(KILL_TIMEOUT)).await;
        let rebooted = record.boot != self.boot;
        let lost = self.state.change_sandbox(id, |sandbox| {
            let now = Timestamp::now();
            let unfinished =
                sandbox.containers.values_mut().filter(|known| known.run.as_ref().is_some_and(|run| !run.has_ended()));
            let lost = unfinished.filter_map(|known| {
                // It may have written down how it ended before it could say so.
                let path = self.paths.sandbox(id).container(&known.record.id).run();
                let written = record::read::<RunRecord>(&path).ok().or(known.run.take())?;
                known.run = Some(written.lost(rebooted, now));
                known.run.clone()
            });
            lost.collect::<Vec<_>>()
        });
        for run in lost.unwrap_or_default() {
            let _ = record::write(&self.paths.sandbox(id).container(&run.container).run(), &run);
        }
    }

    pub async fn fence_sandbox(&self, id: &SandboxId, is_fenced: bool) -> Result<FenceSupport> {
        let unreachable = |error: io::Error| RuntimeError::failed("fence the pod", error);
        let file = is_fenced.then(|| fence_file(&self.paths.run_dir));
        let fenced = async {
            let mut client = ShimClient::connect(&self.paths.socket(id)).await.map_err(unreachable)?;
            client.send(&Request::Fence { file }, &[]).await.map_err(unreachable)?;
            client.receive().await.map_err(unreachable)
        };
        let after = shim_client::RESPONSE_TIMEOUT;
        match timeout(after, fenced).await {
            Err(_) => Err(RuntimeError::Timeout { doing: "fence the pod".into(), after }),
            Ok(answer) => match answer? {
                Some((Response::Done, _)) => Ok(FenceSupport::Obeyed),
                Some((Response::Failed { text, .. }, _)) => Err(RuntimeError::failed("fence the pod", text)),
                Some(_) | None => Ok(FenceSupport::None),
            },
        }
    }

    pub async fn remove_sandbox(self: &Arc<Self>, id: &SandboxId) -> Result<()> {
        let Ok((mut record, lock)) =
            self.state.read_sandbox(id, |sandbox| (sandbox.record.clone(), Arc::clone(&sandbox.lock)))
        else {
            return Ok(());
        };
        let _changing = lock.lock().await;
        record.ready = false;
        self.state.change_sandbox(id, |sandbox| sandbox.record.ready = false)?;
        let _ = shim_client::call(&self.paths.socket(id), &Request::Shutdown, shim_client::RESPONSE_TIMEOUT).await;
        let group = Cgroup::new(record.cgroup());
        let shim = record.shim.filter(|shim| record.boot == self.boot && shim.is_alive());
        let ended = blocking(move || {
            if let Some(shim) = shim {
                let _ = kill(Pid::from_raw(shim.pid), Signal::SIGKILL);
            }
            group.kill_all(KILL_TIMEOUT)
        });
        if !ended.await? {
            return Err(RuntimeError::Timeout {
                doing: format!("kill what is left in sandbox {id}"),
                after: KILL_TIMEOUT,
            });
        }
        self.network.detach(id).await?;
        for container in
            self.state.read_sandbox(id, |sandbox| sandbox.containers.keys().cloned().collect::<Vec<_>>())?
        {
            self.release_rootfs(container).await?;
        }
        let inner = Arc::clone(self);
        let swept = blocking(move || inner.remove_traces(&record)).await?;
        swept.map_err(|error| RuntimeError::failed(format!("remove sandbox {id}"), error))?;
        self.state.remove(id);
        Ok(())
    }

    /// Everything that is on disk or in the kernel, the record last.
    fn remove_traces(&self, record: &SandboxRecord) -> io::Result<()> {
        let dir = self.paths.sandbox(&record.id);
        mountinfo::unmount_and_remove(&self.paths.shm(&record.id))?;
        Cgroup::new(record.cgroup()).retire()?;
        Cgroup::new(record.pod_cgroup.clone()).retire_if_empty();
        let _ = fs::remove_file(self.paths.socket(&record.id));
        mountinfo::remove_tree(&dir.containers())?;
        mountinfo::remove_tree(&dir.0)
    }

    /// Reads what is on disk, and connects to the shims that still live.
    pub async fn restore_all(self: &Arc<Self>) -> Result<()> {
        let failed = |error: io::Error| RuntimeError::failed("read the runtime's directory", error);
        let found = self.read_all().map_err(failed)?;
        self.release_orphaned_rootfs(&found);
        for sandbox in found {
            let (id, shim) = (sandbox.record.id.clone(), sandbox.record.shim);
            let same_boot = sandbox.record.boot == self.boot;
            self.state.insert(sandbox);
            if let Some(shim) = shim.filter(|shim| same_boot && shim.is_own_child()) {
                tokio::spawn(reap_inherited(shim));
            }
            if same_boot && self.watch(&id).await.is_ok() {
                continue;
            }
            match shim.filter(|shim| same_boot && shim.is_alive()) {
                Some(shim) => self.reconnect_later(id, shim),
                None => self.handle_lost_shim(&id).await,
            }
        }
        Ok(())
    }

    /// A shim that lives and does not answer may be slow, on a machine that is busy. Its pod is not ready until it does,
    /// but its containers are not killed for that.
    fn reconnect_later(self: &Arc<Self>, id: SandboxId, shim: ProcessIdentity) {
        let inner = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(RECONNECT_INTERVAL).await;
                let Some(inner) = inner.upgrade() else { return };
                if inner.state.read_sandbox(&id, |_| ()).is_err() || inner.watch(&id).await.is_ok() {
                    return;
                }
                if !shim.is_alive() {
                    return inner.handle_lost_shim(&id).await;
                }
            }
        });
    }

    /// An agent that ended between mounting a container's root and writing the container down left a mount that nothing names.
    fn release_orphaned_rootfs(&self, found: &[Sandbox]) {
        let is_volume = |id: &String| id.starts_with(VOLUME_PREFIX);
        let known = |id: &String| {
            is_volume(id) || found.iter().any(|sandbox| sandbox.containers.contains_key(&ContainerId(id.clone())))
        };
        for id in self.images.prepared().unwrap_or_default().into_iter().filter(|id| !known(id)) {
            if let Err(error) = self.images.release_rootfs(&id) {
                tracing::warn!(id, %error, "cannot release the root filesystem of a container that has no record");
            }
        }
    }

    fn read_all(&self) -> io::Result<Vec<Sandbox>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.paths.sandboxes())? {
            let id = SandboxId(entry?.file_name().to_string_lossy().into_owned());
            let dir = self.paths.sandbox(&id);
            let record = match record::read::<SandboxRecord>(&dir.record()) {
                Ok(record) => record,
                Err(error) if is_newer(&error) => return Err(with_path("read", &dir.record(), &error)),
                Err(_) => {
                    // Removal got as far as the record, or making it not as far as that: there is nothing else of it.
                    mountinfo::unmount_and_remove(&self.paths.shm(&id))?;
                    mountinfo::remove_tree(&dir.0)?;
                    continue;
                }
            };
            PROTOCOL.check_number(record.protocol, None).map_err(io::Error::other)?;
            let mut sandbox = Sandbox::new(record);
            // Removal takes them before the sandbox itself, so they may be gone already.
            let containers = match fs::read_dir(dir.containers()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                containers => containers.into_iter().flatten().flatten(),
            };
            for entry in containers {
                let container = ContainerId(entry.file_name().to_string_lossy().into_owned());
                let paths = dir.container(&container);
                let record = match record::read::<ContainerRecord>(&paths.record()) {
                    Ok(record) => record,
                    Err(error) if is_newer(&error) => return Err(with_path("read", &paths.record(), &error)),
                    Err(_) => {
                        // Never finished: it was not reported to anybody.
                        mountinfo::remove_tree(paths.path())?;
                        continue;
                    }
                };
                let run = match record::read::<RunRecord>(&paths.run()) {
                    Err(error) if is_newer(&error) => return Err(with_path("read", &paths.run(), &error)),
                    run => run.ok(),
                };
                sandbox.containers.insert(container, ContainerEntry { record, run });
            }
            found.push(sandbox);
        }
        Ok(found)
    }
}

/// Waits for a shim that this process started before it executed another program, and of which the runtime's own
/// handle went with the old one: it would stay a zombie.
async fn reap_inherited(shim: ProcessIdentity) {
    let Ok(mut child_ended) = signal(SignalKind::child()) else { return };
    while let Ok(WaitStatus::StillAlive) = waitpid(Pid::from_raw(shim.pid), Some(WaitPidFlag::WNOHANG)) {
        child_ended.recv().await;
    }
}

/// A shim that said that it is ready.
struct StartedShim {
    process: Option<ProcessIdentity>,
    reaper: Option<i32>,
    users: Option<ProcessIdentity>,
    protocol: u32,
}

/// For what waits for the kernel or the disk.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|error| RuntimeError::failed("run in the background", error))
}
