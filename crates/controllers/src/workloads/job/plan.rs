//! What a Job does next, from the Job and its pods alone. Pure.
//!
//! Nothing is remembered between reconciles. What has to come first is done first and goes on record;
//! what follows from it follows in a later reconcile, from the record: pods are stopped once the end is
//! decided, released once they are counted, and the Job is over once nothing of it is left.

use std::collections::HashSet;

use jiff::Timestamp;
use k8s_openapi::{api::batch::v1::JobStatus, apimachinery::pkg::apis::meta::v1::Time};

use mainstay_events::EventNote;

use super::{
    backoff,
    finish::{self, End},
    policy::FailureAction,
    tracking::{NewlyCountedPod, Tally, non_zero, to_i32},
    view::{Desired, Life, View, World},
};
use crate::{names, runtime::Plan, workloads::controller_ref::OwnershipChange};

/// How many pods one reconcile makes or gives up at most.
const BURST: usize = 500;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    OwnershipChange(OwnershipChange),
    Create(Slot),
    /// Ends a pod that will be counted.
    Stop {
        name: String,
        uid: String,
    },
    /// Ends a pod that will not be counted: it is released before it is deleted, unless it changed meanwhile (it
    /// may have ended, and then counts).
    GiveUp {
        name: String,
        uid: String,
        version: String,
    },
    /// Takes our finalizer away, perhaps only from this version.
    Release {
        name: String,
        uid: String,
        version: Option<String>,
    },
}

/// What a new pod is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The Job it is for, by uid.
    pub job: String,
    pub name: String,
    pub index: Option<usize>,
    /// How often its index failed so far, where that counts, and how often that was ignored.
    pub failures: Option<(i32, i32)>,
}

/// A status to write, and what to say once it is written.
#[derive(Debug, PartialEq)]
pub struct Report {
    /// The version of the Job that was judged.
    pub version: String,
    pub status: JobStatus,
    /// Pods that must still be uncounted when it is written.
    pub begun: Vec<NewlyCountedPod>,
    pub events: Vec<EventNote>,
}

pub fn plan(world: &World, now: Timestamp) -> Plan<Action, Report> {
    if !world.claims.is_empty() {
        return Plan::act(world.claims.iter().cloned().map(Action::OwnershipChange));
    }
    if finish::finished(&world.status).is_some() || world.want.leaving {
        return Plan::act(world.pods.iter().filter(|pod| pod.tracked).map(|pod| release(pod, false)));
    }
    let tally = Tally::new(world);
    let mut status = world.status.clone();
    let mut plan = Plan::act(tally.releasable(world).map(|(pod, unchanged)| release(pod, unchanged)));
    let begun = tally.record(world, &mut status);
    let mut say = Vec::new();
    count_living(world, &mut status);
    if status.start_time.is_none() && !world.want.suspended {
        status.start_time = Some(Time(now));
    }
    match (finish::on_record(&world.status), finish::judge(world, &tally, now)) {
        (Some(end), _) => {
            plan.actions.extend(world.pods.iter().filter(|pod| pod.is_active()).map(stop));
            if is_settled(world, &status) {
                conclude(world, &end, &mut status, &mut say, now);
            }
        }
        (None, Some(end)) => {
            finish::set(&mut status, end.target(), true, &end.reason, &end.message, now);
        }
        (None, None) => {
            plan.requeue_at = finish::deadline(world);
            suspend_or_resume(&world.want, &mut status, &mut say, now);
            staff(world, &tally, &mut plan, now);
        }
    }
    plan.status =
        (status != world.status).then(|| Report { version: world.version.clone(), status, begun, events: say });
    plan
}

fn count_living(world: &World, status: &mut JobStatus) {
    let count = |which: fn(&View) -> bool| to_i32(world.pods.iter().filter(|pod| which(pod)).count());
    status.active = non_zero(count(View::is_active));
    status.ready = Some(count(|pod| pod.is_active() && pod.ready));
    status.terminating = Some(count(View::is_terminating));
}

/// Whether all pods have ended and are in the totals.
fn is_settled(world: &World, status: &JobStatus) -> bool {
    let uncounted = status.uncounted_terminated_pods.iter();
    let waiting = uncounted.flat_map(|uncounted| uncounted.succeeded.iter().chain(&uncounted.failed)).flatten();
    let living = |pod: &View| pod.tracked || pod.is_active() || pod.is_terminating();
    waiting.count() == 0 && !world.pods.iter().any(living)
}

fn conclude(world: &World, end: &End, status: &mut JobStatus, say: &mut Vec<EventNote>, now: Timestamp) {
    finish::set(status, end.terminal(), true, &end.reason, &end.message, now);
    if end.success {
        let started = status.start_time.as_ref().map_or(now, |Time(started)| *started);
        status.completion_time = Some(Time(now.max(started)));
        let wanted = world.want.completions.unwrap_or(usize::MAX);
        if usize::try_from(status.succeeded.unwrap_or_default()).is_ok_and(|succeeded| succeeded > wanted) {
            let message = "Too many succeeded pods running after completion count reached";
            say.push(EventNote::warning("TooManySucceededPods", message));
        }
        say.push(EventNote::normal("Completed", "Job completed"));
    } else {
        say.push(EventNote::warning(end.known_reason(), &end.message));
    }
}

/// A resumed Job starts its clock again.
fn suspend_or_resume(want: &Desired, status: &mut JobStatus, say: &mut Vec<EventNote>, now: Timestamp) {
    let (reason, message) =
        if want.suspended { ("JobSuspended", "Job suspended") } else { ("JobResumed", "Job resumed") };
    if finish::set(status, "Suspended", want.suspended, reason, message, now) {
        say.push(EventNote::normal(if want.suspended { "Suspended" } else { "Resumed" }, message));
        if !want.suspended {
            status.start_time = Some(Time(now));
        }
    }
}

/// Gives up what is too much, or else makes what is missing.
fn staff(world: &World, tally: &Tally, plan: &mut Plan<Action, Report>, now: Timestamp) {
    let surplus = surplus(world, tally);
    if !surplus.is_empty() {
        plan.actions.extend(surplus.into_iter().take(BURST).map(give_up));
        return;
    }
    let missing = missing(world, tally);
    let due = |slot: &Slot| match (slot.index, &tally.failed_indexes) {
        (Some(index), Some(_)) => tally.to_replace(world, index).map(backoff::of_index),
        _ => None,
    };
    let common = tally.failed_indexes.is_none().then(|| backoff::of_job(&world.want, &world.pods)).flatten();
    for slot in missing {
        match common.max(due(&slot)).filter(|due| *due > now) {
            None => plan.actions.push(Action::Create(slot)),
            Some(due) => plan.requeue_at = Some(plan.requeue_at.map_or(due, |wake| wake.min(due))),
        }
    }
}

/// How many pods should be active.
fn desired_active(world: &World, tally: &Tally, active: usize) -> usize {
    let want = &world.want;
    let succeeded = usize::try_from(tally.succeeded).unwrap_or_default();
    match want.completions {
        _ if want.suspended => 0,
        // Once one succeeded, the others end by themselves.
        None if succeeded > 0 => active,
        None => want.parallelism,
        Some(completions) => want.parallelism.min(completions.saturating_sub(succeeded)),
    }
}

/// Active pods that should not be, those first that would be missed least.
fn surplus<'a>(world: &'a World, tally: &Tally) -> Vec<&'a View> {
    let mut active: Vec<&View> = world.pods.iter().filter(|pod| pod.is_active()).collect();
    let too_many = active.len().saturating_sub(desired_active(world, tally, active.len()));
    active.sort_by(|a, b| dispensable(a).cmp(&dispensable(b)));
    // Those worth most come first here, and of each index the first stays.
    let mut observed = HashSet::new();
    let mut needless: Vec<&View> = active
        .iter()
        .rev()
        .filter(|pod| {
            let done = |index: usize| {
                let failed = tally.failed_indexes.as_ref().is_some_and(|failed| failed.contains(index));
                failed || tally.succeeded_indexes.contains(index) || !observed.insert(index)
            };
            // Without our finalizer it was given up half-way, and could not be counted.
            !pod.tracked || !world.want.has_place_for(pod) || (world.want.indexed && pod.index.is_some_and(done))
        })
        .copied()
        .collect();
    let chosen: HashSet<&str> = needless.iter().map(|pod| pod.uid.as_str()).collect();
    let others = active.into_iter().filter(|pod| !chosen.contains(pod.uid.as_str()));
    needless.extend(others.take(too_many.saturating_sub(chosen.len())));
    needless
}

/// Waiting before running, unready before ready, much restarted first, young before old.
fn dispensable(pod: &View) -> impl Ord + '_ {
    let young = std::cmp::Reverse((pod.created, &pod.uid));
    (pod.placed, pod.life == Life::Running, pod.ready, std::cmp::Reverse(pod.restarts), young)
}

/// The pods that should be made, whenever that may be.
pub fn missing(world: &World, tally: &Tally) -> Vec<Slot> {
    let World { want, pods, .. } = world;
    let active = pods.iter().filter(|pod| pod.is_active()).count();
    let leaving = pods.iter().filter(|pod| want.replace_ended_only && pod.is_terminating());
    let count = desired_active(world, tally, active).saturating_sub(active + leaving.clone().count()).min(BURST);
    if count == 0 {
        return Vec::new();
    }
    let taken: HashSet<&str> =
        pods.iter().map(|pod| pod.name.as_str()).chain(world.foreign.iter().map(String::as_str)).collect();
    if !want.indexed {
        let names = names::fresh(&want.name, &want.uid, &world.used_numbers, |name| taken.contains(name));
        return names
            .take(count)
            .map(|name| Slot { job: want.uid.clone(), name, index: None, failures: None })
            .collect();
    }
    let busy = pods.iter().filter(|pod| pod.is_active()).chain(leaving).filter_map(|pod| pod.index);
    let mut settled = tally.succeeded_indexes.with(busy);
    if let Some(failed) = &tally.failed_indexes {
        settled = settled.union(failed);
    }
    let indexes = settled.missing(want.indexes()).take(count);
    indexes.map(|index| indexed_slot(world, tally, index, &taken)).collect()
}

fn indexed_slot(world: &World, tally: &Tally, index: usize, taken: &HashSet<&str>) -> Slot {
    let want = &world.want;
    let owner = indexed_name(&want.name, index);
    let last = world.predecessors.get(&index);
    let name = names::successor(&owner, &want.uid, &index.to_string(), last, |name| taken.contains(name));
    let failures = tally.failed_indexes.as_ref().map(|_| match tally.to_replace(world, index) {
        None => (0, 0),
        Some(View { index_failures, index_ignored, ruling: FailureAction::Ignore, .. }) => {
            (*index_failures, index_ignored.saturating_add(1))
        }
        Some(last) => (last.index_failures.saturating_add(1), last.index_ignored),
    });
    Slot { job: want.uid.clone(), name, index: Some(index), failures }
}

/// Long names lose their end, never the index.
fn indexed_name(job: &str, index: usize) -> String {
    const LONGEST: usize = 57;
    let index = format!("-{index}");
    let retained = job.len().min(LONGEST.saturating_sub(index.len()));
    format!("{}{index}", &job[..retained])
}

fn release(pod: &View, unchanged: bool) -> Action {
    let version = unchanged.then(|| pod.version.clone());
    Action::Release { name: pod.name.clone(), uid: pod.uid.clone(), version }
}

fn stop(pod: &View) -> Action {
    Action::Stop { name: pod.name.clone(), uid: pod.uid.clone() }
}

fn give_up(pod: &View) -> Action {
    Action::GiveUp { name: pod.name.clone(), uid: pod.uid.clone(), version: pod.version.clone() }
}
