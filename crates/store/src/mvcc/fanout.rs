//! Finds the watchers of a change and puts it into their queues.
//!
//! A write costs a few hash lookups and then as much as there are watchers that want it; watchers
//! of other prefixes are not touched. Prefixes that end at a `/` (nearly all) are found by looking
//! up the ancestors of the changed key. Any other prefix is found by its length: one lookup
//! for each distinct length among them. Watchers of a part of a prefix are found by the value that makes the part:
//! a thousand of them, each with its own, cost a change no more than one does.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Batch;
use crate::{Change, Entry, IndexMatch, Revision, WatchIndex};

/// What waits to be delivered to one watch.
pub(super) struct WatchQueue {
    pub(super) prefix: Arc<str>,
    part: Option<IndexMatch>,
    pub(super) pending: Mutex<QueueState>,
    pub(super) wake: Notify,
    /// Most changes to hold.
    limit: usize,
}

pub(super) enum QueueState {
    /// Everything between the last delivery and now is in `batches`.
    Live {
        batches: VecDeque<Batch>,
        changes: usize,
    },
    /// To be continued from history: too old to begin with, or the reader is slower than the writers.
    Behind {
        after: Revision,
    },
    Closed,
}

impl QueueState {
    pub(super) fn live() -> QueueState {
        QueueState::Live { batches: VecDeque::new(), changes: 0 }
    }
}

impl WatchQueue {
    fn push(&self, batch: &Batch) {
        let mut pending = self.pending.lock();
        let QueueState::Live { batches, changes } = &mut *pending else { return };
        batches.push_back(batch.clone());
        *changes += batch.len();
        if *changes > self.limit {
            // Everything before the first waiting batch has been delivered.
            let first = batches[0][0].revision;
            *pending = QueueState::Behind { after: Revision(first.0 - 1) };
        }
        drop(pending);
        self.wake.notify_one();
    }
}

type WatchQueues = Vec<Arc<WatchQueue>>;

/// The watchers of one prefix.
#[derive(Default)]
struct PrefixWatchers {
    whole: WatchQueues,
    parts: Vec<IndexedWatchers>,
}

/// Watchers of parts, by what makes a part.
struct IndexedWatchers {
    index: Arc<dyn WatchIndex>,
    by_value: HashMap<Box<str>, WatchQueues>,
}

impl PrefixWatchers {
    fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.parts.is_empty()
    }

    fn add(&mut self, queue: Arc<WatchQueue>) {
        let Some(IndexMatch { index, value }) = &queue.part else { return self.whole.push(queue) };
        let known = self.parts.iter().position(|parts| parts.index.name() == index.name());
        let at = known.unwrap_or_else(|| {
            self.parts.push(IndexedWatchers { index: index.clone(), by_value: HashMap::new() });
            self.parts.len() - 1
        });
        self.parts[at].by_value.entry(value.clone()).or_default().push(queue);
    }

    /// `false` if it is not there.
    fn remove(&mut self, queue: &Arc<WatchQueue>) -> bool {
        let take = |queues: &mut WatchQueues| {
            let at = queues.iter().position(|i| Arc::ptr_eq(i, queue));
            at.map(|at| queues.swap_remove(at)).is_some()
        };
        let Some(IndexMatch { index, value }) = &queue.part else { return take(&mut self.whole) };
        let Some(at) = self.parts.iter().position(|parts| parts.index.name() == index.name()) else { return false };
        let by_value = &mut self.parts[at].by_value;
        let Some(queues) = by_value.get_mut(value) else { return false };
        let taken = take(queues);
        if queues.is_empty() {
            by_value.remove(value);
        }
        if by_value.is_empty() {
            self.parts.swap_remove(at);
        }
        taken
    }

    fn all(&self) -> impl Iterator<Item = &Arc<WatchQueue>> {
        let parts = self.parts.iter().flat_map(|parts| parts.by_value.values().flatten());
        self.whole.iter().chain(parts)
    }

    fn push(&self, batch: &Batch) {
        self.whole.iter().for_each(|queue| queue.push(batch));
        self.parts.iter().for_each(|parts| parts.push(batch));
    }
}

impl IndexedWatchers {
    /// The parts a change concerns: the one its key was in, and the one it is in now.
    fn matching_values<'a>(&'a self, change: &'a Change) -> impl Iterator<Item = (&'a Box<str>, &'a WatchQueues)> {
        let value = |entry: &'a Option<Arc<Entry>>| entry.as_deref().map(|entry| self.index.value(entry));
        let (before, after) = (value(&change.previous), value(&change.current));
        let moved = after.filter(|after| Some(*after) != before);
        before.into_iter().chain(moved).filter_map(|value| self.by_value.get_key_value(value))
    }

    fn push(&self, batch: &Batch) {
        if let [change] = &**batch {
            for (_, queues) in self.matching_values(change) {
                queues.iter().for_each(|queue| queue.push(batch));
            }
            return;
        }
        let mut wanted: HashMap<&Box<str>, (Vec<Change>, &WatchQueues)> = HashMap::new();
        for change in batch.iter() {
            for (value, queues) in self.matching_values(change) {
                wanted.entry(value).or_insert_with(|| (Vec::new(), queues)).0.push(change.clone());
            }
        }
        for (changes, queues) in wanted.into_values() {
            let part: Batch = changes.into();
            queues.iter().for_each(|queue| queue.push(&part));
        }
    }
}

#[derive(Default)]
pub(super) struct Watchers(Mutex<WatcherIndex>);

#[derive(Default)]
struct WatcherIndex {
    by_prefix: HashMap<Arc<str>, PrefixWatchers>,
    /// How many registered prefixes that do not end at a `/` have each length.
    odd_lengths: BTreeMap<usize, usize>,
    closed: bool,
}

fn ends_at_boundary(prefix: &str) -> bool {
    prefix.ends_with('/')
}

impl WatcherIndex {
    fn matching<'a>(&'a self, key: &'a str) -> impl Iterator<Item = (&'a Arc<str>, &'a PrefixWatchers)> {
        let ancestors = key.bytes().enumerate().filter(|(_, b)| *b == b'/').map(|(at, _)| at + 1);
        let odd = self.odd_lengths.keys().copied().take_while(|len| *len <= key.len());
        ancestors.chain(odd).filter_map(|len| self.by_prefix.get_key_value(key.get(..len)?))
    }
}

impl Watchers {
    pub(super) fn register(
        &self,
        prefix: &str,
        part: Option<IndexMatch>,
        after: Revision,
        now: Revision,
        limit: usize,
    ) -> Arc<WatchQueue> {
        let mut index = self.0.lock();
        let prefix = match index.by_prefix.get_key_value(prefix) {
            Some((known, _)) => known.clone(),
            None => Arc::from(prefix),
        };
        let pending = match (index.closed, after == now) {
            (true, _) => QueueState::Closed,
            (false, true) => QueueState::live(),
            (false, false) => QueueState::Behind { after },
        };
        let pending = Mutex::new(pending);
        let queue = Arc::new(WatchQueue { prefix: prefix.clone(), part, pending, wake: Notify::new(), limit });
        if !ends_at_boundary(&prefix) {
            *index.odd_lengths.entry(prefix.len()).or_default() += 1;
        }
        index.by_prefix.entry(prefix).or_default().add(queue.clone());
        queue
    }

    pub(super) fn unregister(&self, queue: &Arc<WatchQueue>) {
        let mut index = self.0.lock();
        let prefix = &queue.prefix;
        let Some(group) = index.by_prefix.get_mut(prefix) else { return };
        if !group.remove(queue) {
            return;
        }
        if group.is_empty() {
            index.by_prefix.remove(prefix);
        }
        if !ends_at_boundary(prefix)
            && let Some(count) = index.odd_lengths.get_mut(&prefix.len())
        {
            *count -= 1;
            if *count == 0 {
                index.odd_lengths.remove(&prefix.len());
            }
        }
    }

    pub(super) fn deliver(&self, batch: &Batch) {
        let index = self.0.lock();
        if index.by_prefix.is_empty() {
            return;
        }
        if let [change] = &**batch {
            index.matching(&change.key).for_each(|(_, group)| group.push(batch));
            return;
        }
        let mut parts: HashMap<&Arc<str>, (Vec<&Change>, &PrefixWatchers)> = HashMap::new();
        for change in batch.iter() {
            for (prefix, group) in index.matching(&change.key) {
                parts.entry(prefix).or_insert_with(|| (Vec::new(), group)).0.push(change);
            }
        }
        for (changes, group) in parts.into_values() {
            let part = match changes.len() == batch.len() {
                true => batch.clone(),
                false => changes.into_iter().cloned().collect(),
            };
            group.push(&part);
        }
    }

    pub(super) fn close(&self) {
        let mut index = self.0.lock();
        index.closed = true;
        for queue in index.by_prefix.values().flat_map(PrefixWatchers::all) {
            *queue.pending.lock() = QueueState::Closed;
            queue.wake.notify_one();
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let index = self.0.lock();
        index.by_prefix.is_empty() && index.odd_lengths.is_empty()
    }
}
