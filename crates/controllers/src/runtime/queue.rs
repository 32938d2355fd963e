//! The work queue of a controller: keys that are due now or later, each reconciled by one runner at a time.
//!
//! Adding a key that waits, however long, brings it forward; adding one that is being reconciled makes it run once
//! more afterwards, however often it was added. Failures back off: each of them doubles the delay up to a limit, and
//! the first success ends that. A key that is idle is not remembered.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::{
    ControllerMetrics,
    metrics::{QueueDepth, QueueMetrics},
};

pub struct WorkQueue<K> {
    state: Mutex<State<K>>,
    changed: Notify,
    metrics: QueueMetrics,
}

struct State<K> {
    due: BTreeSet<(Instant, K)>,
    entries: HashMap<K, Entry>,
}

#[derive(Default)]
struct Entry {
    /// In `due`, unless it is being reconciled.
    at: Option<Instant>,
    running: bool,
    failures: u32,
}

/// How a failed key is retried.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    pub first: Duration,
    pub longest: Duration,
}

impl<K: Clone + Ord + Hash + Send + Sync + 'static> WorkQueue<K> {
    pub fn new(name: &'static str, metrics: &ControllerMetrics) -> Arc<Self> {
        let state = State { due: BTreeSet::new(), entries: HashMap::new() };
        let queue =
            Arc::new(Self { state: Mutex::new(state), changed: Notify::new(), metrics: metrics.for_queue(name) });
        let depth: Weak<Self> = Arc::downgrade(&queue);
        metrics.show_depth(name, depth);
        queue
    }
}

impl<K: Clone + Ord + Hash> WorkQueue<K> {
    /// Asks for a reconcile of a key now.
    pub fn add(&self, key: K) {
        self.add_after(key, Duration::ZERO);
    }

    /// Asks for a reconcile after a delay, so that several changes share one.
    pub fn add_after(&self, key: K, delay: Duration) {
        if self.state.lock().schedule(key, Instant::now() + delay) {
            self.metrics.count_add();
        }
        self.changed.notify_one();
    }

    /// Returns when keys may have become due earlier than was known.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The next key that is due, or when there will be one.
    pub(super) fn take(&self) -> Result<K, Option<Instant>> {
        let mut state = self.state.lock();
        let at = state.due.first().map(|(at, _)| *at).ok_or(None)?;
        let now = Instant::now();
        if at > now {
            return Err(Some(at));
        }
        let (_, key) = state.due.pop_first().ok_or(None)?;
        let entry = state.entries.entry(key.clone()).or_default();
        (entry.at, entry.running) = (None, true);
        self.metrics.observe_wait(now - at);
        Ok(key)
    }

    /// Puts a key back after a reconcile; after a failure, says how long it backs off.
    pub(super) fn done(&self, key: K, took: Duration, result: Result<Option<Duration>, Backoff>) -> Option<Duration> {
        self.metrics.observe_work(took);
        let mut state = self.state.lock();
        let entry = state.entries.get_mut(&key)?;
        entry.running = false;
        let added = entry.at.take();
        let (delay, next) = match result {
            Ok(next) => {
                entry.failures = 0;
                (None, next)
            }
            Err(Backoff { first, longest }) => {
                let delay = first.saturating_mul(1 << entry.failures.min(16)).min(longest);
                entry.failures = entry.failures.saturating_add(1);
                self.metrics.count_retry();
                (Some(delay), Some(delay))
            }
        };
        if added.is_none() && next.is_none() {
            state.entries.remove(&key);
        }
        let now = Instant::now();
        for at in added.into_iter().chain(next.map(|after| now + after)) {
            state.schedule(key.clone(), at);
        }
        delay
    }

    /// Whether it remembers nothing.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.entries.is_empty() && state.due.is_empty()
    }
}

impl<K: Send + Sync> QueueDepth for WorkQueue<K> {
    fn depth(&self) -> usize {
        let now = Instant::now();
        self.state.lock().due.iter().take_while(|(at, _)| *at <= now).count()
    }
}

impl<K: Clone + Ord + Hash> State<K> {
    /// Whether the key was not waiting before.
    fn schedule(&mut self, key: K, at: Instant) -> bool {
        let entry = self.entries.entry(key.clone()).or_default();
        if entry.at.is_some_and(|earlier| earlier <= at) {
            return false;
        }
        let later = entry.at.replace(at);
        if entry.running {
            return later.is_none(); // `done` looks at `at`
        }
        if let Some(later) = later {
            self.due.remove(&(later, key.clone()));
        }
        self.due.insert((at, key));
        later.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn depth_counts_what_is_due_and_neither_what_waits_nor_what_runs() {
        let queue = WorkQueue::new("test", &ControllerMetrics::default());
        queue.add(1);
        queue.add(2);
        queue.add(2);
        queue.add_after(3, Duration::from_secs(10));
        assert_eq!(queue.depth(), 2);
        assert_eq!(queue.take(), Ok(1));
        assert_eq!(queue.depth(), 1);
        tokio::time::advance(Duration::from_secs(11)).await;
        assert_eq!(queue.depth(), 2);
    }
}
