//! Writes why pods are not scheduled: the condition `PodScheduled` and the event `FailedScheduling`.
//!
//! [`StatusQueue`] (pure) decides what to write and when: a condition that is there already is not written again, a pod
//! whose reasons keep changing is written at most once a second, and only the newest reason. [`StatusWriter`] writes, a few
//! at a time, so that a thousand unschedulable pods do not keep the API from the others.

use std::{
    collections::{BTreeSet, HashMap},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Client, api::Patch};
use mainstay_events::EventNote;
use serde_json::json;

use crate::{
    core::view::PodKey,
    event_recorder::{EventRecorder, PodEvent},
    pod_requests,
};

/// Shortest time between two writes about one pod.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Why a pod is not scheduled: reason and message of its condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulingFailure {
    /// `Unschedulable` or `SchedulingGated`.
    pub reason: &'static str,
    pub message: String,
}

impl SchedulingFailure {
    pub fn unschedulable(message: impl Into<String>) -> Self {
        Self { reason: "Unschedulable", message: message.into() }
    }

    pub fn gated() -> Self {
        let message = "Scheduling is blocked due to non-empty scheduling gates".to_owned();
        Self { reason: "SchedulingGated", message }
    }
}

/// A condition to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusUpdate {
    pub pod: PodKey,
    pub uid: String,
    pub failure: SchedulingFailure,
    /// The condition is false already, so its `lastTransitionTime` stays.
    pub keeps_transition_time: bool,
}

struct PodStatusState {
    uid: String,
    /// What the condition says, or will say once a write under way is done.
    written: Option<SchedulingFailure>,
    next: Option<SchedulingFailure>,
    not_before: Instant,
}

#[derive(Default)]
pub struct StatusQueue {
    pods: HashMap<PodKey, PodStatusState>,
    due: BTreeSet<(Instant, PodKey)>,
}

impl StatusQueue {
    /// A pod is not placed because of `failure`; `known` is what its condition said when it was last seen.
    pub fn report(
        &mut self,
        pod: &PodKey,
        uid: &str,
        known: Option<&(String, String)>,
        failure: SchedulingFailure,
        now: Instant,
    ) {
        let is_same = |known: &&(String, String)| known.0 == failure.reason && known.1 == failure.message;
        if self.pods.get(pod).is_none_or(|pod_state| pod_state.uid != uid) {
            self.remove(pod);
            let written = known.filter(is_same).map(|_| failure.clone());
            let pod_state = PodStatusState { uid: uid.to_owned(), written, next: None, not_before: now };
            self.pods.insert(pod.clone(), pod_state);
        }
        let Some(pod_state) = self.pods.get_mut(pod) else { return };
        let entry = (pod_state.not_before, pod.clone());
        if pod_state.written.as_ref() == Some(&failure) {
            pod_state.next = None;
            self.due.remove(&entry);
        } else {
            pod_state.next = Some(failure);
            self.due.insert(entry);
        }
    }

    /// The pod is scheduled or deleted: nothing has to be written any more.
    pub fn remove(&mut self, pod: &PodKey) {
        if let Some(pod_state) = self.pods.remove(pod) {
            self.due.remove(&(pod_state.not_before, pod.clone()));
        }
    }

    /// The updates to write now, at most `most`.
    pub fn pop_due(&mut self, most: usize, now: Instant) -> Vec<StatusUpdate> {
        let mut taken = Vec::new();
        while taken.len() < most && self.due.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, pod)) = self.due.pop_first() else { break };
            let Some(pod_state) = self.pods.get_mut(&pod) else { continue };
            let Some(failure) = pod_state.next.take() else { continue };
            let keeps_transition_time = pod_state.written.replace(failure.clone()).is_some();
            pod_state.not_before = now + MIN_INTERVAL;
            taken.push(StatusUpdate { pod, uid: pod_state.uid.clone(), failure, keeps_transition_time });
        }
        taken
    }

    /// An update could not be written; it is queued again if it still holds.
    pub fn retry(&mut self, update: &StatusUpdate) {
        let Some(pod_state) = self.pods.get_mut(&update.pod).filter(|pod_state| pod_state.uid == update.uid) else {
            return;
        };
        if pod_state.written.as_ref() == Some(&update.failure) {
            pod_state.written = None;
            if pod_state.next.is_none() {
                pod_state.next = Some(update.failure.clone());
                self.due.insert((pod_state.not_before, update.pod.clone()));
            }
        }
    }

    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }
}

/// Writes the updates of the [`StatusQueue`].
#[derive(Clone)]
pub struct StatusWriter {
    client: Client,
    event_recorder: EventRecorder,
}

impl StatusWriter {
    pub fn new(client: Client, event_recorder: EventRecorder) -> Self {
        Self { client, event_recorder }
    }

    /// Returns whether it is written, or need not be any more.
    pub async fn write(&self, update: &StatusUpdate) -> bool {
        let StatusUpdate { pod, uid, failure, keeps_transition_time } = update;
        let mut condition = json!({
            "type": "PodScheduled", "status": "False", "reason": failure.reason, "message": failure.message,
        });
        if !keeps_transition_time {
            condition["lastTransitionTime"] = json!(Time(Timestamp::now()));
        }
        let patch = json!({ "metadata": { "uid": uid }, "status": { "conditions": [condition] } });
        match pod_requests::patch_status(&self.client, pod, &Patch::Strategic(&patch)).await {
            Ok(()) => {}
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => return true, // deleted, or another pod has its name
            Err(error) => {
                tracing::debug!(%pod, uid, %error, "cannot write the condition of a pod; will retry");
                return false;
            }
        }
        if failure.reason == "Unschedulable" {
            let (pod, uid, message) = (pod.clone(), uid.clone(), failure.message.clone());
            self.event_recorder.record(PodEvent { pod, uid, note: EventNote::warning("FailedScheduling", message) });
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

    fn full(n: usize) -> SchedulingFailure {
        SchedulingFailure::unschedulable(format!("0/{n} nodes are available"))
    }

    #[test]
    fn a_condition_that_is_there_already_is_not_written_again() {
        let (mut queue, now) = (StatusQueue::default(), Instant::now());
        let known = ("Unschedulable".to_owned(), full(1).message);
        queue.report(&pod(), "u", Some(&known), full(1), now);
        assert_eq!((queue.pop_due(9, now), queue.next_due()), (vec![], None));
        queue.report(&pod(), "u", Some(&known), full(2), now);
        let written = queue.pop_due(9, now);
        assert_eq!(
            written,
            [StatusUpdate { pod: pod(), uid: "u".to_owned(), failure: full(2), keeps_transition_time: true }]
        );
        queue.report(&pod(), "u", Some(&known), full(2), now);
        assert_eq!(queue.next_due(), None, "what was observed may be older than what was written");
    }

    #[test]
    fn reasons_that_keep_changing_are_written_once_a_second_and_only_the_newest() {
        let (mut queue, now) = (StatusQueue::default(), Instant::now());
        queue.report(&pod(), "u", None, full(1), now);
        assert!(!queue.pop_due(9, now)[0].keeps_transition_time);
        for n in 2..9 {
            queue.report(&pod(), "u", None, full(n), now);
        }
        assert_eq!((queue.pop_due(9, now), queue.next_due()), (vec![], Some(now + MIN_INTERVAL)));
        assert_eq!(queue.pop_due(9, now + MIN_INTERVAL)[0].failure, full(8));
        queue.report(&pod(), "u", None, full(9), now + MIN_INTERVAL);
        queue.report(&pod(), "u", None, full(8), now + MIN_INTERVAL);
        assert_eq!(queue.next_due(), None, "it is as it was");
    }

    #[test]
    fn failed_writes_are_retried_unless_the_pod_is_gone() {
        let (mut queue, now) = (StatusQueue::default(), Instant::now());
        queue.report(&pod(), "u", None, full(1), now);
        let written = queue.pop_due(9, now).remove(0);
        queue.retry(&written);
        assert_eq!(queue.pop_due(9, now + MIN_INTERVAL), std::slice::from_ref(&written));
        queue.retry(&written);
        queue.remove(&pod());
        assert_eq!((queue.next_due(), queue.pods.len()), (None, 0));
        queue.retry(&written);
        assert_eq!(queue.next_due(), None);
    }

    #[test]
    fn another_pod_of_the_same_name_is_written_anew() {
        let (mut queue, now) = (StatusQueue::default(), Instant::now());
        queue.report(&pod(), "u", None, full(1), now);
        queue.pop_due(9, now);
        queue.report(&pod(), "v", None, full(1), now);
        assert_eq!(queue.pop_due(9, now)[0].uid, "v");
    }
}
