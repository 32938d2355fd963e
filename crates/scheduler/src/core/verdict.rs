//! The scheduling decision about one pod.

use std::sync::Arc;

use super::{
    devices::ClaimBinding,
    reason::Diagnosis,
    view::{AssignedHostPort, PodKey, PodView, RoleShares},
};

/// A pod to schedule.
#[derive(Clone, Debug)]
pub struct PendingPod {
    pub pod: Arc<PodView>,
    /// Nodes that refused it and are not to be considered.
    pub refused: Vec<String>,
}

impl PendingPod {
    pub fn new(pod: Arc<PodView>) -> Self {
        Self { pod, refused: vec![] }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Bind it to the node, with these host ports for its automatic ports, these parts of pools of roles (none on nodes without pools)
    /// and these devices for its ResourceClaims.
    Place {
        node: Arc<str>,
        ports: Vec<AssignedHostPort>,
        shares: RoleShares,
        claims: Vec<ClaimBinding>,
    },
    /// Nominate it for the node and delete the victims. Without victims it only waits: enough pods are terminating.
    Preempt {
        node: Arc<str>,
        victims: Vec<Victim>,
        diagnosis: Arc<Diagnosis>,
    },
    Unschedulable(Arc<Diagnosis>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Victim {
    pub key: PodKey,
    pub uid: String,
    /// Its deletion violates a PodDisruptionBudget; no choice of victims avoided that.
    pub violates_budget: bool,
}

/// How free resources are scored, by the names of upstream's `NodeResourcesFit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScoringStrategy {
    /// Prefers nodes with most resources free: pods are spread.
    #[default]
    LeastAllocated,
    /// Prefers nodes with least resources free, so that other nodes stay empty.
    MostAllocated,
}
