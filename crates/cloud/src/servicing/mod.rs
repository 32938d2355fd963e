//! Servicing: replaces machines whose agent is old, and reboots machines whose system is old, one at a time.

pub mod controller;
pub mod metrics;
pub mod plan;
pub mod version;

pub use controller::controller;
