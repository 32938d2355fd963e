//! Specs of sandboxes and containers, as the agent hands them to a runtime: defaults of the API are already filled in.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::{idmap::UserNamespace, observed::PodRef};

/// What Kubernetes hides from containers of `/proc` and `/sys`, unless they are privileged or ask for `procMount: Unmasked`.
pub const MASKED_PATHS: &[&str] = &[
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];

/// What they can read and not write.
pub const READ_ONLY_PATHS: &[&str] = &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxSpec {
    pub pod: PodRef,
    pub attempt: u32,
    pub hostname: String,
    /// Below this, each container's `log_path` lies.
    pub log_directory: PathBuf,
    pub host_network: bool,
    pub host_ipc: bool,
    pub pid: PidMode,
    /// `hostUsers: false`: the pod's block of host ids.
    #[serde(default)]
    pub users: Option<UserNamespace>,
    /// The RuntimeClass's handler; the runtime's own if empty.
    #[serde(default)]
    pub runtime_handler: String,
    /// Of the pod as a whole, for runtimes that label the sandbox.
    #[serde(default)]
    pub selinux: Option<SelinuxOptions>,
    /// Below the runtime's own parent: `burstable/pod<uid>`.
    pub cgroup: String,
    /// Limits of the pod as a whole.
    pub resources: Resources,
    pub sysctls: BTreeMap<String, String>,
    pub ports: Vec<HostPort>,
    /// For runtimes that write `resolv.conf` themselves; ours is a mount of each container.
    pub dns: Dns,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PidMode {
    #[default]
    Container,
    /// `shareProcessNamespace`.
    Pod,
    Host,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dns {
    pub servers: Vec<String>,
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPort {
    pub protocol: Protocol,
    pub container_port: u16,
    pub host_port: u16,
    /// All addresses if empty.
    pub host_ip: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerSpec {
    pub name: String,
    pub attempt: u32,
    /// As the pod names it; `host` is the machine's own root filesystem below a private overlay.
    pub image: String,
    /// What it stands for, as [`crate::images::Image::id`].
    pub image_id: String,
    /// Replaces the image's entrypoint unless empty.
    pub command: Vec<String>,
    /// Replaces the image's arguments unless both this and `command` are empty.
    pub args: Vec<String>,
    /// The image's if empty.
    pub working_dir: String,
    /// Added to the image's.
    pub env: Vec<(String, String)>,
    pub mounts: Vec<Mount>,
    pub devices: Vec<PathBuf>,
    pub resources: Resources,
    pub security: Security,
    pub stdin: bool,
    /// Standard input is closed when the first who attached to it leaves.
    pub stdin_once: bool,
    pub tty: bool,
    /// `SIGTERM`; the image's if `None`.
    pub stop_signal: Option<String>,
    /// The whole path. Lines in CRI's format: time, stream, `F` or `P`, text.
    pub log_path: PathBuf,
    pub log_limit: LogLimit,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Joins the pid namespace of this container of the sandbox (for debugging it).
    pub pid_of: Option<String>,
    /// What makes the devices of the pod's claims usable.
    #[serde(default, skip_serializing_if = "DeviceEdits::is_empty")]
    pub device_edits: DeviceEdits,
}

/// What drivers of claimed devices ask for beyond variables and mounts, in the terms of the Container Device Interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceEdits {
    pub nodes: Vec<DeviceNode>,
    pub hooks: Vec<Hook>,
    /// Names of devices that a CRI runtime looks up by itself (`vendor.com/class=name`).
    pub cdi_devices: Vec<String>,
}

impl DeviceEdits {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A device node inside the container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceNode {
    pub path: PathBuf,
    /// The node on the machine that it is a copy of; `path` if it is not named.
    pub host_path: Option<PathBuf>,
    /// `b`, `c`, `u` or `p`, with its numbers; as on the machine if it is not named.
    pub kind: Option<String>,
    pub major: Option<i64>,
    pub minor: Option<i64>,
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// Of `rwm`; all if it is empty.
    pub permissions: String,
}

/// A program of the machine that is run at a point of the container's life, by the OCI specification.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hook {
    /// `createRuntime`, `createContainer`, `startContainer`, `poststart`, `poststop` or `prestart`.
    pub name: String,
    pub path: PathBuf,
    pub args: Vec<String>,
    pub env: Vec<String>,
    /// In seconds.
    pub timeout: Option<i64>,
}

/// When a log file is set aside as `<path>.<time>` and a new one begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLimit {
    pub bytes: u64,
    /// Files kept in all, the current one included.
    pub files: u32,
}

impl Default for LogLimit {
    fn default() -> Self {
        Self { bytes: 10 << 20, files: 5 }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    pub source: PathBuf,
    pub target: PathBuf,
    pub read_only: bool,
    /// What is mounted below the source is read-only too.
    #[serde(default)]
    pub recursive_read_only: RecursiveReadOnly,
    pub propagation: Propagation,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecursiveReadOnly {
    #[default]
    Disabled,
    /// Where the runtime can; without it no reason to refuse the container.
    IfPossible,
    Enabled,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Propagation {
    #[default]
    Private,
    HostToContainer,
    Bidirectional,
}

/// Nothing is limited where `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// Relative weight as cgroup v1 counts it: 1024 for a whole cpu, at least 2.
    pub cpu_shares: Option<u64>,
    /// Microseconds of cpu per `cpu_period`.
    pub cpu_quota: Option<i64>,
    pub cpu_period: Option<u64>,
    pub memory_limit: Option<i64>,
    pub pids_limit: Option<i64>,
    pub oom_score_adj: Option<i32>,
    /// Page size (`2Mi`) to bytes.
    pub hugepages: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Security {
    pub privileged: bool,
    /// The image's user if `None`.
    pub run_as_user: Option<i64>,
    pub run_as_group: Option<i64>,
    pub supplemental_groups: Vec<i64>,
    /// Does not add the groups that the image's `/etc/group` lists for the user.
    pub strict_groups: bool,
    /// Without `CAP_`; `ALL` is understood.
    pub add_capabilities: Vec<String>,
    pub drop_capabilities: Vec<String>,
    pub no_new_privileges: bool,
    pub read_only_root: bool,
    pub seccomp: Seccomp,
    /// `procMount: Unmasked`.
    pub unmasked_proc: bool,
    #[serde(default)]
    pub apparmor: AppArmor,
    #[serde(default)]
    pub selinux: Option<SelinuxOptions>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AppArmor {
    /// Nothing is asked for: the runtime's default where the host has it.
    #[default]
    Unspecified,
    RuntimeDefault,
    Unconfined,
    /// A profile that is loaded on this machine.
    Localhost(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelinuxOptions {
    pub user: String,
    pub role: String,
    pub kind: String,
    pub level: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Seccomp {
    #[default]
    RuntimeDefault,
    Unconfined,
    /// A profile in the OCI/docker JSON format, on this machine.
    Localhost(PathBuf),
}
