//! Leader election: of several servers, the one that holds a Lease runs a task.
//!
//! * [`lease`]: whether to acquire, wait or give up. Pure
//! * [`run_while_leading`]: runs the task while the Lease is held and stops it before another server could start it
//!
//! Clocks need not agree. A candidate measures by its own clock how long the Lease has not changed; the leader stops
//! well before that time is over. A leader that stops in order releases the Lease, so that the next starts at once. What a
//! leader writes carries its [`LeaderTerm`], so that one that was frozen and does not know that it was deposed changes nothing.

mod elector;
pub mod lease;

pub use elector::{LeaderElectionConfig, LeaderTerm, run_while_leading};
