//! Machines and releases: every decision about them, as pure functions. Agent, controllers and commands do the rest.
//!
//! * [`steps`]: which of its own steps a machine runs next, and what it reports
//! * [`accounting`]: which machines are heard of, and which are unaccounted for
//! * [`release`]: which machines of a Release move now, and what it waits for; [`windows`]: when they may; [`workloads`]: the
//!   workloads that move with them
//! * [`questions`]: what JioCloud asked of machines: which version runs where, who failed, is an update pending

pub mod accounting;
pub mod questions;
pub mod release;
pub mod steps;
pub mod windows;
pub mod workloads;
