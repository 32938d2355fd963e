//! Which pod runs on which machine.
//!
//! * [`core`]: the decision, pure: machines and pods in, placements and reasons out. No clock, no I/O, no
//!   chance but a seed.
//! * [`queue`]: who waits, and when they are tried again; [`board`]: what machines offer at the moment. Both pure
//! * [`settings`]: what can be tuned, [`ini`]: from a file; [`metrics`]: what is counted

pub mod board;
pub mod core;
pub mod ini;
pub mod metrics;
pub mod queue;
pub mod settings;
