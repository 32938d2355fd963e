//! Runs controllers: a queue of keys, a bounded number of turns at once, retries with back-off.
//!
//! A key is worked on by one turn at a time. Waking a key that waits, however long, brings it
//! forward; waking one that is being worked on makes it run once more afterwards, however often
//! it was woken. Nothing is polled: an idle runner sleeps until a key is woken or falls due.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, stream::FuturesUnordered};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    failure::Failure,
    shell::{self, Controller},
};

/// After a failure; doubles with every further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// After losing a race, which the next look settles.
const STALE_PAUSE: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Turns under way at once.
    pub width: usize,
    /// The longest pause before a retry.
    pub longest_pause: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { width: 8, longest_pause: Duration::from_secs(60) }
    }
}

/// Keys that want a look, now or later.
pub struct Queue<K> {
    state: Mutex<State<K>>,
    changed: Notify,
}

struct State<K> {
    due: BTreeSet<(Instant, K)>,
    slots: HashMap<K, Slot>,
}

#[derive(Default)]
struct Slot {
    /// In `due`, unless it is running.
    at: Option<Instant>,
    running: bool,
    failures: u32,
}

impl<K: Clone + Ord + Hash> Queue<K> {
    pub fn new() -> Arc<Self> {
        let state = State { due: BTreeSet::new(), slots: HashMap::new() };
        Arc::new(Self { state: Mutex::new(state), changed: Notify::new() })
    }

    /// Asks for a look at a key now.
    pub fn wake(&self, key: K) {
        self.wake_within(key, Duration::ZERO);
    }

    /// Asks for a look within a time, so that several causes share one look.
    pub fn wake_within(&self, key: K, delay: Duration) {
        self.state.lock().schedule(key, Instant::now() + delay);
        self.changed.notify_one();
    }

    /// The next key that is due, or when there will be one.
    fn take(&self) -> Result<K, Option<Instant>> {
        let mut state = self.state.lock();
        let at = state.due.first().map(|(at, _)| *at).ok_or(None)?;
        if at > Instant::now() {
            return Err(Some(at));
        }
        let (_, key) = state.due.pop_first().ok_or(None)?;
        let slot = state.slots.entry(key.clone()).or_default();
        (slot.at, slot.running) = (None, true);
        Ok(key)
    }

    /// Puts a key back after a turn; after a failure, says how long it pauses.
    fn settle(&self, key: K, result: Result<Option<Duration>, Pause>) -> Option<Duration> {
        let mut state = self.state.lock();
        let slot = state.slots.get_mut(&key)?;
        slot.running = false;
        let woken = slot.at.take();
        let (pause, next) = match result {
            Ok(next) => {
                slot.failures = 0;
                (None, next)
            }
            Err(Pause { first, longest }) => {
                let pause = first.saturating_mul(1 << slot.failures.min(16)).min(longest);
                slot.failures = slot.failures.saturating_add(1);
                (Some(pause), Some(pause))
            }
        };
        if woken.is_none() && next.is_none() {
            state.slots.remove(&key);
        }
        let now = Instant::now();
        for at in woken.into_iter().chain(next.map(|after| now + after)) {
            state.schedule(key.clone(), at);
        }
        pause
    }
}

impl<K: Clone + Ord + Hash> State<K> {
    fn schedule(&mut self, key: K, at: Instant) {
        let slot = self.slots.entry(key.clone()).or_default();
        if slot.at.is_some_and(|earlier| earlier <= at) {
            return;
        }
        let later = slot.at.replace(at);
        if slot.running {
            return; // `settle` looks at `at`
        }
        if let Some(later) = later {
            self.due.remove(&(later, key.clone()));
        }
        self.due.insert((at, key));
    }
}

struct Pause {
    first: Duration,
    longest: Duration,
}

/// Runs a controller until asked to stop, then lets the turns under way end.
pub async fn run<C: Controller>(
    controller: Arc<C>,
    queue: Arc<Queue<C::Key>>,
    limits: Limits,
    stop: CancellationToken,
) {
    let mut turns = FuturesUnordered::new();
    loop {
        let mut next = None;
        while turns.len() < limits.width && !stop.is_cancelled() {
            match queue.take() {
                Ok(key) => turns.push(one(&*controller, key, &stop)),
                Err(at) => {
                    next = at;
                    break;
                }
            }
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some((key, result)) = turns.next(), if !turns.is_empty() => settle::<C>(&queue, limits, key, result),
            () = queue.changed.notified() => {}
            () = until(next) => {}
        }
    }
    while turns.next().await.is_some() {}
}

async fn one<'c, C: Controller>(
    controller: &'c C,
    key: C::Key,
    stop: &'c CancellationToken,
) -> (C::Key, Result<Option<Duration>, Failure>) {
    let now = Timestamp::now();
    let result = shell::turn(controller, &key, now, stop).await;
    let pause = |at: Timestamp| Duration::try_from(at.duration_since(now)).unwrap_or_default();
    (key, result.map(|at| at.map(pause)))
}

fn settle<C: Controller>(
    queue: &Queue<C::Key>,
    limits: Limits,
    key: C::Key,
    result: Result<Option<Duration>, Failure>,
) {
    match result {
        Ok(next) => {
            queue.settle(key, Ok(next));
        }
        Err(failure) => {
            let stale = failure.is_stale();
            let first = if stale { STALE_PAUSE } else { FIRST_PAUSE };
            let pause = queue.settle(key.clone(), Err(Pause { first, longest: limits.longest_pause }));
            let (why, pause) = (failure.chain(), pause.unwrap_or_default());
            if stale {
                tracing::debug!(controller = C::NAME, ?key, why, ?pause, "lost a race; will look again");
            } else {
                tracing::warn!(controller = C::NAME, ?key, why, ?pause, "cannot do what is needed; will try again");
            }
        }
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
