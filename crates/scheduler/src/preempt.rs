//! Makes room: pods that are worth less go, so that one that is worth more can come.
//!
//! In this order, so that a crash between any two steps leaves nothing untrue: the pod that comes says where it will
//! go, then each that goes is told why and deleted, by uid. The pod is placed when they are gone, like any other.

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
    runtime::events::EventType,
};
use serde_json::json;

use crate::{
    core::view::PodKey,
    events::{Events, SCHEDULER},
};

/// Who comes, who goes, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    pub pod: PodKey,
    pub uid: String,
    pub node: String,
    /// With uid.
    pub victims: Vec<(PodKey, String)>,
}

#[derive(Clone)]
pub struct Preemptor {
    client: Client,
    events: Events,
}

impl Preemptor {
    pub fn new(client: Client, events: Events) -> Self {
        Self { client, events }
    }

    /// Whether all of them go. If not, it is decided anew by what is seen then.
    pub async fn evict(&self, eviction: &Eviction) -> bool {
        let Eviction { pod, uid, node, victims } = eviction;
        let named = json!({ "metadata": { "uid": uid }, "status": { "nominatedNodeName": node } });
        if !self.patch(pod, &named).await {
            return false;
        }
        for (victim, victim_uid) in victims {
            let target = json!({
                "metadata": { "uid": victim_uid },
                "status": { "conditions": [{
                    "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
                    "message": format!("{SCHEDULER}: preempting to accommodate a higher priority pod"),
                    "lastTransitionTime": Time(Timestamp::now()),
                }] },
            });
            if self.patch(victim, &target).await && !self.delete(victim, victim_uid).await {
                return false;
            }
            let note = format!("Preempted by pod {uid} on node {node}");
            self.events.pod(victim, victim_uid, EventType::Normal, "Preempted", "Preempting", note).await;
        }
        true
    }

    /// A pod no longer counts on a machine.
    pub async fn renounce(&self, pod: &PodKey, uid: &str) {
        self.patch(pod, &json!({ "metadata": { "uid": uid }, "status": { "nominatedNodeName": null } })).await;
    }

    async fn patch(&self, pod: &PodKey, patch: &serde_json::Value) -> bool {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let patched = pods.patch_status(&pod.name, &PatchParams::default(), &Patch::Strategic(patch)).await;
        patched.inspect_err(|error| tracing::debug!(%pod, %error, "cannot write a pod's status")).is_ok()
    }

    async fn delete(&self, pod: &PodKey, uid: &str) -> bool {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let only = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        match pods.delete(&pod.name, &DeleteParams::default().preconditions(only)).await {
            Ok(_) => true,
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => true, // gone
            Err(error) => {
                tracing::warn!(%pod, uid, %error, "cannot delete a pod that has to make way");
                false
            }
        }
    }
}
