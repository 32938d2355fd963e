//! What tests of several crates share. A dev-dependency only: nothing that is delivered contains it.
//!
//! * [`until`], [`eventually`]: wait for a condition, with a deadline
//! * [`TestApi`]: the API over a store in memory, in the test's process (feature `api`)
//! * [`rights`]: which rights the parts of a server use (feature `api`)
//! * [`Daemon`]: a process of the real binary, with its log
//! * [`format_fixture`]: what a version wrote to disk, which all later ones must read
//! * [`deep_directories`]: a tree that walks by path or by recursion do not survive
//! * [`tool`]: a program that `tools/test-deps` fetches

#[cfg(feature = "api")]
mod api;
mod daemon;
mod deep_directories;
mod format_fixture;
#[cfg(feature = "api")]
pub mod rights;
mod tool;
mod until;

#[cfg(feature = "api")]
pub use api::TestApi;
pub use daemon::Daemon;
pub use deep_directories::deep_directories;
pub use format_fixture::format_fixture;
pub use tool::tool;
pub use until::{Condition, DEADLINE, eventually, until};
