//! One claim: who still uses it, and what follows if nobody does.

mod plan;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::Pod as FullPod,
    resource::v1::{ResourceClaim, ResourceClaimConsumerReference},
};
use kube::{Api, api::PostParams};

use self::plan::{Action, Consumer, ConsumerState, Owner, World};
use super::{claims_of, is_done, owning_pod, synced};
use crate::runtime::{ApiError, Context, Controller, Limits, ObjectKey, Plan, Runnable, error, object_writes};

pub struct ClaimReservations {
    context: Arc<Context>,
}

pub fn controller(context: &Arc<Context>) -> Runnable {
    let queue = context.queue::<ClaimReservations>();
    context.device_caches.claims.on_change({
        let queue = queue.clone();
        move |change| queue.add(change.key.clone())
    });
    context.caches.pods.on_change({
        let (queue, claims) = (queue.clone(), context.device_caches.claims.clone());
        move |change| {
            // Only its end matters here; an owner's claims are found even if its status never named them.
            let Some(pod) = change.latest().filter(|pod| pod.uses_resource_claims()) else { return };
            if change.after.is_none_or(is_done) {
                claims_of(pod, &change.key.namespace).into_iter().for_each(|claim| queue.add(claim));
                let owned = claims.controlled_by(pod.uid());
                owned.iter().for_each(|claim| queue.add(ObjectKey::from_meta(&claim.metadata)));
            }
        }
    });
    let controller = Arc::new(ClaimReservations { context: context.clone() });
    context.runnable(controller, queue, Limits::default()).after(synced(context.clone()))
}

impl ClaimReservations {
    fn claims(&self, namespace: &str) -> Api<ResourceClaim> {
        Api::namespaced(self.context.client.clone(), namespace)
    }

    async fn consumer_state(
        &self,
        namespace: &str,
        consumer: &ResourceClaimConsumerReference,
    ) -> Result<ConsumerState, ApiError> {
        if consumer.api_group.as_deref().is_some_and(|group| !group.is_empty()) || consumer.resource != "pods" {
            return Ok(ConsumerState::Unknown);
        }
        let key = ObjectKey::new(namespace, &consumer.name);
        if let Some(pod) = self.context.caches.pods.get(&key).filter(|pod| pod.uid() == consumer.uid) {
            return Ok(if is_done(&pod) { ConsumerState::Done } else { ConsumerState::Active });
        }
        let pods: Api<FullPod> = Api::namespaced(self.context.client.clone(), namespace);
        let pod = pods.get_metadata_opt(&consumer.name).await;
        let pod = pod.map_err(ApiError::when(format!("get pod {key:?}")))?;
        let is_there = pod.is_some_and(|pod| pod.metadata.uid.as_deref() == Some(&consumer.uid));
        Ok(if is_there { ConsumerState::Active } else { ConsumerState::Gone })
    }

    async fn write_status(&self, key: &ObjectKey, claim: &ResourceClaim) -> Result<ResourceClaim, ApiError> {
        let written = self.claims(&key.namespace).replace_status(&key.name, &PostParams::default(), claim).await;
        let written = written.map_err(ApiError::when(format!("write the status of resource claim {key:?}")))?;
        self.context.device_caches.claims.wrote(written.clone());
        Ok(written)
    }

    async fn write(&self, key: &ObjectKey, claim: &ResourceClaim) -> Result<(), ApiError> {
        match self.claims(&key.namespace).replace(&key.name, &PostParams::default(), claim).await {
            // The last finalizer of one that is being deleted takes it along.
            Ok(written)
                if written.metadata.deletion_timestamp.is_some() && !object_writes::still_exists(&written.metadata) =>
            {
                let uid = written.metadata.uid.unwrap_or_default();
                self.context.device_caches.claims.removed(key, &uid);
            }
            Ok(written) => self.context.device_caches.claims.wrote(written),
            Err(error) if error::is_not_found(&error, &key.name) => {}
            Err(error) => return Err(ApiError::new(format!("take the finalizer off resource claim {key:?}"), error)),
        }
        Ok(())
    }
}

impl Controller for ClaimReservations {
    const NAME: &'static str = "resource_claim";
    type Key = ObjectKey;
    type World = World;
    type Action = Action;
    type Outcome = ();
    type Status = ();

    async fn observe(&self, key: &ObjectKey) -> Result<Option<World>, ApiError> {
        let Some(claim) = self.context.device_caches.claims.get(key) else { return Ok(None) };
        let reserved_for = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
        let mut consumers = Vec::new();
        for reference in reserved_for {
            let state = self.consumer_state(&key.namespace, reference).await?;
            consumers.push(Consumer { reference: reference.clone(), state });
        }
        let owner = match owning_pod(&claim) {
            None => Owner::NoPod,
            Some((name, uid)) => match self.context.caches.pods.get(&ObjectKey::new(&key.namespace, name)) {
                Some(pod) if pod.uid() != uid || is_done(&pod) => Owner::Ended,
                // A pod that is truly gone takes the claim along: the garbage collector sees to that.
                Some(_) | None => Owner::MayRun,
            },
        };
        Ok(Some(World { claim, consumers, owner }))
    }

    fn plan(world: &World, _now: Timestamp) -> Plan<Action, ()> {
        Plan::act(plan::plan(world))
    }

    async fn apply(&self, key: &ObjectKey, action: Action) -> Result<(), ApiError> {
        match action {
            Action::WriteStatus { claim, unprotect } => {
                let mut written = self.write_status(key, &claim).await?;
                if unprotect {
                    plan::remove_finalizer(&mut written);
                    self.write(key, &written).await?;
                }
                Ok(())
            }
            Action::Unprotect { claim } => self.write(key, &claim).await,
            Action::Delete { uid } => {
                let claims = self.claims(&key.namespace);
                object_writes::delete(&claims, &self.context.device_caches.claims, key, &uid).await.map(drop)
            }
        }
    }
}
