//! What to do about a CronJob: what is seen goes on record first, and only what the record shows is acted on.
//!
//! When a Job was last started is read off the Jobs themselves, each of which says what time it is
//! for. A crash between starting one and recording that therefore loses nothing, and the name,
//! which follows from the time, lets nobody start a second.

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use k8s_openapi::{
    api::{batch::v1::CronJobStatus, core::v1::ObjectReference},
    apimachinery::pkg::apis::meta::v1::Time,
};
use mainstay_api::groups::batch::rules::cron::Schedule;

use mainstay_events::EventNote;

use super::schedule;
use crate::runtime::Plan;

/// More missed starts than this are worth a warning.
const MANY: usize = 100;

pub struct World {
    pub want: Desired,
    pub version: String,
    /// As it is on record.
    pub status: CronJobStatus,
    /// The Jobs it controls. None that the record calls active is missing by mistake.
    pub jobs: Vec<JobView>,
    /// The zone in which the schedule is read, or why there is none.
    pub zone: Result<TimeZone, String>,
}

#[derive(Clone, Debug)]
pub struct Desired {
    pub namespace: String,
    pub name: String,
    pub created: Timestamp,
    pub schedule: String,
    pub policy: Concurrency,
    /// How late a Job may be started.
    pub patience: Option<SignedDuration>,
    pub suspended: bool,
    /// Being deleted.
    pub leaving: bool,
    /// How many Jobs that ended well, and badly, are kept.
    pub keep: [Option<usize>; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concurrency {
    Allow,
    Forbid,
    Replace,
}

#[derive(Clone, Debug)]
pub struct JobView {
    pub name: String,
    pub uid: String,
    /// The time it is for, if the schedule made it.
    pub scheduled: Option<Timestamp>,
    /// Whether it ended, and whether well.
    pub ended: Option<bool>,
    pub started: Option<Timestamp>,
    pub completed: Option<Timestamp>,
    pub leaving: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Delete {
        name: String,
        uid: String,
    },
    /// Starts a Job, if the CronJob is still of this version, and perhaps only if no other is running.
    Start {
        name: String,
        at: Timestamp,
        version: String,
        alone: bool,
    },
    RecordEvent(EventNote),
}

#[derive(Debug, PartialEq)]
pub struct Report {
    pub version: String,
    pub status: CronJobStatus,
    pub events: Vec<EventNote>,
}

pub fn plan(world: &World, now: Timestamp) -> Plan<Action, Report> {
    let (status, events) = observed_status(world, now);
    if status != world.status {
        let report = Report { version: world.version.clone(), status, events };
        return Plan { status: Some(report), ..Plan::default() };
    }
    let mut plan = Plan::act(events.into_iter().map(Action::RecordEvent).chain(history(world)));
    if !world.want.leaving && !world.want.suspended {
        start(world, now, &mut plan);
    }
    plan
}

/// The status as it should be, and what is worth saying about how it changes.
fn observed_status(world: &World, now: Timestamp) -> (CronJobStatus, Vec<EventNote>) {
    let mut status = world.status.clone();
    let mut events = Vec::new();
    let mut active = Vec::new();
    let recorded = |uid: &str| world.status.active.iter().flatten().any(|one| one.uid.as_deref() == Some(uid));
    for known in world.status.active.iter().flatten() {
        let name = known.name.clone().unwrap_or_default();
        match world.jobs.iter().find(|job| known.uid.as_deref() == Some(&job.uid)).map(|job| job.ended) {
            Some(None) => active.push(known.clone()),
            Some(Some(well)) => {
                let how = if well { "Complete" } else { "Failed" };
                events.push(EventNote::normal("SawCompletedJob", format!("Saw completed job: {name}, status: {how}")));
            }
            None => events.push(EventNote::normal("MissingJob", format!("Active job went missing: {name}"))),
        }
    }
    for job in world.jobs.iter().filter(|job| job.ended.is_none() && !recorded(&job.uid)) {
        if job.scheduled.is_some() {
            active.push(reference(&world.want, job));
        } else {
            let message = format!("Saw a job that the controller did not create or forgot: {}", job.name);
            events.push(EventNote::warning("UnexpectedJob", message));
        }
    }
    let later = |known: &Option<Time>, times: &mut dyn Iterator<Item = Timestamp>| {
        times.chain(known.as_ref().map(|Time(at)| *at)).max().map(Time)
    };
    let well = world.jobs.iter().filter(|job| job.ended == Some(true));
    // What claims to be for a time to come was not started by the schedule.
    let mut started = world.jobs.iter().filter_map(|job| job.scheduled).filter(|scheduled| *scheduled <= now);
    status.active = (!active.is_empty()).then_some(active);
    status.last_schedule_time = later(&status.last_schedule_time, &mut started);
    status.last_successful_time = later(&status.last_successful_time, &mut well.filter_map(|job| job.completed));
    (status, events)
}

fn reference(want: &Desired, job: &JobView) -> ObjectReference {
    ObjectReference {
        api_version: Some("batch/v1".to_owned()),
        kind: Some("Job".to_owned()),
        namespace: Some(want.namespace.clone()),
        name: Some(job.name.clone()),
        uid: Some(job.uid.clone()),
        ..ObjectReference::default()
    }
}

/// Of the Jobs that ended, the oldest go.
fn history(world: &World) -> impl Iterator<Item = Action> {
    let of = |well: bool, keep: Option<usize>| {
        let mut ended: Vec<&JobView> = world.jobs.iter().filter(|job| job.ended == Some(well)).collect();
        ended.sort_by_key(|job| (job.started.is_none(), job.started, &job.name));
        let surplus = keep.map_or(0, |keep| ended.len().saturating_sub(keep));
        ended.into_iter().take(surplus).filter(|job| !job.leaving).map(delete).collect::<Vec<_>>()
    };
    let [well, badly] = world.want.keep;
    of(true, well).into_iter().chain(of(false, badly))
}

fn delete(job: &JobView) -> Action {
    Action::Delete { name: job.name.clone(), uid: job.uid.clone() }
}

fn start(world: &World, now: Timestamp, plan: &mut Plan<Action, Report>) {
    let want = &world.want;
    let mut warn =
        |reason, message: String| plan.actions.push(Action::RecordEvent(EventNote::warning(reason, message)));
    let zone = match &world.zone {
        Ok(zone) => zone,
        Err(why) => return warn("UnknownTimeZone", why.clone()),
    };
    let schedule = match Schedule::parse(&want.schedule) {
        Ok(schedule) => schedule,
        Err(why) => return warn("UnparseableSchedule", format!("unparseable schedule: {:?} : {why}", want.schedule)),
    };
    let last = world.status.last_schedule_time.as_ref().map_or(want.created, |Time(at)| *at);
    let Some(next) = schedule::next(&schedule, zone, now) else {
        let why = "time difference between two schedules is less than 1 second";
        return warn("InvalidSchedule", format!("invalid schedule: {} : {why}", want.schedule));
    };
    plan.requeue_at = Some(next);
    let Some(due) = schedule::latest(&schedule, zone, last, now) else { return };
    let not_before = want.patience.and_then(|patience| now.checked_sub(patience).ok());
    if not_before.is_some_and(|not_before| due < not_before) {
        let when = due.strftime("%a, %d %b %Y %H:%M:%S +0000");
        return warn("MissSchedule", format!("Missed scheduled time to start a job: {when}"));
    }
    let since = not_before.map_or(last, |not_before| last.max(not_before));
    if schedule::more_than(MANY, &schedule, zone, since, now) {
        let message = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
        warn("TooManyMissedTimes", message.to_owned());
    }
    let minute = |time: Timestamp| time.as_second().div_euclid(60);
    let name = format!("{}-{}", want.name, minute(due));
    let had = world.status.last_schedule_time.as_ref().is_some_and(|Time(at)| minute(*at) == minute(due));
    if had || world.jobs.iter().any(|job| job.name == name) {
        return; // two times within a minute share a Job, even one that is gone already
    }
    let running: Vec<&JobView> =
        world.jobs.iter().filter(|job| job.ended.is_none() && job.scheduled.is_some()).collect();
    match want.policy {
        Concurrency::Forbid if !running.is_empty() => {
            let message = "Not starting job because prior execution is running and concurrency policy is Forbid";
            plan.actions.push(Action::RecordEvent(EventNote::normal("JobAlreadyActive", message.to_owned())));
            return;
        }
        Concurrency::Replace => plan.actions.extend(running.into_iter().filter(|job| !job.leaving).map(delete)),
        Concurrency::Allow | Concurrency::Forbid => {}
    }
    let alone = want.policy != Concurrency::Allow;
    plan.actions.push(Action::Start { name, at: due, version: world.version.clone(), alone });
}
