//! Dependency cycles: workloads whose pods wait for each other to be ready can never start.
//!
//! Only pods that wait now are looked at, and only needs that are not met: a cycle of workloads that run already (each was there before it
//! came to need the next) does no harm until one of them has no ready pod left. Needs of addresses are never part of a cycle, since a
//! pod that waits has its address. Every pod of a cycle gets the condition `mainstay.dev/DependencyCycle` and an event that name it.

mod find;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::Time};
use kube::api::{Patch, PatchParams};
use mainstay_api::{
    matching::{UNLABELLED, has_labels},
    needs::{self, CYCLE, CYCLE_CONDITION, EndpointState, NeedTarget, Needs, ServiceName, cycle::WorkloadId},
};
use mainstay_events::EventNote;
use parking_lot::Mutex;
use serde_json::json;

use self::find::{CycleWorld, SetCycle, WaitingPod};
use super::needs_of;
use crate::{
    objects::pod::Pod,
    runtime::{ApiError, Context, Controller, Limits, ObjectKey, Plan, Runnable, error},
};

pub struct CyclesController {
    context: Arc<Context>,
    needing: Arc<Mutex<BTreeSet<ObjectKey>>>,
}

pub fn controller(context: &Arc<Context>) -> Runnable {
    let queue = context.queue::<CyclesController>();
    let needing = Arc::<Mutex<BTreeSet<ObjectKey>>>::default();
    context.caches.pods.on_change({
        let (queue, needing) = (queue.clone(), needing.clone());
        move |change| {
            let has_needs = change.after.is_some_and(|pod| needs_of(pod).is_some());
            let known = match has_needs {
                true => !needing.lock().insert(change.key.clone()),
                false => needing.lock().remove(change.key),
            };
            if has_needs || known {
                queue.add(());
            }
        }
    });
    context.runnable(Arc::new(CyclesController { context: context.clone(), needing }), queue, Limits::default())
}

/// Has its node, and nothing of it was started.
fn is_waiting(pod: &Pod) -> bool {
    let waits = pod.condition(needs::CONDITION).is_some_and(|condition| condition.status == "False");
    let statuses = pod.status.init_container_statuses.iter().chain(&pod.status.container_statuses);
    waits && statuses.into_iter().all(|container| container.container_id.is_none())
}

impl CyclesController {
    /// The pod's owner, and the owner's Deployment if that is a ReplicaSet of one.
    fn workload(&self, pod: &Pod) -> WorkloadId {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let named = |kind: &str, name: &str| WorkloadId {
            namespace: namespace.clone(),
            name: name.to_owned(),
            kind: kind.to_owned(),
        };
        let owners = pod.metadata.owner_references.iter().flatten();
        let Some(owner) = owners.into_iter().find(|owner| owner.controller == Some(true)) else {
            return named("Pod", pod.name());
        };
        let set = self.context.caches.replica_sets.get(&ObjectKey::new(&namespace, &owner.name));
        let above = set.filter(|_| owner.kind == "ReplicaSet").and_then(|set| {
            let owners = set.metadata.owner_references.clone().unwrap_or_default();
            owners.into_iter().find(|owner| owner.controller == Some(true))
        });
        let owner = above.as_ref().unwrap_or(owner);
        named(&owner.kind, &owner.name)
    }

    /// Whose pods would have to be ready for what the pod needs and does not have.
    fn awaited(&self, namespace: &str, needs: &Needs, selected: &mut SelectedPods) -> BTreeSet<WorkloadId> {
        let mut awaited = BTreeSet::new();
        for need in &needs.needs {
            match &need.target {
                NeedTarget::Service { service, at_least, state: EndpointState::Ready } => {
                    let pods = selected.pods(&self.context, namespace, service);
                    let ready = pods.iter().filter(|pod| pod.is_ready()).count();
                    if u32::try_from(ready).is_ok_and(|ready| ready < *at_least) {
                        awaited.extend(pods.iter().filter(|pod| is_waiting(pod)).map(|pod| self.workload(pod)));
                    }
                }
                NeedTarget::Workload { kind, name } => {
                    let (namespace, kind) = (namespace.to_owned(), kind.kind().to_owned());
                    awaited.insert(WorkloadId { namespace, name: name.clone(), kind });
                }
                NeedTarget::Service { state: EndpointState::Addressable, .. } | NeedTarget::Object { .. } => {}
            }
        }
        awaited
    }
}

/// The pods that Services select, each looked up once per reconcile.
#[derive(Default)]
struct SelectedPods(BTreeMap<ObjectKey, Vec<Arc<Pod>>>);

impl SelectedPods {
    fn pods(&mut self, context: &Context, own_namespace: &str, service: &ServiceName) -> Vec<Arc<Pod>> {
        let keys: Vec<ObjectKey> = match service.namespace(own_namespace) {
            Some(namespace) => vec![ObjectKey::new(namespace, service.name())],
            None => {
                let named = context.caches.services.select(|other| other.name() == service.name());
                named.iter().map(|service| ObjectKey::from_meta(&service.metadata)).collect()
            }
        };
        let mut pods = Vec::new();
        for key in keys {
            let of_service = self.0.entry(key.clone()).or_insert_with(|| {
                let Some(service) = context.caches.services.get(&key) else { return Vec::new() };
                let selector = &service.spec.selector;
                let mut pods = context.caches.pods.in_namespace(&key.namespace);
                pods.retain(|pod| {
                    let labels = pod.metadata.labels.as_ref().unwrap_or(&UNLABELLED);
                    !selector.is_empty() && pod.is_active() && has_labels(selector, labels)
                });
                pods
            });
            pods.extend(of_service.iter().cloned());
        }
        pods
    }
}

impl Controller for CyclesController {
    const NAME: &'static str = "dependency_cycles";
    const CONCURRENT_ACTIONS: usize = 16;
    type Key = ();
    type World = CycleWorld;
    type Action = SetCycle;
    type Outcome = ();
    type Status = ();

    async fn observe(&self, (): &()) -> Result<Option<CycleWorld>, ApiError> {
        let needing: Vec<ObjectKey> = self.needing.lock().iter().cloned().collect();
        let mut selected = SelectedPods::default();
        let mut pods = Vec::new();
        for key in needing {
            let Some(pod) = self.context.caches.pods.get(&key) else { continue };
            let Some(needs) = needs_of(&pod) else { continue };
            let awaited = match is_waiting(&pod) {
                true => self.awaited(&key.namespace, &needs, &mut selected),
                false => BTreeSet::new(),
            };
            let condition = pod.condition(CYCLE_CONDITION).filter(|condition| condition.status == "True");
            let reported = condition.map(|condition| condition.message.clone().unwrap_or_default());
            pods.push(WaitingPod { uid: pod.uid().to_owned(), key, workload: self.workload(&pod), awaited, reported });
        }
        Ok(Some(CycleWorld { pods }))
    }

    fn plan(world: &CycleWorld, _now: Timestamp) -> Plan<SetCycle, ()> {
        Plan::act(find::plan(world))
    }

    async fn apply(&self, (): &(), SetCycle { pod: key, uid, cycle }: SetCycle) -> Result<(), ApiError> {
        let condition = json!({
            "type": CYCLE_CONDITION,
            "status": if cycle.is_some() { "True" } else { "False" },
            "reason": cycle.as_ref().map(|_| CYCLE),
            "message": cycle,
            "lastTransitionTime": Time(self.context.clock.now()),
        });
        let change = json!({ "metadata": { "uid": uid }, "status": { "conditions": [condition] } });
        let pods = self.context.pods_in(&key.namespace);
        match pods.patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(change)).await {
            Ok(pod) => self.context.caches.pods.wrote(pod),
            Err(error) if error::is_not_found(&error, &key.name) => return Ok(()),
            Err(error) => return Err(ApiError::new(format!("write the dependency cycle of pod {key:?}"), error)),
        }
        if let Some(cycle) = cycle {
            let involved = ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                namespace: Some(key.namespace),
                name: Some(key.name),
                uid: Some(uid),
                ..ObjectReference::default()
            };
            let text = format!("Can never start, because all of these wait for each other to be ready: {cycle}");
            self.context.events.record_as("dependency-controller", involved, EventNote::warning(CYCLE, text));
        }
        Ok(())
    }
}
