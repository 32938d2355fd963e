//! One task per pod: look, decide, act, report.
//!
//! [`plan`] decides and [`status`] says what is reported; both are pure. [`task`] is the loop around them,
//! [`act`] does what was decided, and [`Workers`] keeps one task for every pod that is wanted or still
//! holds something on this machine.

mod act;
mod context;
mod drain;
mod image;
mod message;
mod plan;
mod report;
mod resize;
mod retry_state;
mod status;
mod task;
#[cfg(test)]
mod tests;
mod view;
mod workers;
mod world;

pub use context::WorkerContext;
pub use workers::Workers;
pub use world::GRACE;
