//! Pod workers: one task per pod that observes, plans, acts and reports.
//!
//! [`plan`] decides and [`status`] says what is reported; both are pure. [`task`] is the loop around them,
//! [`act`] does what was decided, and [`Workers`] keeps one task for every pod that is wanted or still
//! holds something on this machine.

mod act;
mod context;
pub mod drain;
pub mod drain_turns;
mod image;
mod plan;
mod report;
mod resize;
mod retry_state;
pub mod slow_start;
mod status;
mod task;
mod termination_message;
#[cfg(test)]
mod tests;
mod view;
mod workers;
mod world;

pub use context::WorkerContext;
pub use workers::Workers;
pub use world::GRACE;
