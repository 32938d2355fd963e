//! A Job and its pods as far as decisions depend on them.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::batch::v1::{Job, JobStatus, SuccessPolicy},
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::policy::{self, FailureAction};
use crate::{
    names::{Predecessor, UsedNumbers},
    objects::pod::Pod,
    workloads::controller_ref::OwnershipChange,
};

/// Keeps a pod from vanishing before it was counted.
pub const TRACKING: &str = "batch.kubernetes.io/job-tracking";
pub const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// How often the index of a pod had failed before it, and how often that was ignored.
pub const INDEX_FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
pub const INDEX_IGNORED: &str = "batch.kubernetes.io/job-index-ignored-failure-count";
/// The one in charge of Jobs that name nobody else.
const MANAGER: &str = "kubernetes.io/job-controller";

/// Everything a decision depends on.
#[derive(Clone, Debug)]
pub struct World {
    pub want: Desired,
    pub version: String,
    /// As it is on record.
    pub status: JobStatus,
    /// All pods of the Job. Nothing the record names as uncounted is missing by mistake.
    pub pods: Vec<View>,
    /// Changes of ownership that come before anything else.
    pub claims: Vec<OwnershipChange>,
    /// Names that pods of others bear, of those we would give.
    pub foreign: Vec<String>,
    /// Numbers that names of its pods had.
    pub used_numbers: UsedNumbers,
    /// The newest pod that each index ever had.
    pub predecessors: HashMap<usize, Predecessor>,
}

#[derive(Clone, Debug)]
pub struct Desired {
    pub name: String,
    pub uid: String,
    pub parallelism: usize,
    /// Without a number, one success is enough.
    pub completions: Option<usize>,
    pub indexed: bool,
    pub backoff_limit: i32,
    pub backoff_limit_per_index: Option<i32>,
    pub max_failed_indexes: Option<i32>,
    pub success: Option<SuccessPolicy>,
    /// Whether a pod is replaced only when it ended, not as soon as it is being deleted.
    pub replace_ended_only: bool,
    pub deadline: Option<SignedDuration>,
    pub suspended: bool,
    /// Being deleted.
    pub leaving: bool,
    /// Whether containers restart within their pods, and restarts count as failures.
    pub restarts_count: bool,
}

impl Desired {
    /// What is asked for; nothing if someone else is in charge.
    pub fn from_job(job: &Job) -> Option<Self> {
        let spec = job.spec.as_ref()?;
        if spec.managed_by.as_deref().is_some_and(|manager| manager != MANAGER) {
            return None;
        }
        let number = |number: i32| usize::try_from(number).unwrap_or_default();
        let restart = spec.template.spec.as_ref().and_then(|pod| pod.restart_policy.as_deref());
        Some(Self {
            name: job.metadata.name.clone().unwrap_or_default(),
            uid: job.metadata.uid.clone().unwrap_or_default(),
            parallelism: number(spec.parallelism.unwrap_or(1)),
            completions: spec.completions.map(number),
            indexed: spec.completion_mode.as_deref() == Some("Indexed"),
            backoff_limit: spec.backoff_limit.unwrap_or(6),
            backoff_limit_per_index: spec.backoff_limit_per_index,
            max_failed_indexes: spec.max_failed_indexes,
            success: spec.success_policy.clone(),
            replace_ended_only: spec.pod_replacement_policy.as_deref() == Some("Failed"),
            deadline: spec.active_deadline_seconds.map(SignedDuration::from_secs),
            suspended: spec.suspend == Some(true),
            leaving: job.metadata.deletion_timestamp.is_some(),
            restarts_count: restart == Some("OnFailure"),
        })
    }

    /// How many indexes there are.
    pub fn indexes(&self) -> usize {
        self.completions.unwrap_or_default()
    }

    /// Whether a pod stands for one of the indexes; any does if there are none.
    pub fn has_place_for(&self, pod: &View) -> bool {
        !self.indexed || pod.index.is_some_and(|index| index < self.indexes())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Life {
    Pending,
    Running,
    Succeeded,
    Failed,
}

#[derive(Clone, Debug)]
pub struct View {
    pub name: String,
    pub uid: String,
    pub version: String,
    pub index: Option<usize>,
    pub index_failures: i32,
    pub index_ignored: i32,
    pub life: Life,
    /// Being deleted.
    pub leaving: bool,
    /// Holds our finalizer: not counted yet, or not released yet.
    pub tracked: bool,
    pub placed: bool,
    pub ready: bool,
    pub restarts: i32,
    pub created: Timestamp,
    /// When it ended, as well as that is known.
    pub finished: Timestamp,
    /// What it means if it failed.
    pub ruling: FailureAction,
}

impl View {
    pub fn from_pod(pod: &Pod, job: &Job) -> Self {
        let policy = job.spec.as_ref().and_then(|spec| spec.pod_failure_policy.as_ref());
        let annotation = |key: &str| pod.metadata.annotations.as_ref()?.get(key)?.parse::<i32>().ok();
        let count = |key: &str| annotation(key).unwrap_or_default().max(0);
        let containers = pod.status.init_container_statuses.iter().chain(&pod.status.container_statuses);
        let finalizers = pod.metadata.finalizers.iter().flatten();
        Self {
            name: pod.name().to_owned(),
            uid: pod.uid().to_owned(),
            version: pod.metadata.resource_version.clone().unwrap_or_default(),
            index: annotation(INDEX).and_then(|index| usize::try_from(index).ok()),
            index_failures: count(INDEX_FAILURES),
            index_ignored: count(INDEX_IGNORED),
            life: match pod.status.phase.as_str() {
                "Succeeded" => Life::Succeeded,
                "Failed" => Life::Failed,
                "Running" => Life::Running,
                _ => Life::Pending,
            },
            leaving: pod.is_being_deleted(),
            tracked: finalizers.into_iter().any(|finalizer| finalizer == TRACKING),
            placed: !pod.spec.node_name.is_empty(),
            ready: pod.is_ready(),
            restarts: containers.map(|container| container.restart_count).sum(),
            created: pod.created(),
            finished: finished(pod),
            ruling: policy::rule(policy, pod),
        }
    }

    pub fn is_finished(&self) -> bool {
        matches!(self.life, Life::Succeeded | Life::Failed)
    }

    /// Neither ended nor being deleted.
    pub fn is_active(&self) -> bool {
        !self.leaving && !self.is_finished()
    }

    /// Being deleted, and not ended yet.
    pub fn is_terminating(&self) -> bool {
        self.leaving && !self.is_finished()
    }

    /// Ended badly. One that is being deleted will hardly end well, and may never say how it ended.
    pub fn has_failed(&self, want: &Desired) -> bool {
        self.life == Life::Failed || (!want.replace_ended_only && self.is_terminating())
    }
}

/// When the last container ended; else when it ceased to be ready; else when it was deleted; else when it was made.
fn finished(pod: &Pod) -> Timestamp {
    let ended = |status: &k8s_openapi::api::core::v1::ContainerStatus| {
        let terminated = status.state.as_ref()?.terminated.as_ref()?;
        terminated.finished_at.as_ref().map(|Time(at)| *at)
    };
    let containers: Option<Vec<Timestamp>> = pod.status.container_statuses.iter().map(ended).collect();
    let unready = || {
        let ready = pod.condition("Ready").filter(|ready| ready.status == "False")?;
        ready.last_transition_time.as_ref().map(|Time(at)| *at)
    };
    let deleted = || {
        let Time(due) = pod.metadata.deletion_timestamp.as_ref()?;
        let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or_default();
        Some(*due - SignedDuration::from_secs(grace))
    };
    let last = containers.and_then(|ends| ends.into_iter().max());
    last.or_else(unready).or_else(deleted).unwrap_or_else(|| pod.created())
}
