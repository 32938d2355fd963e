//! Deletes what its owners left behind, and carries out deletions that wait for dependents.
//!
//! * [`graph`]: who belongs to whom, from what is heard of every resource
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

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::ObjectReference,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{
    Client,
    api::{DeleteParams, Patch, PatchParams, Preconditions, PropagationPolicy},
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use self::{
    graph::{Graph, Life},
    plan::{Action, Object, Policy, Standing, World},
};
use crate::{
    catalogue::{Catalogue, Resource},
    failure::{self, Failure},
    meta::{self, Place, Uid},
    monitor::Seen,
    runner::Queue,
    shell::{Controller, Plan},
};

pub struct Collector {
    client: Client,
    catalogue: Arc<Catalogue>,
    recorder: Recorder,
    graph: Mutex<Graph>,
    pub queue: Arc<Queue<Uid>>,
}

impl Collector {
    pub fn new(client: Client, catalogue: Arc<Catalogue>) -> Self {
        let reporter = Reporter { controller: "garbage-collector-controller".into(), instance: None };
        let recorder = Recorder::new(client.clone(), reporter);
        Self { client, catalogue, recorder, graph: Mutex::default(), queue: Queue::new() }
    }

    pub fn seen(&self, resource: &Arc<Resource>, seen: &Seen) {
        let mut graph = self.graph.lock();
        let wake = match seen {
            Seen::Begin => {
                graph.begin(resource);
                return;
            }
            Seen::Present(meta) => graph.present(resource, meta),
            Seen::Gone(meta) => graph.gone(meta.uid.as_deref().unwrap_or_default()),
            Seen::End => graph.end(resource),
            Seen::Dropped => {
                graph.dropped(resource);
                return;
            }
        };
        drop(graph);
        self.wake(wake);
    }

    /// Looks at everything that may need something.
    pub fn resync(&self) {
        let wake = self.graph.lock().unsettled();
        self.wake(wake);
    }

    fn wake(&self, uids: Vec<Uid>) {
        uids.into_iter().for_each(|uid| self.queue.wake(uid));
    }

    fn gone(&self, uid: &str) {
        let wake = self.graph.lock().gone(uid);
        self.wake(wake);
    }

    async fn standing(&self, dependent: &Place, reference: &OwnerReference) -> Result<Standing, Failure> {
        let kinds = self.catalogue.current();
        let Some(resource) = kinds.find(&reference.api_version, &reference.kind) else {
            if self.graph.lock().seen_to_go(&reference.uid) {
                return Ok(Standing::Absent { elsewhere: false });
            }
            self.catalogue.missed.notify_one();
            return Ok(Standing::Unknown);
        };
        if resource.namespaced && dependent.namespace.is_none() {
            return Ok(Standing::OutOfReach);
        }
        let namespace = dependent.namespace.clone().filter(|_| resource.namespaced);
        let place = Place { resource: resource.clone(), namespace, name: reference.name.as_str().into() };
        let found = place.get(&self.client).await?;
        let Some(owner) = found.filter(|owner| owner.metadata.uid.as_deref() == Some(&reference.uid)) else {
            let elsewhere = self.graph.lock().seen_elsewhere(&reference.uid, place.namespace.as_deref());
            return Ok(Standing::Absent { elsewhere });
        };
        self.graph.lock().confirm(resource, &owner.metadata);
        Ok(if Life::of(&owner.metadata) == Life::AwaitsDependents { Standing::Waits } else { Standing::Solid })
    }

    /// Everything that names an owner, read from the API.
    async fn dependents(&self, owner: &Object) -> Result<Vec<Object>, Failure> {
        let namespace = owner.place.namespace.as_deref();
        let kinds = self.catalogue.current();
        let mut found = Vec::new();
        for resource in &kinds.resources {
            let reachable = resource.namespaced || namespace.is_none();
            if !reachable || !resource.can("list") || !resource.can("patch") {
                continue;
            }
            let names = |meta: &ObjectMeta| meta.owner_references.iter().flatten().any(|r| *r.uid == *owner.uid);
            let listed = meta::for_each(&self.client, resource, namespace, |meta| {
                if names(&meta) {
                    found.push(object(Place::new(resource.clone(), &meta), meta));
                }
            });
            listed.await.map_err(Failure::when(format!("list {resource} for {}", owner.place)))?;
        }
        Ok(found)
    }

    async fn patch(&self, place: &Place, uid: &Uid, version: &str, change: (&str, Value)) -> Result<(), Failure> {
        let metadata = json!({ "uid": **uid, "resourceVersion": version, change.0: change.1 });
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        match place.api(&self.client).patch(&place.name, &PatchParams::default(), &patch).await {
            Ok(_) => Ok(()),
            Err(error) if failure::no_such_object(&error, &place.name) => {
                self.gone(uid);
                Ok(())
            }
            Err(error) => Err(Failure::new(format!("set {} of {place}", change.0), error)),
        }
    }

    async fn delete(&self, place: &Place, uid: &Uid, version: String, policy: Policy) -> Result<(), Failure> {
        let fence = Preconditions { uid: Some(uid.to_string()), resource_version: Some(version) };
        let propagation_policy = Some(match policy {
            Policy::Background => PropagationPolicy::Background,
            Policy::Foreground => PropagationPolicy::Foreground,
            Policy::Orphan => PropagationPolicy::Orphan,
        });
        let params = DeleteParams { propagation_policy, ..DeleteParams::default() }.preconditions(fence);
        match place.api(&self.client).delete(&place.name, &params).await {
            Ok(_) => Ok(()),
            Err(error) if failure::no_such_object(&error, &place.name) => {
                self.gone(uid);
                Ok(())
            }
            Err(error) => Err(Failure::new(format!("delete {place}"), error)),
        }
    }

    async fn warn(&self, place: &Place, uid: &Uid, owner: &OwnerReference) -> Result<(), Failure> {
        let note = format!(
            "ownerRef [{}/{}, namespace: {}, name: {}, uid: {}] does not exist in namespace {:?}",
            owner.api_version,
            owner.kind,
            place.namespace.as_deref().unwrap_or_default(),
            owner.name,
            owner.uid,
            place.namespace.as_deref().unwrap_or_default(),
        );
        let event = Event {
            type_: EventType::Warning,
            reason: "OwnerRefInvalidNamespace".into(),
            note: Some(note),
            action: "GarbageCollect".into(),
            secondary: None,
        };
        let about = ObjectReference {
            api_version: Some(place.resource.api.api_version.clone()),
            kind: Some(place.resource.api.kind.clone()),
            name: Some(place.name.to_string()),
            namespace: place.namespace.as_deref().map(str::to_owned),
            uid: Some(uid.to_string()),
            ..ObjectReference::default()
        };
        match self.recorder.publish(&event, &about).await {
            Ok(()) => self.graph.lock().warned(uid),
            // News that nobody gets; what it is about is done all the same.
            Err(error) => tracing::debug!(%place, %error, "cannot write an event"),
        }
        Ok(())
    }
}

fn object(place: Place, meta: ObjectMeta) -> Object {
    let life = Life::of(&meta);
    Object {
        place,
        uid: meta.uid.unwrap_or_default().into(),
        version: meta.resource_version.unwrap_or_default(),
        life,
        finalizers: meta.finalizers.unwrap_or_default(),
        references: meta.owner_references.unwrap_or_default(),
    }
}

impl Controller for Collector {
    const NAME: &'static str = "garbage-collector";
    type Key = Uid;
    type World = World;
    type Action = Action;
    type Status = ();

    async fn observe(&self, uid: &Uid) -> Result<Option<World>, Failure> {
        let Some(sketch) = self.graph.lock().sketch(uid) else { return Ok(None) };
        let found = sketch.place.get(&self.client).await?.filter(|found| found.metadata.uid.as_deref() == Some(uid));
        let Some(found) = found else {
            self.gone(uid);
            return Ok(None);
        };
        let object = object(sketch.place, found.metadata);
        let (dependents, warned) = (sketch.dependents, sketch.warned);
        Ok(Some(match object.life {
            Life::Ending => return Ok(None),
            Life::AwaitsDependents => World::Awaiting { object, dependents },
            Life::Orphans => World::Orphaning { dependents: self.dependents(&object).await?, object },
            Life::Alive => {
                let mut standings = Vec::with_capacity(object.references.len());
                for reference in &object.references {
                    standings.push(self.standing(&object.place, reference).await?);
                }
                World::Owned { object, standings, dependents, warned }
            }
        }))
    }

    fn plan(world: &World, _now: Timestamp) -> Plan<Action, ()> {
        Plan::act(plan::plan(world))
    }

    async fn apply(&self, _uid: &Uid, action: Action) -> Result<(), Failure> {
        match action {
            Action::Delete { place, uid, version, policy } => self.delete(&place, &uid, version, policy).await,
            Action::SetReferences { place, uid, version, references } => {
                self.patch(&place, &uid, &version, ("ownerReferences", json!(references))).await
            }
            Action::SetFinalizers { place, uid, version, finalizers } => {
                self.patch(&place, &uid, &version, ("finalizers", json!(finalizers))).await
            }
            Action::LookAt { uid } => {
                self.queue.wake(uid);
                Ok(())
            }
            Action::Warn { place, uid, owner } => self.warn(&place, &uid, &owner).await,
        }
    }
}
