//! The status of a Deployment: counts, and conditions in upstream's words.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{api::apps::v1::DeploymentCondition, apimachinery::pkg::apis::meta::v1::Time};

use super::view::{Desired, Set, UnmetNeeds, World};
use crate::objects::deployment::Status;

const PROGRESSING: &str = "Progressing";
const AVAILABLE: &str = "Available";
const REPLICA_FAILURE: &str = "ReplicaFailure";

const NEW_AVAILABLE: &str = "NewReplicaSetAvailable";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
pub const CREATE_ERROR: &str = "ReplicaSetCreateError";
const PAUSED: &str = "DeploymentPaused";
/// Stands between upstream's message and what pods wait for.
const WAITING_PODS: &str = " Waiting: ";

/// What is seen.
pub fn counts(world: &World, new: Option<&Set>) -> Status {
    let sum = |count: fn(&Set) -> i32| world.sets.iter().map(count).sum::<i32>();
    let available = sum(|set| set.seen.available);
    Status {
        observed_generation: world.want.generation,
        replicas: sum(|set| set.seen.replicas),
        updated_replicas: new.map_or(0, |new| new.seen.replicas),
        ready_replicas: sum(|set| set.seen.ready),
        available_replicas: available,
        unavailable_replicas: (sum(|set| set.replicas) - available).max(0),
        terminating_replicas: Some(sum(|set| set.seen.leaving)),
        collision_count: world.standing.collision_count,
        conditions: world.standing.conditions.clone(),
    }
}

/// Everything wanted is there, and nothing else.
pub fn is_complete(want: &Desired, status: &Status) -> bool {
    let all = [status.updated_replicas, status.replicas, status.available_replicas];
    all.iter().all(|count| *count == want.replicas) && status.observed_generation >= want.generation
}

fn is_moving(before: &Status, now: &Status) -> bool {
    now.updated_replicas > before.updated_replicas
        || now.replicas - now.updated_replicas < before.replicas - before.updated_replicas
        || now.ready_replicas > before.ready_replicas
        || now.available_replicas > before.available_replicas
}

/// Sets all conditions; says when the deadline for progress will have passed, if it runs.
/// `rolling` is whether an update may go on: not while paused or being scaled.
pub fn judge(
    world: &World,
    new: Option<&Set>,
    rolling: bool,
    status: &mut Status,
    now: Timestamp,
) -> Option<Timestamp> {
    let want = &world.want;
    let conditions = Conditions { all: &mut status.conditions, now };
    available(want, status.available_replicas, conditions);
    replica_failure(world, new, Conditions { all: &mut status.conditions, now });
    let Some(deadline) = want.deadline else {
        status.conditions.retain(|condition| condition.type_.as_deref() != Some(PROGRESSING));
        return None;
    };
    if !want.leaving {
        pausing(want, Conditions { all: &mut status.conditions, now });
        beginning(new, Conditions { all: &mut status.conditions, now });
    }
    if rolling && !want.leaving {
        progress(world, new, deadline, status, now);
        explain_waiting(world.unmet_needs.as_ref(), &mut status.conditions);
    }
    let progressing = status.condition(PROGRESSING)?;
    let waits = !matches!(progressing.reason.as_deref(), Some(NEW_AVAILABLE | TIMED_OUT | PAUSED));
    let since = deadline_runs_since(world, progressing).filter(|_| waits && rolling)?;
    Some(since + SignedDuration::from_secs(i64::from(deadline) + 1))
}

/// From when the deadline for progress counts: the last progress, or when the last pod had what it needs. Nothing while pods wait for their needs within
/// the time that they give these: waiting is not failing.
fn deadline_runs_since(world: &World, progressing: &DeploymentCondition) -> Option<Timestamp> {
    if world.unmet_needs.as_ref().is_some_and(|unmet| !unmet.is_overdue) {
        return None;
    }
    let Time(since) = progressing.last_update_time.as_ref()?;
    Some(world.needs_met.map_or(*since, |met| met.max(*since)))
}

fn available(want: &Desired, available: i32, mut conditions: Conditions<'_>) {
    if available >= want.min_available() {
        conditions.set(AVAILABLE, "True", "MinimumReplicasAvailable", "Deployment has minimum availability.");
    } else {
        let message = "Deployment does not have minimum availability.";
        conditions.set(AVAILABLE, "False", "MinimumReplicasUnavailable", message);
    }
}

/// The failure of the new set, or of any other.
fn replica_failure(world: &World, new: Option<&Set>, mut conditions: Conditions<'_>) {
    let failures = new.into_iter().chain(&world.sets).find_map(|set| set.failure.as_ref());
    match failures {
        Some(failure) => {
            let text = |field: &Option<String>| field.clone().unwrap_or_default();
            conditions.set(REPLICA_FAILURE, &text(&failure.status), &text(&failure.reason), &text(&failure.message));
        }
        None => conditions.all.retain(|condition| condition.type_.as_deref() != Some(REPLICA_FAILURE)),
    }
}

fn pausing(want: &Desired, mut conditions: Conditions<'_>) {
    let reason = conditions.reason(PROGRESSING).map(str::to_owned);
    match reason.as_deref() {
        Some(TIMED_OUT) => {} // who pauses does not undo that
        Some(PAUSED) if !want.paused => {
            conditions.set(PROGRESSING, "Unknown", "DeploymentResumed", "Deployment is resumed");
        }
        _ if want.paused => conditions.set(PROGRESSING, "Unknown", PAUSED, "Deployment is paused"),
        _ => {}
    }
}

/// A set that existed already, and no condition yet.
fn beginning(new: Option<&Set>, mut conditions: Conditions<'_>) {
    if let Some(new) = new.filter(|_| conditions.reason(PROGRESSING).is_none()) {
        conditions.set(PROGRESSING, "True", "FoundNewReplicaSet", &format!("Found new replica set {:?}", new.name));
    }
}

fn progress(world: &World, new: Option<&Set>, deadline: i32, status: &mut Status, now: Timestamp) {
    let want = &world.want;
    let before = status.condition(PROGRESSING).cloned();
    let reason = before.as_ref().and_then(|condition| condition.reason.as_deref());
    if status.replicas == status.updated_replicas && reason == Some(NEW_AVAILABLE) {
        return;
    }
    let who = match new {
        Some(new) => format!("ReplicaSet {:?}", new.name),
        None => format!("Deployment {:?}", want.name),
    };
    let (complete, moving) = (is_complete(want, status), is_moving(&world.standing, status));
    let mut conditions = Conditions { all: &mut status.conditions, now };
    if complete {
        conditions.set(PROGRESSING, "True", NEW_AVAILABLE, &format!("{who} has successfully progressed."));
    } else if moving {
        // Said anew each time: the deadline runs from the last progress.
        let since = before
            .filter(|before| before.status.as_deref() == Some("True"))
            .and_then(|before| before.last_transition_time);
        conditions.all.retain(|condition| condition.type_.as_deref() != Some(PROGRESSING));
        conditions.set(PROGRESSING, "True", "ReplicaSetUpdated", &format!("{who} is progressing."));
        if let (Some(since), Some(condition)) = (since, conditions.all.last_mut()) {
            condition.last_transition_time = Some(since);
        }
    } else if has_timed_out(world, before.as_ref(), deadline, now) {
        conditions.set(PROGRESSING, "False", TIMED_OUT, &format!("{who} has timed out progressing."));
    }
}

/// Says in the message what pods wait for. When the condition changed last, which the deadline counts from, stays as it is.
fn explain_waiting(unmet: Option<&UnmetNeeds>, conditions: &mut [DeploymentCondition]) {
    let progressing = conditions.iter_mut().find(|condition| condition.type_.as_deref() == Some(PROGRESSING));
    let Some(progressing) = progressing else { return };
    let message = progressing.message.clone().unwrap_or_default();
    let plain = message.split_once(WAITING_PODS).map_or(message.as_str(), |(plain, _)| plain);
    let unmet = unmet.filter(|_| progressing.reason.as_deref() != Some(NEW_AVAILABLE));
    progressing.message = Some(match unmet {
        Some(unmet) => format!("{plain}{WAITING_PODS}{unmet}"),
        None => plain.to_owned(),
    });
}

fn has_timed_out(world: &World, progressing: Option<&DeploymentCondition>, deadline: i32, now: Timestamp) -> bool {
    let Some(progressing) = progressing else { return false };
    match progressing.reason.as_deref() {
        Some(NEW_AVAILABLE) => false,
        Some(TIMED_OUT) => true,
        _ => deadline_runs_since(world, progressing)
            .is_some_and(|since| now > since + SignedDuration::from_secs(deadline.into())),
    }
}

/// What became of making a new ReplicaSet, which is known only afterwards.
#[derive(Clone, Debug)]
pub enum NewReplicaSet {
    Created { name: String },
    Refused { name: String, why: String },
}

impl NewReplicaSet {
    pub fn set(&self, mut conditions: Conditions<'_>) {
        match self {
            Self::Created { name } => {
                let message = format!("Created new replica set {name:?}");
                conditions.set(PROGRESSING, "True", "NewReplicaSetCreated", &message);
            }
            Self::Refused { name, why } => {
                let message = format!("Failed to create new replica set {name:?}: {why}");
                conditions.set(PROGRESSING, "False", CREATE_ERROR, &message);
            }
        }
    }
}

/// Conditions, and the time at which they are judged.
pub struct Conditions<'s> {
    pub all: &'s mut Vec<DeploymentCondition>,
    pub now: Timestamp,
}

impl Conditions<'_> {
    fn reason(&self, type_: &str) -> Option<&str> {
        self.all.iter().find(|condition| condition.type_.as_deref() == Some(type_))?.reason.as_deref()
    }

    /// One that stands with the same status and reason is left as it is.
    pub fn set(&mut self, type_: &str, status: &str, reason: &str, message: &str) {
        let at = self.all.iter().position(|condition| condition.type_.as_deref() == Some(type_));
        let before = at.map(|at| &self.all[at]);
        if before
            .is_some_and(|before| before.status.as_deref() == Some(status) && before.reason.as_deref() == Some(reason))
        {
            return;
        }
        let since = before
            .filter(|before| before.status.as_deref() == Some(status))
            .and_then(|b| b.last_transition_time.clone());
        let condition = DeploymentCondition {
            type_: Some(type_.to_owned()),
            status: Some(status.to_owned()),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            last_update_time: Some(Time(self.now)),
            last_transition_time: Some(since.unwrap_or(Time(self.now))),
        };
        match at {
            Some(at) => self.all[at] = condition,
            None => self.all.push(condition),
        }
    }
}
