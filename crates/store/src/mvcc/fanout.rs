//! Which watchers a change concerns, and the inboxes it goes to.
//!
//! A write costs a few hash lookups and then as much as there are watchers that want it; watchers
//! of other prefixes are not touched. Prefixes that end at a `/` (nearly all) are found by looking
//! up the ancestors of the changed key. Any other prefix is found by its length: one lookup
//! for each distinct length among them.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Batch;
use crate::{Change, Revision};

/// What waits to be delivered to one watch.
pub(super) struct Inbox {
    pub(super) prefix: Arc<str>,
    pub(super) contents: Mutex<Contents>,
    pub(super) wake: Notify,
    /// Most changes to hold.
    limit: usize,
}

pub(super) enum Contents {
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

impl Contents {
    pub(super) fn live() -> Contents {
        Contents::Live { batches: VecDeque::new(), changes: 0 }
    }
}

impl Inbox {
    fn push(&self, batch: &Batch) {
        let mut contents = self.contents.lock();
        let Contents::Live { batches, changes } = &mut *contents else { return };
        batches.push_back(batch.clone());
        *changes += batch.len();
        if *changes > self.limit {
            // Everything before the first waiting batch has been delivered.
            let first = batches[0][0].revision;
            *contents = Contents::Behind { after: Revision(first.0 - 1) };
        }
        drop(contents);
        self.wake.notify_one();
    }
}

type Inboxes = Vec<Arc<Inbox>>;

#[derive(Default)]
pub(super) struct Watchers(Mutex<Index>);

#[derive(Default)]
struct Index {
    by_prefix: HashMap<Arc<str>, Inboxes>,
    /// How many registered prefixes that do not end at a `/` have each length.
    odd_lengths: BTreeMap<usize, usize>,
    closed: bool,
}

fn ends_at_boundary(prefix: &str) -> bool {
    prefix.ends_with('/')
}

impl Index {
    fn matching<'a>(&'a self, key: &'a str) -> impl Iterator<Item = (&'a Arc<str>, &'a Inboxes)> {
        let ancestors = key.bytes().enumerate().filter(|(_, b)| *b == b'/').map(|(at, _)| at + 1);
        let odd = self.odd_lengths.keys().copied().take_while(|len| *len <= key.len());
        ancestors.chain(odd).filter_map(|len| self.by_prefix.get_key_value(key.get(..len)?))
    }
}

impl Watchers {
    pub(super) fn register(&self, prefix: &str, after: Revision, now: Revision, limit: usize) -> Arc<Inbox> {
        let mut index = self.0.lock();
        let prefix = match index.by_prefix.get_key_value(prefix) {
            Some((known, _)) => known.clone(),
            None => Arc::from(prefix),
        };
        let contents = match (index.closed, after == now) {
            (true, _) => Contents::Closed,
            (false, true) => Contents::live(),
            (false, false) => Contents::Behind { after },
        };
        let contents = Mutex::new(contents);
        let inbox = Arc::new(Inbox { prefix: prefix.clone(), contents, wake: Notify::new(), limit });
        if !ends_at_boundary(&prefix) {
            *index.odd_lengths.entry(prefix.len()).or_default() += 1;
        }
        index.by_prefix.entry(prefix).or_default().push(inbox.clone());
        inbox
    }

    pub(super) fn unregister(&self, inbox: &Arc<Inbox>) {
        let mut index = self.0.lock();
        let prefix = &inbox.prefix;
        let Some(inboxes) = index.by_prefix.get_mut(prefix) else { return };
        let Some(at) = inboxes.iter().position(|i| Arc::ptr_eq(i, inbox)) else { return };
        inboxes.swap_remove(at);
        if inboxes.is_empty() {
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
            for (_, inboxes) in index.matching(&change.key) {
                inboxes.iter().for_each(|inbox| inbox.push(batch));
            }
            return;
        }
        let mut parts: HashMap<&Arc<str>, (Vec<&Change>, &Inboxes)> = HashMap::new();
        for change in batch.iter() {
            for (prefix, inboxes) in index.matching(&change.key) {
                parts.entry(prefix).or_insert_with(|| (Vec::new(), inboxes)).0.push(change);
            }
        }
        for (changes, inboxes) in parts.into_values() {
            let part = match changes.len() == batch.len() {
                true => batch.clone(),
                false => changes.into_iter().cloned().collect(),
            };
            inboxes.iter().for_each(|inbox| inbox.push(&part));
        }
    }

    pub(super) fn close(&self) {
        let mut index = self.0.lock();
        index.closed = true;
        for inbox in index.by_prefix.values().flatten() {
            *inbox.contents.lock() = Contents::Closed;
            inbox.wake.notify_one();
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let index = self.0.lock();
        index.by_prefix.is_empty() && index.odd_lengths.is_empty()
    }
}
