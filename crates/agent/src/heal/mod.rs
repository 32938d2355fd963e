//! Healing of failed containers: the ladder, the restart budget, and what is known of both.
//!
//! Nothing here decides while it acts. [`Healer::observe`] gives the planner all it needs and never waits: the policy as
//! last read from the pod's owner, what was tried before, whether the restart budget lets the pod be restarted. The
//! planner decides with [`assess_failure`]; [`Healer::record`] writes its decisions down. The one call that
//! asks the API, [`Healer::request_restart`], is an action that runs beside the pod's loop, and its outcome is part of the
//! next observation. So a container that crashed is restarted whether or not the API answers.
//!
//! [`node_suspicion`] tells when it is the node. What was tried for a pod is stored on disk, so that an agent
//! that was restarted goes on from the same rung.

pub mod budget;
mod budget_leases;
mod ladder;
mod node_suspicion;
pub(crate) mod owner;
mod owner_policy;
pub mod record;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use mainstay_api::heal::{Budget, Policy};
use mainstay_runtime::PodUid;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use self::{
    budget_leases::{BudgetLeases, RestartRequest},
    node_suspicion::NodeSuspicion,
    record::RecordFiles,
};
pub use self::{
    ladder::{History, Step, step as assess_failure},
    owner_policy::OwnerPolicies,
    record::HealingRecord,
};
use crate::{
    events::{EventType, Events},
    metrics::{Metrics, Owner},
    pods::Pods,
    task_scope::TaskScope,
};

pub struct Healer {
    policies: OwnerPolicies,
    pods: Arc<Pods>,
    events: Events,
    files: RecordFiles,
    budget: BudgetLeases,
    records: Mutex<BTreeMap<PodUid, HealingRecord>>,
    suspicion: Mutex<NodeSuspicion>,
    /// By set: why its pods were moved away, and when.
    moved: Mutex<BTreeMap<String, (String, Timestamp)>>,
    metrics: Metrics,
}

/// Why a container has to be started again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It ended by itself with this code.
    Crashed {
        exit_code: i32,
    },
    OutOfMemory,
    /// Its startup or liveness probe failed.
    Unhealthy {
        why: String,
    },
}

/// What is to be done about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rung {
    /// Start the container again.
    Restart,
    /// Give up this incarnation: new sandbox, new containers.
    Recreate { why: String },
    /// The pod is deleted so that its owner creates another elsewhere.
    Move { why: String },
}

/// Whether the restart budget of its set lets a pod be restarted for failed liveness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestartPermission {
    Granted,
    NotRequested,
    /// Too many of its set are being restarted; it goes on running, degraded.
    Denied {
        reason: String,
        retry_at: Timestamp,
    },
    /// Something that the pod needs is missing, and a restart would not bring it; it goes on running, degraded.
    Withheld {
        reason: String,
    },
}

/// What the planner needs to know about the healing of one pod.
#[derive(Clone, Debug)]
pub struct HealingObservation {
    pub policy: Policy,
    /// Whether its owner would create another pod elsewhere.
    pub may_move: bool,
    pub record: HealingRecord,
    pub permission: RestartPermission,
}

impl Default for HealingObservation {
    /// A pod of nobody that never failed.
    fn default() -> Self {
        let (policy, record) = Default::default();
        Self { policy, may_move: false, record, permission: RestartPermission::Granted }
    }
}

/// What the planner decided about one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealingDecision {
    pub container: String,
    pub attempt: u32,
    pub diagnosis: Diagnosis,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Diagnosis {
    /// It ended, and that is no failure; `resets_backoff` if it was stopped on purpose.
    Ended { resets_backoff: bool },
    /// It failed, and an earlier run of the agent decided what is done about it.
    DecidedBefore(Rung),
    /// It failed.
    Failed {
        cause: Cause,
        step: Step,
        /// The pod's history with this failure in it.
        history: History,
        /// Its restart has to wait.
        backs_off: bool,
    },
    /// It runs, and its startup or liveness probe has failed.
    ProbeFailed {
        message: String,
        permission: RestartPermission,
        /// The budget did not deny it before.
        newly_denied: bool,
    },
    /// A probe that had failed succeeds.
    ProbeRecovered,
}

impl Healer {
    /// `directory` is the agent's own; without a client, budgets are this node's alone.
    pub fn new(
        client: Option<Client>,
        policies: OwnerPolicies,
        pods: Arc<Pods>,
        events: Events,
        directory: PathBuf,
        metrics: Metrics,
        tasks: TaskScope,
    ) -> Self {
        Self {
            policies,
            pods,
            events,
            files: RecordFiles::new(directory),
            budget: BudgetLeases::new(client, tasks),
            records: Mutex::default(),
            suspicion: Mutex::default(),
            moved: Mutex::default(),
            metrics,
        }
    }

    /// What is known about the pod. Never waits for the API.
    pub fn observe(&self, pod: &Pod, now: Timestamp) -> HealingObservation {
        let Some(uid) = uid(pod) else { return HealingObservation::default() };
        let policy = self.policies.policy(pod);
        let shares_budget = owner::controller(pod).is_some() && policy.budget != Budget::Off;
        let permission = match shares_budget {
            true => self.budget.permission(&uid, now),
            false => RestartPermission::Granted,
        };
        let record = self.records.lock().entry(uid.clone()).or_insert_with(|| self.files.read(&uid)).clone();
        HealingObservation { policy, may_move: owner::may_move(pod), record, permission }
    }

    /// Writes a decision of the planner down, where a restarted agent, operators and metrics find it.
    pub fn record(&self, pod: &Pod, decision: &HealingDecision, now: Timestamp) {
        let Some(uid) = uid(pod) else { return };
        let HealingDecision { container, attempt, diagnosis } = decision;
        match diagnosis {
            Diagnosis::Ended { .. } | Diagnosis::DecidedBefore(_) => {}
            Diagnosis::ProbeRecovered => self.budget.clear_denial(&uid),
            Diagnosis::ProbeFailed { permission, newly_denied, .. } => {
                self.policies.refresh(pod);
                if let RestartPermission::Denied { reason, .. } | RestartPermission::Withheld { reason } = permission
                    && *newly_denied
                {
                    let message = format!("Container {container} is kept running although unhealthy: {reason}");
                    self.events.container(pod, container, EventType::Warning, "Degraded", message);
                }
            }
            Diagnosis::Failed { cause, step, history, .. } => {
                self.policies.refresh(pod);
                self.record_failure(pod, &uid, history, (container, *attempt), &step.rung);
                if matches!(cause, Cause::Unhealthy { .. }) {
                    self.count_liveness_restart(pod);
                }
                let (kind, reason) = match &step.rung {
                    Rung::Restart => (EventType::Normal, "HealRestart"),
                    Rung::Recreate { .. } => (EventType::Warning, "HealRecreate"),
                    Rung::Move { .. } => (EventType::Warning, "HealMove"),
                };
                self.events.container(pod, container, kind, reason, &step.message);
                if let Rung::Move { why } = &step.rung {
                    let mut moved = self.moved.lock();
                    moved.retain(|_, (_, at)| is_recent(*at, now));
                    moved.insert(owner::template(pod), (why.clone(), now));
                }
                if step.rung != Rung::Restart {
                    self.suspicion.lock().record_failure(owner::set(pod), owner::describe_owner(pod), now);
                }
            }
        }
    }

    fn record_failure(&self, pod: &Pod, uid: &PodUid, history: &History, failed: (&str, u32), rung: &Rung) {
        let record = {
            let mut records = self.records.lock();
            let record = records.entry(uid.clone()).or_insert_with(|| self.files.read(uid));
            record.history = history.clone();
            record.decided.insert(failed.0.to_owned(), (failed.1, rung.clone()));
            record.clone()
        };
        self.files.write(uid, &record);
        self.budget.mark_used(uid);
        tracing::debug!(pod = pod.metadata.name, container = failed.0, ?rung, "failure recorded");
    }

    /// Requests a slot of the restart budget of the pod's set. Takes as long as the API takes, up to some seconds; the
    /// outcome is part of what [`Self::observe`] returns.
    pub async fn request_restart(&self, pod: &Pod) {
        let (Some(controller), Some(uid)) = (owner::controller(pod), uid(pod)) else { return };
        self.policies.refresh_now(pod).await;
        let policy = self.policies.policy(pod);
        let here = self
            .pods
            .all()
            .iter()
            .filter(|w| owner::controller(&w.pod).is_some_and(|o| o.uid == controller.uid))
            .count();
        let request = RestartRequest {
            pod,
            uid: &uid,
            controller,
            policy: &policy,
            size: self.policies.facts(pod).size,
            here: u32::try_from(here).unwrap_or(u32::MAX).max(1),
        };
        self.budget.acquire(&request).await;
    }

    /// All containers of the pod are ready. Costs nothing for a pod that always was.
    pub fn record_healthy(&self, pod: &Pod, now: Timestamp) {
        let Some(uid) = uid(pod) else { return };
        self.budget.release_after(&uid, time_to_fail_again(pod));
        let changed = {
            let mut records = self.records.lock();
            let Some(record) = records.get_mut(&uid).filter(|record| !record.history.is_empty()) else { return };
            let before = record.history.clone();
            record.history.well(now);
            record.history.settle(&self.policies.policy(pod), now);
            (record.history != before).then(|| record.clone())
        };
        if let Some(record) = changed {
            self.files.write(&uid, &record);
        }
    }

    pub fn forget(&self, pod: &PodUid) {
        self.records.lock().remove(pod);
        self.budget.forget(pod);
        self.files.remove(pod);
    }

    /// Why this node itself may be at fault, if so: pods of several sets keep failing here.
    pub fn suspect(&self) -> Option<String> {
        let sets = self.pods.all().iter().map(|wanted| owner::set(&wanted.pod)).collect();
        self.suspicion.lock().reason(&sets, Timestamp::now())
    }

    /// Why a pod that was bound to this node had better run on another one: its like was moved away from here a short
    /// while ago, or the node is suspect. Only for pods whose owner does not care on which node they run.
    pub fn reason_to_avoid(&self, pod: &Pod, now: Timestamp) -> Option<String> {
        if !owner::may_move(pod) || !self.policies.policy(pod).may_move {
            return None;
        }
        let moved = self.moved.lock().get(&owner::template(pod)).filter(|(_, at)| is_recent(*at, now)).cloned();
        match moved {
            Some((why, _)) => {
                Some(format!("a pod of {} was moved away from this node: {why}", owner::describe_owner(pod)))
            }
            None => self.suspect().map(|why| format!("this node is suspect: {why}")),
        }
    }

    fn count_liveness_restart(&self, pod: &Pod) {
        let owner =
            Owner { namespace: pod.metadata.namespace.clone().unwrap_or_default(), owner: owner::describe_owner(pod) };
        let total = self.metrics.liveness_restarts.get_or_create(&owner).inc() + 1;
        let Owner { namespace, owner } = owner;
        tracing::info!(namespace, owner, total, "restart a container whose liveness probe failed");
    }
}

/// How long pods of a set that was moved away avoid this node.
const AVOID: Duration = Duration::from_secs(600);

fn is_recent(at: Timestamp, now: Timestamp) -> bool {
    now.duration_since(at).unsigned_abs() < AVOID
}

/// How long it would take liveness to fail again, had the restart not helped.
fn time_to_fail_again(pod: &Pod) -> Duration {
    let spec = pod.spec.as_ref();
    let all = spec.into_iter().flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    let seconds = all.filter_map(|container| container.liveness_probe.as_ref()).map(|probe| {
        let count = |given: Option<i32>, stock: u64| given.and_then(|n| u64::try_from(n).ok()).unwrap_or(stock);
        let failing = count(probe.period_seconds, 10) * count(probe.failure_threshold, 3);
        count(probe.initial_delay_seconds, 0) + failing + count(probe.timeout_seconds, 1)
    });
    Duration::from_secs(seconds.max().unwrap_or(0))
}

fn uid(pod: &Pod) -> Option<PodUid> {
    pod.metadata.uid.clone().map(PodUid)
}

#[cfg(test)]
mod tests;
