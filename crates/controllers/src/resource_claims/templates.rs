//! One pod: makes the claims that its templates ask for, and names them in its status.
//!
//! A pod that was bound without the scheduler gets its reservations here, of claims that are allocated already.

mod plan;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::ObjectReference,
    resource::v1::{ResourceClaim, ResourceClaimConsumerReference},
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use mainstay_events::EventNote;
use serde_json::json;

use self::plan::{Action, World};
use super::{COMPONENT, claims_of, owning_pod, synced};
use crate::{
    objects::pod::Pod,
    runtime::{ApiError, Context, Controller, Limits, ObjectKey, Plan, Runnable, error},
};

pub struct PodClaimTemplates {
    context: Arc<Context>,
}

pub fn controller(context: &Arc<Context>) -> Runnable {
    let queue = context.queue::<PodClaimTemplates>();
    context.caches.pods.on_change({
        let queue = queue.clone();
        move |change| {
            if change.after.is_some_and(|pod| !pod.spec.resource_claims.is_empty() && pod.is_active()) {
                queue.add(change.key.clone());
            }
        }
    });
    let add_pods = {
        let (queue, pods) = (queue.clone(), context.caches.pods.clone());
        move |namespace: &str, is_concerned: &dyn Fn(&Pod) -> bool| {
            for pod in pods.in_namespace(namespace) {
                if !pod.spec.resource_claims.is_empty() && pod.is_active() && is_concerned(&pod) {
                    queue.add(ObjectKey::from_meta(&pod.metadata));
                }
            }
        }
    };
    context.device_caches.claims.on_change({
        let (queue, add_pods) = (queue.clone(), add_pods.clone());
        move |change| {
            let Some(claim) = change.latest() else { return };
            match owning_pod(claim) {
                Some((pod, _)) => queue.add(ObjectKey::new(&change.key.namespace, pod)),
                // Reservations for pods that were bound without the scheduler.
                None if claim.status.as_ref().is_some_and(|status| status.allocation.is_some()) => {
                    let names_it = |pod: &Pod| claims_of(pod, &change.key.namespace).contains(change.key);
                    add_pods(&change.key.namespace, &|pod| !pod.spec.node_name.is_empty() && names_it(pod));
                }
                None => {}
            }
        }
    });
    context.device_caches.templates.on_change(move |change| {
        let names_it = |pod: &Pod| {
            pod.spec
                .resource_claims
                .iter()
                .any(|own| own.resource_claim_template_name.as_ref() == Some(&change.key.name))
        };
        if change.after.is_some() {
            add_pods(&change.key.namespace, &names_it);
        }
    });
    let controller = Arc::new(PodClaimTemplates { context: context.clone() });
    context.runnable(controller, queue, Limits::default()).after(synced(context.clone()))
}

impl PodClaimTemplates {
    fn claims(&self, namespace: &str) -> Api<ResourceClaim> {
        Api::namespaced(self.context.client.clone(), namespace)
    }

    fn record_failure(&self, key: &ObjectKey, uid: &str, claim: &str, why: &str) {
        let involved = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(key.namespace.clone()),
            name: Some(key.name.clone()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        let note = EventNote::warning("FailedResourceClaimCreation", format!("PodResourceClaim {claim}: {why}"));
        self.context.events.record_as(COMPONENT, involved, note);
    }

    async fn create(
        &self,
        key: &ObjectKey,
        pod_uid: &str,
        pod_claim: &str,
        claim: &ResourceClaim,
    ) -> Result<(), ApiError> {
        match self.claims(&key.namespace).create(&PostParams::default(), claim).await {
            Ok(created) => self.context.device_caches.claims.wrote(created),
            // Made before, or somebody else has the name: the cache will tell which, and another name is found.
            Err(error) if error::has_code(&error, 409) && !error::is_namespace_terminating(&error) => {
                return Err(ApiError::new(format!("create a resource claim for pod {key:?}"), error));
            }
            Err(error) => {
                let why = format!("create ResourceClaim: {}", error::message(&error));
                self.record_failure(key, pod_uid, pod_claim, &why);
                return Err(ApiError::new(format!("create a resource claim for pod {key:?}"), error));
            }
        }
        Ok(())
    }

    async fn write_statuses(&self, key: &ObjectKey, uid: &str, statuses: &[(String, String)]) -> Result<(), ApiError> {
        let statuses = statuses.iter().map(|(name, claim)| json!({ "name": name, "resourceClaimName": claim }));
        let change = json!({
            "metadata": { "uid": uid }, "status": { "resourceClaimStatuses": statuses.collect::<Vec<_>>() },
        });
        let pods: Api<Pod> = Api::namespaced(self.context.client.clone(), &key.namespace);
        match pods.patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(change)).await {
            Ok(pod) => self.context.caches.pods.wrote(pod),
            Err(error) if error::is_not_found(&error, &key.name) || error::has_code(&error, 409) => {} // another pod by now
            Err(error) => return Err(ApiError::new(format!("name the resource claims of pod {key:?}"), error)),
        }
        Ok(())
    }

    async fn reserve(&self, key: &ObjectKey, pod_uid: &str, mut claim: ResourceClaim) -> Result<(), ApiError> {
        let name = claim.metadata.name.clone().unwrap_or_default();
        let consumer = ResourceClaimConsumerReference {
            api_group: None,
            resource: "pods".to_owned(),
            name: key.name.clone(),
            uid: pod_uid.to_owned(),
        };
        claim.status.get_or_insert_default().reserved_for.get_or_insert_default().push(consumer);
        let written = self.claims(&key.namespace).replace_status(&name, &PostParams::default(), &claim).await;
        let written = written.map_err(ApiError::when(format!("reserve resource claim {name} for pod {key:?}")))?;
        self.context.device_caches.claims.wrote(written);
        Ok(())
    }
}

impl Controller for PodClaimTemplates {
    const NAME: &'static str = "resource_claim_templates";
    type Key = ObjectKey;
    type World = World;
    type Action = Action;
    type Outcome = ();
    type Status = ();

    async fn observe(&self, key: &ObjectKey) -> Result<Option<World>, ApiError> {
        let caches = &self.context.device_caches;
        let Some(pod) = self.context.caches.pods.get(key) else { return Ok(None) };
        let named = |name: &str| ObjectKey::new(&key.namespace, name);
        let templates = pod.spec.resource_claims.iter().filter_map(|own| own.resource_claim_template_name.clone());
        let templates = templates.filter_map(|name| Some((name.clone(), caches.templates.get(&named(&name))?)));
        let claims = claims_of(&pod, &key.namespace).into_iter();
        Ok(Some(World {
            owned: caches.claims.controlled_by(pod.uid()),
            templates: templates.collect(),
            claims: claims.filter_map(|key| Some((key.name.clone(), caches.claims.get(&key)?))).collect(),
            fresh_names: plan::names_of(&pod, |name| caches.claims.get(&named(name)).is_some()),
            pod,
        }))
    }

    fn plan(world: &World, _now: Timestamp) -> Plan<Action, ()> {
        Plan::act(plan::plan(world))
    }

    async fn apply(&self, key: &ObjectKey, action: Action) -> Result<(), ApiError> {
        match action {
            Action::Create { pod_uid, pod_claim, claim } => self.create(key, &pod_uid, &pod_claim, &claim).await,
            Action::WriteStatuses { pod_uid, statuses } => self.write_statuses(key, &pod_uid, &statuses).await,
            Action::Reserve { pod_uid, claim } => self.reserve(key, &pod_uid, *claim).await,
            Action::RecordFailure { pod_uid, pod_claim, why } => {
                self.record_failure(key, &pod_uid, &pod_claim, &why);
                Ok(())
            }
        }
    }
}
