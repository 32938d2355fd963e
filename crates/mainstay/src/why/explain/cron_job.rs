//! Why a CronJob starts no Jobs, or why its last one failed.

use jiff::Timestamp;
use k8s_openapi::api::{batch::v1::CronJob, core::v1::Event};

use super::{Cause, WorkloadFacts, explain_workload, text};

/// What was observed of a CronJob.
#[derive(Clone, Debug, Default)]
pub struct CronJobFacts {
    pub cron_job: CronJob,
    pub events: Vec<Event>,
    /// The youngest Job that it owns.
    pub last_job: Option<WorkloadFacts>,
}

/// Events in which the controller says why it starts no Job.
const FAILURES: [&str; 6] =
    ["FailedCreate", "MissSchedule", "TooManyMissedTimes", "UnparseableSchedule", "InvalidSchedule", "UnknownTimeZone"];

/// The CronJob's own explanation, then that of its last Job.
pub fn explain_cron_job(facts: &CronJobFacts, now: Timestamp) -> String {
    let subject = text::subject("cronjob", &facts.cron_job.metadata);
    let own = cron_job_cause(facts, now).into_explanation(subject, text::history(&facts.events, now));
    let job = facts.last_job.as_ref().map_or_else(String::new, |job| format!("\n{}", explain_workload(job, now)));
    format!("{own}{job}")
}

fn cron_job_cause(facts: &CronJobFacts, now: Timestamp) -> Cause {
    let meta = &facts.cron_job.metadata;
    let (kubectl, name) = (text::kubectl(meta), text::name(meta));
    let spec = &facts.cron_job.spec;
    let schedule = &spec.schedule;
    let zone = spec.time_zone.as_deref().unwrap_or("UTC");
    let schedule = format!("schedule {schedule:?} in {zone}");
    if spec.suspend == Some(true) {
        return Cause::new(format!("is suspended; {schedule}")).next(
            format!("{kubectl} patch cronjob {name} --type=merge -p '{{\"spec\":{{\"suspend\":false}}}}'"),
            "lets it start Jobs",
        );
    }
    let status = facts.cron_job.status.as_ref();
    let last = text::age_of(status.and_then(|status| status.last_schedule_time.as_ref()), now);
    let failure = text::newest(&facts.events, &FAILURES).and_then(|event| event.message.as_deref()).map(text::clause);
    let by_hand = (format!("{kubectl} create job {name}-now --from=cronjob/{name}"), "starts one now");
    match (&facts.last_job, last, failure) {
        (None, None, Some(message)) => Cause::new(format!("has started no Job: {message}; {schedule}")),
        (None, None, None) => Cause::new(format!("has not been due yet; {schedule}")).next(by_hand.0, by_hand.1),
        (None, Some(last), _) => Cause::new(format!("last started a Job {last} ago, which is gone; {schedule}")),
        (Some(job), last, _) => {
            let own = super::workload::workload_explanation(job, None, now);
            let last = last.map_or_else(String::new, |last| format!(" {last} ago"));
            Cause::new(format!("last started a Job{last}: {}; {schedule}", own.sentence()))
        }
    }
}
