//! Which pod runs on which machine.
//!
//! * [`core`]: the decision, pure: machines and pods in, placements and reasons out. No clock, no I/O, no
//!   chance but a seed.

pub mod core;
