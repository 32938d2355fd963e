//! `batch/v1`.

use k8s_openapi::api::batch::v1::{CronJob, Job};

use super::{
    rules::{CronJobRules, JobRules},
    table,
};
use crate::{
    descriptor::{Descriptor, SelectableField},
    groups::builder::{describe, field_or},
};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        describe::<CronJob>()
            .rules::<CronJobRules>()
            .columns(&table::CRON_JOBS)
            .short("cj")
            .category("all")
            .status()
            .generation(),
        describe::<Job>()
            .orphans_by_default()
            .rules::<JobRules>()
            .columns(&table::JOBS)
            .category("all")
            .status()
            .generation()
            .select(JOB_FIELDS),
    ]
}

/// Upstream's label differs from the field it reads.
const JOB_FIELDS: &[SelectableField] = &[field_or("status.successful", &["status", "succeeded"], "0")];
