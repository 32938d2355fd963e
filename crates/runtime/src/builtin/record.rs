//! The records on disk of sandboxes, containers and their runs, from which a restarted agent learns what there is. Each is written
//! whole or not at all.
//!
//! Nothing is synced: a record must outlive processes, not the machine's power. After a restart of the machine no
//! container runs, and the boot id in each record says so.
//!
//! Each says its format; a newer one is refused and stays (see `mainstay_files::Format`). `launch.json` is read by the shim, which may
//! be of an older version than the agent: it counts as part of the protocol between the two ([`super::wire::PROTOCOL`]).

use std::{
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use mainstay_files::{Durability, Format, PRIVATE_FILE, write_atomic};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    cgroup::Layout,
    idmap::UserNamespace,
    observed::{ContainerId, ContainerState, PodRef, SandboxId},
    spec::{ContainerSpec, LogLimit, Resources, SandboxSpec, Seccomp},
};

/// What is kept in a file of its own.
pub trait Record: Serialize + DeserializeOwned {
    const FORMAT: Format;
}

impl Record for SandboxRecord {
    const FORMAT: Format = Format::new("the record of a sandbox", 1);
}

impl Record for ContainerRecord {
    const FORMAT: Format = Format::new("the record of a container", 1);
}

impl Record for LaunchSpec {
    const FORMAT: Format = Format::new("the launch record of a container", 1);
}

impl Record for RunRecord {
    const FORMAT: Format = Format::new("the record of a container's run", 1);
}

/// `sandbox.json`: written by the agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SandboxRecord {
    pub id: SandboxId,
    pub spec: SandboxSpec,
    pub created_at: Timestamp,
    pub boot: String,
    /// The pod's cgroup, below each hierarchy's mount point.
    pub pod_cgroup: PathBuf,
    /// Complete, and not being removed.
    pub ready: bool,
    pub addresses: Vec<IpAddr>,
    pub shim: Option<ProcessIdentity>,
    /// The first process of all, if containers share theirs.
    pub reaper: Option<i32>,
    /// The process whose user namespace is the pod's, if it has one.
    #[serde(default)]
    pub users: Option<ProcessIdentity>,
    /// The version of the protocol that its shim speaks; older shims outlive the agent that started them.
    #[serde(default = "first_protocol")]
    pub protocol: u32,
}

/// Of shims that did not say.
fn first_protocol() -> u32 {
    1
}

impl SandboxRecord {
    /// What lives in this sandbox, and in no other of the same pod.
    pub fn cgroup(&self) -> PathBuf {
        self.pod_cgroup.join(&self.id.0)
    }

    /// Where the shim lives.
    pub fn shim_cgroup(&self, layout: &Layout) -> PathBuf {
        shim_cgroup(self.cgroup(), layout)
    }

    /// The process that holds the pod's user namespace, and the ids in it, if the pod has one.
    pub fn users(&self, boot: &str) -> Result<Option<(ProcessIdentity, UserNamespace)>, String> {
        let Some(ids) = self.spec.users else { return Ok(None) };
        let holder = self.users.filter(|holder| self.boot == boot && holder.is_alive());
        holder.map(|holder| Some((holder, ids))).ok_or_else(|| "the pod's user namespace is gone".to_owned())
    }
}

/// A process, distinguished from a later one with the same pid by its start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    pub pid: i32,
    pub begun: u64,
}

impl ProcessIdentity {
    pub fn read(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may hold anything, blanks and parentheses included.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        (*fields.first()? != "Z").then_some(())?;
        Some(Self { pid, begun: fields.get(19)?.parse().ok()? })
    }

    /// Whether it was started by this very process.
    pub fn is_own_child(self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1));
        self.is_alive() && parent == Some(&std::process::id().to_string())
    }

    pub fn is_alive(self) -> bool {
        Self::read(self.pid) == Some(self)
    }
}

/// `container.json`: written by the agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ContainerRecord {
    pub id: ContainerId,
    pub sandbox: SandboxId,
    pub pod: PodRef,
    pub spec: ContainerSpec,
    pub created_at: Timestamp,
    pub stop_signal: i32,
}

/// `launch.json`: written by the agent for the shim, beside the `config.json` that libcontainer reads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LaunchSpec {
    pub log_path: PathBuf,
    pub log_limit: LogLimit,
    pub tty: bool,
    pub stdin: bool,
    pub stdin_once: bool,
    pub cgroup: PathBuf,
    pub resources: Resources,
    /// `CAP_…` names; what the process may ever have.
    pub capabilities: Vec<String>,
    pub no_new_privileges: bool,
    pub seccomp: Seccomp,
    /// Its own pid namespace: when its first process ends, the kernel ends the others.
    pub own_pids: bool,
    /// Mounts whose propagation is not the default, by target.
    pub private: Vec<PathBuf>,
    pub shared: Vec<SharedMount>,
    /// Whom its standard streams belong to, so that it can open `/dev/stdout`.
    #[serde(default)]
    pub stdio_owner: u32,
    /// In a user namespace.
    #[serde(default)]
    pub staging: Option<Staging>,
}

/// Everything that a container in a user namespace is made of, in a directory that its user can reach: the data directory is
/// root's alone, and what makes the container's mounts is no longer that root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staging {
    /// The process whose user namespace it is.
    pub holder: ProcessIdentity,
    /// A tmpfs of the container's own mount namespace goes here.
    pub directory: PathBuf,
    pub mounts: Vec<StagedMount>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagedMount {
    pub source: PathBuf,
    /// Below the directory.
    pub name: String,
    pub idmapped: bool,
}

/// A mount that propagates to the machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SharedMount {
    pub source: PathBuf,
    /// Where the container's mount looks for it.
    pub stage: PathBuf,
}

/// `run.json`: written by the shim, and by the agent once the shim is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRecord {
    pub container: ContainerId,
    /// Grows with every change.
    pub version: u64,
    pub process: Option<ProcessIdentity>,
    pub phase: Phase,
    /// Bytes of output that could not be written.
    #[serde(default)]
    pub log_lost: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    Starting,
    Running { started_at: Timestamp },
    Exited(ExitRecord),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    pub started_at: Option<Timestamp>,
    pub finished_at: Timestamp,
    pub exit_code: i32,
    pub signal: Option<i32>,
    pub oom: bool,
    pub message: String,
}

impl RunRecord {
    pub fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Exited(_))
    }

    pub fn state(run: Option<&Self>) -> ContainerState {
        match run.map(|run| &run.phase) {
            None | Some(Phase::Starting) => ContainerState::Created,
            Some(Phase::Running { started_at }) => ContainerState::Running { started_at: *started_at },
            Some(Phase::Exited(exit)) => ContainerState::Exited {
                started_at: exit.started_at,
                finished_at: exit.finished_at,
                exit_code: exit.exit_code,
                signal: exit.signal,
                oom: exit.oom,
                message: exit.message.clone(),
            },
        }
    }

    /// Its shim is gone, and did not say how it ended.
    pub fn lost(self, rebooted: bool, now: Timestamp) -> Self {
        let started_at = match self.phase {
            Phase::Exited(_) => return self,
            Phase::Running { started_at } => Some(started_at),
            Phase::Starting => None,
        };
        let (exit_code, signal, message) = match rebooted {
            true => (255, None, "the machine was restarted"),
            false => (137, Some(9), "its shim ended, and the container with it"),
        };
        let exit =
            ExitRecord { started_at, finished_at: now, exit_code, signal, oom: false, message: message.to_owned() };
        Self { version: self.version + 1, process: None, phase: Phase::Exited(exit), ..self }
    }
}

pub fn read<T: Record>(path: &Path) -> io::Result<T> {
    Ok(T::FORMAT.decode(&fs::read(path)?)?)
}

pub fn write<T: Record>(path: &Path, value: &T) -> io::Result<()> {
    write_bytes(path, &T::FORMAT.encode(value)?)
}

/// A file in a format of others, such as that of the OCI specification.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

pub fn write_json<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    write_bytes(path, &serde_json::to_vec(value)?)
}

pub fn write_bytes(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_atomic(path, bytes, PRIVATE_FILE, Durability::Volatile)
}

/// Changes with every start of the machine.
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Version 2 has no processes in a group with groups below it. On version 1, where each group is a directory in every hierarchy
/// and lingers in the kernel for as long as its pages do, a group of the shim's own is spared.
fn shim_cgroup(sandbox: PathBuf, layout: &Layout) -> PathBuf {
    match layout {
        Layout::V1(_) => sandbox,
        Layout::V2(_) => sandbox.join("shim"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(phase: Phase) -> RunRecord {
        RunRecord { container: ContainerId("c".into()), version: 3, process: None, phase, log_lost: 0 }
    }

    #[test]
    fn this_process_is_alive_and_an_earlier_one_of_its_number_is_not() {
        let me = ProcessIdentity::read(std::process::id() as i32).unwrap();
        assert!(me.is_alive());
        assert!(!ProcessIdentity { begun: me.begun - 1, ..me }.is_alive());
    }

    #[test]
    fn a_shim_has_a_cgroup_of_its_own_only_where_the_kernel_wants_it() {
        assert_eq!(shim_cgroup("p/s".into(), &Layout::V1(vec![])), Path::new("p/s"));
        assert_eq!(shim_cgroup("p/s".into(), &Layout::V2("/sys/fs/cgroup".into())), Path::new("p/s/shim"));
    }

    #[test]
    fn a_run_without_its_shim_has_ended_and_an_ended_one_stays_as_it_was() {
        let now = Timestamp::UNIX_EPOCH;
        let lost = run(Phase::Running { started_at: now }).lost(false, now);
        assert!(matches!(&lost.phase, Phase::Exited(exit) if exit.exit_code == 137 && exit.started_at == Some(now)));
        assert_eq!(lost.clone().lost(true, now), lost);
        let rebooted = run(Phase::Starting).lost(true, now);
        assert!(matches!(&rebooted.phase, Phase::Exited(exit) if exit.exit_code == 255 && exit.started_at.is_none()));
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.json");
        let run = run(Phase::Running { started_at: Timestamp::UNIX_EPOCH });
        write(&path, &run).unwrap();
        assert_eq!(read::<RunRecord>(&path).unwrap(), run);
    }
}
