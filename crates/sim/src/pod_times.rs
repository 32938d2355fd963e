//! Records when each pod was created, bound and ready, by one clock.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::pod::Pod;

#[derive(Clone, Debug, Default)]
struct PodTimeline {
    /// When its creation was sent; unknown for pods that controllers create.
    created: Option<Instant>,
    observed: Option<Instant>,
    bound: Option<Instant>,
    ready: Option<Instant>,
    node: String,
}

#[derive(Default)]
pub struct PodTimes {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    pods: HashMap<String, PodTimeline>,
    counts: Counts,
}

/// How many pods have reached which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub created: usize,
    pub bound: usize,
    pub ready: usize,
    pub gone: usize,
    /// Pods that were observed on a second node.
    pub moved: usize,
}

/// Times between two states of all pods, sorted.
pub struct Durations(Vec<Duration>);

impl Durations {
    pub fn percentile(&self, q: f64) -> Duration {
        let at = (self.0.len() as f64 * q / 100.0) as usize;
        self.0.get(at.min(self.0.len().saturating_sub(1))).copied().unwrap_or_default()
    }
}

impl PodTimes {
    /// Forgets everything, for a new round.
    pub fn clear(&self) {
        *self.state.lock() = State::default();
    }

    /// The creation of a pod is about to be sent.
    pub fn record_created(&self, name: &str) {
        self.state.lock().pods.entry(name.to_owned()).or_default().created = Some(Instant::now());
    }

    /// A pod as a watch shows it. Pods are identified by name: a round never uses one twice.
    pub fn record_observed(&self, pod: &Pod) {
        let now = Instant::now();
        let mut state = self.state.lock();
        let State { pods, counts } = &mut *state;
        let times = match pods.get_mut(pod.name()) {
            Some(times) => times,
            None => pods.entry(pod.name().to_owned()).or_default(),
        };
        if times.observed.replace(times.observed.unwrap_or(now)).is_none() {
            counts.created += 1;
        }
        if !pod.spec.node_name.is_empty() && times.node != pod.spec.node_name {
            match times.bound {
                None => {
                    times.bound = Some(now);
                    counts.bound += 1;
                }
                Some(_) => counts.moved += 1,
            }
            times.node.clone_from(&pod.spec.node_name);
        }
        if times.ready.is_none() && pod.is_ready() {
            times.ready = Some(now);
            counts.ready += 1;
        }
        drop(state);
        self.changed.notify_waiters();
    }

    pub fn record_deleted(&self, pod: &Pod) {
        let mut state = self.state.lock();
        if state.pods.remove(pod.name()).is_some() {
            state.counts.gone += 1;
        }
        drop(state);
        self.changed.notify_waiters();
    }

    pub fn counts(&self) -> Counts {
        self.state.lock().counts
    }

    /// Returns once `wanted` holds for the counts.
    pub async fn wait_for(&self, wanted: impl Fn(Counts) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if wanted(self.counts()) {
                return;
            }
            changed.await;
        }
    }

    /// From sending a pod's creation to observing it bound.
    pub fn create_to_bound(&self) -> Durations {
        self.durations(|pod| Some(pod.bound?.saturating_duration_since(pod.created?)))
    }

    /// From sending a pod's creation to observing it ready.
    pub fn create_to_ready(&self) -> Durations {
        self.durations(|pod| Some(pod.ready?.saturating_duration_since(pod.created?)))
    }

    fn durations(&self, between: impl Fn(&PodTimeline) -> Option<Duration>) -> Durations {
        let mut durations: Vec<Duration> = self.state.lock().pods.values().filter_map(between).collect();
        durations.sort_unstable();
        Durations(durations)
    }

    /// When the last pod was bound, and the last one ready.
    pub fn last_bound_and_ready(&self) -> (Option<Instant>, Option<Instant>) {
        let state = self.state.lock();
        let pods = || state.pods.values();
        (pods().filter_map(|pod| pod.bound).max(), pods().filter_map(|pod| pod.ready).max())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, node: &str, ready: bool) -> Pod {
        let status = if ready { "True" } else { "False" };
        serde_json::from_value(json!({
            "metadata": { "name": name }, "spec": { "nodeName": node },
            "status": { "conditions": [{ "type": "Ready", "status": status }] },
        }))
        .unwrap()
    }

    #[test]
    fn each_step_counts_once() {
        let pod_times = PodTimes::default();
        pod_times.record_created("a");
        for found in [pod("a", "", false), pod("a", "m", false), pod("a", "m", true), pod("a", "m", true)] {
            pod_times.record_observed(&found);
        }
        assert_eq!(pod_times.counts(), Counts { created: 1, bound: 1, ready: 1, gone: 0, moved: 0 });
        assert!(pod_times.create_to_bound().percentile(50.0) <= pod_times.create_to_ready().percentile(99.0));
        pod_times.record_observed(&pod("a", "elsewhere", true));
        assert_eq!(pod_times.counts().moved, 1);
        pod_times.record_deleted(&pod("a", "elsewhere", true));
        pod_times.record_deleted(&pod("a", "elsewhere", true));
        assert_eq!(pod_times.counts().gone, 1);
    }
}
