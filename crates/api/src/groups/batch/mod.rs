//! batch: Job and CronJob.

mod kinds;
pub mod rules;
pub mod table;

pub use kinds::kinds;
