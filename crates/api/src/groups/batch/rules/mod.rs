//! The `batch` group: pods that run to an end.

pub mod cron;
mod cron_job;
mod duration;
mod indexes;
mod job;
mod job_spec;
mod job_status;
mod policies;

pub use cron_job::CronJobRules;
pub use job::JobRules;
