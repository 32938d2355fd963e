//! What tests of several crates share. A dev-dependency only: nothing that is delivered contains it.
//!
//! * [`until`], [`eventually`]: wait for a condition, with a deadline
//! * [`TestApi`]: the API over a store in memory, in the test's process (feature `api`)
//! * [`Daemon`]: a process of the real binary, with its log
//! * [`tool`]: a program that `tools/test-deps` fetches

#[cfg(feature = "api")]
mod api;
mod daemon;
mod tool;
mod until;

#[cfg(feature = "api")]
pub use api::TestApi;
pub use daemon::Daemon;
pub use tool::tool;
pub use until::{Condition, DEADLINE, eventually, until};
