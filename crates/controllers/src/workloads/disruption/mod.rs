//! PodDisruptionBudgets: their status says how many pods may be taken away, and evictions take from it.
//!
//! * [`plan`]: counting; [`scale`]: how many pods their owners want
//! * [`stale`]: what was said of pods that then stayed

mod plan;
mod scale;
pub mod stale;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::ObjectReference,
    policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus},
};
use kube::Resource;

use self::plan::{Say, World};
use super::{
    Turns, Workloads, act,
    deployment::object::Deployment,
    events::Said,
    owner::{self, Kind, Owner},
    replicas::object::{ReplicaSet, ReplicationController},
    turns, wake,
};
use crate::{
    cache::{Cache, Change, Kept, Key},
    failure::Failure,
    runner::{Limits, Queue},
    shell::{Controller, Plan},
};

/// News of many pods share one look.
const SOON: Duration = Duration::from_millis(10);
const COMPONENT: &str = "controllermanager";

pub struct Budgets {
    shared: Arc<Workloads>,
    kind: Arc<Kind>,
}

/// Begins to listen.
pub fn listen(shared: &Arc<Workloads>) -> Turns {
    let (queue, caches) = (Queue::new(), &shared.caches);
    caches.budgets.on_change(wake::itself(&queue));
    caches.pods.on_change({
        let (queue, budgets) = (queue.clone(), caches.budgets.clone());
        move |change| {
            for budget in budgets.in_namespace(&change.key.namespace) {
                let seen = [change.before, change.after];
                if seen.into_iter().flatten().any(|pod| selects(&budget, &pod.metadata)) {
                    queue.wake_within(Key::of(&budget.metadata), SOON);
                }
            }
        }
    });
    caches.replica_sets.on_change(scaled(&queue, &caches.budgets, |set: &ReplicaSet| set.spec.replicas));
    caches.deployments.on_change(scaled(&queue, &caches.budgets, |set: &Deployment| set.spec.replicas));
    caches.stateful_sets.on_change(scaled(&queue, &caches.budgets, |set: &StatefulSet| set.spec.as_ref()?.replicas));
    caches
        .replication_controllers
        .on_change(scaled(&queue, &caches.budgets, |set: &ReplicationController| set.spec.replicas));
    let budgets = Budgets { shared: shared.clone(), kind: Kind::new::<PodDisruptionBudget>(COMPONENT) };
    turns(Arc::new(budgets), queue, Limits::default())
}

/// Wakes the budgets of a namespace when an owner there comes, goes, or wants another number of pods.
fn scaled<K: Kept>(
    queue: &Arc<Queue<Key>>,
    budgets: &Arc<Cache<PodDisruptionBudget>>,
    replicas: impl Fn(&K) -> Option<i32> + Send + Sync + 'static,
) -> impl Fn(Change<'_, K>) + Send + Sync + 'static {
    let (queue, budgets) = (queue.clone(), budgets.clone());
    move |change| {
        let view = |set: &K| (set.meta().uid.clone(), replicas(set));
        if change.before.map(view) != change.after.map(view) {
            let budgets = budgets.in_namespace(&change.key.namespace);
            budgets.iter().for_each(|budget| queue.wake_within(Key::of(&budget.metadata), SOON));
        }
    }
}

fn selects(budget: &PodDisruptionBudget, meta: &kube::api::ObjectMeta) -> bool {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    selector.is_some_and(|selector| owner::selects(&owner::selector(selector), meta))
}

impl Controller for Budgets {
    const NAME: &'static str = "disruption-budgets";
    type Key = Key;
    type World = World;
    type Action = Say;
    type Status = PodDisruptionBudgetStatus;

    async fn observe(&self, key: &Key) -> Result<Option<World>, Failure> {
        let caches = &self.shared.caches;
        let Some(budget) = caches.budgets.get(key) else { return Ok(None) };
        let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref()).map(owner::selector);
        let mut pods = caches.pods.in_namespace(&key.namespace);
        pods.retain(|pod| selector.as_ref().is_some_and(|selector| owner::selects(selector, &pod.metadata)));
        let (scale, unmanaged) = match plan::asks_owners(&budget) {
            true => scale::wanted(&self.shared, &key.namespace, &pods).await?,
            false => (Ok(0), 0),
        };
        Ok(Some(World { budget, pods, scale, unmanaged }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Say, PodDisruptionBudgetStatus> {
        plan::plan(world, now)
    }

    async fn apply(&self, key: &Key, Say { warning, reason, message, about }: Say) -> Result<(), Failure> {
        let caches = &self.shared.caches;
        let pod = about.and_then(|name| caches.pods.get(&Key::new(&key.namespace, name)));
        let about = match (pod, caches.budgets.get(key)) {
            (Some(pod), _) => ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                namespace: pod.meta().namespace.clone(),
                name: pod.meta().name.clone(),
                uid: pod.meta().uid.clone(),
                ..ObjectReference::default()
            },
            (None, Some(budget)) => Owner::new(&self.kind, &budget.metadata).subject(),
            (None, None) => return Ok(()),
        };
        self.shared.events.say(Said { about, component: COMPONENT, warning, reason, message });
        Ok(())
    }

    async fn report(&self, key: &Key, status: PodDisruptionBudgetStatus) -> Result<(), Failure> {
        act::report(&self.shared.client, &self.shared.caches.budgets, key, &status).await
    }
}
