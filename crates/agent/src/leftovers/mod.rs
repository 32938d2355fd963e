//! What instances have on this machine, found without their data directories, and how it is removed.
//!
//! [`observe`] looks at the kernel alone: processes by their cgroup, mounts, interfaces, packet rules, cgroups and run directories by
//! their names ([`names`]). [`plan`] decides what is left over and in which order it goes; [`remove`] does it. Used by
//! `mainstay down --leftovers`, by `mainstay down` where the data directory is gone, and by every start for sandboxes of which
//! there is no record ([`orphans`]).
//!
//! Nothing is deleted through a mount, and no process gets a signal that is not a pod's.

mod data_dirs;
pub mod locks;
pub mod names;
pub mod observe;
pub mod orphans;
pub mod plan;
mod processes;
pub mod remove;

pub use data_dirs::find_data_dirs;
pub use names::Instance;
pub use observe::{InstanceRecord, Traces, observe};
pub use plan::{Step, Verdict, plan};
pub use processes::{PodProcess, Role};
pub use remove::remove;

#[derive(Debug, thiserror::Error)]
pub enum LeftoversError {
    #[error("list {what}")]
    List {
        what: &'static str,
        #[source]
        source: std::io::Error,
    },
    #[error("look for networks of pods: {0}")]
    Network(String),
    #[error("{what} did not end within {seconds} s of being killed")]
    StillRuns { what: String, seconds: u64 },
    #[error("{doing}")]
    Remove {
        doing: String,
        #[source]
        source: std::io::Error,
    },
}
