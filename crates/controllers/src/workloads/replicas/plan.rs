//! How many pods there are, how many there should be, and what follows.
//!
//! First it is settled whose pods are whose; a turn that does so does nothing else, since the next
//! one sees the outcome. Pods that ended or are being deleted do not count. A gap is filled with
//! the lowest names that nobody has; of a surplus those go that are missed least. What needs more
//! than [`BURST`] actions is done in several turns, so that the status keeps up.

use std::sync::Arc;

use jiff::Timestamp;
use mainstay_api::selector::Labels;

use super::{object::Status, surplus};
use crate::{
    shell::Plan,
    workloads::{owner::Claim, pod::Pod},
};

/// How much is done in one turn.
pub const BURST: usize = 1000;

/// A ReplicaSet or a ReplicationController, and the pods around it.
pub struct World {
    pub want: Desired,
    /// Those it has, in the order of their names.
    pub pods: Vec<Arc<Pod>>,
    pub claims: Vec<Claim>,
    /// Names for new pods that nobody has, at least as many as are missing or [`BURST`].
    pub vacant: Vec<String>,
    /// Related pods per machine, if there is a surplus.
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
    Claim(Claim),
    Create { name: String },
    Delete { name: String, uid: String },
}

pub fn plan(world: &World, now: Timestamp) -> Plan<Step, Status> {
    let want = &world.want;
    let active: Vec<&Arc<Pod>> = world.pods.iter().filter(|pod| pod.is_active()).collect();
    let (status, available_at) = status(world, &active, now);
    let mut plan = Plan { actions: Vec::new(), status: Some(status), wake_at: available_at };
    if want.leaving {
        return plan;
    }
    if !world.claims.is_empty() {
        plan.actions = world.claims.iter().cloned().map(Step::Claim).collect();
        return plan;
    }
    let missing = want.replicas.saturating_sub(active.len());
    let surplus = active.len().saturating_sub(want.replicas);
    if missing > 0 {
        let names = world.vacant.iter().take(missing.min(BURST));
        plan.actions = names.map(|name| Step::Create { name: name.clone() }).collect();
    } else if surplus > 0 {
        let victims = surplus::first(active, surplus.min(BURST), &world.crowd, now);
        let delete = |pod: &Arc<Pod>| Step::Delete { name: pod.name().to_owned(), uid: pod.uid().to_owned() };
        plan.actions = victims.into_iter().map(delete).collect();
    }
    if missing.max(surplus) > BURST {
        plan.wake_at = Some(now);
    }
    plan
}

/// What is seen, and when it will be something else by the passing of time.
fn status(world: &World, active: &[&Arc<Pod>], now: Timestamp) -> (Status, Option<Timestamp>) {
    let want = &world.want;
    let mut status = Status {
        replicas: count(active.len()),
        observed_generation: want.generation,
        // Refusals are known only after the actions; whoever reports adds them.
        conditions: world.standing.conditions.iter().filter(|c| c.type_ != super::REPLICA_FAILURE).cloned().collect(),
        ..Status::default()
    };
    if want.counts_leaving {
        let leaving = world.pods.iter().filter(|pod| pod.is_leaving() && !pod.is_over());
        status.terminating_replicas = Some(count(leaving.count()));
    }
    let mut wake_at: Option<Timestamp> = None;
    for pod in active {
        let labels = pod.metadata.labels.as_ref();
        let label = |key: &str| labels.and_then(|labels| labels.get(key)).map(String::as_str);
        status.fully_labeled_replicas += i32::from(want.template_labels.matches(label));
        status.ready_replicas += i32::from(pod.is_ready());
        match pod.available_at(want.min_ready_seconds) {
            Some(at) if at <= now => status.available_replicas += 1,
            Some(at) => wake_at = Some(wake_at.map_or(at, |earlier| earlier.min(at))),
            None => {}
        }
    }
    (status, wake_at)
}

fn count(of: usize) -> i32 {
    i32::try_from(of).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests;
