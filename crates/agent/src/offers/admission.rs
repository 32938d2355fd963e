//! Admission of pods that are bound to this node: admitted, or given back to the scheduler.
//!
//! Each pod is checked once, when it first arrives. What this agent or one before it admitted stays admitted, and so does
//! whatever has started or is being deleted. A pod that does not fit is given back to whoever placed it, if somebody did and the
//! server knows how; otherwise it fails here, as upstream has it.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Client, core::Request};
use mainstay_api::wellknown::mainstay::REFUSED_BY;
use mainstay_errors::error_chain;
use mainstay_runtime::PodUid;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    NodeCapacity, PodDemand, Rejection, check_pod,
    preempt::{self, CRITICAL, RunningPod},
};
use crate::{
    events::{EventType, Events},
    node::Evictions,
    pods::{Pods, Source, is_mirror_pod},
    settings::Offering,
    watch_backoff::api_retries,
};

/// How long the machine's own Node is waited for before pods are taken unseen.
const OWN_NODE: Duration = Duration::from_secs(10);
/// Longest time to wait for the Node as the API has it.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a pod had better run on another node although it fits this one, if healing has a reason.
pub type Avoids = Box<dyn Fn(&Pod) -> Option<String> + Send + Sync>;

/// The reason of a refusal because pods of the same set failed on this node.
const FAILED_HERE: &str = "FailedHere";

pub struct OfferAdmission {
    client: Client,
    pods: Arc<Pods>,
    /// This machine in the API: what it has, its labels and taints.
    node: watch::Receiver<Option<Node>>,
    evictions: Evictions,
    events: Events,
    offering: Offering,
    avoids: Avoids,
    /// Pods that are being given back.
    refused: Mutex<BTreeSet<PodUid>>,
    tasks: TaskTracker,
}

/// What becomes of a pod that the watch delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Admitted,
    /// It shows a static pod, or is being given back.
    NotOurs,
}

/// How giving back went.
#[derive(Debug, PartialEq, Eq)]
enum GiveBack {
    Done,
    /// The server has no such call.
    NotServed,
    Retry,
}

impl OfferAdmission {
    pub fn new(
        client: Client,
        pods: Arc<Pods>,
        node: watch::Receiver<Option<Node>>,
        evictions: Evictions,
        events: Events,
        offering: Offering,
        avoids: Avoids,
    ) -> Arc<Self> {
        let (refused, tasks) = Default::default();
        Arc::new(Self { client, pods, node, evictions, events, offering, avoids, refused, tasks })
    }

    /// Decides about a pod as the API has it now.
    pub async fn admit(self: &Arc<Self>, pod: &Pod, stop: &CancellationToken) -> Verdict {
        let Some(uid) = pod.metadata.uid.clone().map(PodUid) else { return Verdict::NotOurs };
        if is_mirror_pod(pod) {
            return Verdict::NotOurs;
        }
        if self.pods.get(&uid).is_some() || !is_fresh(pod) {
            self.refused.lock().remove(&uid);
            return Verdict::Admitted;
        }
        if self.refused.lock().contains(&uid) {
            return Verdict::NotOurs;
        }
        let Some(mut node) = self.own_node().await else { return Verdict::Admitted };
        let mut room = self.offering.capacity(&node);
        let held = self.running_pods();
        let claims: Vec<PodDemand> = held.iter().map(|held| held.demand.clone()).collect();
        let mut checked = check_pod(pod, &node, &room, &claims);
        // Whoever placed it may know of labels and taints that are newer than what was last read here.
        if checked.is_err()
            && let Some(now) = self.node_now(&node).await
        {
            node = now;
            room = self.offering.capacity(&node);
            checked = check_pod(pod, &node, &room, &claims);
        }
        let Err(rejection) = checked.and_then(|()| self.prefer_another_node(pod, &node)) else {
            return Verdict::Admitted;
        };
        if is_critical(pod) && rejection.reason.starts_with("OutOf") && self.makes_room(pod, &node, &room, &held) {
            return Verdict::Admitted;
        }
        tracing::info!(%uid, reason = rejection.reason, why = rejection.message, "reject a pod that does not fit this node");
        if was_placed(pod) {
            self.refused.lock().insert(uid.clone());
            self.tasks.spawn(self.clone().give_back(pod.clone(), uid, rejection, stop.clone()));
            Verdict::NotOurs
        } else {
            self.fail(pod, &uid, rejection);
            Verdict::Admitted
        }
    }

    /// A pod whose like failed here is sent elsewhere once: if the scheduler finds no other node for it, it is admitted.
    fn prefer_another_node(&self, pod: &Pod, node: &Node) -> Result<(), Rejection> {
        let refused_by = pod.metadata.annotations.as_ref().and_then(|all| all.get(REFUSED_BY));
        if !was_placed(pod) || refused_by == node.metadata.name.as_ref() {
            return Ok(());
        }
        match (self.avoids)(pod) {
            Some(message) => Err(Rejection { reason: FAILED_HERE.to_owned(), message }),
            None => Ok(()),
        }
    }

    /// The API has the pod no longer, or not here.
    pub fn forget(&self, uid: &PodUid) {
        self.refused.lock().remove(uid);
    }

    /// Of all pods there are, these are here: what is being given back and is not among them has been.
    pub fn retain(&self, here: &[Pod]) {
        let here: BTreeSet<PodUid> = here.iter().filter_map(|pod| pod.metadata.uid.clone().map(PodUid)).collect();
        self.refused.lock().retain(|uid| here.contains(uid));
    }

    /// Waits for what is under way, once asked to stop.
    pub async fn close(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn running_pods(&self) -> Vec<RunningPod> {
        let held = self.pods.active_pods().into_iter().filter_map(|(uid, pod)| {
            let is_static = self.pods.get(&uid).is_some_and(|wanted| wanted.source == Source::File);
            let priority = pod.spec.as_ref()?.priority.unwrap_or(0);
            Some(RunningPod { uid, priority, stays: is_static || is_critical(&pod), demand: PodDemand::from_pod(&pod) })
        });
        held.collect()
    }

    /// Ends others for a pod that the cluster needs, as upstream does. Their room is theirs until they are gone.
    fn makes_room(&self, pod: &Pod, node: &Node, room: &NodeCapacity, held: &[RunningPod]) -> bool {
        let Some(victims) = preempt::make_room(&PodDemand::from_pod(pod), room, held) else { return false };
        let staying = held.iter().filter(|held| !victims.contains(&held.uid)).map(|held| held.demand.clone());
        if check_pod(pod, node, room, &staying.collect::<Vec<_>>()).is_err() {
            return false;
        }
        for victim in victims {
            let message = "Preempted in order to admit critical pod";
            if let Some(wanted) = self.pods.get(&victim) {
                self.events.pod(&wanted.pod, EventType::Warning, "Preempting", message);
            }
            self.evictions.reject(&victim, "Preempting".to_owned(), message.to_owned());
        }
        true
    }

    /// This machine as the API has it at this moment, if it can be asked.
    async fn node_now(&self, known: &Node) -> Option<Node> {
        let nodes: kube::Api<Node> = kube::Api::all(self.client.clone());
        let now = nodes.get(known.metadata.name.as_deref()?);
        tokio::time::timeout(NODE_TIMEOUT, now).await.ok()?.ok()
    }

    async fn own_node(&self) -> Option<Node> {
        let mut node = self.node.clone();
        let known = tokio::time::timeout(OWN_NODE, node.wait_for(Option::is_some)).await;
        known.ok()?.ok()?.clone()
    }

    /// Upstream's way: the pod ends where it is.
    fn fail(&self, pod: &Pod, uid: &PodUid, rejection: Rejection) {
        let message = format!("Pod was rejected: {}", rejection.message);
        self.events.pod(pod, EventType::Warning, rejection.reason.clone(), rejection.message.clone());
        self.pods.reject(uid);
        self.evictions.reject(uid, rejection.reason, message);
    }

    async fn give_back(self: Arc<Self>, pod: Pod, uid: PodUid, rejection: Rejection, stop: CancellationToken) {
        let mut retries = api_retries();
        loop {
            match stop.run_until_cancelled(self.refuse(&pod, &uid, &rejection)).await {
                None | Some(GiveBack::Done) => return,
                Some(GiveBack::NotServed) => {
                    if rejection.reason != FAILED_HERE {
                        self.fail(&pod, &uid, rejection);
                    }
                    return self.pods.upsert(Source::Api, pod);
                }
                Some(GiveBack::Retry) => {}
            }
            if !self.refused.lock().contains(&uid)
                || stop.run_until_cancelled(tokio::time::sleep(retries.record_failure())).await.is_none()
            {
                return;
            }
        }
    }

    async fn refuse(&self, pod: &Pod, uid: &PodUid, rejection: &Rejection) -> GiveBack {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let (namespace, name) = (text(&pod.metadata.namespace), text(&pod.metadata.name));
        let body = json!({ "uid": uid.0, "reason": rejection.reason, "message": rejection.message });
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let body = body.to_string().into_bytes();
        let request = match Request::new(path).create_subresource("refusal", &name, &Default::default(), body) {
            Ok(request) => request,
            Err(error) => {
                tracing::warn!(%uid, %error, "cannot give a pod back; it fails here");
                return GiveBack::NotServed;
            }
        };
        match self.client.request::<serde_json::Value>(request).await {
            Ok(_) => GiveBack::Done,
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let about_the_pod = status.details.as_ref().is_some_and(|details| !details.name.is_empty());
                if about_the_pod { GiveBack::Done } else { GiveBack::NotServed }
            }
            // A server that does not let us, or does not do this with pods.
            Err(kube::Error::Api(status))
                if matches!(status.code, 405 | 403) && !status.message.contains("is not on") =>
            {
                GiveBack::NotServed
            }
            Err(kube::Error::Api(status)) if status.code == 409 && status.message.contains("has been modified") => {
                GiveBack::Retry
            }
            // It is elsewhere, another, or going: the next we hear of it says so.
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 409) => GiveBack::Done,
            Err(error) => {
                tracing::debug!(%uid, error = error_chain(&error), "cannot give a pod back; will try again");
                GiveBack::Retry
            }
        }
    }
}

fn is_critical(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.priority).is_some_and(|priority| priority >= CRITICAL)
}

/// Whether nothing has been done for the pod yet.
pub fn is_fresh(pod: &Pod) -> bool {
    let status = pod.status.clone().unwrap_or_default();
    let containers = [&status.container_statuses, &status.init_container_statuses];
    let begun = status.start_time.is_some()
        || containers.into_iter().flatten().any(|list| !list.is_empty())
        || mainstay_api::pod::is_finished(pod);
    pod.metadata.deletion_timestamp.is_none() && !begun
}

/// Whether somebody chose this machine for the pod, rather than the pod itself.
fn was_placed(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "PodScheduled" && condition.status == "True")
}
