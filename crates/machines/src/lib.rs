//! Machines and releases: every decision about them, as pure functions. Agent, controllers and commands do the rest.
//!
//! * [`steps`]: which of its own steps a machine runs next, and what it reports
//! * [`accounting`]: which machines are heard of, and which are unaccounted for
//! * [`questions`]: what JioCloud asked of machines: which version runs where, who failed, is an update pending

pub mod accounting;
pub mod questions;
pub mod steps;
