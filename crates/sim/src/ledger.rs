//! When each pod was created, bound and ready, by one clock.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::pod::Pod;

#[derive(Clone, Debug, Default)]
struct Life {
    /// When its creation was sent; unknown for pods that controllers create.
    sent: Option<Instant>,
    seen: Option<Instant>,
    bound: Option<Instant>,
    ready: Option<Instant>,
    node: String,
}

#[derive(Default)]
pub struct Ledger {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    pods: HashMap<String, Life>,
    counts: Counts,
}

/// How many pods have come how far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub created: usize,
    pub bound: usize,
    pub ready: usize,
    pub gone: usize,
    /// Pods that were seen on a second machine.
    pub moved: usize,
}

/// Times between two points of pods' lives, sorted.
pub struct Spans(Vec<Duration>);

impl Spans {
    pub fn percentile(&self, q: f64) -> Duration {
        let at = (self.0.len() as f64 * q / 100.0) as usize;
        self.0.get(at.min(self.0.len().saturating_sub(1))).copied().unwrap_or_default()
    }
}

impl Ledger {
    /// Forgets everything, for a new round.
    pub fn clear(&self) {
        *self.state.lock() = State::default();
    }

    /// The creation of a pod is about to be sent.
    pub fn sent(&self, name: &str) {
        self.state.lock().pods.entry(name.to_owned()).or_default().sent = Some(Instant::now());
    }

    /// A pod as a watch shows it. Pods are told apart by name: a round never uses one twice.
    pub fn saw(&self, pod: &Pod) {
        let now = Instant::now();
        let mut state = self.state.lock();
        let State { pods, counts } = &mut *state;
        let life = match pods.get_mut(pod.name()) {
            Some(life) => life,
            None => pods.entry(pod.name().to_owned()).or_default(),
        };
        if life.seen.replace(life.seen.unwrap_or(now)).is_none() {
            counts.created += 1;
        }
        if !pod.spec.node_name.is_empty() && life.node != pod.spec.node_name {
            match life.bound {
                None => {
                    life.bound = Some(now);
                    counts.bound += 1;
                }
                Some(_) => counts.moved += 1,
            }
            life.node.clone_from(&pod.spec.node_name);
        }
        if life.ready.is_none() && pod.is_ready() {
            life.ready = Some(now);
            counts.ready += 1;
        }
        drop(state);
        self.changed.notify_waiters();
    }

    pub fn gone(&self, pod: &Pod) {
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

    /// Returns once the counts are as wanted.
    pub async fn until(&self, wanted: impl Fn(Counts) -> bool) {
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

    /// From sending a pod's creation to seeing it bound.
    pub fn create_to_bound(&self) -> Spans {
        self.spans(|life| Some(life.bound?.saturating_duration_since(life.sent?)))
    }

    /// From sending a pod's creation to seeing it ready.
    pub fn create_to_ready(&self) -> Spans {
        self.spans(|life| Some(life.ready?.saturating_duration_since(life.sent?)))
    }

    fn spans(&self, of: impl Fn(&Life) -> Option<Duration>) -> Spans {
        let mut spans: Vec<Duration> = self.state.lock().pods.values().filter_map(of).collect();
        spans.sort_unstable();
        Spans(spans)
    }

    /// When the last pod was bound, and the last one ready.
    pub fn last(&self) -> (Option<Instant>, Option<Instant>) {
        let state = self.state.lock();
        let lives = || state.pods.values();
        (lives().filter_map(|life| life.bound).max(), lives().filter_map(|life| life.ready).max())
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
        let ledger = Ledger::default();
        ledger.sent("a");
        for seen in [pod("a", "", false), pod("a", "m", false), pod("a", "m", true), pod("a", "m", true)] {
            ledger.saw(&seen);
        }
        assert_eq!(ledger.counts(), Counts { created: 1, bound: 1, ready: 1, gone: 0, moved: 0 });
        assert!(ledger.create_to_bound().percentile(50.0) <= ledger.create_to_ready().percentile(99.0));
        ledger.saw(&pod("a", "elsewhere", true));
        assert_eq!(ledger.counts().moved, 1);
        ledger.gone(&pod("a", "elsewhere", true));
        ledger.gone(&pod("a", "elsewhere", true));
        assert_eq!(ledger.counts().gone, 1);
    }
}
