//! Machines and releases: every decision about them, as pure functions. Agent, controllers and commands do the rest.
//!
//! * [`steps`]: which of its own steps a machine runs next, and what it reports
//! * [`accounting`]: which machines are heard of, and which are unaccounted for
//! * [`release`]: which machines of a Release move now, and what it waits for; [`windows`]: when they may; [`workloads`]: the
//!   workloads that move with them
//! * [`machine_list`]: lists of Machines, decoded as far as questions are about them
//! * [`status_patch`]: how a state is written so that nothing of the one before stays
//! * [`questions`]: what JioCloud asked of machines: which version runs where, who failed, is an update pending

pub mod accounting;
pub mod machine_list;
pub mod questions;
pub mod release;
pub mod status_patch;
pub mod steps;
pub mod windows;
pub mod workloads;
