//! The ReplicaSet controller: keeps as many pods as a ReplicaSet or ReplicationController asks for.
//!
//! * [`kind`]: what the two kinds have in common
//! * [`plan`]: how many pods to create or delete; [`surplus`]: which ones to delete

pub mod kind;
mod plan;
mod surplus;

use std::{fmt, marker::PhantomData, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::apps::v1::ReplicaSetCondition,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use mainstay_api::selector::Labels;
use serde_json::{Value, json};

use super::{
    controller_ref::{self, Owner, OwnerKind, selects},
    pod_names::PodNameHistory,
    pod_template,
};
use crate::{
    names,
    objects::{pod::Pod, replica_set::Status},
    runtime::{
        ApiError, Change, Context, Controller, Limits, ObjectKey, Outcomes, Plan, Runnable, WorkQueue, controller_of,
        error,
    },
};
use kind::ReplicaSetKind;
use plan::{BURST, Desired, Step, World, is_replaced_first};

const REPLICA_FAILURE: &str = "ReplicaFailure";
/// Pods that are created or deleted in response.
const POD_ENDED: Duration = Duration::from_millis(10);
/// Pods that are merely counted.
const POD_CHANGED: Duration = Duration::from_millis(50);

pub fn controller<S: ReplicaSetKind>(context: &Arc<Context>) -> Runnable {
    let queue = context.queue::<ReplicaSets<S>>();
    let controller = Arc::new(ReplicaSets::<S> {
        context: context.clone(),
        queue: queue.clone(),
        kind: OwnerKind::new::<S>(S::COMPONENT),
        names: PodNameHistory::follow(&context.caches, S::cache(&context.caches), |_| None),
        set: PhantomData,
    });
    let sets = queue.clone();
    S::cache(&context.caches).on_change(move |change| {
        let spec = |set: &S| (set.meta().generation, set.meta().deletion_timestamp.clone());
        let status_only = change.before.map(spec) == change.after.map(spec);
        sets.add_after(change.key.clone(), if status_only { POD_CHANGED } else { Duration::ZERO });
    });
    let own = Arc::downgrade(&controller);
    context.caches.pods.on_change(move |change| {
        if let Some(own) = own.upgrade() {
            own.pod_changed(&change);
        }
    });
    context.runnable(controller, queue, Limits::default())
}

struct ReplicaSets<S> {
    context: Arc<Context>,
    queue: Arc<WorkQueue<ObjectKey>>,
    kind: Arc<OwnerKind>,
    names: Arc<PodNameHistory>,
    set: PhantomData<S>,
}

impl<S: ReplicaSetKind> ReplicaSets<S> {
    fn pod_changed(&self, change: &Change<'_, Pod>) {
        let before = change.before.and_then(|pod| self.owner_of(pod));
        let after = change.after.and_then(|pod| self.owner_of(pod));
        let delay = if change.after.is_some_and(Pod::is_active) { POD_CHANGED } else { POD_ENDED };
        if let Some(name) = before.filter(|_| before != after) {
            self.queue.add_after(ObjectKey::new(change.key.namespace.clone(), name), POD_ENDED);
        }
        if let Some(name) = after.or(before) {
            self.queue.add_after(ObjectKey::new(change.key.namespace.clone(), name), delay);
        }
        let orphan = change.after.filter(|pod| controller_of(&pod.metadata).is_none() && pod.is_active());
        let Some(orphan) = orphan else { return };
        let known = change.before.is_some_and(|before| {
            controller_of(&before.metadata).is_none() && before.metadata.labels == orphan.metadata.labels
        });
        if known {
            return;
        }
        for set in S::cache(&self.context.caches).in_namespace(&change.key.namespace) {
            if selects(&set.selector().labels, &orphan.metadata) {
                self.queue.add_after(ObjectKey::from_meta(set.meta()), POD_CHANGED);
            }
        }
    }

    fn owner_of<'p>(&self, pod: &'p Pod) -> Option<&'p str> {
        let mut owners = pod.metadata.owner_references.iter().flatten();
        let owner = owners.find(|owner| owner.controller == Some(true))?;
        (owner.kind == self.kind.resource.kind).then_some(owner.name.as_str())
    }

    /// The pods of all sets of this kind that have the same controller, counted per machine.
    fn crowd(&self, meta: &ObjectMeta, own: &[Arc<Pod>]) -> surplus::Crowd {
        let Some(above) = controller_of(meta) else { return surplus::crowd(own) };
        let sets = S::cache(&self.context.caches).controlled_by(above);
        let uids = sets.iter().filter_map(|set| set.meta().uid.as_deref());
        let pods: Vec<Arc<Pod>> = uids.flat_map(|uid| self.context.caches.pods.controlled_by(uid)).collect();
        surplus::crowd(&pods)
    }
}

/// A step, with all that is needed to apply it.
pub struct Action {
    step: Step,
    set: Arc<PodSource>,
}

struct PodSource {
    owner: Owner,
    template: Value,
}

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.step.fmt(f)
    }
}

/// What was observed, and whose it is.
pub struct Snapshot {
    world: World,
    set: Arc<PodSource>,
    version: String,
}

pub struct Report {
    status: Status,
    standing: Status,
    version: String,
    at: Timestamp,
    /// The reason of the condition `ReplicaFailure` if an action is refused.
    failure_reason: Option<&'static str>,
}

impl<S: ReplicaSetKind> Controller for ReplicaSets<S> {
    const NAME: &'static str = S::QUEUE;
    const CONCURRENT_ACTIONS: usize = 128;
    type Key = ObjectKey;
    type World = Snapshot;
    type Action = Action;
    type Outcome = ();
    type Status = Report;

    async fn observe(&self, key: &ObjectKey) -> Result<Option<Snapshot>, ApiError> {
        let caches = &self.context.caches;
        let Some(set) = S::cache(caches).get(key) else { return Ok(None) };
        let owner = Owner::new(&self.kind, set.meta());
        let fits = |pod: &Pod| selects(&set.selector().labels, &pod.metadata);
        // Only pods that still run change hands.
        let (active, mut rest): (Vec<_>, Vec<_>) =
            caches.pods.controlled_by(&owner.uid).into_iter().partition(|pod| pod.is_active());
        let orphans = caches.pods.orphans_in(&key.namespace).into_iter().filter(|pod| pod.is_active());
        let mut claimed = controller_ref::claim_candidates(&owner, active.into_iter().chain(orphans), fits);
        rest.retain(|pod| fits(pod));
        let active = claimed.held.len();
        claimed.held.extend(rest);
        let replicas = usize::try_from(set.replicas()).unwrap_or(0);
        // Those that are replaced before they go need names as well.
        let replaced = claimed.held.iter().filter(|pod| is_replaced_first(pod)).count();
        let missing = (replicas + replaced).saturating_sub(active).min(BURST);
        let taken = |name: &str| caches.pods.get(&ObjectKey::new(key.namespace.clone(), name)).is_some();
        let used = self.names.used_numbers(&owner.uid);
        let new_names = names::fresh(&key.name, &owner.uid, &used, taken).take(missing).collect();
        let crowd = if active > replicas { self.crowd(set.meta(), &claimed.held) } else { surplus::Crowd::new() };
        let want = Desired {
            replicas,
            min_ready_seconds: set.min_ready_seconds(),
            template_labels: Labels::from_map(&set.template()["metadata"]["labels"]),
            generation: set.meta().generation.unwrap_or(0),
            leaving: owner.leaving,
            counts_leaving: S::COUNTS_LEAVING,
        };
        let standing = set.status().clone();
        let world = World { want, pods: claimed.held, claims: claimed.claims, new_names, crowd, standing };
        let version = set.meta().resource_version.clone().unwrap_or_default();
        Ok(Some(Snapshot { world, set: Arc::new(PodSource { owner, template: set.template().clone() }), version }))
    }

    fn plan(snapshot: &Snapshot, now: Timestamp) -> Plan<Action, Report> {
        let plan = plan::plan(&snapshot.world, now);
        let (version, standing) = (snapshot.version.clone(), snapshot.world.standing.clone());
        let failure_reason = plan.actions.first().and_then(|step| match step {
            Step::OwnershipChange(_) => None,
            Step::Create { .. } => Some("FailedCreate"),
            Step::Delete { .. } => Some("FailedDelete"),
        });
        Plan {
            actions: plan.actions.into_iter().map(|step| Action { step, set: snapshot.set.clone() }).collect(),
            status: plan.status.map(|status| Report { status, standing, version, at: now, failure_reason }),
            requeue_at: plan.requeue_at,
        }
    }

    async fn apply(&self, _: &ObjectKey, Action { step, set }: Action) -> Result<(), ApiError> {
        match step {
            Step::OwnershipChange(change) => {
                controller_ref::apply_change(&self.context.client, &self.context.caches.pods, &set.owner, change).await
            }
            Step::Create { name } => {
                let pod = pod_template::pod(&set.owner, &set.template, &name);
                self.context.create_pod(&set.owner, &pod).await
            }
            Step::Delete { name, uid } => self.context.delete_pod(&set.owner, &name, &uid).await,
        }
    }

    async fn report(&self, key: &ObjectKey, report: Report, outcomes: &Outcomes<()>) -> Result<(), ApiError> {
        let Report { mut status, standing, version, at, failure_reason } = report;
        let refused = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).find(|error| !error.is_conflict());
        if let (Some(error), Some(reason)) = (refused, failure_reason) {
            status.conditions.push(replica_failure(reason, error.message(), &standing, at));
        }
        if status == standing {
            return Ok(());
        }
        let sets: Api<S> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let change = json!({ "metadata": { "resourceVersion": version }, "status": status.written() });
        match sets.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(change)).await {
            Ok(set) => {
                S::cache(&self.context.caches).wrote(set);
                Ok(())
            }
            Err(error) if error::is_not_found(&error, &key.name) => Ok(()),
            Err(error) => Err(ApiError::new(format!("write the status of {} {key:?}", self.kind.resource.kind), error)),
        }
    }
}

/// The condition `ReplicaFailure`. One that stands with the same reason is left as it is.
fn replica_failure(reason: &str, message: String, standing: &Status, at: Timestamp) -> ReplicaSetCondition {
    let before = standing.conditions.iter().find(|condition| condition.type_.as_deref() == Some(REPLICA_FAILURE));
    match before.filter(|before| before.status.as_deref() == Some("True") && before.reason.as_deref() == Some(reason)) {
        Some(before) => before.clone(),
        None => ReplicaSetCondition {
            type_: Some(REPLICA_FAILURE.to_owned()),
            status: Some("True".to_owned()),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_transition_time: Some(Time(at)),
        },
    }
}
