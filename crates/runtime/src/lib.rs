//! Container runtimes: pod sandboxes, containers and images on one machine.
//!
//! One port, [`Runtime`], with two implementations: [`builtin`], which needs nothing but the kernel,
//! and [`cri`], which speaks to containerd and its like. With the feature `testing`, which only tests switch on, there are also
//! `suite`, which holds what both must do, and `fake`, a model in memory for tests of what stands above.

pub mod builtin;
pub mod cgroup;
pub mod cri;
pub mod error;
#[cfg(any(test, feature = "testing"))]
pub mod fake;
pub mod fence;
pub mod idmap;
pub mod images;
pub mod observed;
pub mod port;
pub mod session;
pub mod spec;
#[cfg(any(test, feature = "testing"))]
pub mod suite;

pub use error::RuntimeError;
pub use observed::{ContainerId, ContainerState, ContainerStatus, Observed, PodUid, SandboxId, SandboxStatus};
pub use port::{FenceSupport, PodNetwork, Runtime, RuntimeVersion};
pub use spec::{ContainerSpec, SandboxSpec};
