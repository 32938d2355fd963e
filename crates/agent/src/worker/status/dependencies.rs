//! The condition `DependenciesMet`: what a pod waits for, since when, and whether it has waited too long.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PodCondition, PodStatus};
use mainstay_api::needs;

use super::{Facts, conditions::Finding};
use crate::worker::world::World;

/// Nothing for pods that need nothing. Before the start all needs count, then those that are to be kept.
pub fn finding(world: &World, facts: &Facts<'_>) -> Option<Finding> {
    if !world.needs.is_declared {
        return None;
    }
    let kind = needs::CONDITION;
    let Some(missing) = world.waits_for().or_else(|| world.needs.message_after_start()) else {
        return Some(Finding::plain(kind, true));
    };
    let conditions = facts.pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let cycle = conditions.into_iter().find(|c| c.type_ == needs::CYCLE_CONDITION && c.status == "True");
    let missing = match cycle.and_then(|cycle| cycle.message.as_deref()) {
        Some(cycle) => format!("{missing}, in a cycle that can never start: {cycle}"),
        None => missing,
    };
    let is_overdue = world.needs.within.is_some_and(|within| overdue(facts.previous, within, facts.now).is_some());
    let reason = match (cycle, is_overdue) {
        (Some(_), _) => needs::CYCLE,
        (None, true) => needs::TIMEOUT,
        (None, false) => needs::WAITING,
    };
    let since = waiting_condition(facts.previous).and_then(since).unwrap_or(super::whole_second(facts.now));
    Some(Finding { kind, holds: false, reason: Some(reason), message: Some(format!("{missing} (since {since})")) })
}

/// What is missing, if the pod has waited for so long and nothing of it was ever started.
pub fn overdue(status: &PodStatus, within: Duration, now: Timestamp) -> Option<String> {
    let message = waiting_condition(status)?.message.clone().unwrap_or_default();
    due_at(status, within).filter(|due| now >= *due).map(|_| message)
}

/// When a pod that waits before its start has waited for so long.
pub fn due_at(status: &PodStatus, within: Duration) -> Option<Timestamp> {
    let lists = [&status.init_container_statuses, &status.container_statuses];
    let has_begun = lists.into_iter().flatten().flatten().any(|container| container.container_id.is_some());
    let since = waiting_condition(status).filter(|_| !has_begun).and_then(since)?;
    Some(since.checked_add(within).unwrap_or(Timestamp::MAX))
}

fn waiting_condition(status: &PodStatus) -> Option<&PodCondition> {
    status.conditions.iter().flatten().find(|c| c.type_ == needs::CONDITION && c.status == "False")
}

fn since(condition: &PodCondition) -> Option<Timestamp> {
    condition.last_transition_time.as_ref().map(|time| time.0)
}
