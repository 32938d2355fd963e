//! The status of a PodDisruptionBudget: how many of its pods may be evicted. Pure.
//!
//! Whoever evicts a pod counts the allowance down and writes the pod's name into the status, in one write that
//! carries the version. Here the truth is counted: pods that were named and are still there
//! do not count as healthy, so that a change that is seen late allows nothing twice. A name is dropped when
//! its pod is seen to go, when another pod has it, or when nothing came of it for two minutes.
//!
//! Whether that is so is judged by what this controller has seen itself ([`SeenEviction`]), never by the times in the status and in
//! pods: servers write those by clocks that may be hours apart, and jump.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus},
    apimachinery::pkg::{
        apis::meta::v1::{Condition, Time},
        util::intstr::IntOrString,
    },
};
use mainstay_api::int_or_percent::{self, Rounding};

use mainstay_events::EventNote;

use crate::{objects::pod::Pod, runtime};

/// A pod that was to be evicted and is still there after this was not.
const EVICTED_WITHIN: Duration = Duration::from_secs(120);
/// The same for a pod that is no older than its eviction: it may as well have come in place of the one that was evicted, whose name it has. Who
/// looks at clocks of several servers here only waits for less long.
const REPLACED_WITHIN: Duration = Duration::from_secs(5);
/// When to try again what failed, even if nothing changes.
const RETRY: SignedDuration = SignedDuration::from_secs(30);

const CONDITION: &str = "DisruptionAllowed";

pub struct World {
    pub budget: Arc<PodDisruptionBudget>,
    /// What it selects.
    pub pods: Vec<Arc<Pod>>,
    /// How many pods their owners want in all, if that matters, or why that cannot be known.
    pub scale: Result<i64, String>,
    /// Selected pods without an owner, if owners matter.
    pub unmanaged: usize,
    /// Of the pods that its status names as evicted.
    pub evictions: BTreeMap<String, SeenEviction>,
}

/// An eviction as this controller has seen it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenEviction {
    /// Of the pod that had the name when the eviction was first seen.
    pub uid: Option<String>,
    /// How long ago that was.
    pub age: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
/// An event about a pod, or about the budget itself.
pub struct BudgetEvent {
    pub note: EventNote,
    pub pod: Option<String>,
}

/// Whether it matters how many pods owners want.
pub fn asks_owners(budget: &PodDisruptionBudget) -> bool {
    let Some(spec) = &budget.spec else { return false };
    spec.max_unavailable.is_some() || matches!(spec.min_available, Some(IntOrString::String(_)))
}

pub fn plan(world: &World, now: Timestamp) -> runtime::Plan<BudgetEvent, PodDisruptionBudgetStatus> {
    let before = world.budget.status.clone().unwrap_or_default();
    let (expected, desired) = match expectation(world) {
        Ok(expectation) => expectation,
        Err(why) => return failed(world, before, why, now),
    };
    let mut events = Vec::new();
    let (disrupted, next) = disrupted(world, &before, now, &mut events);
    let is_healthy = |pod: &&Arc<Pod>| !pod.is_being_deleted() && !disrupted.contains_key(pod.name()) && pod.is_ready();
    let healthy = i64::try_from(world.pods.iter().filter(is_healthy).count()).unwrap_or(i64::MAX);
    let allowed = if expected > 0 { (healthy - desired).max(0) } else { 0 };
    let generation = world.budget.metadata.generation;
    let verdict = if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    let count = |number: i64| i32::try_from(number).unwrap_or(i32::MAX);
    let status = PodDisruptionBudgetStatus {
        conditions: Some(conditions(&before, verdict, String::new(), generation, now)),
        current_healthy: Some(count(healthy)),
        desired_healthy: Some(count(desired)),
        disrupted_pods: (!disrupted.is_empty()).then_some(disrupted),
        disruptions_allowed: Some(count(allowed)),
        expected_pods: Some(count(expected)),
        observed_generation: generation,
    };
    let changed = status != before;
    if changed && world.pods.is_empty() {
        events.push(EventNote::normal("NoPods", "No matching pods found").into());
    }
    if changed && world.unmanaged > 0 {
        events.push(unmanaged_pods(world.unmanaged));
    }
    runtime::Plan { actions: events, status: changed.then_some(status), requeue_at: next }
}

/// How many pods there should be, and how many of them healthy.
fn expectation(world: &World) -> Result<(i64, i64), String> {
    let there = i64::try_from(world.pods.len()).unwrap_or(i64::MAX);
    let Some(spec) = &world.budget.spec else { return Ok((there, 0)) };
    if let Some(most) = &spec.max_unavailable {
        let expected = world.scale.clone()?;
        return Ok((expected, (expected - int_or_percent::resolve(most, expected, Rounding::Up)).max(0)));
    }
    match &spec.min_available {
        Some(IntOrString::Int(least)) => Ok((there, (*least).into())),
        Some(least) => {
            let expected = world.scale.clone()?;
            Ok((expected, int_or_percent::resolve(least, expected, Rounding::Up)))
        }
        None => Ok((there, 0)),
    }
}

/// Evicted pods that are not seen to go yet, and when the first of them is given up.
fn disrupted(
    world: &World,
    before: &PodDisruptionBudgetStatus,
    now: Timestamp,
    events: &mut Vec<BudgetEvent>,
) -> (BTreeMap<String, Time>, Option<Timestamp>) {
    let (mut retained, mut next) = (BTreeMap::new(), None::<Timestamp>);
    for (name, Time(at)) in before.disrupted_pods.iter().flatten() {
        let Some(pod) = world.pods.iter().find(|pod| pod.name() == name) else { continue };
        let seen = world.evictions.get(name);
        let is_another = seen.and_then(|seen| seen.uid.as_deref()).is_some_and(|uid| uid != pod.uid());
        if pod.is_being_deleted() || is_another {
            continue;
        }
        let may_be_another = pod.created() >= *at;
        let within = if may_be_another { REPLACED_WITHIN } else { EVICTED_WITHIN };
        let left = within.saturating_sub(seen.map_or(Duration::ZERO, |seen| seen.age));
        if left.is_zero() && may_be_another {
            continue;
        }
        if left.is_zero() {
            let meta = &world.budget.metadata;
            let text = |field: &Option<String>| field.clone().unwrap_or_default();
            let budget = format!("{}/{}", text(&meta.namespace), text(&meta.name));
            let message = format!("Pod was expected by PDB {budget} to be deleted but it wasn't");
            events.push(BudgetEvent { note: EventNote::warning("NotDeleted", message), pod: Some(name.clone()) });
            continue;
        }
        let until = now + left;
        next = Some(next.map_or(until, |next| next.min(until)));
        retained.insert(name.clone(), Time(*at));
    }
    (retained, next)
}

/// Nothing is allowed as long as it is not known what there should be.
fn failed(
    world: &World,
    before: PodDisruptionBudgetStatus,
    why: String,
    now: Timestamp,
) -> runtime::Plan<BudgetEvent, PodDisruptionBudgetStatus> {
    let verdict = ("False", "SyncFailed");
    let status = PodDisruptionBudgetStatus {
        disruptions_allowed: Some(0),
        conditions: Some(conditions(&before, verdict, why.clone(), before.observed_generation, now)),
        ..before.clone()
    };
    let changed = status != before;
    let message = format!("Failed to calculate the number of expected pods: {why}");
    let say = changed.then(|| BudgetEvent::from(EventNote::warning("CalculateExpectedPodCountFailed", message)));
    let unmanaged = (changed && world.unmanaged > 0).then(|| unmanaged_pods(world.unmanaged));
    runtime::Plan {
        actions: say.into_iter().chain(unmanaged).collect(),
        status: changed.then_some(status),
        requeue_at: Some(now + RETRY),
    }
}

/// The conditions with ours as it is now. What stays the same keeps its time.
fn conditions(
    before: &PodDisruptionBudgetStatus,
    (status, reason): (&str, &str),
    message: String,
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let mut conditions = before.conditions.clone().unwrap_or_default();
    let since = conditions.iter().find(|condition| condition.type_ == CONDITION && condition.status == status);
    let ours = Condition {
        type_: CONDITION.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: generation,
        last_transition_time: since.map_or(Time(seconds(now)), |since| since.last_transition_time.clone()),
    };
    match conditions.iter_mut().find(|condition| condition.type_ == CONDITION) {
        Some(condition) => *condition = ours,
        None => conditions.push(ours),
    }
    conditions
}

/// As the API keeps times.
fn seconds(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

impl From<EventNote> for BudgetEvent {
    fn from(note: EventNote) -> Self {
        Self { note, pod: None }
    }
}

fn unmanaged_pods(count: usize) -> BudgetEvent {
    let message = format!(
        "Pods selected by this PodDisruptionBudget were found to be unmanaged ({count}). As a result, the status of \
         the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods \
         please set \".spec.minAvailable\" field of the PDB to an integer value."
    );
    EventNote::warning("UnmanagedPods", message).into()
}

#[cfg(test)]
mod tests;
