//! Deployments, StatefulSets and DaemonSets as far as rollouts of configuration look at them.

use std::{collections::BTreeSet, fmt, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    Metadata,
    api::{
        apps::v1::{DaemonSet, StatefulSet},
        core::v1::PodTemplateSpec,
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use mainstay_api::{
    config_versions::{
        ANNOTATION, BEGAN_ANNOTATION, BUDGETED, ConfigSource, ConfigVersions, LAST_GOOD_ANNOTATION,
        PROGRESS_DEADLINE_ANNOTATION, PROGRESS_DEADLINE_SECONDS, ROLLED_OUT_ANNOTATION, ROLLOUT_ANNOTATION,
        parse_progress_deadline,
    },
    needs::{self, AnnotationMap},
    references,
};
use serde_json::Value;

use crate::{
    objects::{deployment::Deployment, pod::Pod},
    runtime::{Caches, ObjectKey},
};

const TIMED_OUT: &str = "ProgressDeadlineExceeded";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkloadKind {
    Deployment,
    StatefulSet,
    DaemonSet,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkloadKey {
    pub kind: WorkloadKind,
    pub object: ObjectKey,
}

impl fmt::Debug for WorkloadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}", self.kind, self.object)
    }
}

/// How far the rollout of the current template is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    UnderWay,
    /// All pods have the current template and are available.
    Complete,
    /// It exceeded its progress deadline.
    Failed,
}

/// What judges the progress of a workload whose own controller has no deadline for it: a StatefulSet or DaemonSet.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnDeadline {
    pub limit: SignedDuration,
    /// When the last change began to be rolled out.
    pub began: Option<Timestamp>,
    pub pods: Vec<RolloutPod>,
    /// Its controller waits for pods that are not ready before it replaces them, also those of a version that was taken back.
    pub waits_for_unready: bool,
}

/// A pod of such a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct RolloutPod {
    pub name: String,
    pub uid: String,
    pub versions: ConfigVersions,
    pub is_leaving: bool,
    /// Nothing if it is not ready.
    pub ready_since: Option<Timestamp>,
    /// It waits for what it needs.
    pub waits: bool,
    /// When it had all that it needs.
    pub needs_met: Option<Timestamp>,
}

impl From<&Pod> for RolloutPod {
    fn from(pod: &Pod) -> Self {
        let since = |type_: &str, status: &str| {
            let condition = pod.condition(type_).filter(|condition| condition.status == status)?;
            condition.last_transition_time.as_ref().map(|Time(time)| *time)
        };
        let needs = pod.condition(needs::CONDITION).filter(|condition| condition.status == "False");
        Self {
            name: pod.name().to_owned(),
            uid: pod.uid().to_owned(),
            versions: ConfigVersions::from_annotations(&pod.metadata.annotations),
            is_leaving: !pod.is_active(),
            ready_since: pod.is_ready().then(|| since("Ready", "True")).flatten(),
            waits: needs.is_some_and(|condition| condition.reason.as_deref() != Some(needs::TIMEOUT)),
            needs_met: since(needs::CONDITION, "True"),
        }
    }
}

impl OwnDeadline {
    /// When the pods of these versions will have made no progress for too long. Nothing while there is none that is not ready, and while one waits
    /// for what it needs: waiting is not failing.
    pub fn expires(&self, versions: &ConfigVersions) -> Option<Timestamp> {
        let of_versions = || self.pods.iter().filter(|pod| pod.versions == *versions && !pod.is_leaving);
        let is_stuck = of_versions().any(|pod| pod.ready_since.is_none());
        if !is_stuck || of_versions().any(|pod| pod.waits) {
            return None;
        }
        let progress = of_versions().flat_map(|pod| [pod.ready_since, pod.needs_met]).flatten().max();
        let since = self.began.map(|began| progress.map_or(began, |progress| progress.max(began)))?;
        since.checked_add(self.limit).ok()
    }
}

#[derive(Clone, Debug)]
pub struct Workload {
    pub uid: String,
    pub version: String,
    pub is_being_deleted: bool,
    pub is_budgeted: bool,
    /// What the template refers to.
    pub sources: BTreeSet<ConfigSource>,
    /// The versions that the template names; nothing if it has no such annotation.
    pub template: Option<ConfigVersions>,
    pub rolled_out: Option<ConfigVersions>,
    pub last_good: Option<ConfigVersions>,
    pub progress: Progress,
    pub deadline: Option<OwnDeadline>,
}

impl Workload {
    fn new(meta: &ObjectMeta, template: &Value, progress: Progress) -> Self {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let recorded = |key| meta.annotations.annotation(key).and_then(|text| text.parse().ok());
        let in_template = template["metadata"]["annotations"].annotation(ANNOTATION);
        Self {
            uid: text(&meta.uid),
            version: text(&meta.resource_version),
            is_being_deleted: meta.deletion_timestamp.is_some(),
            is_budgeted: is_budgeted(meta),
            sources: references::config_sources(&template["spec"]),
            template: in_template.and_then(|text| text.parse().ok()),
            rolled_out: recorded(ROLLED_OUT_ANNOTATION),
            last_good: recorded(LAST_GOOD_ANNOTATION),
            progress,
            deadline: None,
        }
    }
}

impl From<&Deployment> for Workload {
    fn from(deployment: &Deployment) -> Self {
        let (meta, status) = (&deployment.metadata, &deployment.status);
        let wanted = deployment.spec.replicas.unwrap_or(1);
        let counts = [status.replicas, status.updated_replicas, status.available_replicas];
        let has_timed_out = status.condition("Progressing").is_some_and(|it| it.reason.as_deref() == Some(TIMED_OUT));
        let progress = if status.observed_generation < meta.generation.unwrap_or(0) {
            Progress::UnderWay
        } else if counts.iter().all(|count| *count == wanted) {
            Progress::Complete
        } else if has_timed_out && status.updated_replicas > 0 {
            // With no pod of the current template, it is an earlier one that timed out.
            Progress::Failed
        } else {
            Progress::UnderWay
        };
        Self::new(meta, &deployment.spec.template, progress)
    }
}

impl From<&StatefulSet> for Workload {
    fn from(set: &StatefulSet) -> Self {
        let wanted = set.spec.replicas.unwrap_or(1);
        let is_complete = set.status.as_ref().is_some_and(|status| {
            let counts = [Some(status.replicas), status.updated_replicas, status.available_replicas];
            status.observed_generation >= set.metadata.generation
                && status.current_revision == status.update_revision
                && counts.iter().all(|count| count.unwrap_or(0) == wanted)
        });
        Self::new(&set.metadata, &template_value(&set.spec.template), progress(is_complete))
    }
}

impl From<&DaemonSet> for Workload {
    fn from(set: &DaemonSet) -> Self {
        let is_complete = set.status.as_ref().is_some_and(|status| {
            let wanted = status.desired_number_scheduled;
            status.observed_generation >= set.metadata.generation
                && status.updated_number_scheduled.unwrap_or(0) == wanted
                && status.number_available.unwrap_or(0) == wanted
        });
        Self::new(&set.metadata, &template_value(&set.spec.template), progress(is_complete))
    }
}

fn progress(is_complete: bool) -> Progress {
    if is_complete { Progress::Complete } else { Progress::UnderWay }
}

fn template_value(template: &PodTemplateSpec) -> Value {
    serde_json::to_value(template).unwrap_or_default()
}

pub fn is_budgeted(meta: &ObjectMeta) -> bool {
    meta.annotations.annotation(ROLLOUT_ANNOTATION) == Some(BUDGETED)
}

/// Whether a new workload has to wait until its template names versions, so that its first pods have them already.
pub fn awaits_versions(meta: &ObjectMeta, template_versions: Option<&str>) -> bool {
    is_budgeted(meta)
        && meta.deletion_timestamp.is_none()
        && meta.annotations.annotation(ROLLED_OUT_ANNOTATION).is_none()
        && template_versions.is_none()
}

/// The annotation of a template that names versions.
pub fn template_versions(template: &PodTemplateSpec) -> Option<&str> {
    template.metadata.as_ref()?.annotations.annotation(ANNOTATION)
}

/// The deadline that this controller watches for a workload.
fn own_deadline(meta: &ObjectMeta, pods: &[Arc<Pod>], waits_for_unready: bool) -> OwnDeadline {
    let limit = meta.annotations.annotation(PROGRESS_DEADLINE_ANNOTATION).map(parse_progress_deadline);
    let limit = limit.and_then(Result::ok).unwrap_or(PROGRESS_DEADLINE_SECONDS);
    OwnDeadline {
        limit: SignedDuration::from_secs(limit.into()),
        began: meta.annotations.annotation(BEGAN_ANNOTATION).and_then(|text| text.parse().ok()),
        pods: pods.iter().map(|pod| RolloutPod::from(&**pod)).collect(),
        waits_for_unready,
    }
}

/// The workload that a key stands for.
pub fn find(context: &crate::runtime::Context, key: &WorkloadKey) -> Option<Workload> {
    let caches = &context.caches;
    fn view<K: Metadata<Ty = ObjectMeta>>(caches: &Caches, set: &K, waits_for_unready: bool) -> Workload
    where
        Workload: for<'k> From<&'k K>,
    {
        let pods = caches.pods.controlled_by(set.metadata().uid.as_deref().unwrap_or_default());
        let deadline = Some(own_deadline(set.metadata(), &pods, waits_for_unready));
        Workload { deadline, ..Workload::from(set) }
    }
    match key.kind {
        WorkloadKind::Deployment => caches.deployments.get(&key.object).map(|found| Workload::from(&*found)),
        WorkloadKind::StatefulSet => caches.stateful_sets.get(&key.object).map(|found| view(caches, &*found, true)),
        WorkloadKind::DaemonSet => caches.daemon_sets.get(&key.object).map(|found| view(caches, &*found, false)),
    }
}
