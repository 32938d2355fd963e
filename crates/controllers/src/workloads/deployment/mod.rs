//! The Deployment controller: rolls out templates through ReplicaSets.
//!
//! * [`view`]: what decisions depend on, and the steps they lead to; [`plan`]: the next step
//! * [`rolling`]: sizes of ReplicaSets during a rollout; [`status`]: counts and conditions
//! * [`template_equality`]: when two templates are the same, and the hash of one

mod plan;
mod rolling;
mod status;
mod template_equality;
mod view;

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use mainstay_api::{config_versions, needs};
use serde_json::{Value, json};

use super::controller_ref::{self, Owner, OwnerKind, selects};
use crate::{
    config_rollout::workload::awaits_versions,
    objects::{
        deployment::{Deployment, Status},
        pod::Pod,
        replica_set::ReplicaSet,
    },
    runtime::{
        ApiError, Change, Context, Controller, Limits, ObjectKey, Outcomes, Plan, Runnable, WorkQueue, controller_of,
        error, object_writes,
    },
};
use status::{Conditions, NewReplicaSet};
use view::{Create, Desired, REVISION, ReplicaSetRef, Set, Step, UnmetNeeds, World, needs_met};

/// ReplicaSets change often during a rollout.
const REPLICA_SET_CHANGED: Duration = Duration::from_millis(20);

pub fn controller(context: &Arc<Context>) -> Runnable {
    let queue = context.queue::<Deployments>();
    let deployments = Arc::new(Deployments {
        context: context.clone(),
        queue: queue.clone(),
        kind: OwnerKind::new::<Deployment>("deployment-controller"),
    });
    let own = queue.clone();
    context.caches.deployments.on_change(move |change| own.add(change.key.clone()));
    let own = Arc::downgrade(&deployments);
    context.caches.replica_sets.on_change(move |change| {
        if let Some(own) = own.upgrade() {
            own.replica_set_changed(&change);
        }
    });
    let own = Arc::downgrade(&deployments);
    context.caches.pods.on_change(move |change| {
        if let Some(own) = own.upgrade() {
            own.pod_changed(&change);
            own.needs_changed(&change);
        }
    });
    context.runnable(deployments, queue, Limits::default())
}

struct Deployments {
    context: Arc<Context>,
    queue: Arc<WorkQueue<ObjectKey>>,
    kind: Arc<OwnerKind>,
}

impl Deployments {
    fn replica_set_changed(&self, change: &Change<'_, ReplicaSet>) {
        let owner = |set: &ReplicaSet| {
            let owner = controller_reference(&set.metadata, "Deployment")?;
            Some(ObjectKey::new(change.key.namespace.clone(), owner.name.clone()))
        };
        let owners: BTreeSet<ObjectKey> = change.before.into_iter().chain(change.after).filter_map(owner).collect();
        owners.into_iter().for_each(|key| self.queue.add_after(key, REPLICA_SET_CHANGED));
        let Some(orphan) = change.after.filter(|set| controller_of(&set.metadata).is_none()) else { return };
        for deployment in self.context.caches.deployments.in_namespace(&change.key.namespace) {
            if selects(&deployment.spec.selector.labels, &orphan.metadata) {
                self.queue.add_after(ObjectKey::from_meta(&deployment.metadata), REPLICA_SET_CHANGED);
            }
        }
    }

    /// Where old and new may not be there together, the last old pod is waited for.
    fn pod_changed(&self, change: &Change<'_, Pod>) {
        if change.after.is_some_and(|pod| !pod.is_finished()) {
            return;
        }
        let Some(pod) = change.latest() else { return };
        if controller_reference(&pod.metadata, "ReplicaSet").is_none() {
            return;
        }
        for deployment in self.context.caches.deployments.in_namespace(&change.key.namespace) {
            if deployment.is_recreate() && selects(&deployment.spec.selector.labels, &pod.metadata) {
                self.queue.add_after(ObjectKey::from_meta(&deployment.metadata), REPLICA_SET_CHANGED);
            }
        }
    }

    /// What a pod waits for is said in the progress of its Deployment.
    fn needs_changed(&self, change: &Change<'_, Pod>) {
        let waiting = |pod: Option<&Pod>| {
            let condition = pod?.condition(needs::CONDITION)?;
            Some((condition.status.clone(), condition.reason.clone(), condition.message.clone()))
        };
        if waiting(change.before) == waiting(change.after) {
            return;
        }
        let Some(set) = change.latest().and_then(|pod| controller_reference(&pod.metadata, "ReplicaSet")) else {
            return;
        };
        let set = self.context.caches.replica_sets.get(&ObjectKey::new(&change.key.namespace, &set.name));
        let owner = set.as_ref().and_then(|set| controller_reference(&set.metadata, "Deployment"));
        if let Some(owner) = owner {
            let key = ObjectKey::new(&change.key.namespace, &owner.name);
            self.queue.add_after(key, REPLICA_SET_CHANGED);
        }
    }

    fn sets(&self, key: &ObjectKey) -> Api<ReplicaSet> {
        Api::namespaced(self.context.client.clone(), &key.namespace)
    }

    fn deployments(&self, key: &ObjectKey) -> Api<Deployment> {
        Api::namespaced(self.context.client.clone(), &key.namespace)
    }

    async fn patch_set(
        &self,
        owner: &Owner,
        set: &ReplicaSetRef,
        doing: &str,
        mut change: Value,
    ) -> Result<bool, ApiError> {
        change["metadata"]["uid"] = json!(set.uid);
        change["metadata"]["resourceVersion"] = json!(set.version);
        let patched = self.sets(&owner.key).patch(&set.name, &PatchParams::default(), &Patch::Merge(change)).await;
        match patched {
            Ok(set) => {
                self.context.caches.replica_sets.wrote(set);
                Ok(true)
            }
            Err(error) if error::is_not_found(&error, &set.name) => Ok(false),
            Err(error) => Err(ApiError::new(format!("{doing} replicaset {}/{}", owner.key.namespace, set.name), error)),
        }
    }

    async fn create(&self, owner: &Owner, selector: &Value, create: &Create) -> Result<(), ApiError> {
        let Create { name, replicas, .. } = create;
        let body = replica_set(owner, selector, create);
        match object_writes::create_from::<ReplicaSet>(&self.context.client, &owner.key.namespace, &body).await {
            Ok(set) => {
                self.context.caches.replica_sets.wrote(set);
                if *replicas > 0 {
                    let message = format!("Scaled up replica set {name} from 0 to {replicas}");
                    self.context.events.normal(owner, "ScalingReplicaSet", message);
                }
                Ok(())
            }
            Err(error) => {
                if !error::has_code(&error, 409) && !error::is_namespace_terminating(&error) {
                    let message = format!("Failed to create new replica set {name:?}: {}", error::message(&error));
                    self.context.events.warning(owner, status::CREATE_ERROR, message);
                }
                Err(ApiError::new(format!("create replicaset {}/{name}", owner.key.namespace), error))
            }
        }
    }

    async fn scale(
        &self,
        owner: &Owner,
        set: &ReplicaSetRef,
        from: i32,
        to: i32,
        marks: Value,
    ) -> Result<(), ApiError> {
        let change = json!({ "metadata": { "annotations": marks }, "spec": { "replicas": to } });
        if self.patch_set(owner, set, "scale", change).await? && from != to {
            let way = if to > from { "up" } else { "down" };
            let message = format!("Scaled {way} replica set {} from {from} to {to}", set.name);
            self.context.events.normal(owner, "ScalingReplicaSet", message);
        }
        Ok(())
    }

    async fn revise(&self, key: &ObjectKey, version: &str, revision: i64) -> Result<(), ApiError> {
        let annotations = json!({ REVISION: revision.to_string() });
        let change = json!({ "metadata": { "resourceVersion": version, "annotations": annotations } });
        let patched = self.deployments(key).patch(&key.name, &PatchParams::default(), &Patch::Merge(change)).await;
        self.wrote(key, format!("write the revision of deployment {key:?}"), patched)
    }

    fn wrote(&self, key: &ObjectKey, doing: String, result: Result<Deployment, kube::Error>) -> Result<(), ApiError> {
        match result {
            Ok(deployment) => {
                self.context.caches.deployments.wrote(deployment);
                Ok(())
            }
            Err(error) if error::is_not_found(&error, &key.name) => Ok(()),
            Err(error) => Err(ApiError::new(doing, error)),
        }
    }

    async fn forget(&self, key: &ObjectKey, set: &ReplicaSetRef) -> Result<(), ApiError> {
        let set_key = ObjectKey::new(key.namespace.clone(), set.name.clone());
        object_writes::delete(&self.sets(key), &self.context.caches.replica_sets, &set_key, &set.uid).await.map(drop)
    }
}

/// The owner that controls an object, if it is of this kind.
fn controller_reference<'m>(meta: &'m ObjectMeta, kind: &str) -> Option<&'m OwnerReference> {
    let mut owners = meta.owner_references.iter().flatten();
    owners.find(|owner| owner.controller == Some(true) && owner.kind == kind)
}

/// The ReplicaSet of a template: its selector and its pods carry the hash.
fn replica_set(owner: &Owner, selector: &Value, create: &Create) -> Value {
    let mut template = (*create.template).clone();
    if !template["metadata"].is_object() {
        template["metadata"] = json!({});
    }
    if !template["metadata"]["labels"].is_object() {
        template["metadata"]["labels"] = json!({});
    }
    template["metadata"]["labels"][template_equality::HASH] = json!(create.hash);
    let mut selector = selector.clone();
    if !selector["matchLabels"].is_object() {
        selector["matchLabels"] = json!({});
    }
    selector["matchLabels"][template_equality::HASH] = json!(create.hash);
    json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": {
            "name": create.name, "namespace": owner.key.namespace, "ownerReferences": [owner.reference()],
            "labels": template["metadata"]["labels"], "annotations": create.annotations,
        },
        "spec": {
            "replicas": create.replicas, "minReadySeconds": create.min_ready_seconds,
            "selector": selector, "template": template,
        },
    })
}

/// A step, with all that is needed to take it.
pub struct Action {
    step: Step,
    source: Arc<SetSource>,
}

struct SetSource {
    owner: Owner,
    selector: Value,
}

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.step.fmt(f)
    }
}

/// A snapshot, and source it is.
pub struct Snapshot {
    world: World,
    source: Arc<SetSource>,
}

pub struct Report {
    status: Status,
    standing: Status,
    version: String,
    /// Whether progress is spoken of at all.
    progress: bool,
    at: Timestamp,
    /// The position among the actions and the name of a ReplicaSet that is created.
    creates: Option<(usize, String)>,
}

impl Controller for Deployments {
    const NAME: &'static str = "deployments";
    type Key = ObjectKey;
    type World = Snapshot;
    type Action = Action;
    type Outcome = ();
    type Status = Report;

    async fn observe(&self, key: &ObjectKey) -> Result<Option<Snapshot>, ApiError> {
        let caches = &self.context.caches;
        let Some(deployment) = caches.deployments.get(key) else { return Ok(None) };
        let versions = &deployment.spec.template["metadata"]["annotations"][config_versions::ANNOTATION];
        if awaits_versions(&deployment.metadata, versions.as_str()) {
            return Ok(None); // whoever writes them wakes us
        }
        let owner = Owner::new(&self.kind, &deployment.metadata);
        let selector = &deployment.spec.selector;
        let fits = |set: &ReplicaSet| selects(&selector.labels, &set.metadata);
        let claimed = controller_ref::claim_objects(&owner, &caches.replica_sets, fits);
        let template = template_equality::plain(&deployment.spec.template);
        let mut sets: Vec<Set> = claimed.held.iter().map(|set| Set::new(set, &template)).collect();
        sets.sort_by(|a, b| a.born.cmp(&b.born).then_with(|| a.name.cmp(&b.name)));
        let mut old = sets.iter().filter(|set| deployment.is_recreate() && !set.current);
        let old_pods = old.any(|set| caches.pods.controlled_by(&set.uid).iter().any(|pod| !pod.is_finished()));
        let want = Desired::from(&*deployment);
        let name = ObjectKey::new(key.namespace.clone(), want.set_name());
        let taken = caches.replica_sets.get(&name).map(|_| name.name).into_iter().collect();
        let standing = deployment.status.clone();
        let new = sets.iter().find(|set| set.current && !set.leaving);
        let pods = new.map(|new| caches.pods.controlled_by(&new.uid)).unwrap_or_default();
        let unmet_needs = UnmetNeeds::from_pods(pods.iter().map(|pod| &**pod));
        let needs_met = needs_met(pods.iter().map(|pod| &**pod));
        let claims = claimed.claims;
        let world = World { want, sets, claims, taken, old_pods, standing, unmet_needs, needs_met };
        Ok(Some(Snapshot { world, source: Arc::new(SetSource { owner, selector: selector.written.clone() }) }))
    }

    fn plan(snapshot: &Snapshot, now: Timestamp) -> Plan<Action, Report> {
        let plan = plan::plan(&snapshot.world, now);
        let creates = plan.actions.iter().enumerate().find_map(|(at, step)| match step {
            Step::Create(create) => Some((at, create.name.clone())),
            _ => None,
        });
        let report = |status| Report {
            status,
            creates,
            standing: snapshot.world.standing.clone(),
            version: snapshot.world.want.version.clone(),
            progress: snapshot.world.want.deadline.is_some(),
            at: now,
        };
        Plan {
            actions: plan.actions.into_iter().map(|step| Action { step, source: snapshot.source.clone() }).collect(),
            status: plan.status.map(report),
            requeue_at: plan.requeue_at,
        }
    }

    async fn apply(&self, key: &ObjectKey, Action { step, source }: Action) -> Result<(), ApiError> {
        let SetSource { owner, selector } = &*source;
        match step {
            Step::OwnershipChange(claim) => {
                controller_ref::apply_change(&self.context.client, &self.context.caches.replica_sets, owner, claim)
                    .await
            }
            Step::Annotate { set, annotations, min_ready_seconds } => {
                let spec = json!({ "minReadySeconds": min_ready_seconds });
                let change = json!({ "metadata": { "annotations": annotations }, "spec": spec });
                self.patch_set(owner, &set, "annotate", change).await.map(drop)
            }
            Step::Revise { version, revision } => self.revise(key, &version, revision).await,
            Step::Create(create) => self.create(owner, selector, &create).await,
            Step::Scale { set, from, to, marks } => {
                let marks = marks.into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
                self.scale(owner, &set, from, to, Value::Object(marks)).await
            }
            Step::Forget(set) => self.forget(key, &set).await,
        }
    }

    async fn report(&self, key: &ObjectKey, report: Report, outcomes: &Outcomes<()>) -> Result<(), ApiError> {
        let Report { mut status, standing, version, progress, at, creates } = report;
        if let Some((position, name)) = creates.filter(|_| progress) {
            let created = match outcomes.get(position) {
                Some(Ok(())) => Some(NewReplicaSet::Created { name }),
                Some(Err(error)) if error.is_conflict() || error.is_namespace_terminating() => None,
                Some(Err(error)) => Some(NewReplicaSet::Refused { name, why: error.message() }),
                None => None,
            };
            created.into_iter().for_each(|set| set.set(Conditions { all: &mut status.conditions, now: at }));
        }
        if status == standing {
            return Ok(());
        }
        let change = json!({ "metadata": { "resourceVersion": version }, "status": status.written() });
        let deployments = self.deployments(key);
        let patched = deployments.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(change)).await;
        self.wrote(key, format!("write the status of deployment {key:?}"), patched)
    }
}
