//! Garbage collection: deletes dependents whose owners are gone, and carries out foreground and orphaning deletions.
//!
//! * [`graph`]: the owner graph, from the metadata of every resource
//! * [`plan`]: what follows for one object
//!
//! The graph only says who needs a look. Then the object and each of its owners are read from the
//! API, and the plan is made from that: a late or lost event costs time, never an object. A
//! missing owner is proof only if the API, asked for this very object, says that it is not there
//! or has another uid, or if it was seen to go; a kind that is not served proves nothing.
//!
//! An owner that orphans its dependents lists them afresh instead of trusting the graph: one
//! that was missed would be deleted afterwards.

mod graph;
mod plan;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::ObjectReference,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions, PropagationPolicy};
use mainstay_events::EventNote;
use parking_lot::Mutex;
use serde_json::{Value, json};

use self::{
    graph::{DeletionState, OwnerGraph},
    plan::{Action, Object, OwnerState, Policy, World},
};
use crate::runtime::{
    ApiError, Context, Controller, Limits, Plan, Runnable, WorkQueue,
    context::resync_every,
    discovery::ServerResource,
    error,
    metadata_watch::MetadataEvent,
    object_meta::{self, ObjectLocation, Uid},
};

/// How often everything that may need something is looked at even if nothing changes.
const RESYNC: Duration = Duration::from_secs(600);
/// How long garbage collection waits for a first list of every resource. A resource that cannot be listed delays it no
/// longer than that: what is deleted is verified in any case.
const SYNC_TIMEOUT: Duration = Duration::from_secs(30);
const COMPONENT: &str = "garbage-collector-controller";

pub struct GarbageCollector {
    context: Arc<Context>,
    graph: Mutex<OwnerGraph>,
    queue: Arc<WorkQueue<Uid>>,
}

pub fn controller(context: &Arc<Context>) -> Runnable {
    let queue = context.queue::<GarbageCollector>();
    let collector =
        Arc::new(GarbageCollector { context: context.clone(), graph: Mutex::default(), queue: queue.clone() });
    context.metadata.on_event({
        let (collector, discovery) = (Arc::downgrade(&collector), context.discovery.clone());
        move |resource, event| {
            if resource.is_named("apiextensions.k8s.io", "customresourcedefinitions")
                || resource.is_named("apiregistration.k8s.io", "apiservices")
            {
                discovery.stale.notify_one();
            }
            if let Some(collector) = collector.upgrade() {
                collector.on_event(resource, event);
            }
        }
    });
    let (mut synced, mut added) = (context.metadata.synced(), context.metadata.resources_added());
    let (own, periodic) = (collector.clone(), collector.clone());
    let resync = async move {
        let on_added = async {
            while added.changed().await.is_ok() {
                own.resync();
            }
        };
        tokio::join!(on_added, resync_every(RESYNC, || periodic.resync()));
    };
    context.runnable(collector, queue, Limits::default()).alongside(resync).after(async move {
        let _ = tokio::time::timeout(SYNC_TIMEOUT, synced.wait_for(|synced| *synced)).await;
    })
}

impl GarbageCollector {
    fn on_event(&self, resource: &Arc<ServerResource>, event: &MetadataEvent) {
        let mut graph = self.graph.lock();
        let affected = match event {
            MetadataEvent::ListBegan => {
                graph.begin_list(resource);
                return;
            }
            MetadataEvent::Applied(meta) => graph.upsert(resource, meta),
            MetadataEvent::Deleted(meta) => graph.remove(meta.uid.as_deref().unwrap_or_default()),
            MetadataEvent::ListEnded => graph.end_list(resource),
            MetadataEvent::ResourceRemoved => {
                graph.drop_resource(resource);
                return;
            }
        };
        drop(graph);
        self.add_all(affected);
    }

    /// Looks at everything that may need something.
    fn resync(&self) {
        let unsettled = self.graph.lock().unsettled();
        self.add_all(unsettled);
    }

    fn add_all(&self, uids: Vec<Uid>) {
        uids.into_iter().for_each(|uid| self.queue.add(uid));
    }

    fn removed(&self, uid: &str) {
        let affected = self.graph.lock().remove(uid);
        self.add_all(affected);
    }

    async fn owner_state(
        &self,
        dependent: &ObjectLocation,
        reference: &OwnerReference,
    ) -> Result<OwnerState, ApiError> {
        let kinds = self.context.discovery.current();
        let Some(resource) = kinds.find(&reference.api_version, &reference.kind) else {
            if self.graph.lock().was_seen_deleted(&reference.uid) {
                return Ok(OwnerState::Absent { elsewhere: false });
            }
            self.context.discovery.stale.notify_one();
            return Ok(OwnerState::Unknown);
        };
        if resource.namespaced && dependent.namespace.is_none() {
            return Ok(OwnerState::OutOfReach);
        }
        let namespace = dependent.namespace.clone().filter(|_| resource.namespaced);
        let location = ObjectLocation { resource: resource.clone(), namespace, name: reference.name.as_str().into() };
        let found = location.get(&self.context.client).await?;
        let Some(owner) = found.filter(|owner| owner.metadata.uid.as_deref() == Some(&reference.uid)) else {
            let elsewhere = self.graph.lock().is_in_other_namespace(&reference.uid, location.namespace.as_deref());
            return Ok(OwnerState::Absent { elsewhere });
        };
        self.graph.lock().confirm(resource, &owner.metadata);
        Ok(if DeletionState::from_meta(&owner.metadata) == DeletionState::ForegroundDeletion {
            OwnerState::AwaitsDependents
        } else {
            OwnerState::Present
        })
    }

    /// Everything that names an owner, read from the API.
    async fn dependents(&self, owner: &Object) -> Result<Vec<Object>, ApiError> {
        let namespace = owner.location.namespace.as_deref();
        let kinds = self.context.discovery.current();
        let mut found = Vec::new();
        for resource in &kinds.resources {
            let reachable = resource.namespaced || namespace.is_none();
            if !reachable || !resource.can("list") || !resource.can("patch") {
                continue;
            }
            let names = |meta: &ObjectMeta| meta.owner_references.iter().flatten().any(|r| *r.uid == *owner.uid);
            let listed = object_meta::list_metadata(&self.context.client, resource, namespace, |meta| {
                if names(&meta) {
                    found.push(object(ObjectLocation::new(resource.clone(), &meta), meta));
                }
            });
            listed.await.map_err(ApiError::when(format!("list {resource} for {}", owner.location)))?;
        }
        Ok(found)
    }

    async fn patch(
        &self,
        location: &ObjectLocation,
        uid: &Uid,
        version: &str,
        change: (&str, Value),
    ) -> Result<(), ApiError> {
        let metadata = json!({ "uid": **uid, "resourceVersion": version, change.0: change.1 });
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        match location.api(&self.context.client).patch(&location.name, &PatchParams::default(), &patch).await {
            Ok(_) => Ok(()),
            Err(error) if error::is_not_found(&error, &location.name) => {
                self.removed(uid);
                Ok(())
            }
            Err(error) => Err(ApiError::new(format!("set {} of {location}", change.0), error)),
        }
    }

    async fn delete(
        &self,
        location: &ObjectLocation,
        uid: &Uid,
        version: String,
        policy: Policy,
    ) -> Result<(), ApiError> {
        let fence = Preconditions { uid: Some(uid.to_string()), resource_version: Some(version) };
        let propagation_policy = Some(match policy {
            Policy::Background => PropagationPolicy::Background,
            Policy::Foreground => PropagationPolicy::Foreground,
            Policy::Orphan => PropagationPolicy::Orphan,
        });
        let params = DeleteParams { propagation_policy, ..DeleteParams::default() }.preconditions(fence);
        match location.api(&self.context.client).delete(&location.name, &params).await {
            Ok(_) => Ok(()),
            Err(error) if error::is_not_found(&error, &location.name) => {
                self.removed(uid);
                Ok(())
            }
            Err(error) => Err(ApiError::new(format!("delete {location}"), error)),
        }
    }

    fn warn(&self, location: &ObjectLocation, uid: &Uid, owner: &OwnerReference) {
        let note = format!(
            "ownerRef [{}/{}, namespace: {}, name: {}, uid: {}] does not exist in namespace {:?}",
            owner.api_version,
            owner.kind,
            location.namespace.as_deref().unwrap_or_default(),
            owner.name,
            owner.uid,
            location.namespace.as_deref().unwrap_or_default(),
        );
        let involved = ObjectReference {
            api_version: Some(location.resource.api.api_version.clone()),
            kind: Some(location.resource.api.kind.clone()),
            name: Some(location.name.to_string()),
            namespace: location.namespace.as_deref().map(str::to_owned),
            uid: Some(uid.to_string()),
            ..ObjectReference::default()
        };
        self.context.events.record_as(COMPONENT, involved, EventNote::warning("OwnerRefInvalidNamespace", note));
        self.graph.lock().set_warned(uid);
    }
}

fn object(location: ObjectLocation, meta: ObjectMeta) -> Object {
    let deletion = DeletionState::from_meta(&meta);
    Object {
        location,
        uid: meta.uid.unwrap_or_default().into(),
        version: meta.resource_version.unwrap_or_default(),
        deletion,
        finalizers: meta.finalizers.unwrap_or_default(),
        references: meta.owner_references.unwrap_or_default(),
    }
}

impl Controller for GarbageCollector {
    const NAME: &'static str = "garbage_collector_attempt_to_delete";
    type Key = Uid;
    type World = World;
    type Action = Action;
    type Outcome = ();
    type Status = ();

    async fn observe(&self, uid: &Uid) -> Result<Option<World>, ApiError> {
        let Some(entry) = self.graph.lock().entry(uid) else { return Ok(None) };
        let found =
            entry.location.get(&self.context.client).await?.filter(|found| found.metadata.uid.as_deref() == Some(uid));
        let Some(found) = found else {
            self.removed(uid);
            return Ok(None);
        };
        let object = object(entry.location, found.metadata);
        let (dependents, warned) = (entry.dependents, entry.warned);
        Ok(Some(match object.deletion {
            DeletionState::BackgroundDeletion => return Ok(None),
            DeletionState::ForegroundDeletion => World::Awaiting { object, dependents },
            DeletionState::OrphaningDependents => {
                World::Orphaning { dependents: self.dependents(&object).await?, object }
            }
            DeletionState::Alive => {
                let mut owner_states = Vec::with_capacity(object.references.len());
                for reference in &object.references {
                    owner_states.push(self.owner_state(&object.location, reference).await?);
                }
                World::Owned { object, owner_states, dependents, warned }
            }
        }))
    }

    fn plan(world: &World, _now: Timestamp) -> Plan<Action, ()> {
        Plan::act(plan::plan(world))
    }

    async fn apply(&self, _uid: &Uid, action: Action) -> Result<(), ApiError> {
        match action {
            Action::Delete { location, uid, version, policy } => self.delete(&location, &uid, version, policy).await,
            Action::SetReferences { location, uid, version, references } => {
                self.patch(&location, &uid, &version, ("ownerReferences", json!(references))).await
            }
            Action::SetFinalizers { location, uid, version, finalizers } => {
                self.patch(&location, &uid, &version, ("finalizers", json!(finalizers))).await
            }
            Action::Requeue { uid } => {
                self.queue.add(uid);
                Ok(())
            }
            Action::Warn { location, uid, owner } => {
                self.warn(&location, &uid, &owner);
                Ok(())
            }
        }
    }
}
