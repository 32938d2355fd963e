//! How many pods a ReplicaSet has and should have, and which to create or delete. Pure.
//!
//! Ownership comes first: a reconcile that adopts or releases pods does nothing else, since the next one sees the
//! outcome. Pods that finished or are being deleted do not count. A gap is filled with new names; of a surplus those are
//! deleted first that are missed least. A pod that is about to be evicted ([`REPLACE_FIRST`]) has its replacement beside it. What needs more than [`BURST`] actions is done in several reconciles, so that
//! the status keeps up.

use std::sync::Arc;

use jiff::Timestamp;
use mainstay_api::{selector::Labels, wellknown::mainstay::REPLACE_FIRST};

use super::surplus;
use crate::{
    objects::{pod::Pod, replica_set::Status},
    runtime::Plan,
    workloads::controller_ref::OwnershipChange,
};

/// How many pods one reconcile creates or deletes.
pub const BURST: usize = 1000;

/// A ReplicaSet or a ReplicationController, and the pods around it.
pub struct World {
    pub want: Desired,
    /// Those it has, in the order of their names.
    pub pods: Vec<Arc<Pod>>,
    pub claims: Vec<OwnershipChange>,
    /// Names for new pods, at least as many as are missing or [`BURST`].
    pub new_names: Vec<String>,
    /// Related pods per node, if there is a surplus.
    pub crowd: surplus::Crowd,
    /// What its status says now.
    pub standing: Status,
}

pub struct Desired {
    pub replicas: usize,
    pub min_ready_seconds: i32,
    /// The labels of its template, as a selector.
    pub template_labels: Labels,
    pub generation: i64,
    /// Being deleted: what is there is only reported.
    pub leaving: bool,
    pub counts_leaving: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    OwnershipChange(OwnershipChange),
    Create { name: String },
    Delete { name: String, uid: String },
}

pub fn plan(world: &World, now: Timestamp) -> Plan<Step, Status> {
    let want = &world.want;
    let active: Vec<&Arc<Pod>> = world.pods.iter().filter(|pod| pod.is_active()).collect();
    let (status, available_at) = status(world, &active, now);
    let mut plan = Plan { actions: Vec::new(), status: Some(status), requeue_at: available_at };
    if want.leaving {
        return plan;
    }
    if !world.claims.is_empty() {
        plan.actions = world.claims.iter().cloned().map(Step::OwnershipChange).collect();
        return plan;
    }
    let (replaced, until) = replaced_first(active.iter().copied(), now);
    plan.requeue_at = plan.requeue_at.into_iter().chain(until).min();
    let wanted = want.replicas.saturating_add(if want.replicas == 0 { 0 } else { replaced });
    let missing = wanted.saturating_sub(active.len());
    let surplus = active.len().saturating_sub(wanted);
    if missing > 0 {
        let names = world.new_names.iter().take(missing.min(BURST));
        plan.actions = names.map(|name| Step::Create { name: name.clone() }).collect();
    } else if surplus > 0 {
        let victims = surplus::first(active, surplus.min(BURST), &world.crowd, now);
        let delete = |pod: &Arc<Pod>| Step::Delete { name: pod.name().to_owned(), uid: pod.uid().to_owned() };
        plan.actions = victims.into_iter().map(delete).collect();
    }
    if missing.max(surplus) > BURST {
        plan.requeue_at = Some(now);
    }
    plan
}

/// Whether it was marked so, be it long ago.
pub fn is_replaced_first(pod: &Pod) -> bool {
    pod.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(REPLACE_FIRST))
}

/// How many of these are about to be evicted once there is another in their place, and until when the first of them is.
fn replaced_first<'a>(active: impl Iterator<Item = &'a Arc<Pod>>, now: Timestamp) -> (usize, Option<Timestamp>) {
    let marks =
        active.filter_map(|pod| pod.metadata.annotations.as_ref()?.get(REPLACE_FIRST)?.parse::<Timestamp>().ok());
    let marks: Vec<Timestamp> = marks.filter(|until| *until > now).collect();
    (marks.len(), marks.into_iter().min())
}

/// What is seen, and when it will be something else by the passing of time.
fn status(world: &World, active: &[&Arc<Pod>], now: Timestamp) -> (Status, Option<Timestamp>) {
    let want = &world.want;
    let mut status = Status {
        replicas: count(active.len()),
        observed_generation: want.generation,
        // Refusals are known only after the actions; whoever reports adds them.
        conditions: world
            .standing
            .conditions
            .iter()
            .filter(|c| c.type_.as_deref() != Some(super::REPLICA_FAILURE))
            .cloned()
            .collect(),
        ..Status::default()
    };
    if want.counts_leaving {
        let leaving = world.pods.iter().filter(|pod| pod.is_being_deleted() && !pod.is_finished());
        status.terminating_replicas = Some(count(leaving.count()));
    }
    let mut requeue_at: Option<Timestamp> = None;
    for pod in active {
        let labels = pod.metadata.labels.as_ref();
        let label = |key: &str| labels.and_then(|labels| labels.get(key)).map(String::as_str);
        status.fully_labeled_replicas += i32::from(want.template_labels.matches(label));
        status.ready_replicas += i32::from(pod.is_ready());
        match pod.available_at(want.min_ready_seconds) {
            Some(at) if at <= now => status.available_replicas += 1,
            Some(at) => requeue_at = Some(requeue_at.map_or(at, |earlier| earlier.min(at))),
            None => {}
        }
    }
    (status, requeue_at)
}

fn count(of: usize) -> i32 {
    i32::try_from(of).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests;
