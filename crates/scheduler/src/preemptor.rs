//! Carries out a preemption: nominates the pod for the node, then deletes the victims.
//!
//! In this order, so that a crash between any two steps leaves nothing untrue: first `nominatedNodeName` is written, then
//! each victim gets the condition `DisruptionTarget` and is deleted, by uid. The pod is bound when they are gone, like any
//! other.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Client, api::Patch};
use mainstay_events::EventNote;
use serde_json::json;

use crate::{
    core::view::PodKey,
    event_recorder::{EventRecorder, PodEvent, SCHEDULER},
    pod_requests,
};

/// A pod, the node that it is nominated for, and the victims there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preemption {
    pub pod: PodKey,
    pub uid: String,
    pub node: String,
    /// Keys and uids.
    pub victims: Vec<(PodKey, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PatchOutcome {
    Done,
    /// The pod was deleted, or another has its name.
    Gone,
    Failed,
}

#[derive(Clone)]
pub struct Preemptor {
    client: Client,
    event_recorder: EventRecorder,
}

impl Preemptor {
    pub fn new(client: Client, event_recorder: EventRecorder) -> Self {
        Self { client, event_recorder }
    }

    /// Returns whether all victims are deleted or terminating. If not, the pod is scheduled again later.
    pub async fn preempt(&self, preemption: &Preemption) -> bool {
        let Preemption { pod, uid, node, victims } = preemption;
        let nomination = json!({ "metadata": { "uid": uid }, "status": { "nominatedNodeName": node } });
        if self.patch(pod, &nomination).await != PatchOutcome::Done {
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
                PatchOutcome::Done if !self.delete(victim, victim_uid).await => return false,
                PatchOutcome::Failed => return false,
                PatchOutcome::Gone => continue,
                PatchOutcome::Done => {}
            }
            let (pod, uid) = (victim.clone(), victim_uid.clone());
            let message = format!("Preempted by pod {} on node {node}", preemption.uid);
            self.event_recorder.record(PodEvent { pod, uid, note: EventNote::normal("Preempted", message) });
        }
        true
    }

    /// Clears `nominatedNodeName`.
    pub async fn clear_nomination(&self, pod: &PodKey, uid: &str) {
        self.patch(pod, &json!({ "metadata": { "uid": uid }, "status": { "nominatedNodeName": null } })).await;
    }

    async fn patch(&self, pod: &PodKey, patch: &serde_json::Value) -> PatchOutcome {
        match pod_requests::patch_status(&self.client, pod, &Patch::Strategic(patch)).await {
            Ok(()) => PatchOutcome::Done,
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => PatchOutcome::Gone,
            Err(error) => {
                let uid = patch["metadata"]["uid"].as_str();
                tracing::debug!(%pod, uid, %error, "cannot write the status of a pod; will retry");
                PatchOutcome::Failed
            }
        }
    }

    async fn delete(&self, pod: &PodKey, uid: &str) -> bool {
        match pod_requests::delete(&self.client, pod, uid).await {
            Ok(()) => true,
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => true, // gone
            Err(error) => {
                tracing::warn!(%pod, uid, %error, "cannot delete a preempted pod; will retry");
                false
            }
        }
    }
}
