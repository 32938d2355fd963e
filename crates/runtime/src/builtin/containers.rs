//! Creates, starts, updates, stops and removes containers of the built-in runtime.

use std::{io, os::fd::AsFd, path::PathBuf, sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::time::{Instant, timeout_at};

use super::{
    Inner, apparmor, capabilities, cgroup,
    cgroup::Cgroup,
    mount_checks,
    oci::{self, ConfigInput, PidNamespace},
    record::{self, ContainerRecord, LaunchSpec, RunRecord, SharedMount},
    rootfs_files,
    sandboxes::blocking,
    shim_client, signals, staging,
    state::ContainerEntry,
    users::{self, Accounts},
    wire::{Request, Response},
};
use crate::{
    error::RuntimeError,
    idmap,
    images::Owners,
    observed::{ContainerId, SandboxId},
    port::Result,
    spec::{ContainerSpec, Propagation, Resources, Seccomp},
};

/// For a shim to start a container; it gives up itself before.
const START_TIMEOUT: Duration = Duration::from_secs(70);
/// For a killed container to be gone.
const KILL_TIMEOUT: Duration = Duration::from_secs(20);
const SIGKILL: i32 = 9;

impl Inner {
    pub async fn create_container(self: &Arc<Self>, sandbox: &SandboxId, spec: &ContainerSpec) -> Result<ContainerId> {
        let lock = self.state.read_sandbox(sandbox, |sandbox| Arc::clone(&sandbox.lock))?;
        let _changing = lock.lock().await;
        let (record, made, ready) = self.state.read_sandbox(sandbox, |sandbox| {
            let same = |known: &&ContainerEntry| {
                known.record.spec.name == spec.name && known.record.spec.attempt == spec.attempt
            };
            let made = sandbox.containers.values().find(same).map(|known| known.record.id.clone());
            (sandbox.record.clone(), made, sandbox.is_ready())
        })?;
        if let Some(made) = made {
            return Ok(made);
        }
        if !ready {
            return Err(RuntimeError::Invalid { why: format!("sandbox {sandbox} is not ready") });
        }
        let target = match &spec.pid_of {
            Some(name) => Some(self.running_pid(sandbox, name)?),
            None => None,
        };
        let id = ContainerId(uuid::Uuid::new_v4().simple().to_string());
        let written = blocking({
            let (inner, spec, id) = (Arc::clone(self), spec.clone(), id.clone());
            move || -> Result<ContainerRecord> {
                let invalid = |why: String| RuntimeError::Invalid { why };
                let missing = |error| match error {
                    RuntimeError::ImageMissing { .. } => RuntimeError::ImageMissing { image: spec.image.clone() },
                    other => other,
                };
                let image = inner.images.config(&spec.image_id).map_err(missing)?;
                let users = record.users(inner.boot.as_str()).map_err(invalid)?;
                let namespace = users.map(|(holder, _)| idmap::open_namespace(holder.pid)).transpose();
                let namespace = namespace.map_err(|error| RuntimeError::failed("open the user namespace", error))?;
                let owners = namespace.as_ref().zip(users);
                let owners = owners.map(|(fd, (_, ids))| Owners { namespace: fd.as_fd(), ids });
                let rootfs =
                    inner.images.prepare_rootfs_for(&spec.image_id, &id.0, owners.as_ref()).map_err(missing)?;
                let dir = inner.paths.sandbox(&record.id).container(&id);
                let user =
                    users::resolve(&spec.security, &image.user, &Accounts::read(&rootfs.path)).map_err(invalid)?;
                let ids = users.map(|(_, ids)| ids);
                users::verify_within(&user, ids).map_err(invalid)?;
                mount_checks::verify(&rootfs.path, &spec.mounts).map_err(invalid)?;
                if ids.is_some() && spec.mounts.iter().any(|mount| mount.propagation == Propagation::Bidirectional) {
                    return Err(invalid(
                        "mountPropagation: Bidirectional is not possible with hostUsers: false".into(),
                    ));
                }
                let apparmor =
                    apparmor::profile(&spec.security, &apparmor::AppArmorSupport::read()).map_err(invalid)?;
                let cgroup = record.cgroup().join(&id.0);
                let pids = PidNamespace::select(record.spec.pid, record.reaper, target);
                let shm = if record.spec.host_ipc { PathBuf::from("/dev/shm") } else { inner.paths.shm(&record.id) };
                let shared = shared_mounts(&spec, dir.path());
                let stages: Vec<PathBuf> = shared.iter().map(|mount| mount.stage.clone()).collect();
                let cwd = oci::working_dir(&spec, &image);
                // One that is on a mount, or on what cannot be written, is there or it is not.
                let _ = rootfs_files::create_dirs(
                    &rootfs.path,
                    std::path::Path::new(cwd),
                    ids.map_or(0, |ids| ids.host_id),
                );
                let mut config = oci::config(&ConfigInput {
                    spec: &spec,
                    image: &image,
                    user: &user,
                    root: &rootfs.path,
                    hostname: &record.spec.hostname,
                    cgroup: &cgroup,
                    layout: cgroup::layout(),
                    users: ids.is_some(),
                    apparmor: apparmor.as_deref(),
                    pids: pids.clone(),
                    shm: &shm,
                    stages: &stages,
                })
                .map_err(invalid)?;
                let staging = match users {
                    None => None,
                    Some((holder, _)) => {
                        let needed = [dir.path(), inner.paths.run_dir.as_path(), spec.log_path.as_path()];
                        let directory = staging::directory(&needed).map_err(invalid)?;
                        Some(staging::stage(&mut config, holder, &directory))
                    }
                };
                let made = ContainerRecord {
                    id: id.clone(),
                    sandbox: record.id.clone(),
                    pod: record.spec.pod.clone(),
                    stop_signal: signals::stop_signal(spec.stop_signal.as_deref(), image.stop_signal.as_deref())
                        .map_err(invalid)?,
                    created_at: Timestamp::now(),
                    spec: spec.clone(),
                };
                let launch = LaunchSpec {
                    log_path: spec.log_path.clone(),
                    log_limit: spec.log_limit.clone(),
                    tty: spec.tty,
                    stdin: spec.stdin,
                    stdin_once: spec.stdin_once,
                    cgroup,
                    resources: spec.resources.clone(),
                    capabilities: capabilities::select_capabilities(
                        &spec.security,
                        &inner.capabilities,
                        cgroup::layout(),
                    )
                    .map_err(invalid)?,
                    no_new_privileges: spec.security.no_new_privileges,
                    seccomp: if spec.security.privileged { Seccomp::Unconfined } else { spec.security.seccomp.clone() },
                    own_pids: pids == PidNamespace::Own,
                    private: mount_targets(&spec, Propagation::Private),
                    shared,
                    stdio_owner: ids.map_or(0, |ids| ids.host_id) + user.uid,
                    staging,
                };
                let write = || -> io::Result<()> {
                    mainstay_files::create_private_dir(dir.path())?;
                    record::write_json(&dir.config(), &config)?;
                    record::write(&dir.launch(), &launch)?;
                    // Last: what has it is whole.
                    record::write(&dir.record(), &made)
                };
                write().map_err(|error| RuntimeError::failed("record a container", error))?;
                Ok(made)
            }
        });
        let made = match written.await? {
            Ok(made) => made,
            Err(error) => {
                self.release_rootfs(id).await?;
                return Err(error);
            }
        };
        self.state.change_sandbox(sandbox, |sandbox| {
            sandbox.containers.insert(id.clone(), ContainerEntry { record: made, run: None })
        })?;
        Ok(id)
    }

    pub async fn release_rootfs(self: &Arc<Self>, id: ContainerId) -> Result<()> {
        let inner = Arc::clone(self);
        blocking(move || inner.images.release_rootfs(&id.0)).await?
    }

    fn running_pid(&self, sandbox: &SandboxId, name: &str) -> Result<i32> {
        let pid = self.state.read_sandbox(sandbox, |sandbox| {
            let named =
                sandbox.containers.values().filter(|known| known.record.spec.name == name && known.is_running());
            named.filter_map(|known| Some(known.run.as_ref()?.process?.pid)).next()
        })?;
        pid.ok_or_else(|| RuntimeError::Invalid { why: format!("target container {name:?} is not running") })
    }

    pub async fn start_container(&self, id: &ContainerId) -> Result<()> {
        let (sandbox, run, alive) = self
            .state
            .read_container(id, |sandbox, known| (sandbox.record.id.clone(), known.run.clone(), sandbox.alive))?;
        if run.as_ref().is_some_and(RunRecord::has_ended) {
            return Err(RuntimeError::Invalid { why: format!("container {id} has ended and is not started again") });
        }
        if !alive {
            return Err(RuntimeError::Invalid { why: format!("sandbox {sandbox} is not ready") });
        }
        let request = Request::Start { container: id.clone() };
        if let Response::Started(run) = shim_client::call(&self.paths.socket(&sandbox), &request, START_TIMEOUT).await?
        {
            self.state.apply_runs(&sandbox, vec![run]);
        }
        Ok(())
    }

    pub async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        let Ok((sandbox, signal)) =
            self.state.read_container(id, |sandbox, known| (sandbox.record.id.clone(), known.record.stop_signal))
        else {
            return Ok(()); // what is gone has stopped
        };
        if !self.is_active(id)? {
            return Ok(());
        }
        let socket = self.paths.socket(&sandbox);
        let kill = |signal, all| Request::Kill { container: id.clone(), signal, all };
        let gentle = grace > Duration::ZERO && signal != SIGKILL;
        if gentle {
            self.signal(&socket, &kill(signal, false)).await?;
            if self.wait_for_exit(&sandbox, id, Instant::now() + grace).await? {
                return Ok(());
            }
        }
        self.signal(&socket, &kill(SIGKILL, true)).await?;
        match self.wait_for_exit(&sandbox, id, Instant::now() + KILL_TIMEOUT).await? {
            true => Ok(()),
            false => Err(RuntimeError::Timeout { doing: format!("kill container {id}"), after: KILL_TIMEOUT }),
        }
    }

    /// A shim that is gone has taken its containers with it; that will be seen.
    async fn signal(&self, socket: &std::path::Path, request: &Request) -> Result<()> {
        match shim_client::call(socket, request, shim_client::RESPONSE_TIMEOUT).await {
            Err(error @ (RuntimeError::Timeout { .. } | RuntimeError::Invalid { .. })) => Err(error),
            _ => Ok(()),
        }
    }

    fn is_active(&self, id: &ContainerId) -> Result<bool> {
        self.state.read_container(id, |_, known| known.run.as_ref().is_some_and(|run| !run.has_ended()))
    }

    async fn wait_for_exit(&self, sandbox: &SandboxId, id: &ContainerId, deadline: Instant) -> Result<bool> {
        let mut changed = self.state.read_sandbox(sandbox, |sandbox| sandbox.changed.subscribe())?;
        loop {
            match self.is_active(id) {
                Ok(true) => {}
                Ok(false) => return Ok(true),
                Err(error) if error.is_not_found() => return Ok(true),
                Err(error) => return Err(error),
            }
            match timeout_at(deadline, changed.changed()).await {
                Err(_) => return Ok(false),
                Ok(Err(_)) => return Ok(true), // the sandbox is gone
                Ok(Ok(())) => {}
            }
        }
    }

    pub async fn remove_container(self: &Arc<Self>, id: &ContainerId) -> Result<()> {
        let Ok((sandbox, lock, group)) = self.state.read_container(id, |sandbox, _| {
            (sandbox.record.id.clone(), Arc::clone(&sandbox.lock), sandbox.record.cgroup().join(&id.0))
        }) else {
            return Ok(());
        };
        let _changing = lock.lock().await;
        match self.is_active(id) {
            Err(_) => return Ok(()), // by another, while we waited
            Ok(true) => return Err(RuntimeError::Invalid { why: format!("container {id} is running") }),
            Ok(false) => {}
        }
        if self.state.read_sandbox(&sandbox, |sandbox| sandbox.alive)? {
            shim_client::call(
                &self.paths.socket(&sandbox),
                &Request::Forget { container: id.clone() },
                shim_client::RESPONSE_TIMEOUT,
            )
            .await?;
        }
        let group = Cgroup::new(group);
        let removed = blocking(move || match group.kill_all(KILL_TIMEOUT) {
            true => group.retire(),
            false => Err(io::Error::other("something in it cannot be killed")),
        });
        removed.await?.map_err(|error| RuntimeError::failed(format!("remove the cgroup of container {id}"), error))?;
        self.release_rootfs(id.clone()).await?;
        let dir = self.paths.sandbox(&sandbox).container(id);
        let swept = blocking(move || {
            // What lies there without its record was never there.
            let record = std::fs::remove_file(dir.record());
            mainstay_files::mountinfo::remove_tree(dir.path()).and(record)
        });
        swept.await?.map_err(|error| RuntimeError::failed(format!("remove container {id}"), error))?;
        self.state.change_sandbox(&sandbox, |sandbox| sandbox.containers.remove(id))?;
        Ok(())
    }

    pub async fn update_container(&self, id: &ContainerId, resources: &Resources) -> Result<()> {
        let (group, sandbox, mut record) = self.state.read_container(id, |sandbox, known| {
            (Cgroup::new(sandbox.record.cgroup().join(&id.0)), sandbox.record.id.clone(), known.record.clone())
        })?;
        let dir = self.paths.sandbox(&sandbox).container(id);
        merge_resources(&mut record.spec.resources, resources);
        let wanted = record.spec.resources.clone();
        let changed = resources.clone();
        let written = record.clone();
        let done = blocking(move || -> io::Result<()> {
            // What does not run yet starts with them.
            if group.exists() {
                group.limit(&changed)?;
            }
            let mut launch: LaunchSpec = record::read(&dir.launch())?;
            launch.resources = wanted;
            record::write(&dir.launch(), &launch)?;
            record::write(&dir.record(), &written)
        });
        done.await?.map_err(|error| RuntimeError::failed(format!("update container {id}"), error))?;
        self.state.change_sandbox(&sandbox, |sandbox| {
            if let Some(known) = sandbox.containers.get_mut(id) {
                known.record = record;
            }
        })
    }

    pub async fn update_sandbox(&self, id: &SandboxId, resources: &Resources) -> Result<()> {
        let group = self.state.read_sandbox(id, |sandbox| Cgroup::new(sandbox.record.pod_cgroup.clone()))?;
        let resources = resources.clone();
        let done = blocking(move || group.limit(&resources)).await?;
        done.map_err(|error| RuntimeError::failed(format!("update sandbox {id}"), error))
    }
}

/// Fields that are absent stay as they are.
fn merge_resources(have: &mut Resources, new: &Resources) {
    have.cpu_shares = new.cpu_shares.or(have.cpu_shares);
    have.cpu_quota = new.cpu_quota.or(have.cpu_quota);
    have.cpu_period = new.cpu_period.or(have.cpu_period);
    have.memory_limit = new.memory_limit.or(have.memory_limit);
    have.pids_limit = new.pids_limit.or(have.pids_limit);
    have.oom_score_adj = new.oom_score_adj.or(have.oom_score_adj);
    have.hugepages.extend(new.hugepages.clone());
}

fn mount_targets(spec: &ContainerSpec, propagation: Propagation) -> Vec<PathBuf> {
    let such = spec.mounts.iter().filter(|mount| mount.propagation == propagation);
    such.map(|mount| mount.target.clone()).collect()
}

fn shared_mounts(spec: &ContainerSpec, dir: &std::path::Path) -> Vec<SharedMount> {
    let such = spec.mounts.iter().filter(|mount| mount.propagation == Propagation::Bidirectional);
    such.enumerate()
        .map(|(index, mount)| SharedMount { source: mount.source.clone(), stage: dir.join(format!("shared-{index}")) })
        .collect()
}
