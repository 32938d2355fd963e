//! Pods that arrive from the API: taken, or given back.
//!
//! Judged once, when a pod is first heard of. What this agent or one before it took stays taken, and so does whatever
//! has started or is going anyway. A pod that does not fit is given back to whoever placed it, if somebody did and the
//! server knows how; otherwise it fails here, as upstream has it.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Client, core::Request};
use mainstay_api::offer::Ports;
use mainstay_runtime::PodUid;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Claim, Rejection, Room, judge,
    preempt::{self, CRITICAL, Held},
};
use crate::{
    events::{Events, Kind},
    node::Evictions,
    pods::{Pods, Source},
    sources::mirror::is_mirror,
};

/// How long the machine's own Node is waited for before pods are taken unseen.
const OWN_NODE: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

pub struct Gate {
    client: Client,
    pods: Arc<Pods>,
    /// This machine in the API: what it has, its labels and taints.
    node: watch::Receiver<Option<Node>>,
    evictions: Evictions,
    events: Events,
    automatic: Ports,
    explicit: Ports,
    /// Pods that are being given back.
    refused: Mutex<BTreeSet<PodUid>>,
    tasks: TaskTracker,
}

/// What becomes of a pod that was heard of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Taken,
    /// It shows a static pod, or is being given back.
    NotOurs,
}

/// How giving back went.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Done,
    /// The server has no such call.
    Unknown,
    Again,
}

impl Gate {
    pub fn new(
        client: Client,
        pods: Arc<Pods>,
        node: watch::Receiver<Option<Node>>,
        evictions: Evictions,
        events: Events,
        (automatic, explicit): (Ports, Ports),
    ) -> Arc<Self> {
        let (refused, tasks) = Default::default();
        Arc::new(Self { client, pods, node, evictions, events, automatic, explicit, refused, tasks })
    }

    /// Decides about a pod as the API has it now.
    pub async fn arrives(self: &Arc<Self>, pod: &Pod, stop: &CancellationToken) -> Verdict {
        let Some(uid) = pod.metadata.uid.clone().map(PodUid) else { return Verdict::NotOurs };
        if is_mirror(pod) {
            return Verdict::NotOurs;
        }
        if self.pods.get(&uid).is_some() || !is_fresh(pod) {
            self.refused.lock().remove(&uid);
            return Verdict::Taken;
        }
        if self.refused.lock().contains(&uid) {
            return Verdict::NotOurs;
        }
        let Some(mut node) = self.own_node().await else { return Verdict::Taken };
        let mut room = Room::of(&node, self.automatic.clone(), self.explicit.clone());
        let held = self.held();
        let claims: Vec<Claim> = held.iter().map(|held| held.claim.clone()).collect();
        let mut judged = judge(pod, &node, &room, &claims);
        // Whoever placed it may know of labels and taints that are newer than what was last read here.
        if judged.is_err()
            && let Some(now) = self.node_now(&node).await
        {
            node = now;
            room = Room::of(&node, self.automatic.clone(), self.explicit.clone());
            judged = judge(pod, &node, &room, &claims);
        }
        let Err(rejection) = judged else { return Verdict::Taken };
        if is_critical(pod) && rejection.reason.starts_with("OutOf") && self.makes_room(pod, &node, &room, &held) {
            return Verdict::Taken;
        }
        tracing::info!(%uid, reason = rejection.reason, why = rejection.message, "a pod does not fit here");
        if was_placed(pod) {
            self.refused.lock().insert(uid.clone());
            self.tasks.spawn(self.clone().give_back(pod.clone(), uid, rejection, stop.clone()));
            Verdict::NotOurs
        } else {
            self.fail(pod, &uid, rejection);
            Verdict::Taken
        }
    }

    /// The API has the pod no longer, or not here.
    pub fn left(&self, uid: &PodUid) {
        self.refused.lock().remove(uid);
    }

    /// Of all pods there are, these are here: what is being given back and is not among them has been.
    pub fn only(&self, here: &[Pod]) {
        let here: BTreeSet<PodUid> = here.iter().filter_map(|pod| pod.metadata.uid.clone().map(PodUid)).collect();
        self.refused.lock().retain(|uid| here.contains(uid));
    }

    /// Waits for what is under way, once asked to stop.
    pub async fn close(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn held(&self) -> Vec<Held> {
        let held = self.pods.held().into_iter().filter_map(|(uid, pod)| {
            let is_static = self.pods.get(&uid).is_some_and(|wanted| wanted.source == Source::File);
            let priority = pod.spec.as_ref()?.priority.unwrap_or(0);
            Some(Held { uid, priority, stays: is_static || is_critical(&pod), claim: Claim::of(&pod) })
        });
        held.collect()
    }

    /// Ends others for a pod that the cluster needs, as upstream does. Their room is theirs until they are gone.
    fn makes_room(&self, pod: &Pod, node: &Node, room: &Room, held: &[Held]) -> bool {
        let Some(victims) = preempt::make_room(&Claim::of(pod), room, held) else { return false };
        let staying = held.iter().filter(|held| !victims.contains(&held.uid)).map(|held| held.claim.clone());
        if judge(pod, node, room, &staying.collect::<Vec<_>>()).is_err() {
            return false;
        }
        for victim in victims {
            let message = "Preempted in order to admit critical pod";
            if let Some(wanted) = self.pods.get(&victim) {
                self.events.pod(&wanted.pod, Kind::Warning, "Preempting", message);
            }
            self.evictions.reject(&victim, "Preempting".to_owned(), message.to_owned());
        }
        true
    }

    /// This machine as the API has it at this moment, if it can be asked.
    async fn node_now(&self, known: &Node) -> Option<Node> {
        let nodes: kube::Api<Node> = kube::Api::all(self.client.clone());
        let now = nodes.get(known.metadata.name.as_deref()?);
        tokio::time::timeout(LONGEST_PAUSE, now).await.ok()?.ok()
    }

    async fn own_node(&self) -> Option<Node> {
        let mut node = self.node.clone();
        let known = tokio::time::timeout(OWN_NODE, node.wait_for(Option::is_some)).await;
        known.ok()?.ok()?.clone()
    }

    /// Upstream's way: the pod ends where it is.
    fn fail(&self, pod: &Pod, uid: &PodUid, rejection: Rejection) {
        let message = format!("Pod was rejected: {}", rejection.message);
        self.events.pod(pod, Kind::Warning, event_reason(&rejection.reason), rejection.message.clone());
        self.pods.reject(uid);
        self.evictions.reject(uid, rejection.reason, message);
    }

    async fn give_back(self: Arc<Self>, pod: Pod, uid: PodUid, rejection: Rejection, stop: CancellationToken) {
        let mut pause = FIRST_PAUSE;
        loop {
            match stop.run_until_cancelled(self.refuse(&pod, &uid, &rejection)).await {
                None | Some(Answer::Done) => return,
                Some(Answer::Unknown) => {
                    self.fail(&pod, &uid, rejection);
                    return self.pods.put(Source::Api, pod);
                }
                Some(Answer::Again) => {}
            }
            if !self.refused.lock().contains(&uid)
                || stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none()
            {
                return;
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn refuse(&self, pod: &Pod, uid: &PodUid, rejection: &Rejection) -> Answer {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let (namespace, name) = (text(&pod.metadata.namespace), text(&pod.metadata.name));
        let said = json!({ "uid": uid.0, "reason": rejection.reason, "message": rejection.message });
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let body = said.to_string().into_bytes();
        let request = match Request::new(path).create_subresource("refusal", &name, &Default::default(), body) {
            Ok(request) => request,
            Err(error) => {
                tracing::warn!(%uid, %error, "cannot give a pod back");
                return Answer::Unknown;
            }
        };
        match self.client.request::<serde_json::Value>(request).await {
            Ok(_) => Answer::Done,
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let about_the_pod = status.details.as_ref().is_some_and(|details| !details.name.is_empty());
                if about_the_pod { Answer::Done } else { Answer::Unknown }
            }
            // A server that does not let us, or does not do this with pods.
            Err(kube::Error::Api(status))
                if matches!(status.code, 405 | 403) && !status.message.contains("is not on") =>
            {
                Answer::Unknown
            }
            Err(kube::Error::Api(status)) if status.code == 409 && status.message.contains("has been modified") => {
                Answer::Again
            }
            // It is elsewhere, another, or going: the next we hear of it says so.
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 409) => Answer::Done,
            Err(error) => {
                tracing::debug!(%uid, %error, "cannot give a pod back; will try again");
                Answer::Again
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
        || matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    pod.metadata.deletion_timestamp.is_none() && !begun
}

/// Whether somebody chose this machine for the pod, rather than the pod itself.
fn was_placed(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "PodScheduled" && condition.status == "True")
}

/// Events have reasons of few kinds.
fn event_reason(reason: &str) -> &'static str {
    match reason {
        "OutOfcpu" => "OutOfcpu",
        "OutOfmemory" => "OutOfmemory",
        "OutOfephemeral-storage" => "OutOfephemeral-storage",
        "OutOfpods" => "OutOfpods",
        "NodeAffinity" => "NodeAffinity",
        "NodePorts" => "NodePorts",
        "TaintToleration" => "TaintToleration",
        _ => "UnexpectedAdmissionError",
    }
}
