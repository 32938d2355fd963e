//! The disruption controller: the status of PodDisruptionBudgets says how many pods may be evicted.
//!
//! * [`plan`]: counting; [`scale`]: how many pods their owners want; [`evictions`]: since when pods are named as evicted
//! * [`stale_condition`]: clears `DisruptionTarget` of pods that were not evicted after all

mod evictions;
mod plan;
mod scale;
pub mod stale_condition;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::ObjectReference,
    policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus},
};
use kube::Resource;
use tokio::time::Instant;

use self::{
    evictions::EvictionLog,
    plan::{BudgetEvent, World},
};
use super::{
    controller_ref::{self, Owner, OwnerKind},
    event_handlers,
};
use crate::{
    objects::{
        deployment::Deployment,
        replica_set::{ReplicaSet, ReplicationController},
    },
    runtime::{
        ApiError, Cache, CachedObject, Change, Context, Controller, Limits, ObjectKey, Outcomes, Plan, Runnable,
        WorkQueue, object_writes, recorder::EventSubject as _,
    },
};

/// Changes of many pods share one reconcile.
const PODS_CHANGED: Duration = Duration::from_millis(10);
const COMPONENT: &str = "controllermanager";

pub struct Budgets {
    context: Arc<Context>,
    kind: Arc<OwnerKind>,
    evictions: EvictionLog,
}

pub fn controller(context: &Arc<Context>) -> Runnable {
    let (queue, caches) = (context.queue::<Budgets>(), &context.caches);
    caches.budgets.on_change(event_handlers::add_object(&queue));
    caches.pods.on_change({
        let (queue, budgets) = (queue.clone(), caches.budgets.clone());
        move |change| {
            for budget in budgets.in_namespace(&change.key.namespace) {
                let observed = [change.before, change.after];
                if observed.into_iter().flatten().any(|pod| selects(&budget, &pod.metadata)) {
                    queue.add_after(ObjectKey::from_meta(&budget.metadata), PODS_CHANGED);
                }
            }
        }
    });
    caches.replica_sets.on_change(add_on_scale(&queue, &caches.budgets, |set: &ReplicaSet| set.spec.replicas));
    caches.deployments.on_change(add_on_scale(&queue, &caches.budgets, |set: &Deployment| set.spec.replicas));
    caches.stateful_sets.on_change(add_on_scale(&queue, &caches.budgets, |set: &StatefulSet| set.spec.replicas));
    caches
        .replication_controllers
        .on_change(add_on_scale(&queue, &caches.budgets, |set: &ReplicationController| set.spec.replicas));
    let budgets = Budgets {
        context: context.clone(),
        kind: OwnerKind::new::<PodDisruptionBudget>(COMPONENT),
        evictions: EvictionLog::default(),
    };
    context.runnable(Arc::new(budgets), queue, Limits::default())
}

/// Adds the budgets of a namespace when an owner there comes, goes, or wants another number of pods.
fn add_on_scale<K: CachedObject>(
    queue: &Arc<WorkQueue<ObjectKey>>,
    budgets: &Arc<Cache<PodDisruptionBudget>>,
    replicas: impl Fn(&K) -> Option<i32> + Send + Sync + 'static,
) -> impl Fn(Change<'_, K>) + Send + Sync + 'static {
    let (queue, budgets) = (queue.clone(), budgets.clone());
    move |change| {
        let view = |set: &K| (set.meta().uid.clone(), replicas(set));
        if change.before.map(view) != change.after.map(view) {
            let budgets = budgets.in_namespace(&change.key.namespace);
            budgets.iter().for_each(|budget| queue.add_after(ObjectKey::from_meta(&budget.metadata), PODS_CHANGED));
        }
    }
}

fn selects(budget: &PodDisruptionBudget, meta: &kube::api::ObjectMeta) -> bool {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    selector.is_some_and(|selector| controller_ref::selects(&controller_ref::selector(selector), meta))
}

impl Controller for Budgets {
    const NAME: &'static str = "disruption";
    type Key = ObjectKey;
    type World = World;
    type Action = BudgetEvent;
    type Outcome = ();
    type Status = PodDisruptionBudgetStatus;

    async fn observe(&self, key: &ObjectKey) -> Result<Option<World>, ApiError> {
        let caches = &self.context.caches;
        let Some(budget) = caches.budgets.get(key) else {
            self.evictions.forget(key);
            return Ok(None);
        };
        let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref()).map(controller_ref::selector);
        let mut pods = caches.pods.in_namespace(&key.namespace);
        pods.retain(|pod| selector.as_ref().is_some_and(|selector| controller_ref::selects(selector, &pod.metadata)));
        let (scale, unmanaged) = match plan::asks_owners(&budget) {
            true => scale::expected_pods(&self.context, &key.namespace, &pods).await?,
            false => (Ok(0), 0),
        };
        let evictions = self.evictions.observe(key, &budget, &pods, Instant::now());
        Ok(Some(World { budget, pods, scale, unmanaged, evictions }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<BudgetEvent, PodDisruptionBudgetStatus> {
        plan::plan(world, now)
    }

    async fn apply(&self, key: &ObjectKey, BudgetEvent { note, pod }: BudgetEvent) -> Result<(), ApiError> {
        let caches = &self.context.caches;
        let pod = pod.and_then(|name| caches.pods.get(&ObjectKey::new(&key.namespace, name)));
        let involved = match (pod, caches.budgets.get(key)) {
            (Some(pod), _) => ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                namespace: pod.meta().namespace.clone(),
                name: pod.meta().name.clone(),
                uid: pod.meta().uid.clone(),
                ..ObjectReference::default()
            },
            (None, Some(budget)) => Owner::new(&self.kind, &budget.metadata).involved_object(),
            (None, None) => return Ok(()),
        };
        self.context.events.record_as(COMPONENT, involved, note);
        Ok(())
    }

    async fn report(
        &self,
        key: &ObjectKey,
        status: PodDisruptionBudgetStatus,
        _: &Outcomes<()>,
    ) -> Result<(), ApiError> {
        object_writes::write_status(&self.context.client, &self.context.caches.budgets, key, &status).await
    }
}
