//! Writes what became of a pod of a tainted or lost node: not ready, evicted, failed, removed. Each is fenced by the pod's uid.
//!
//! A pod whose write the API refuses (a webhook, a rule) does not hold up the others of its node: it is logged, and the
//! node's next reconcile tries again.

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::Time};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use mainstay_api::wellknown::NODE_NOT_READY;
use mainstay_events::EventNote;
use serde_json::{Value, json};

use super::{
    COMPONENT, NodeLifecycle,
    eviction::{PodAction, Removal},
};
use crate::{
    objects::pod::Pod,
    runtime::{ApiError, ObjectKey, error, object_writes},
};

const EVICTION_COMPONENT: &str = "taint-eviction-controller";
/// Upstream's reason of pods whose node does not answer.
const NODE_LOST: &str = "NodeLost";

impl NodeLifecycle {
    pub(super) async fn apply_to_pod(
        &self,
        node: &str,
        action: PodAction,
        silent_since: Timestamp,
    ) -> Result<(), ApiError> {
        let done = match &action {
            PodAction::MarkNotReady { pod, uid } => self.mark_not_ready(node, pod, uid, silent_since).await,
            PodAction::Evict { pod, uid } => self.evict(pod, uid).await,
            PodAction::Remove { pod, uid, why } => self.remove(node, pod, uid, *why, silent_since).await,
            PodAction::Fail { pod, uid } => {
                self.announce_eviction(pod, uid);
                let status = json!({ "conditions": [self.disruption_target()] });
                self.fail(node, pod, uid, status, silent_since).await.map(|_| ())
            }
        };
        match done {
            Err(error) if error.is_rejected() => {
                tracing::warn!(node, ?action, error = error.chain(), "the API refuses a write about a pod; will retry");
                Ok(())
            }
            done => done,
        }
    }

    async fn mark_not_ready(
        &self,
        node: &str,
        pod: &ObjectKey,
        uid: &str,
        silent_since: Timestamp,
    ) -> Result<(), ApiError> {
        let ready = json!({
            "type": "Ready", "status": "False", "reason": NODE_NOT_READY,
            "message": format!("node {node} has been silent since {silent_since:.0}"),
            "lastTransitionTime": Time(self.context.clock.now()),
        });
        if self.patch_status(pod, uid, json!({ "conditions": [ready] })).await? {
            let note = EventNote::warning(NODE_NOT_READY, "Node is not ready");
            self.context.events.record_as(COMPONENT, involved(pod, uid), note);
        }
        Ok(())
    }

    async fn evict(&self, pod: &ObjectKey, uid: &str) -> Result<(), ApiError> {
        self.announce_eviction(pod, uid);
        if self.patch_status(pod, uid, json!({ "conditions": [self.disruption_target()] })).await? {
            let pods = self.context.pods_in(&pod.namespace);
            if object_writes::delete(&pods, &self.context.caches.pods, pod, uid).await? {
                self.context.metrics.count_taint_eviction();
            }
        }
        Ok(())
    }

    async fn remove(
        &self,
        node: &str,
        pod: &ObjectKey,
        uid: &str,
        why: Removal,
        silent_since: Timestamp,
    ) -> Result<(), ApiError> {
        let status = match why {
            Removal::Evicted => {
                self.announce_eviction(pod, uid);
                json!({ "conditions": [self.disruption_target()] })
            }
            Removal::Deleted => json!({}),
        };
        if !self.fail(node, pod, uid, status, silent_since).await? {
            return Ok(());
        }
        let ObjectKey { namespace, name } = pod;
        tracing::info!(node, ?pod, uid, "remove a pod of a lost node");
        let message = format!("Removed: its node {node} has been silent since {silent_since:.0}");
        self.context.events.record_as(COMPONENT, involved(pod, uid), EventNote::warning(NODE_LOST, message));
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None }),
            ..DeleteParams::background()
        };
        match self.context.pods_in(namespace).delete(name, &params).await {
            Ok(answer) => {
                let is_held = |pod: &Pod| pod.metadata.finalizers.as_ref().is_some_and(|held| !held.is_empty());
                match answer.left().filter(is_held) {
                    Some(held) => self.context.caches.pods.wrote(held),
                    None => self.context.caches.pods.removed(pod, uid),
                }
                if why == Removal::Evicted {
                    self.context.metrics.count_taint_eviction();
                }
                Ok(())
            }
            Err(error) if error::is_not_found(&error, name) => Ok(()),
            Err(error) => Err(ApiError::new(format!("remove pod {namespace}/{name}"), error)),
        }
    }

    /// Says that a pod ended, and why nobody saw it. Says whether it was there.
    async fn fail(
        &self,
        node: &str,
        pod: &ObjectKey,
        uid: &str,
        mut status: Value,
        silent_since: Timestamp,
    ) -> Result<bool, ApiError> {
        status["phase"] = json!("Failed");
        status["reason"] = json!(NODE_LOST);
        let name = &pod.name;
        status["message"] =
            json!(format!("Node {node} which was running pod {name} is unresponsive since {silent_since:.0}"));
        self.patch_status(pod, uid, status).await
    }

    /// Says whether the pod is there.
    async fn patch_status(&self, pod: &ObjectKey, uid: &str, status: Value) -> Result<bool, ApiError> {
        let ObjectKey { namespace, name } = pod;
        let change = json!({ "metadata": { "uid": uid }, "status": status });
        let pods = self.context.pods_in(namespace);
        match pods.patch_status(name, &PatchParams::default(), &Patch::Strategic(change)).await {
            Ok(pod) => {
                self.context.caches.pods.wrote(pod);
                Ok(true)
            }
            Err(error) if error::is_not_found(&error, name) => Ok(false),
            // Another pod has the name by now.
            Err(error) if error::has_code(&error, 409) && self.is_another(pod, uid) => Ok(false),
            Err(error) => Err(ApiError::new(format!("write the status of pod {namespace}/{name}"), error)),
        }
    }

    fn is_another(&self, pod: &ObjectKey, uid: &str) -> bool {
        self.context.caches.pods.get(pod).is_none_or(|known| known.uid() != uid)
    }

    fn disruption_target(&self) -> Value {
        json!({
            "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
            "message": "Taint manager: deleting due to NoExecute taint",
            "lastTransitionTime": Time(self.context.clock.now()),
        })
    }

    fn announce_eviction(&self, pod: &ObjectKey, uid: &str) {
        let message = format!("Marking for deletion Pod {pod:?}");
        let note = EventNote::normal("TaintManagerEviction", message);
        self.context.events.record_as(EVICTION_COMPONENT, involved(pod, uid), note);
    }
}

fn involved(pod: &ObjectKey, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.namespace.clone()),
        name: Some(pod.name.clone()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}
