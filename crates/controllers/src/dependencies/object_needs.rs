//! Needs of workloads and objects: writes the condition `mainstay.dev/ObjectNeedsMet` of pods that have some.
//!
//! A namespace is reconciled as a whole when something in it changes that its pods need. The condition has a line for each need that is
//! not met, which nodes show in the pod's `DependenciesMet`. It goes back to False when something that was there is gone; what that
//! means for a pod that runs, its node decides.

mod plan;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams};
use mainstay_api::needs::{NeedTarget, OBJECTS_CONDITION, ObjectKind, WAITING, WorkloadKind};
use parking_lot::Mutex;
use serde_json::json;

use self::plan::{NamespaceWorld, ObjectState, PodNeeds, SetCondition};
use super::{existing_objects::ExistingObjects, needs_of};
use crate::runtime::{ApiError, Context, Controller, Limits, ObjectKey, Plan, Runnable, context::resync_every, error};

/// How long the first look waits for a list of every resource; one that cannot be listed delays it no longer.
const SYNC_TIMEOUT: Duration = Duration::from_secs(30);
/// How often all namespaces with needs are looked at even if nothing changes.
const RESYNC: Duration = Duration::from_secs(300);

pub struct ObjectNeedsController {
    context: Arc<Context>,
    existing: Arc<ExistingObjects>,
    needing: Arc<NeedingPods>,
}

/// The names of pods with such needs, by namespace.
#[derive(Default)]
struct NeedingPods(Mutex<HashMap<String, BTreeSet<String>>>);

impl NeedingPods {
    fn set(&self, pod: &ObjectKey, needs: bool) {
        let mut all = self.0.lock();
        if needs {
            all.entry(pod.namespace.clone()).or_default().insert(pod.name.clone());
        } else if let Some(names) = all.get_mut(&pod.namespace) {
            names.remove(&pod.name);
            if names.is_empty() {
                all.remove(&pod.namespace);
            }
        }
    }

    fn has(&self, namespace: &str) -> bool {
        self.0.lock().contains_key(namespace)
    }

    fn in_namespace(&self, namespace: &str) -> Vec<ObjectKey> {
        let all = self.0.lock();
        all.get(namespace).into_iter().flatten().map(|name| ObjectKey::new(namespace, name)).collect()
    }

    fn namespaces(&self) -> Vec<String> {
        self.0.lock().keys().cloned().collect()
    }
}

pub fn controller(context: &Arc<Context>) -> Runnable {
    let queue = context.queue::<ObjectNeedsController>();
    let (existing, needing) = (Arc::<ExistingObjects>::default(), Arc::<NeedingPods>::default());
    context.caches.pods.on_change({
        let (queue, needing) = (queue.clone(), needing.clone());
        move |change| {
            let needs = |pod| needs_of(pod).is_some_and(|needs| needs.include_objects());
            let has = change.after.is_some_and(needs);
            needing.set(change.key, has);
            if has {
                queue.add(change.key.namespace.clone());
            }
        }
    });
    macro_rules! follow {
        ($($cache:ident),*) => {
            $(context.caches.$cache.on_change({
                let (queue, needing) = (queue.clone(), needing.clone());
                move |change| {
                    if needing.has(&change.key.namespace) {
                        queue.add(change.key.namespace.clone());
                    }
                }
            });)*
        };
    }
    follow!(deployments, stateful_sets, daemon_sets, jobs, services, claims);
    context.metadata.on_event({
        let (queue, needing, existing) = (queue.clone(), needing.clone(), existing.clone());
        move |resource, event| {
            if let Some(namespace) = existing.observe(resource, event).filter(|namespace| needing.has(namespace)) {
                queue.add(namespace.to_owned());
            }
        }
    });
    let mut synced = context.metadata.synced();
    let resync = resync_every(RESYNC, {
        let (queue, needing) = (queue.clone(), needing.clone());
        move || needing.namespaces().into_iter().for_each(|namespace| queue.add(namespace))
    });
    let controller = ObjectNeedsController { context: context.clone(), existing, needing };
    context.runnable(Arc::new(controller), queue, Limits::default()).alongside(resync).after(async move {
        let _ = tokio::time::timeout(SYNC_TIMEOUT, synced.wait_for(|synced| *synced)).await;
    })
}

impl ObjectNeedsController {
    fn state(&self, namespace: &str, target: &NeedTarget) -> Option<ObjectState> {
        let caches = &self.context.caches;
        match target {
            NeedTarget::Service { .. } => None,
            NeedTarget::Object { kind, name } => {
                let key = ObjectKey::new(namespace, name);
                let exists = match kind {
                    ObjectKind::ConfigMap | ObjectKind::Secret => self.existing.contains(*kind, namespace, name),
                    ObjectKind::Service => caches.services.get(&key).is_some(),
                    ObjectKind::PersistentVolumeClaim => caches.claims.get(&key).is_some(),
                };
                Some(if exists { ObjectState::Exists } else { ObjectState::Missing })
            }
            NeedTarget::Workload { kind, name } => {
                let key = ObjectKey::new(namespace, name);
                let state = match kind {
                    WorkloadKind::Deployment => caches.deployments.get(&key).map(|own| plan::deployment_state(&own)),
                    WorkloadKind::StatefulSet => {
                        caches.stateful_sets.get(&key).map(|own| plan::stateful_set_state(&own))
                    }
                    WorkloadKind::DaemonSet => caches.daemon_sets.get(&key).map(|own| plan::daemon_set_state(&own)),
                    WorkloadKind::Job => caches.jobs.get(&key).map(|own| plan::job_state(&own)),
                };
                Some(state.unwrap_or(ObjectState::Missing))
            }
        }
    }
}

impl Controller for ObjectNeedsController {
    const NAME: &'static str = "object_needs";
    const CONCURRENT_ACTIONS: usize = 16;
    type Key = String;
    type World = NamespaceWorld;
    type Action = SetCondition;
    type Outcome = ();
    type Status = ();

    async fn observe(&self, namespace: &String) -> Result<Option<NamespaceWorld>, ApiError> {
        let pods = self.needing.in_namespace(namespace).into_iter().filter_map(|key| {
            let pod = self.context.caches.pods.get(&key)?;
            let targets: Vec<NeedTarget> = needs_of(&pod)?.needs.into_iter().map(|need| need.target).collect();
            Some(PodNeeds { pod, targets: targets.into_iter().filter(NeedTarget::is_object).collect() })
        });
        let pods: Vec<PodNeeds> = pods.collect();
        let mut states = BTreeMap::new();
        for target in pods.iter().flat_map(|pod| &pod.targets) {
            if let Some(state) = self.state(namespace, target) {
                states.insert(target.to_string(), state);
            }
        }
        Ok(Some(NamespaceWorld { pods, states }))
    }

    fn plan(world: &NamespaceWorld, _now: Timestamp) -> Plan<SetCondition, ()> {
        Plan::act(plan::plan(world))
    }

    async fn apply(&self, namespace: &String, action: SetCondition) -> Result<(), ApiError> {
        let SetCondition { name, uid, met, message, is_transition } = action;
        let mut condition = json!({
            "type": OBJECTS_CONDITION,
            "status": if met { "True" } else { "False" },
            "reason": (!met).then_some(WAITING),
            "message": (!met).then_some(message),
        });
        if is_transition {
            condition["lastTransitionTime"] = json!(Time(self.context.clock.now()));
        }
        let change = json!({ "metadata": { "uid": uid }, "status": { "conditions": [condition] } });
        let pods = self.context.pods_in(namespace);
        match pods.patch_status(&name, &PatchParams::default(), &Patch::Strategic(change)).await {
            Ok(pod) => self.context.caches.pods.wrote(pod),
            Err(error) if error::is_not_found(&error, &name) => {}
            Err(error) => return Err(ApiError::new(format!("write the needs of pod {namespace}/{name}"), error)),
        }
        Ok(())
    }
}
