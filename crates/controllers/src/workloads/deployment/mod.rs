//! Deployments: which template runs, and how one takes over from another.
//!
//! * [`object`]: the kind; [`view`]: what decisions depend on, and the steps they lead to
//! * [`plan`]: the next step; [`rolling`]: sizes; [`status`]: counts and conditions
//! * [`alike`]: when two templates are the same

mod alike;
pub mod object;
mod plan;
mod rolling;
mod status;
mod view;

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{
    Turns, Workloads, act,
    owner::{self, Kind, Owner, selects},
    pod::Pod,
    replicas::object::ReplicaSet,
    turns,
};
use crate::{
    cache::{Change, Key, controller},
    failure::{self, Failure},
    runner::{Limits, Queue},
    shell::{Controller, Plan},
};
use object::{Deployment, Status};
use status::{Conditions, Made};
use view::{Create, Desired, Judged, REVISION, Set, Step, World};

/// News of ReplicaSets come in crowds.
const GATHERED: Duration = Duration::from_millis(20);

/// Begins to listen.
pub fn controller_of_deployments(shared: &Arc<Workloads>) -> Turns {
    let queue = Queue::new();
    let deployments = Arc::new(Deployments {
        shared: shared.clone(),
        queue: queue.clone(),
        kind: Kind::new::<Deployment>("deployment-controller"),
        made: Mutex::default(),
    });
    let own = queue.clone();
    shared.caches.deployments.on_change(move |change| own.wake(change.key.clone()));
    let own = deployments.clone();
    shared.caches.replica_sets.on_change(move |change| own.set_changed(&change));
    let own = deployments.clone();
    shared.caches.pods.on_change(move |change| own.pod_changed(&change));
    turns(deployments, queue, Limits { width: 8, longest_pause: Duration::from_secs(60) })
}

struct Deployments {
    shared: Arc<Workloads>,
    queue: Arc<Queue<Key>>,
    kind: Arc<Kind>,
    /// What became of a new ReplicaSet in the turn under way, for its report.
    made: Mutex<HashMap<Key, Made>>,
}

impl Deployments {
    fn set_changed(&self, change: &Change<'_, ReplicaSet>) {
        let owner = |set: &ReplicaSet| {
            let mut owners = set.metadata.owner_references.iter().flatten();
            let owner = owners.find(|owner| owner.controller == Some(true) && owner.kind == "Deployment")?;
            Some(Key::new(change.key.namespace.clone(), owner.name.clone()))
        };
        let owners: BTreeSet<Key> = change.before.into_iter().chain(change.after).filter_map(owner).collect();
        owners.into_iter().for_each(|key| self.queue.wake_within(key, GATHERED));
        let Some(orphan) = change.after.filter(|set| controller(&set.metadata).is_none()) else { return };
        for deployment in self.shared.caches.deployments.in_namespace(&change.key.namespace) {
            if selects(&deployment.spec.selector.labels, &orphan.metadata) {
                self.queue.wake_within(Key::of(&deployment.metadata), GATHERED);
            }
        }
    }

    /// Where old and new may not be there together, the last old pod is waited for.
    fn pod_changed(&self, change: &Change<'_, Pod>) {
        if change.after.is_some_and(|pod| !pod.is_over()) {
            return;
        }
        let Some(pod) = change.latest() else { return };
        let mut owners = pod.metadata.owner_references.iter().flatten();
        if !owners.any(|owner| owner.controller == Some(true) && owner.kind == "ReplicaSet") {
            return;
        }
        for deployment in self.shared.caches.deployments.in_namespace(&change.key.namespace) {
            if deployment.is_recreate() && selects(&deployment.spec.selector.labels, &pod.metadata) {
                self.queue.wake_within(Key::of(&deployment.metadata), GATHERED);
            }
        }
    }

    fn sets(&self, key: &Key) -> Api<ReplicaSet> {
        Api::namespaced(self.shared.client.clone(), &key.namespace)
    }

    fn deployments(&self, key: &Key) -> Api<Deployment> {
        Api::namespaced(self.shared.client.clone(), &key.namespace)
    }

    async fn patch_set(&self, owner: &Owner, set: &Judged, doing: &str, mut change: Value) -> Result<bool, Failure> {
        change["metadata"]["uid"] = json!(set.uid);
        change["metadata"]["resourceVersion"] = json!(set.version);
        let patched = self.sets(&owner.key).patch(&set.name, &PatchParams::default(), &Patch::Merge(change)).await;
        match patched {
            Ok(set) => {
                self.shared.caches.replica_sets.wrote(set);
                Ok(true)
            }
            Err(error) if failure::no_such_object(&error, &set.name) => Ok(false),
            Err(error) => Err(Failure::new(format!("{doing} replicaset {}/{}", owner.key.namespace, set.name), error)),
        }
    }

    async fn create(&self, owner: &Owner, selector: &Value, create: &Create) -> Result<(), Failure> {
        let Create { name, replicas, .. } = create;
        let body = replica_set(owner, selector, create);
        match act::post::<ReplicaSet>(&self.shared.client, &owner.key.namespace, &body).await {
            Ok(set) => {
                self.shared.caches.replica_sets.wrote(set);
                if *replicas > 0 {
                    let message = format!("Scaled up replica set {name} from 0 to {replicas}");
                    self.shared.events.normal(owner, "ScalingReplicaSet", message);
                }
                self.made.lock().insert(owner.key.clone(), Made::Yes { name: name.clone() });
                Ok(())
            }
            Err(error) => {
                if !failure::is(&error, 409) && !failure::namespace_goes(&error) {
                    let why = failure::text(&error);
                    let message = format!("Failed to create new replica set {name:?}: {why}");
                    self.shared.events.warning(owner, status::NOT_MADE, message);
                    self.made.lock().insert(owner.key.clone(), Made::Refused { name: name.clone(), why });
                }
                Err(Failure::new(format!("create replicaset {}/{name}", owner.key.namespace), error))
            }
        }
    }

    async fn scale(&self, owner: &Owner, set: &Judged, from: i32, to: i32, marks: Value) -> Result<(), Failure> {
        let change = json!({ "metadata": { "annotations": marks }, "spec": { "replicas": to } });
        if self.patch_set(owner, set, "scale", change).await? && from != to {
            let way = if to > from { "up" } else { "down" };
            let message = format!("Scaled {way} replica set {} from {from} to {to}", set.name);
            self.shared.events.normal(owner, "ScalingReplicaSet", message);
        }
        Ok(())
    }

    async fn revise(&self, key: &Key, version: &str, revision: i64) -> Result<(), Failure> {
        let annotations = json!({ REVISION: revision.to_string() });
        let change = json!({ "metadata": { "resourceVersion": version, "annotations": annotations } });
        let patched = self.deployments(key).patch(&key.name, &PatchParams::default(), &Patch::Merge(change)).await;
        self.wrote(key, format!("write the revision of deployment {key:?}"), patched)
    }

    fn wrote(&self, key: &Key, doing: String, result: Result<Deployment, kube::Error>) -> Result<(), Failure> {
        match result {
            Ok(deployment) => {
                self.shared.caches.deployments.wrote(deployment);
                Ok(())
            }
            Err(error) if failure::no_such_object(&error, &key.name) => Ok(()),
            Err(error) => Err(Failure::new(doing, error)),
        }
    }

    async fn forget(&self, key: &Key, set: &Judged) -> Result<(), Failure> {
        let set_key = Key::new(key.namespace.clone(), set.name.clone());
        act::delete(&self.sets(key), &self.shared.caches.replica_sets, &set_key, &set.uid).await.map(drop)
    }
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
    template["metadata"]["labels"][alike::HASH] = json!(create.hash);
    let mut selector = selector.clone();
    if !selector["matchLabels"].is_object() {
        selector["matchLabels"] = json!({});
    }
    selector["matchLabels"][alike::HASH] = json!(create.hash);
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
    whose: Arc<Whose>,
}

struct Whose {
    owner: Owner,
    selector: Value,
}

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.step.fmt(f)
    }
}

/// A snapshot, and whose it is.
pub struct Seen {
    world: World,
    whose: Arc<Whose>,
}

pub struct Report {
    status: Status,
    standing: Status,
    version: String,
    /// Whether progress is spoken of at all.
    progress: bool,
    at: Timestamp,
}

impl Controller for Deployments {
    const NAME: &'static str = "deployments";
    type Key = Key;
    type World = Seen;
    type Action = Action;
    type Status = Report;

    async fn observe(&self, key: &Key) -> Result<Option<Seen>, Failure> {
        self.made.lock().remove(key);
        let caches = &self.shared.caches;
        let Some(deployment) = caches.deployments.get(key) else { return Ok(None) };
        let owner = Owner::new(&self.kind, &deployment.metadata);
        let selector = &deployment.spec.selector;
        let fits = |set: &ReplicaSet| selects(&selector.labels, &set.metadata);
        let claimed = owner::claim(&owner, &caches.replica_sets, fits);
        let template = alike::plain(&deployment.spec.template);
        let mut sets: Vec<Set> = claimed.held.iter().map(|set| Set::new(set, &template)).collect();
        sets.sort_by(|a, b| a.born.cmp(&b.born).then_with(|| a.name.cmp(&b.name)));
        let mut old = sets.iter().filter(|set| deployment.is_recreate() && !set.current);
        let old_pods = old.any(|set| caches.pods.controlled_by(&set.uid).iter().any(|pod| !pod.is_over()));
        let want = Desired::from(&*deployment);
        let name = Key::new(key.namespace.clone(), want.set_name());
        let taken = caches.replica_sets.get(&name).map(|_| name.name).into_iter().collect();
        let standing = deployment.status.clone();
        let world = World { want, sets, claims: claimed.claims, taken, old_pods, standing };
        Ok(Some(Seen { world, whose: Arc::new(Whose { owner, selector: selector.written.clone() }) }))
    }

    fn plan(seen: &Seen, now: Timestamp) -> Plan<Action, Report> {
        let plan = plan::plan(&seen.world, now);
        let report = |status| Report {
            status,
            standing: seen.world.standing.clone(),
            version: seen.world.want.version.clone(),
            progress: seen.world.want.deadline.is_some(),
            at: now,
        };
        Plan {
            actions: plan.actions.into_iter().map(|step| Action { step, whose: seen.whose.clone() }).collect(),
            status: plan.status.map(report),
            wake_at: plan.wake_at,
        }
    }

    async fn apply(&self, key: &Key, Action { step, whose }: Action) -> Result<(), Failure> {
        let Whose { owner, selector } = &*whose;
        match step {
            Step::Claim(claim) => {
                owner::settle(&self.shared.client, &self.shared.caches.replica_sets, owner, claim).await
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

    async fn report(&self, key: &Key, report: Report) -> Result<(), Failure> {
        let Report { mut status, standing, version, progress, at } = report;
        if let Some(made) = self.made.lock().remove(key).filter(|_| progress) {
            made.tell(Conditions { all: &mut status.conditions, now: at });
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
