//! The scheduling queue: which pods wait, and when each is tried again. Pure: time is an argument, randomness a seed.
//!
//! A pod is *active* (ready to be tried), *in flight* (being scheduled or bound), *unschedulable* (no node fits), or
//! *backing off* (binding it failed). Active pods are popped by priority, then by age.
//!
//! Unschedulable pods are not tried again while nothing changes, however long that takes: a thousand of them set no
//! timer. There are two ways back:
//!
//! * A change that may make them schedulable ([`SchedulingQueue::move_to_active`]) makes them active at once, whatever
//!   their backoff. That is decided once for all pods of a class.
//! * After a change that seems not to concern them ([`SchedulingQueue::start_backoff_timers`]) they are tried when their
//!   backoff is over. Should a queueing hint ever be wrong, that costs a minute and not the pod.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::Hash,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use mainstay_backoff::Backoff;

/// By priority, then by age, then by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct QueueOrder {
    priority: Reverse<i32>,
    created: Timestamp,
    arrival: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueState {
    Active,
    InFlight,
    /// With `timer`, something changed since, and it is tried when its backoff is over.
    Unschedulable {
        timer: bool,
    },
    /// It is tried when its backoff is over.
    BackingOff,
}

#[derive(Clone, Debug)]
struct QueueEntry<C> {
    class: C,
    order: QueueOrder,
    state: QueueState,
    failures: u32,
    /// When its backoff ends.
    until: Instant,
    delay: Duration,
    since: Instant,
}

/// A pod in the queue, for `/debug`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingPod<K> {
    pub pod: K,
    /// How long until it is tried in any case; `None` if only a change makes it active.
    pub due_in: Option<Duration>,
    /// Its current backoff.
    pub delay: Duration,
    pub failures: u32,
}

/// A pod to schedule now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoppedPod<K> {
    pub pod: K,
    /// How long it has been active.
    pub waited: Duration,
}

pub struct SchedulingQueue<K, C> {
    backoff: Backoff,
    rng: fastrand::Rng,
    arrivals: u64,
    entries: HashMap<K, QueueEntry<C>>,
    active: BTreeMap<QueueOrder, K>,
    timers: BTreeSet<(Instant, u64)>,
    by_arrival: HashMap<u64, K>,
    /// Unschedulable pods, by class.
    unschedulable: HashMap<C, BTreeSet<QueueOrder>>,
    /// Arrivals of unschedulable pods that have no timer.
    without_timer: BTreeSet<u64>,
}

impl<K: Clone + Eq + Hash, C: Clone + Eq + Hash> SchedulingQueue<K, C> {
    pub fn new(backoff: Backoff, seed: u64) -> Self {
        Self {
            backoff,
            rng: fastrand::Rng::with_seed(seed),
            arrivals: 0,
            entries: HashMap::new(),
            active: BTreeMap::new(),
            timers: BTreeSet::new(),
            by_arrival: HashMap::new(),
            unschedulable: HashMap::new(),
            without_timer: BTreeSet::new(),
        }
    }

    /// Adds a pod. One that is queued already is tried at once if its class changed; its backoff stays.
    pub fn add(&mut self, pod: K, priority: i32, created: Timestamp, class: C, now: Instant) {
        if let Some(known) = self.entries.get(&pod) {
            if known.class == class && known.order.priority == Reverse(priority) {
                return;
            }
            let state = known.state;
            self.remove_by_state(&pod);
            if let Some(known) = self.entries.get_mut(&pod) {
                (known.class, known.order.priority) = (class, Reverse(priority));
                known.since = now;
            }
            self.insert_by_state(
                &pod,
                if state == QueueState::InFlight { QueueState::InFlight } else { QueueState::Active },
            );
            return;
        }
        let order = QueueOrder { priority: Reverse(priority), created, arrival: self.arrivals };
        self.arrivals += 1;
        let (state, delay) = (QueueState::Active, Duration::ZERO);
        let entry = QueueEntry { class, order, state, failures: 0, until: now, delay, since: now };
        self.by_arrival.insert(order.arrival, pod.clone());
        self.entries.insert(pod.clone(), entry);
        self.insert_by_state(&pod, QueueState::Active);
    }

    /// The pod is bound, deleted or not ours any more.
    pub fn remove(&mut self, pod: &K) -> bool {
        self.remove_by_state(pod);
        let removed = self.entries.remove(pod);
        if let Some(entry) = &removed {
            self.by_arrival.remove(&entry.order.arrival);
        }
        removed.is_some()
    }

    pub fn contains(&self, pod: &K) -> bool {
        self.entries.contains_key(pod)
    }

    /// The next active pods, at most `most`. They are in flight until they are marked, activated or removed.
    pub fn pop_batch(&mut self, most: usize, now: Instant) -> Vec<PoppedPod<K>> {
        self.flush_expired_backoffs(now);
        let mut taken = Vec::with_capacity(most.min(self.active.len()));
        while taken.len() < most {
            let Some((_, pod)) = self.active.pop_first() else { break };
            let Some(entry) = self.entries.get_mut(&pod) else { continue };
            entry.state = QueueState::InFlight;
            taken.push(PoppedPod { pod, waited: now.saturating_duration_since(entry.since) });
        }
        taken
    }

    /// No node fits.
    pub fn mark_unschedulable(&mut self, pod: &K, now: Instant) {
        self.requeue(pod, QueueState::Unschedulable { timer: false }, now);
    }

    /// A node fitted, but the pod was not bound.
    pub fn mark_failed(&mut self, pod: &K, now: Instant) {
        self.requeue(pod, QueueState::BackingOff, now);
    }

    /// No node fits, but the pod is to be tried when its backoff is over even if nothing changes.
    pub fn retry_after_backoff(&mut self, pod: &K) {
        if self.entries.get(pod).is_some_and(|entry| matches!(entry.state, QueueState::Unschedulable { .. })) {
            self.remove_by_state(pod);
            self.insert_by_state(pod, QueueState::BackingOff);
        }
    }

    /// Makes the pod active at once.
    pub fn activate(&mut self, pod: &K, now: Instant) {
        if let Some(entry) = self.entries.get_mut(pod).filter(|entry| entry.state != QueueState::Active) {
            entry.since = now;
            self.remove_by_state(pod);
            self.insert_by_state(pod, QueueState::Active);
        }
    }

    /// Something changed: unschedulable pods of the classes that it `could_help` become active at once, the others when
    /// their backoff is over. Returns how many became active.
    pub fn move_to_active(&mut self, now: Instant, mut could_help: impl FnMut(&C) -> bool) -> usize {
        let classes: Vec<C> = self.unschedulable.keys().filter(|class| could_help(class)).cloned().collect();
        let mut moved = 0;
        for class in classes {
            for order in self.unschedulable.get(&class).cloned().unwrap_or_default() {
                if let Some(pod) = self.by_arrival.get(&order.arrival).cloned() {
                    self.activate(&pod, now);
                    moved += 1;
                }
            }
        }
        self.start_backoff_timers();
        moved
    }

    /// Something changed that helps no class, as far as hints can tell.
    pub fn start_backoff_timers(&mut self) {
        for arrival in std::mem::take(&mut self.without_timer) {
            let Some(entry) = self.by_arrival.get(&arrival).and_then(|pod| self.entries.get_mut(pod)) else { continue };
            entry.state = QueueState::Unschedulable { timer: true };
            self.timers.insert((entry.until, arrival));
        }
    }

    /// When the next backoff ends; `now` if a pod is active.
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        if !self.active.is_empty() {
            return Some(now);
        }
        self.timers.first().map(|(until, _)| *until)
    }

    pub fn has_unschedulable(&self) -> bool {
        !self.unschedulable.is_empty()
    }

    /// How many pods wait for something to change.
    pub fn unschedulable_count(&self) -> usize {
        self.unschedulable.values().map(|pods| pods.len()).sum()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All pods, in the order in which they would be tried if all were active.
    pub fn waiting_pods(&self, now: Instant) -> Vec<WaitingPod<K>> {
        let mut all: Vec<(&K, &QueueEntry<C>)> = self.entries.iter().collect();
        all.sort_by_key(|(_, entry)| entry.order);
        let waiting = all.into_iter().map(|(pod, entry)| WaitingPod {
            pod: pod.clone(),
            due_in: match entry.state {
                QueueState::Active | QueueState::InFlight => Some(Duration::ZERO),
                QueueState::Unschedulable { timer: true } | QueueState::BackingOff => {
                    Some(entry.until.saturating_duration_since(now))
                }
                QueueState::Unschedulable { timer: false } => None,
            },
            delay: entry.delay,
            failures: entry.failures,
        });
        waiting.collect()
    }

    /// Makes pods active whose backoff is over.
    fn flush_expired_backoffs(&mut self, now: Instant) {
        while let Some(&(until, arrival)) = self.timers.first().filter(|(until, _)| *until <= now) {
            self.timers.remove(&(until, arrival));
            if let Some(pod) = self.by_arrival.get(&arrival).cloned() {
                self.activate(&pod, now);
            }
        }
    }

    fn requeue(&mut self, pod: &K, state: QueueState, now: Instant) {
        let Some(entry) = self.entries.get_mut(pod).filter(|entry| entry.state == QueueState::InFlight) else { return };
        entry.failures = entry.failures.saturating_add(1);
        entry.delay = self.backoff.delay(entry.failures, self.rng.f64());
        entry.until = now + entry.delay;
        self.insert_by_state(pod, state);
    }

    /// Adds a pod to the collections of its state.
    fn insert_by_state(&mut self, pod: &K, state: QueueState) {
        let Some(entry) = self.entries.get_mut(pod) else { return };
        entry.state = state;
        match state {
            QueueState::Active => {
                self.active.insert(entry.order, pod.clone());
            }
            QueueState::InFlight => {}
            QueueState::Unschedulable { timer } => {
                self.unschedulable.entry(entry.class.clone()).or_default().insert(entry.order);
                if timer {
                    self.timers.insert((entry.until, entry.order.arrival));
                } else {
                    self.without_timer.insert(entry.order.arrival);
                }
            }
            QueueState::BackingOff => {
                self.timers.insert((entry.until, entry.order.arrival));
            }
        }
    }

    /// Removes a pod from the collections of its state.
    fn remove_by_state(&mut self, pod: &K) {
        let Some(entry) = self.entries.get(pod) else { return };
        self.timers.remove(&(entry.until, entry.order.arrival));
        match entry.state {
            QueueState::Active => {
                self.active.remove(&entry.order);
            }
            QueueState::InFlight | QueueState::BackingOff => {}
            QueueState::Unschedulable { .. } => {
                self.without_timer.remove(&entry.order.arrival);
                if let Some(ranks) = self.unschedulable.get_mut(&entry.class) {
                    ranks.remove(&entry.order);
                    if ranks.is_empty() {
                        self.unschedulable.remove(&entry.class);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
