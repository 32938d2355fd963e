//! Makes room: pods that are worth less go, so that one that is worth more can come.
//!
//! In this order, so that a crash between any two steps leaves nothing untrue: the pod that comes says where it will
//! go, then each that goes is told why and deleted, by uid. The pod is placed when they are gone, like any other.

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::json;

use crate::{
    core::view::PodKey,
    events::{Events, Note, SCHEDULER, Tone},
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    Done,
    /// There is no such pod any more.
    Gone,
    Failed,
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
        if self.patch(pod, &named).await != Written::Done {
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
            match self.patch(victim, &target).await {
                Written::Done if !self.delete(victim, victim_uid).await => return false,
                Written::Failed => return false,
                Written::Gone => continue,
                Written::Done => {}
            }
            let (pod, uid) = (victim.clone(), victim_uid.clone());
            let message = format!("Preempted by pod {} on node {node}", eviction.uid);
            self.events.tell(&Note { pod, uid, tone: Tone::Normal, reason: "Preempted", message }).await;
        }
        true
    }

    /// A pod no longer counts on a machine.
    pub async fn renounce(&self, pod: &PodKey, uid: &str) {
        self.patch(pod, &json!({ "metadata": { "uid": uid }, "status": { "nominatedNodeName": null } })).await;
    }

    async fn patch(&self, pod: &PodKey, patch: &serde_json::Value) -> Written {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        match pods.patch_status(&pod.name, &PatchParams::default(), &Patch::Strategic(patch)).await {
            Ok(_) => Written::Done,
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => Written::Gone,
            Err(error) => {
                tracing::debug!(%pod, %error, "cannot write a pod's status");
                Written::Failed
            }
        }
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
