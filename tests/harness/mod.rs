//! What the tests stand on: a cluster, the clients, and bounded waits.

mod cluster;
pub mod command;
mod disk;
mod etcd;
mod following;
pub mod host;
pub mod images;
mod kubectl;
pub mod machines;
mod python;
pub mod registry;
mod words;

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

pub use cluster::Cluster;
pub use disk::SmallDisk;
pub use etcd::Etcd;
pub use following::Following;
pub use kubectl::{Kubectl, Version};
pub use machines::Machines;
pub use python::python;

/// Longest wait for anything. Generous: a condition that holds is seen at once, and machines get busy.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Looks again and again until there is something, and fails with `what` after [`PATIENCE`].
#[track_caller]
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A program that `tools/test-deps` installs.
#[track_caller]
pub fn tool(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the crate is two levels down");
    let tools = std::env::var_os("MAINSTAY_TOOLS").map_or_else(|| root.join(".tools"), PathBuf::from);
    let path = tools.join(name);
    assert!(path.exists(), "{} is missing: run tools/test-deps", path.display());
    path
}

/// Makes a test per kubectl of each function that takes a [`Kubectl`].
#[macro_export]
macro_rules! with_each_kubectl {
    ($($name:ident),+ $(,)?) => {
        mod v1_20 {
            $(#[test] fn $name() { super::$name(&$crate::harness::Kubectl::start($crate::harness::Version::V1_20)) })+
        }
        mod v1_32 {
            $(#[test] fn $name() { super::$name(&$crate::harness::Kubectl::start($crate::harness::Version::V1_32)) })+
        }
    };
}
