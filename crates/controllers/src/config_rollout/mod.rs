//! Rollouts of configuration: a changed ConfigMap or Secret reaches the pods of a workload by its own rolling update.
//!
//! For workloads with the annotation `mainstay.dev/rollout: budgeted`. The content of every ConfigMap and Secret that the template shows in volumes or has in the
//! environment is copied, and the template names the copies ([`mainstay_api::config_versions`]); so a change is a new template, and the workload's
//! controller does the rest: its `maxUnavailable` and `maxSurge`, its deadline, its history, and `kubectl rollout undo`.
//!
//! * [`plan`]: which versions the template names next; [`workload`]: what of a workload that depends on
//! * [`copies`]: which copies there are
//!
//! Copies are shared: whose content is the same is the same object, and has all workloads that use it as its owners. One that neither template, pods nor
//! retained revisions name any more is given up; the last owner deletes it.

mod copies;
mod plan;
pub mod workload;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, StatefulSet},
        core::v1::{ConfigMap, Secret},
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Api, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    core::NamespaceResourceScope,
};
use mainstay_api::{
    config_versions::{
        ANNOTATION, BEGAN_ANNOTATION, COPY_OF_LABEL, ConfigKind, ConfigSource, ConfigVersions, LAST_GOOD_ANNOTATION,
        ROLLED_OUT_ANNOTATION, copy_config_map, copy_secret,
    },
    references,
};
use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use self::{
    copies::CopyIndex,
    plan::{Action, CopyBody, OwnedCopy, VersionChange, VersionsWrite, Why, World},
    workload::{RolloutPod, WorkloadKey, WorkloadKind, is_budgeted},
};
use crate::{
    objects::{deployment::Deployment, pod::Pod},
    runtime::{
        ApiError, Context, Controller, Limits, ObjectKey, Plan, Runnable, WorkQueue, context::resync_every, error,
        object_writes,
    },
    workloads::controller_ref::{Owner, OwnerKind},
};

/// How long the first look waits for a list of every resource; one that cannot be listed delays it no longer.
const SYNC_TIMEOUT: Duration = Duration::from_secs(30);
/// How often all of these workloads are looked at even if nothing changes: retained revisions go without a change of the workload.
const RESYNC: Duration = Duration::from_secs(300);
const COMPONENT: &str = "config-rollout-controller";

pub struct ConfigRollouts {
    context: Arc<Context>,
    copies: Arc<CopyIndex>,
    kinds: [(WorkloadKind, Arc<OwnerKind>); 3],
}

/// Workloads that are looked at, and what they refer to.
#[derive(Default)]
struct FollowedWorkloads(Mutex<BTreeMap<WorkloadKey, BTreeSet<ConfigSource>>>);

impl FollowedWorkloads {
    /// Nothing stops following it. Says whether it was or is followed.
    fn set(&self, key: &WorkloadKey, sources: Option<BTreeSet<ConfigSource>>) -> bool {
        let mut all = self.0.lock();
        match sources {
            Some(sources) => {
                all.insert(key.clone(), sources);
                true
            }
            None => all.remove(key).is_some(),
        }
    }

    fn referring_to(&self, source: &ConfigSource, namespace: &str) -> Vec<WorkloadKey> {
        let all = self.0.lock();
        let refers = |(key, sources): &(&WorkloadKey, &BTreeSet<ConfigSource>)| {
            key.object.namespace == namespace && sources.contains(source)
        };
        all.iter().filter(refers).map(|(key, _)| key.clone()).collect()
    }

    fn contains(&self, key: &WorkloadKey) -> bool {
        self.0.lock().contains_key(key)
    }

    fn all(&self) -> Vec<WorkloadKey> {
        self.0.lock().keys().cloned().collect()
    }
}

pub fn controller(context: &Arc<Context>) -> Runnable {
    let queue = context.queue::<ConfigRollouts>();
    let (followed, copies) = (Arc::<FollowedWorkloads>::default(), Arc::<CopyIndex>::default());
    macro_rules! follow {
        ($($cache:ident: $kind:ident, $template:expr;)*) => {
            $(context.caches.$cache.on_change({
                let (queue, followed) = (queue.clone(), followed.clone());
                move |change| {
                    let key = WorkloadKey { kind: WorkloadKind::$kind, object: change.key.clone() };
                    let asks = change.after.filter(|own| {
                        let annotations = own.metadata.annotations.as_ref();
                        is_budgeted(&own.metadata)
                            || annotations.is_some_and(|all| all.contains_key(ROLLED_OUT_ANNOTATION))
                    });
                    let template: fn(&_) -> Value = $template;
                    let sources = asks.map(|own| references::config_sources(&template(own)["spec"]));
                    if followed.set(&key, sources) {
                        queue.add(key);
                    }
                }
            });)*
        };
    }
    follow! {
        deployments: Deployment, |own: &Deployment| own.spec.template.clone();
        stateful_sets: StatefulSet, |own: &StatefulSet| json!(own.spec.template);
        daemon_sets: DaemonSet, |own: &DaemonSet| json!(own.spec.template);
    }
    context.metadata.on_event({
        let (queue, followed, copies) = (queue.clone(), followed.clone(), copies.clone());
        move |resource, event| {
            let Some(event) = copies.observe(resource, event) else { return };
            let source = ConfigSource { kind: event.kind, name: event.object.name };
            followed.referring_to(&source, &event.object.namespace).into_iter().for_each(|key| queue.add(key));
            add_owners(&queue, &event.object.namespace, &event.owners);
        }
    });
    context.caches.pods.on_change({
        let (queue, followed) = (queue.clone(), followed.clone());
        move |change| {
            let view = |pod: Option<&Pod>| pod.map(RolloutPod::from);
            let Some(pod) = change.latest().filter(|_| view(change.before) != view(change.after)) else { return };
            let owners = pod.metadata.owner_references.iter().flatten();
            for owner in owners.filter(|owner| owner.controller == Some(true)) {
                let kind = match owner.kind.as_str() {
                    "StatefulSet" => WorkloadKind::StatefulSet,
                    "DaemonSet" => WorkloadKind::DaemonSet,
                    _ => continue,
                };
                let key = WorkloadKey { kind, object: ObjectKey::new(change.key.namespace.clone(), &owner.name) };
                if followed.contains(&key) {
                    queue.add(key);
                }
            }
        }
    });
    let mut synced = context.metadata.synced();
    let resync = resync_every(RESYNC, {
        let (queue, followed) = (queue.clone(), followed.clone());
        move || followed.all().into_iter().for_each(|key| queue.add(key))
    });
    let kinds = [
        (WorkloadKind::Deployment, OwnerKind::new::<Deployment>(COMPONENT)),
        (WorkloadKind::StatefulSet, OwnerKind::new::<StatefulSet>(COMPONENT)),
        (WorkloadKind::DaemonSet, OwnerKind::new::<DaemonSet>(COMPONENT)),
    ];
    let rollouts = ConfigRollouts { context: context.clone(), copies, kinds };
    context.runnable(Arc::new(rollouts), queue, Limits::default()).alongside(resync).after(async move {
        let _ = tokio::time::timeout(SYNC_TIMEOUT, synced.wait_for(|synced| *synced)).await;
    })
}

fn add_owners(queue: &WorkQueue<WorkloadKey>, namespace: &str, owners: &[OwnerReference]) {
    for owner in owners {
        let kind = match owner.kind.as_str() {
            "Deployment" => WorkloadKind::Deployment,
            "StatefulSet" => WorkloadKind::StatefulSet,
            "DaemonSet" => WorkloadKind::DaemonSet,
            _ => continue,
        };
        queue.add(WorkloadKey { kind, object: ObjectKey::new(namespace, &owner.name) });
    }
}

impl ConfigRollouts {
    fn owner(&self, key: &WorkloadKey, uid: &str) -> Owner {
        let kind = self.kinds.iter().find(|(kind, _)| *kind == key.kind).map(|(_, owner)| owner.clone());
        let kind = kind.unwrap_or_else(|| self.kinds[0].1.clone());
        Owner { kind, key: key.object.clone(), uid: uid.to_owned(), leaving: false }
    }

    fn api<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.context.client.clone(), namespace)
    }

    /// A copy of what a source has now; nothing if it does not exist.
    async fn content(&self, namespace: &str, source: &ConfigSource) -> Result<Option<CopyBody>, ApiError> {
        let failed = ApiError::when(format!("get {source} in {namespace}"));
        Ok(match source.kind {
            ConfigKind::ConfigMap => {
                let map = self.api::<ConfigMap>(namespace).get_opt(&source.name).await.map_err(failed)?;
                map.map(|map| CopyBody::ConfigMap(Box::new(copy_config_map(&map))))
            }
            ConfigKind::Secret => {
                let secret = self.api::<Secret>(namespace).get_opt(&source.name).await.map_err(failed)?;
                secret.map(|secret| CopyBody::Secret(Box::new(copy_secret(&secret))))
            }
        })
    }

    /// Copies that pods of the namespace name, and revisions of the workload.
    fn copies_in_use(&self, key: &WorkloadKey, uid: &str) -> BTreeSet<OwnedCopy> {
        let caches = &self.context.caches;
        let pods = caches.pods.in_namespace(&key.object.namespace);
        let pods = pods.iter().map(|pod| ConfigVersions::from_annotations(&pod.metadata.annotations));
        let in_template = |template: &Value| ConfigVersions::from_annotations(&template["metadata"]["annotations"]);
        let revisions: Vec<ConfigVersions> = match key.kind {
            WorkloadKind::Deployment => {
                caches.replica_sets.controlled_by(uid).iter().map(|set| in_template(&set.spec.template)).collect()
            }
            WorkloadKind::StatefulSet | WorkloadKind::DaemonSet => {
                let revisions = caches.revisions.controlled_by(uid);
                revisions.iter().map(|revision| in_template(&revision.data.0["spec"]["template"])).collect()
            }
        };
        let copies = pods.chain(revisions).flat_map(|versions| versions.copies);
        copies.map(|(source, name)| OwnedCopy { kind: source.kind, name }).collect()
    }

    async fn ensure_copy(&self, owner: &Owner, body: CopyBody) -> Result<(), ApiError> {
        match body {
            CopyBody::ConfigMap(map) => self.create_or_adopt(owner, *map).await,
            CopyBody::Secret(secret) => self.create_or_adopt(owner, *secret).await,
        }
    }

    async fn create_or_adopt<K>(&self, owner: &Owner, mut copy: K) -> Result<(), ApiError>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + Serialize
            + DeserializeOwned,
    {
        let api = self.api::<K>(&owner.key.namespace);
        let name = copy.meta().name.clone().unwrap_or_default();
        let what = format!("{} {}/{name}", K::kind(&()).to_lowercase(), owner.key.namespace);
        copy.meta_mut().owner_references = Some(vec![shared_reference(owner)]);
        match api.create(&PostParams::default(), &copy).await {
            Ok(_) => return Ok(()),
            Err(error) if error::has_code(&error, 409) => {}
            Err(error) => {
                if !error::is_namespace_terminating(&error) {
                    let message = format!("Failed to create {what}: {}", error::message(&error));
                    self.context.events.warning(owner, "FailedCreateConfigCopy", message);
                }
                return Err(ApiError::new(format!("create {what}"), error));
            }
        }
        let found = api.get(&name).await.map_err(ApiError::when(format!("get {what}")))?;
        let copy_of = |copy: &K| copy.meta().labels.as_ref().and_then(|labels| labels.get(COPY_OF_LABEL)).cloned();
        // A ConfigTemplate may have made the same copy, with labels of its own.
        if copy_of(&found) != copy_of(&copy) {
            let message = format!("The name of {what} is taken by an object that is no copy; delete it or rename it");
            self.context.events.warning(owner, "ConfigCopyNameTaken", message);
            return Ok(());
        }
        let mut owners = found.meta().owner_references.clone().unwrap_or_default();
        if owners.iter().any(|other| other.uid == owner.uid) {
            return Ok(());
        }
        owners.push(shared_reference(owner));
        self.set_owners(&api, &found, &owners).await.map_err(ApiError::when(format!("own {what}")))
    }

    async fn set_owners<K>(&self, api: &Api<K>, copy: &K, owners: &[OwnerReference]) -> Result<(), kube::Error>
    where
        K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
    {
        let meta = copy.meta();
        let change = json!({ "metadata": {
            "uid": meta.uid, "resourceVersion": meta.resource_version, "ownerReferences": owners,
        } });
        let name = meta.name.as_deref().unwrap_or_default();
        api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await.map(drop)
    }

    async fn release(&self, owner: &Owner, copy: &OwnedCopy) -> Result<(), ApiError> {
        let namespace = &owner.key.namespace;
        let what = format!("release {}/{} in {namespace}", copy.kind.word(), copy.name);
        let released = match copy.kind {
            ConfigKind::ConfigMap => self.disown(&self.api::<ConfigMap>(namespace), owner, &copy.name).await,
            ConfigKind::Secret => self.disown(&self.api::<Secret>(namespace), owner, &copy.name).await,
        };
        released.map_err(ApiError::when(what))
    }

    async fn delete_pod(&self, owner: &Owner, name: &str, uid: &str) -> Result<(), ApiError> {
        let key = ObjectKey::new(owner.key.namespace.clone(), name);
        let pods = self.context.pods_in(&key.namespace);
        let deleted = object_writes::delete(&pods, &self.context.caches.pods, &key, uid).await?;
        if deleted {
            let message = format!("Deleted pod {name}, which is not ready with a version that was taken back");
            self.context.events.normal(owner, "ConfigRolloutPodReplaced", message);
        }
        Ok(())
    }

    /// Deletes a copy, or leaves it to its other owners.
    async fn disown<K>(&self, api: &Api<K>, owner: &Owner, name: &str) -> Result<(), kube::Error>
    where
        K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
    {
        let Some(found) = api.get_opt(name).await? else { return Ok(()) };
        let owners = found.meta().owner_references.clone().unwrap_or_default();
        let others: Vec<OwnerReference> = owners.iter().filter(|other| other.uid != owner.uid).cloned().collect();
        if others.len() == owners.len() {
            return Ok(());
        }
        if !others.is_empty() {
            return self.set_owners(api, &found, &others).await;
        }
        let meta = found.meta();
        let preconditions = Preconditions { uid: meta.uid.clone(), resource_version: meta.resource_version.clone() };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        match api.delete(name, &params).await {
            Ok(_) => Ok(()),
            Err(error) if error::is_not_found(&error, name) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn write(&self, key: &WorkloadKey, owner: &Owner, write: &VersionsWrite) -> Result<(), ApiError> {
        let text = |versions: &Option<ConfigVersions>| versions.as_ref().map(ToString::to_string);
        let change = json!({
            "metadata": {
                "uid": owner.uid, "resourceVersion": write.version,
                "annotations": {
                    ROLLED_OUT_ANNOTATION: text(&write.rolled_out), LAST_GOOD_ANNOTATION: text(&write.last_good),
                    BEGAN_ANNOTATION: write.began.map(|time| time.to_string()),
                },
            },
            "spec": { "template": { "metadata": { "annotations": { ANNOTATION: text(&write.template) } } } },
        });
        let (caches, name, namespace) = (&self.context.caches, &key.object.name, &key.object.namespace);
        let (params, patch) = (PatchParams::default(), Patch::Merge(change));
        let written = match key.kind {
            WorkloadKind::Deployment => {
                let written = self.api::<Deployment>(namespace).patch(name, &params, &patch).await;
                written.map(|own| caches.deployments.wrote(own))
            }
            WorkloadKind::StatefulSet => {
                let written = self.api::<StatefulSet>(namespace).patch(name, &params, &patch).await;
                written.map(|own| caches.stateful_sets.wrote(own))
            }
            WorkloadKind::DaemonSet => {
                let written = self.api::<DaemonSet>(namespace).patch(name, &params, &patch).await;
                written.map(|own| caches.daemon_sets.wrote(own))
            }
        };
        match written {
            Ok(()) => self.record_event(owner, &write.why),
            Err(error) if error::is_not_found(&error, name) => {}
            Err(error) => return Err(ApiError::new(format!("write the configuration versions of {key:?}"), error)),
        }
        Ok(())
    }

    fn record_event(&self, owner: &Owner, why: &Why) {
        let list = |changes: &[VersionChange]| {
            let all: Vec<String> = changes.iter().map(ToString::to_string).collect();
            all.join(", ")
        };
        let events = &self.context.events;
        match why {
            Why::Changed(changes) => {
                events.normal(owner, "ConfigRollout", format!("Rolling out {}", list(changes)));
            }
            Why::Failed(changes) => {
                let message = format!(
                    "The rollout of configuration exceeded its progress deadline; returning {} until the content changes",
                    list(changes)
                );
                events.warning(owner, "ConfigRolloutFailed", message);
            }
            Why::TakenBack(changes) => {
                let message = format!("Taken back: {}; it stays there until the content changes", list(changes));
                events.normal(owner, "ConfigRolloutUndone", message);
            }
            Why::Unbudgeted => {
                let message = "Pods read ConfigMaps and Secrets as they are again, and no longer versions of them";
                events.normal(owner, "ConfigRolloutEnded", message);
            }
            Why::Complete | Why::Recorded => {}
        }
    }
}

/// One owner of several; deleting a workload is not held up by copies.
fn shared_reference(owner: &Owner) -> OwnerReference {
    OwnerReference { controller: None, block_owner_deletion: None, ..owner.reference() }
}

impl Controller for ConfigRollouts {
    const NAME: &'static str = "config_rollouts";
    type Key = WorkloadKey;
    type World = World;
    type Action = OwnedAction;
    type Outcome = ();
    type Status = ();

    async fn observe(&self, key: &WorkloadKey) -> Result<Option<World>, ApiError> {
        let Some(workload) = workload::find(&self.context, key) else { return Ok(None) };
        let namespace = &key.object.namespace;
        let owned = self.copies.owned_by(namespace, &workload.uid);
        let mut contents = BTreeMap::new();
        for source in workload.sources.iter().filter(|_| workload.is_budgeted) {
            if let Some(content) = self.content(namespace, source).await? {
                contents.insert(source.clone(), content);
            }
        }
        let in_use = if owned.is_empty() { BTreeSet::new() } else { self.copies_in_use(key, &workload.uid) };
        Ok(Some(World { workload, contents, owned, in_use }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<OwnedAction, ()> {
        let uid = &world.workload.uid;
        let actions = plan::plan(world, now).into_iter().map(|action| OwnedAction { uid: uid.clone(), action });
        Plan { requeue_at: plan::next_look(world), ..Plan::act(actions) }
    }

    async fn apply(&self, key: &WorkloadKey, OwnedAction { uid, action }: OwnedAction) -> Result<(), ApiError> {
        let owner = self.owner(key, &uid);
        match action {
            Action::EnsureCopy(body) => self.ensure_copy(&owner, body).await,
            Action::Write(write) => self.write(key, &owner, &write).await,
            Action::Release(copy) => self.release(&owner, &copy).await,
            Action::DeletePod { name, uid } => self.delete_pod(&owner, &name, &uid).await,
        }
    }
}

/// An action, and the uid of the workload it is for.
#[derive(Debug)]
pub struct OwnedAction {
    uid: String,
    action: Action,
}
