//! What a Deployment's decisions depend on, and the steps they lead to.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::{apps::v1::ReplicaSetCondition, core::v1::PodCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};
use mainstay_api::needs;
use serde_json::Value;

use super::template_equality;
use crate::{
    objects::{
        deployment::{Deployment, RolloutLimits, Status},
        pod::Pod,
        replica_set::ReplicaSet,
    },
    workloads::{controller_ref::OwnershipChange, replica_set::kind::ReplicaSetKind as _},
};

pub const REVISION: &str = "deployment.kubernetes.io/revision";
pub const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
pub const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
pub const MAX: &str = "deployment.kubernetes.io/max-replicas";

pub struct World {
    pub want: Desired,
    /// Its own ReplicaSets, oldest first.
    pub sets: Vec<Set>,
    pub claims: Vec<OwnershipChange>,
    /// The names of all ReplicaSets of the namespace that begin like its own would.
    pub taken: BTreeSet<String>,
    /// Whether pods of other templates have not ended yet. Only known where it matters.
    pub old_pods: bool,
    pub standing: Status,
    /// What pods of the current template wait for before they start.
    pub unmet_needs: Option<UnmetNeeds>,
    /// When the last of them had what it needs.
    pub needs_met: Option<Timestamp>,
}

/// Pods that wait for what they need, by `mainstay.dev/needs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnmetNeeds {
    pub pods: usize,
    /// Some of them have waited longer than they say they should.
    pub is_overdue: bool,
    /// What the first of them lacks.
    pub missing: String,
}

impl UnmetNeeds {
    /// Those of some pods, in the order of their names.
    pub fn from_pods<'p>(pods: impl Iterator<Item = &'p Pod>) -> Option<Self> {
        let conditions = pods.filter(|pod| pod.is_active()).filter_map(|pod| pod.condition(needs::CONDITION));
        let unmet: Vec<&PodCondition> = conditions.filter(|condition| condition.status == "False").collect();
        let missing = unmet.first()?.message.clone().unwrap_or_default();
        let is_overdue = unmet.iter().any(|condition| condition.reason.as_deref() == Some(needs::TIMEOUT));
        Some(Self { pods: unmet.len(), is_overdue, missing })
    }
}

/// When the last of some pods had all that it needs.
pub fn needs_met<'p>(pods: impl Iterator<Item = &'p Pod>) -> Option<Timestamp> {
    let conditions = pods.filter(|pod| pod.is_active()).filter_map(|pod| pod.condition(needs::CONDITION));
    let met = conditions.filter(|condition| condition.status == "True");
    met.filter_map(|condition| condition.last_transition_time.as_ref()).map(|Time(time)| *time).max()
}

impl fmt::Display for UnmetNeeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pods = if self.pods == 1 { "1 pod waits".to_owned() } else { format!("{} pods wait", self.pods) };
        let overdue = if self.is_overdue { " longer than they should" } else { "" };
        write!(f, "{pods} for needs{overdue}: {}", self.missing)
    }
}

#[derive(Clone, Debug)]
pub struct Desired {
    pub name: String,
    pub version: String,
    pub generation: i64,
    pub annotations: BTreeMap<String, String>,
    pub replicas: i32,
    pub min_ready_seconds: i32,
    pub leeway: RolloutLimits,
    pub recreate: bool,
    pub paused: bool,
    /// Being deleted: what is there is only reported.
    pub leaving: bool,
    /// How many old ReplicaSets are kept; nothing keeps all.
    pub history_limit: Option<usize>,
    pub deadline: Option<i32>,
    pub template: Arc<Value>,
    pub hash: String,
}

impl From<&Deployment> for Desired {
    fn from(deployment: &Deployment) -> Self {
        let (meta, spec) = (&deployment.metadata, &deployment.spec);
        // The largest number stands for none.
        let limited = |number: &i32| *number != i32::MAX;
        Self {
            name: meta.name.clone().unwrap_or_default(),
            version: meta.resource_version.clone().unwrap_or_default(),
            generation: meta.generation.unwrap_or(0),
            annotations: deployment.annotations(),
            replicas: spec.replicas.unwrap_or(1).max(0),
            min_ready_seconds: spec.min_ready_seconds,
            leeway: deployment.leeway(),
            recreate: deployment.is_recreate(),
            paused: spec.paused,
            leaving: meta.deletion_timestamp.is_some(),
            history_limit: spec.revision_history_limit.filter(limited).map(|n| usize::try_from(n).unwrap_or(0)),
            deadline: spec.progress_deadline_seconds.filter(limited),
            template: Arc::new(spec.template.clone()),
            hash: template_equality::template_hash(&spec.template, deployment.status.collision_count),
        }
    }
}

impl Desired {
    /// The most pods there may be.
    pub fn max_replicas(&self) -> i32 {
        self.replicas.saturating_add(self.leeway.surge)
    }

    /// The fewest pods that must be available.
    pub fn min_available(&self) -> i32 {
        self.replicas - self.leeway.unavailable
    }

    /// What a ReplicaSet must say to have been scaled by the current wish.
    pub fn marks(&self) -> [(&'static str, String); 2] {
        [(DESIRED, self.replicas.to_string()), (MAX, self.max_replicas().to_string())]
    }

    pub fn set_name(&self) -> String {
        format!("{}-{}", self.name, self.hash)
    }
}

/// A ReplicaSet as far as its Deployment looks at it.
#[derive(Clone, Debug)]
pub struct Set {
    pub name: String,
    pub uid: String,
    pub version: String,
    pub born: Timestamp,
    /// Being deleted.
    pub leaving: bool,
    pub annotations: BTreeMap<String, String>,
    /// It has the current template.
    pub current: bool,
    pub replicas: i32,
    pub min_ready_seconds: i32,
    pub seen: Counts,
    /// Its status is about its current spec.
    pub observed: bool,
    pub failure: Option<ReplicaSetCondition>,
}

/// What a ReplicaSet reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub replicas: i32,
    pub ready: i32,
    pub available: i32,
    pub leaving: i32,
}

impl Set {
    /// `template` is the Deployment's, in plain form.
    pub fn new(set: &ReplicaSet, template: &Value) -> Self {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let ReplicaSet { metadata: meta, spec, status } = set;
        Self {
            name: text(&meta.name),
            uid: text(&meta.uid),
            version: text(&meta.resource_version),
            born: meta.creation_timestamp.as_ref().map_or(Timestamp::MIN, |Time(at)| *at),
            leaving: meta.deletion_timestamp.is_some(),
            annotations: meta.annotations.clone().unwrap_or_default(),
            current: template_equality::plain(&spec.template) == *template,
            replicas: set.replicas(),
            min_ready_seconds: spec.min_ready_seconds,
            seen: Counts {
                replicas: status.replicas,
                ready: status.ready_replicas,
                available: status.available_replicas,
                leaving: status.terminating_replicas.unwrap_or(0),
            },
            observed: status.observed_generation >= meta.generation.unwrap_or(0),
            failure: status
                .conditions
                .iter()
                .find(|condition| condition.type_.as_deref() == Some("ReplicaFailure"))
                .cloned(),
        }
    }

    pub fn revision(&self) -> i64 {
        self.number(REVISION).unwrap_or(0)
    }

    pub fn number<N: std::str::FromStr>(&self, annotation: &str) -> Option<N> {
        self.annotations.get(annotation)?.parse().ok()
    }
}

/// Complete and fenced by the version that was judged.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    OwnershipChange(OwnershipChange),
    /// The ReplicaSet of the current template learns what its Deployment says.
    Annotate {
        set: ReplicaSetRef,
        annotations: BTreeMap<String, String>,
        min_ready_seconds: i32,
    },
    /// The Deployment learns which revision it is.
    Revise {
        version: String,
        revision: i64,
    },
    Create(Create),
    Scale {
        set: ReplicaSetRef,
        from: i32,
        to: i32,
        marks: [(&'static str, String); 2],
    },
    /// An old one that nobody needs any more.
    Forget(ReplicaSetRef),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaSetRef {
    pub name: String,
    pub uid: String,
    pub version: String,
}

impl From<&Set> for ReplicaSetRef {
    fn from(set: &Set) -> Self {
        Self { name: set.name.clone(), uid: set.uid.clone(), version: set.version.clone() }
    }
}

#[derive(Clone, PartialEq)]
pub struct Create {
    pub name: String,
    pub hash: String,
    pub replicas: i32,
    pub min_ready_seconds: i32,
    pub annotations: BTreeMap<String, String>,
    pub template: Arc<Value>,
}

impl std::fmt::Debug for Create {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} with {}", self.name, self.replicas)
    }
}
