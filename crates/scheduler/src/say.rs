//! Tells owners why their pods are not placed: the condition `PodScheduled` and the event `FailedScheduling`.
//!
//! [`Desk`] (pure) decides what is worth writing and when: what a pod's condition says already is not written again, a pod
//! whose reasons keep changing is told of at most once a second, and of what was not yet written only the newest
//! is. [`Speaker`] writes, a few at a time, so that a thousand hopeless pods do not keep the API from those that are not.

use std::{
    collections::{BTreeSet, HashMap},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::{
    core::view::PodKey,
    events::{Events, Note, Tone},
};

/// Shortest time between two things said about one pod.
const PAUSE: Duration = Duration::from_secs(1);

/// Why a pod is not placed, as its condition says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// `Unschedulable` or `SchedulingGated`.
    pub reason: &'static str,
    pub message: String,
}

impl Complaint {
    pub fn unschedulable(message: impl Into<String>) -> Self {
        Self { reason: "Unschedulable", message: message.into() }
    }

    pub fn gated() -> Self {
        let message = "Scheduling is blocked due to non-empty scheduling gates".to_owned();
        Self { reason: "SchedulingGated", message }
    }
}

/// Something to write about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    pub pod: PodKey,
    pub uid: String,
    pub complaint: Complaint,
    /// The condition says something else already, so since when it is false stays as it is.
    pub again: bool,
}

struct Told {
    uid: String,
    /// What the condition says, or will once what is under way is written.
    said: Option<Complaint>,
    next: Option<Complaint>,
    not_before: Instant,
}

#[derive(Default)]
pub struct Desk {
    pods: HashMap<PodKey, Told>,
    due: BTreeSet<(Instant, PodKey)>,
}

impl Desk {
    /// A pod is not placed because of `complaint`; `known` is what its condition said when it was last seen.
    pub fn say(
        &mut self,
        pod: &PodKey,
        uid: &str,
        known: Option<&(String, String)>,
        complaint: Complaint,
        now: Instant,
    ) {
        let same = |known: &&(String, String)| known.0 == complaint.reason && known.1 == complaint.message;
        if self.pods.get(pod).is_none_or(|told| told.uid != uid) {
            self.forget(pod);
            let said = known.filter(same).map(|_| complaint.clone());
            let told = Told { uid: uid.to_owned(), said, next: None, not_before: now };
            self.pods.insert(pod.clone(), told);
        }
        let Some(told) = self.pods.get_mut(pod) else { return };
        let entry = (told.not_before, pod.clone());
        if told.said.as_ref() == Some(&complaint) {
            told.next = None;
            self.due.remove(&entry);
        } else {
            told.next = Some(complaint);
            self.due.insert(entry);
        }
    }

    /// Placed or gone: what was not yet said need not be.
    pub fn forget(&mut self, pod: &PodKey) {
        if let Some(told) = self.pods.remove(pod) {
            self.due.remove(&(told.not_before, pod.clone()));
        }
    }

    /// What is to be written now, at most `most`.
    pub fn take(&mut self, most: usize, now: Instant) -> Vec<Statement> {
        let mut taken = Vec::new();
        while taken.len() < most && self.due.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, pod)) = self.due.pop_first() else { break };
            let Some(told) = self.pods.get_mut(&pod) else { continue };
            let Some(complaint) = told.next.take() else { continue };
            let again = told.said.replace(complaint.clone()).is_some();
            told.not_before = now + PAUSE;
            taken.push(Statement { pod, uid: told.uid.clone(), complaint, again });
        }
        taken
    }

    /// It could not be written; it is said again if it still holds.
    pub fn unsaid(&mut self, statement: &Statement) {
        let Some(told) = self.pods.get_mut(&statement.pod).filter(|told| told.uid == statement.uid) else { return };
        if told.said.as_ref() == Some(&statement.complaint) {
            told.said = None;
            if told.next.is_none() {
                told.next = Some(statement.complaint.clone());
                self.due.insert((told.not_before, statement.pod.clone()));
            }
        }
    }

    pub fn next(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }
}

/// Writes what the desk decided.
#[derive(Clone)]
pub struct Speaker {
    client: Client,
    events: Events,
}

impl Speaker {
    pub fn new(client: Client, events: Events) -> Self {
        Self { client, events }
    }

    /// Whether it is written, or need not be any more.
    pub async fn write(&self, statement: &Statement) -> bool {
        let Statement { pod, uid, complaint, again } = statement;
        let mut condition = json!({
            "type": "PodScheduled", "status": "False", "reason": complaint.reason, "message": complaint.message,
        });
        if !again {
            condition["lastTransitionTime"] = json!(Time(Timestamp::now()));
        }
        let patch = json!({ "metadata": { "uid": uid }, "status": { "conditions": [condition] } });
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        match pods.patch_status(&pod.name, &PatchParams::default(), &Patch::Strategic(patch)).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => return true, // not that pod any more
            Err(error) => {
                tracing::debug!(%pod, uid, %error, "cannot say why a pod is not placed");
                return false;
            }
        }
        if complaint.reason == "Unschedulable" {
            let (pod, uid, message) = (pod.clone(), uid.clone(), complaint.message.clone());
            self.events.tell(&Note { pod, uid, tone: Tone::Warning, reason: "FailedScheduling", message }).await;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> PodKey {
        PodKey::new("ns", "p")
    }

    fn full(n: usize) -> Complaint {
        Complaint::unschedulable(format!("0/{n} nodes are available"))
    }

    #[test]
    fn what_a_condition_says_already_is_not_written_again() {
        let (mut desk, now) = (Desk::default(), Instant::now());
        let known = ("Unschedulable".to_owned(), full(1).message);
        desk.say(&pod(), "u", Some(&known), full(1), now);
        assert_eq!((desk.take(9, now), desk.next()), (vec![], None));
        desk.say(&pod(), "u", Some(&known), full(2), now);
        let said = desk.take(9, now);
        assert_eq!(said, [Statement { pod: pod(), uid: "u".to_owned(), complaint: full(2), again: true }]);
        desk.say(&pod(), "u", Some(&known), full(2), now);
        assert_eq!(desk.next(), None, "what was seen may be older than what was written");
    }

    #[test]
    fn reasons_that_keep_changing_are_told_once_a_second_and_only_the_newest() {
        let (mut desk, now) = (Desk::default(), Instant::now());
        desk.say(&pod(), "u", None, full(1), now);
        assert!(!desk.take(9, now)[0].again);
        for n in 2..9 {
            desk.say(&pod(), "u", None, full(n), now);
        }
        assert_eq!((desk.take(9, now), desk.next()), (vec![], Some(now + PAUSE)));
        assert_eq!(desk.take(9, now + PAUSE)[0].complaint, full(8));
        desk.say(&pod(), "u", None, full(9), now + PAUSE);
        desk.say(&pod(), "u", None, full(8), now + PAUSE);
        assert_eq!(desk.next(), None, "it is as it was");
    }

    #[test]
    fn what_failed_is_said_again_and_what_is_over_is_not() {
        let (mut desk, now) = (Desk::default(), Instant::now());
        desk.say(&pod(), "u", None, full(1), now);
        let said = desk.take(9, now).remove(0);
        desk.unsaid(&said);
        assert_eq!(desk.take(9, now + PAUSE), std::slice::from_ref(&said));
        desk.unsaid(&said);
        desk.forget(&pod());
        assert_eq!((desk.next(), desk.pods.len()), (None, 0));
        desk.unsaid(&said);
        assert_eq!(desk.next(), None);
    }

    #[test]
    fn another_pod_of_the_same_name_is_another() {
        let (mut desk, now) = (Desk::default(), Instant::now());
        desk.say(&pod(), "u", None, full(1), now);
        desk.take(9, now);
        desk.say(&pod(), "v", None, full(1), now);
        assert_eq!(desk.take(9, now)[0].uid, "v");
    }
}
