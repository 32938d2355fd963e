//! When a Job is finished, and with which condition. Pure.
//!
//! The decision goes on record first, as the condition `FailureTarget` or `SuccessCriteriaMet`;
//! pods are stopped for it only then. Once all of them have ended and are counted, `Failed` or
//! `Complete` says so with the same words. What is on record is never decided again.

use jiff::Timestamp;
use k8s_openapi::{
    api::batch::v1::{JobCondition, JobStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::{
    policy::{self, FailureAction},
    tracking::Tally,
    view::{Life, View, World},
};

const REASONS: [&str; 5] =
    ["BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded", "PodFailurePolicy"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    pub success: bool,
    pub reason: String,
    pub message: String,
}

impl End {
    fn new(success: bool, reason: &str, message: impl Into<String>) -> Self {
        Self { success, reason: reason.to_owned(), message: message.into() }
    }

    /// The reason as one of ours. What others put on record may have any.
    pub fn known_reason(&self) -> &'static str {
        let known = REASONS.iter().find(|reason| **reason == self.reason);
        known.copied().unwrap_or_else(|| self.terminal())
    }

    /// The condition that says that it will end so.
    pub fn target(&self) -> &'static str {
        if self.success { "SuccessCriteriaMet" } else { "FailureTarget" }
    }

    /// The condition that says that it has ended so.
    pub fn terminal(&self) -> &'static str {
        if self.success { "Complete" } else { "Failed" }
    }
}

pub fn condition<'a>(status: &'a JobStatus, type_: &str) -> Option<&'a JobCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == type_)
}

fn is_true(status: &JobStatus, type_: &str) -> bool {
    condition(status, type_).is_some_and(|condition| condition.status == "True")
}

/// Since when it is over, if it is, and whether well.
pub fn finished(status: &JobStatus) -> Option<(bool, Option<Timestamp>)> {
    let terminal = [("Complete", true), ("Failed", false)].into_iter().find(|(type_, _)| is_true(status, type_));
    terminal.map(|(type_, success)| {
        let since = condition(status, type_).and_then(|condition| condition.last_transition_time.as_ref());
        (success, since.map(|Time(at)| *at))
    })
}

/// How it will end, if that is decided.
pub fn on_record(status: &JobStatus) -> Option<End> {
    let targets = [("SuccessCriteriaMet", true), ("FailureTarget", false)];
    let (type_, success) = targets.into_iter().find(|(type_, _)| is_true(status, type_))?;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    condition(status, type_).map(|is| End { success, reason: text(&is.reason), message: text(&is.message) })
}

/// Sets a condition. One that would be false and was never there is not worth mentioning.
pub fn set(status: &mut JobStatus, type_: &str, is: bool, reason: &str, message: &str, now: Timestamp) -> bool {
    let wanted = if is { "True" } else { "False" };
    let conditions = status.conditions.get_or_insert_default();
    let known = conditions.iter_mut().find(|condition| condition.type_ == type_);
    let same = |is: &JobCondition| {
        is.status == wanted && is.reason.as_deref() == Some(reason) && is.message.as_deref() == Some(message)
    };
    if known.as_deref().is_some_and(same) || (known.is_none() && !is) {
        if conditions.is_empty() {
            status.conditions = None;
        }
        return false;
    }
    let new = JobCondition {
        type_: type_.to_owned(),
        status: wanted.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_probe_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    };
    match known {
        Some(known) => *known = new,
        None => conditions.push(new),
    }
    true
}

/// Until when the Job may go on, if it may not for ever.
pub fn deadline(world: &World) -> Option<Timestamp> {
    let started = world.status.start_time.as_ref().filter(|_| !world.want.suspended)?;
    started.0.checked_add(world.want.deadline?).ok()
}

/// Decides whether it is over: what failed comes before what succeeded.
pub fn judge(world: &World, tally: &Tally, now: Timestamp) -> Option<End> {
    let World { want, pods, .. } = world;
    let policy = pods.iter().filter(|pod| pod.has_failed(want)).find_map(|pod| match &pod.ruling {
        FailureAction::FailJob(why) => Some(End::new(false, "PodFailurePolicy", why)),
        FailureAction::Count | FailureAction::Ignore | FailureAction::FailIndex => None,
    });
    if policy.is_some() {
        return policy;
    }
    if tally.failed > want.backoff_limit || restarted_too_often(world) {
        return Some(End::new(false, "BackoffLimitExceeded", "Job has reached the specified backoff limit"));
    }
    if deadline(world).is_some_and(|deadline| now >= deadline) {
        return Some(End::new(false, "DeadlineExceeded", "Job was active longer than specified deadline"));
    }
    let indexes = want.indexes();
    if let Some(failed) = &tally.failed_indexes {
        let too_many = |most: i32| failed.len() > usize::try_from(most).unwrap_or_default();
        if want.max_failed_indexes.is_some_and(too_many) {
            let message = "Job has exceeded the specified maximal number of failed indexes";
            return Some(End::new(false, "MaxFailedIndexesExceeded", message));
        }
        if !failed.is_empty() && failed.len() + tally.succeeded_indexes.len() >= indexes {
            return Some(End::new(false, "FailedIndexes", "Job has failed indexes"));
        }
    }
    if want.indexed
        && let Some(rule) = policy::content(want.success.as_ref(), indexes, &tally.succeeded_indexes)
    {
        return Some(End::new(true, "SuccessPolicy", rule));
    }
    let succeeded = usize::try_from(tally.succeeded).unwrap_or_default();
    let enough = want.completions.map_or(succeeded > 0, |completions| succeeded >= completions);
    let idle = !pods.iter().any(View::is_active);
    let reached = || End::new(true, "CompletionsReached", "Reached expected number of succeeded pods");
    (enough && idle && !want.leaving).then(reached)
}

/// Where containers restart within their pods, the limit is on restarts.
fn restarted_too_often(world: &World) -> bool {
    let alive = world.pods.iter().filter(|pod| matches!(pod.life, Life::Pending | Life::Running));
    let restarts: i32 = alive.map(|pod| pod.restarts).sum();
    world.want.restarts_count && restarts > 0 && restarts >= world.want.backoff_limit
}
