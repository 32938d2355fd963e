//! Status of sandboxes and containers as a runtime reports it.

use std::{collections::BTreeMap, fmt, net::IpAddr, path::PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident),*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub String);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}

ids! {
    /// The pod's uid in the API.
    PodUid,
    SandboxId,
    ContainerId
}

/// Whose something is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRef {
    pub namespace: String,
    pub name: String,
    pub uid: PodUid,
}

#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub sandboxes: Vec<SandboxStatus>,
    pub containers: Vec<ContainerStatus>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxStatus {
    pub id: SandboxId,
    pub pod: PodRef,
    /// Counts the sandboxes this pod has had.
    pub attempt: u32,
    /// Containers can run in it. A half-made or half-removed one is not ready, and only good for removal.
    pub ready: bool,
    pub created_at: Timestamp,
    pub host_network: bool,
    /// Empty on the host's network.
    pub addresses: Vec<IpAddr>,
    pub annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerStatus {
    pub id: ContainerId,
    pub sandbox: SandboxId,
    pub pod: PodRef,
    /// The container's name in the pod.
    pub name: String,
    /// Counts the containers of this name that this pod has had: 0, 1, 2, …
    pub attempt: u32,
    /// As the pod named it.
    pub image: String,
    /// What the name stood for: `<registry/name>@sha256:…` where known, else `sha256:…`.
    pub image_id: String,
    pub created_at: Timestamp,
    pub state: ContainerState,
    pub annotations: BTreeMap<String, String>,
    pub log_path: PathBuf,
    /// Of the first process, in the machine's own pid namespace.
    pub pid: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerState {
    Created,
    Running {
        started_at: Timestamp,
    },
    Exited {
        /// `None` if its process never began.
        started_at: Option<Timestamp>,
        finished_at: Timestamp,
        /// 128 + signal if it was killed by one.
        exit_code: i32,
        signal: Option<i32>,
        /// The kernel killed it for want of memory.
        oom: bool,
        /// Why, if the runtime knows (`exec: "x": no such file`); the termination message is the agent's to read.
        message: String,
    },
    /// The runtime lost track of it: neither running nor known to have ended.
    Unknown,
}

impl ContainerState {
    pub fn is_running(&self) -> bool {
        matches!(self, Self::Running { .. })
    }

    pub fn has_ended(&self) -> bool {
        matches!(self, Self::Exited { .. })
    }

    /// Ended for the machine's lack of contact, not by itself.
    pub fn was_fenced(&self) -> bool {
        matches!(self, Self::Exited { message, .. } if message == crate::fence::FENCED)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerStats {
    pub pod: Option<PodRef>,
    pub name: String,
    /// CPU time used since its start, in nanoseconds.
    pub cpu_nanos: u64,
    /// Memory that cannot be reclaimed at once, in bytes (as `kubectl top` shows).
    pub working_set: u64,
    pub memory_usage: u64,
    pub rss: u64,
    pub pids: u64,
    /// Bytes in the writable layer and in the log files.
    pub rootfs_bytes: u64,
    /// It does not run any more: all that it still uses is disk.
    pub ended: bool,
}
