//! Who waits to be placed, and when they are tried again. Pure: time comes in as an argument, chance as a seed.
//!
//! A pod is *ready* to be tried, *out* being tried, or *asleep*. Ready ones are taken by priority, then by age.
//! Asleep are those that fit nowhere ([`Queue::unfit`]) and those whose placing failed for a cause that
//! time heals ([`Queue::failed`]).
//!
//! Who fits nowhere is not tried again while nothing changes, however long that takes: a thousand of them set no timer.
//! There are two ways back:
//!
//! * A change that could make them fit ([`Queue::wake`]) makes them ready at once, whatever their
//!   back-off. It is judged once for all pods of a class.
//! * A change that seems not to concern them ([`Queue::stir`]) lets them be tried when their back-off is over. Such
//!   a change is no reason to hope, but should a judgement ever be wrong, it costs a minute and not the pod.
//!
//! Back-off doubles from `first` to `longest` and is drawn evenly from nothing to all of that, so that those who failed
//! together do not come back together.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::Hash,
    time::{Duration, Instant},
};

use jiff::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub first: Duration,
    pub longest: Duration,
}

impl Backoff {
    /// What is drawn from after so many failures in a row.
    pub fn ceiling(&self, failures: u32) -> Duration {
        let doubled = 2u32.checked_pow(failures.saturating_sub(1)).and_then(|times| self.first.checked_mul(times));
        doubled.map_or(self.longest, |ceiling| ceiling.min(self.longest))
    }
}

/// Who comes first: the more important, then the older, then whoever was heard of first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    priority: Reverse<i32>,
    created: Timestamp,
    arrival: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    Out,
    /// Fits nowhere. With `timer`, something happened since, and it is tried when its back-off is over.
    Unfit {
        timer: bool,
    },
    /// Tried again when its back-off is over.
    Failed,
}

#[derive(Clone, Debug)]
struct Entry<C> {
    class: C,
    rank: Rank,
    state: State,
    failures: u32,
    /// When its back-off ends, for those asleep.
    until: Instant,
    delay: Duration,
    since: Instant,
}

/// A pod in the queue, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting<K> {
    pub pod: K,
    /// How long until it is tried in any case; nothing if only a change brings it back.
    pub due_in: Option<Duration>,
    /// Its current back-off.
    pub delay: Duration,
    pub failures: u32,
}

/// A pod that is to be tried now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken<K> {
    pub pod: K,
    /// Since when it has been ready.
    pub waited: Duration,
}

pub struct Queue<K, C> {
    backoff: Backoff,
    chance: fastrand::Rng,
    arrivals: u64,
    entries: HashMap<K, Entry<C>>,
    ready: BTreeMap<Rank, K>,
    timers: BTreeSet<(Instant, u64)>,
    by_arrival: HashMap<u64, K>,
    /// Those that fit nowhere, by class.
    unfit: HashMap<C, BTreeSet<Rank>>,
    /// Those of them that have no timer.
    resting: BTreeSet<u64>,
}

impl<K: Clone + Eq + Hash, C: Clone + Eq + Hash> Queue<K, C> {
    pub fn new(backoff: Backoff, seed: u64) -> Self {
        Self {
            backoff,
            chance: fastrand::Rng::with_seed(seed),
            arrivals: 0,
            entries: HashMap::new(),
            ready: BTreeMap::new(),
            timers: BTreeSet::new(),
            by_arrival: HashMap::new(),
            unfit: HashMap::new(),
            resting: BTreeSet::new(),
        }
    }

    /// A pod to place. One that is known already is tried again at once if it became another class; its back-off stays.
    pub fn add(&mut self, pod: K, priority: i32, created: Timestamp, class: C, now: Instant) {
        if let Some(known) = self.entries.get(&pod) {
            if known.class == class && known.rank.priority == Reverse(priority) {
                return;
            }
            let state = known.state;
            self.detach(&pod);
            if let Some(known) = self.entries.get_mut(&pod) {
                (known.class, known.rank.priority) = (class, Reverse(priority));
                known.since = now;
            }
            self.attach(&pod, if state == State::Out { State::Out } else { State::Ready });
            return;
        }
        let rank = Rank { priority: Reverse(priority), created, arrival: self.arrivals };
        self.arrivals += 1;
        let (state, delay) = (State::Ready, Duration::ZERO);
        let entry = Entry { class, rank, state, failures: 0, until: now, delay, since: now };
        self.by_arrival.insert(rank.arrival, pod.clone());
        self.entries.insert(pod.clone(), entry);
        self.attach(&pod, State::Ready);
    }

    /// Placed, gone, or not ours any more.
    pub fn remove(&mut self, pod: &K) -> bool {
        self.detach(pod);
        let removed = self.entries.remove(pod);
        if let Some(entry) = &removed {
            self.by_arrival.remove(&entry.rank.arrival);
        }
        removed.is_some()
    }

    pub fn contains(&self, pod: &K) -> bool {
        self.entries.contains_key(pod)
    }

    /// Those to try now, at most `most`, the first first. They are out until they are unfit, failed, back or removed.
    pub fn take(&mut self, most: usize, now: Instant) -> Vec<Taken<K>> {
        self.ring(now);
        let mut taken = Vec::with_capacity(most.min(self.ready.len()));
        while taken.len() < most {
            let Some((_, pod)) = self.ready.pop_first() else { break };
            let Some(entry) = self.entries.get_mut(&pod) else { continue };
            entry.state = State::Out;
            taken.push(Taken { pod, waited: now.saturating_duration_since(entry.since) });
        }
        taken
    }

    /// It fits nowhere.
    pub fn unfit(&mut self, pod: &K, now: Instant) {
        self.sleep(pod, State::Unfit { timer: false }, now);
    }

    /// It could have been placed, and yet it was not.
    pub fn failed(&mut self, pod: &K, now: Instant) {
        self.sleep(pod, State::Failed, now);
    }

    /// It fits nowhere, and is to be tried when its back-off is over even if nothing changes.
    pub fn in_any_case(&mut self, pod: &K) {
        if self.entries.get(pod).is_some_and(|entry| matches!(entry.state, State::Unfit { .. })) {
            self.detach(pod);
            self.attach(pod, State::Failed);
        }
    }

    /// It is to be tried again at once, as if it had not been.
    pub fn back(&mut self, pod: &K, now: Instant) {
        if let Some(entry) = self.entries.get_mut(pod).filter(|entry| entry.state != State::Ready) {
            entry.since = now;
            self.detach(pod);
            self.attach(pod, State::Ready);
        }
    }

    /// Something changed: those of the classes that it `could_help` are ready at once, the others when their
    /// back-off is over. Says how many are ready that were not.
    pub fn wake(&mut self, now: Instant, mut could_help: impl FnMut(&C) -> bool) -> usize {
        let helped: Vec<C> = self.unfit.keys().filter(|class| could_help(class)).cloned().collect();
        let mut woken = 0;
        for class in helped {
            for rank in self.unfit.get(&class).cloned().unwrap_or_default() {
                if let Some(pod) = self.by_arrival.get(&rank.arrival).cloned() {
                    self.back(&pod, now);
                    woken += 1;
                }
            }
        }
        self.stir();
        woken
    }

    /// Something changed that helps nobody, as far as one can tell.
    pub fn stir(&mut self) {
        for arrival in std::mem::take(&mut self.resting) {
            let Some(entry) = self.by_arrival.get(&arrival).and_then(|pod| self.entries.get_mut(pod)) else { continue };
            entry.state = State::Unfit { timer: true };
            self.timers.insert((entry.until, arrival));
        }
    }

    /// When somebody's back-off ends who is tried then; `now` if somebody is ready.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        if !self.ready.is_empty() {
            return Some(now);
        }
        self.timers.first().map(|(until, _)| *until)
    }

    /// Whether anybody fits nowhere.
    pub fn has_unfit(&self) -> bool {
        !self.unfit.is_empty()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Everybody who waits, in the order in which they would be tried if all were ready.
    pub fn waiting(&self, now: Instant) -> Vec<Waiting<K>> {
        let mut all: Vec<(&K, &Entry<C>)> = self.entries.iter().collect();
        all.sort_by_key(|(_, entry)| entry.rank);
        let told = all.into_iter().map(|(pod, entry)| Waiting {
            pod: pod.clone(),
            due_in: match entry.state {
                State::Ready | State::Out => Some(Duration::ZERO),
                State::Unfit { timer: true } | State::Failed => Some(entry.until.saturating_duration_since(now)),
                State::Unfit { timer: false } => None,
            },
            delay: entry.delay,
            failures: entry.failures,
        });
        told.collect()
    }

    /// Those whose back-off is over are ready.
    fn ring(&mut self, now: Instant) {
        while let Some(&(until, arrival)) = self.timers.first().filter(|(until, _)| *until <= now) {
            self.timers.remove(&(until, arrival));
            if let Some(pod) = self.by_arrival.get(&arrival).cloned() {
                self.back(&pod, now);
            }
        }
    }

    fn sleep(&mut self, pod: &K, state: State, now: Instant) {
        let Some(entry) = self.entries.get_mut(pod).filter(|entry| entry.state == State::Out) else { return };
        entry.failures = entry.failures.saturating_add(1);
        let ceiling = self.backoff.ceiling(entry.failures);
        entry.delay = ceiling.mul_f64(self.chance.f64());
        entry.until = now + entry.delay;
        self.attach(pod, state);
    }

    /// Enters a pod where its state belongs.
    fn attach(&mut self, pod: &K, state: State) {
        let Some(entry) = self.entries.get_mut(pod) else { return };
        entry.state = state;
        match state {
            State::Ready => {
                self.ready.insert(entry.rank, pod.clone());
            }
            State::Out => {}
            State::Unfit { timer } => {
                self.unfit.entry(entry.class.clone()).or_default().insert(entry.rank);
                if timer {
                    self.timers.insert((entry.until, entry.rank.arrival));
                } else {
                    self.resting.insert(entry.rank.arrival);
                }
            }
            State::Failed => {
                self.timers.insert((entry.until, entry.rank.arrival));
            }
        }
    }

    /// Removes a pod from where its state put it.
    fn detach(&mut self, pod: &K) {
        let Some(entry) = self.entries.get(pod) else { return };
        self.timers.remove(&(entry.until, entry.rank.arrival));
        match entry.state {
            State::Ready => {
                self.ready.remove(&entry.rank);
            }
            State::Out | State::Failed => {}
            State::Unfit { .. } => {
                self.resting.remove(&entry.rank.arrival);
                if let Some(ranks) = self.unfit.get_mut(&entry.class) {
                    ranks.remove(&entry.rank);
                    if ranks.is_empty() {
                        self.unfit.remove(&entry.class);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
