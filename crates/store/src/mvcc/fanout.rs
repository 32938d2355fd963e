//! Which watchers a change concerns, and the inboxes it goes to.
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
use crate::{Change, Entry, Facet, Interest, Revision};

/// What waits to be delivered to one watch.
pub(super) struct Inbox {
    pub(super) prefix: Arc<str>,
    part: Option<Interest>,
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

/// The watchers of one prefix.
#[derive(Default)]
struct Group {
    whole: Inboxes,
    parts: Vec<Parts>,
}

/// Watchers of parts, by what makes a part.
struct Parts {
    facet: Arc<dyn Facet>,
    by_value: HashMap<Box<str>, Inboxes>,
}

impl Group {
    fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.parts.is_empty()
    }

    fn add(&mut self, inbox: Arc<Inbox>) {
        let Some(Interest { facet, value }) = &inbox.part else { return self.whole.push(inbox) };
        let known = self.parts.iter().position(|parts| parts.facet.name() == facet.name());
        let at = known.unwrap_or_else(|| {
            self.parts.push(Parts { facet: facet.clone(), by_value: HashMap::new() });
            self.parts.len() - 1
        });
        self.parts[at].by_value.entry(value.clone()).or_default().push(inbox);
    }

    /// `false` if it is not there.
    fn remove(&mut self, inbox: &Arc<Inbox>) -> bool {
        let take = |inboxes: &mut Inboxes| {
            let at = inboxes.iter().position(|i| Arc::ptr_eq(i, inbox));
            at.map(|at| inboxes.swap_remove(at)).is_some()
        };
        let Some(Interest { facet, value }) = &inbox.part else { return take(&mut self.whole) };
        let Some(at) = self.parts.iter().position(|parts| parts.facet.name() == facet.name()) else { return false };
        let by_value = &mut self.parts[at].by_value;
        let Some(inboxes) = by_value.get_mut(value) else { return false };
        let taken = take(inboxes);
        if inboxes.is_empty() {
            by_value.remove(value);
        }
        if by_value.is_empty() {
            self.parts.swap_remove(at);
        }
        taken
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Inbox>> {
        let parts = self.parts.iter().flat_map(|parts| parts.by_value.values().flatten());
        self.whole.iter().chain(parts)
    }

    fn push(&self, batch: &Batch) {
        self.whole.iter().for_each(|inbox| inbox.push(batch));
        self.parts.iter().for_each(|parts| parts.push(batch));
    }
}

impl Parts {
    /// The parts a change concerns: the one its key was in, and the one it is in now.
    fn concerned<'a>(&'a self, change: &'a Change) -> impl Iterator<Item = (&'a Box<str>, &'a Inboxes)> {
        let value = |entry: &'a Option<Arc<Entry>>| entry.as_deref().map(|entry| self.facet.of(entry));
        let (before, after) = (value(&change.previous), value(&change.current));
        let moved = after.filter(|after| Some(*after) != before);
        before.into_iter().chain(moved).filter_map(|value| self.by_value.get_key_value(value))
    }

    fn push(&self, batch: &Batch) {
        if let [change] = &**batch {
            for (_, inboxes) in self.concerned(change) {
                inboxes.iter().for_each(|inbox| inbox.push(batch));
            }
            return;
        }
        let mut wanted: HashMap<&Box<str>, (Vec<Change>, &Inboxes)> = HashMap::new();
        for change in batch.iter() {
            for (value, inboxes) in self.concerned(change) {
                wanted.entry(value).or_insert_with(|| (Vec::new(), inboxes)).0.push(change.clone());
            }
        }
        for (changes, inboxes) in wanted.into_values() {
            let part: Batch = changes.into();
            inboxes.iter().for_each(|inbox| inbox.push(&part));
        }
    }
}

#[derive(Default)]
pub(super) struct Watchers(Mutex<Index>);

#[derive(Default)]
struct Index {
    by_prefix: HashMap<Arc<str>, Group>,
    /// How many registered prefixes that do not end at a `/` have each length.
    odd_lengths: BTreeMap<usize, usize>,
    closed: bool,
}

fn ends_at_boundary(prefix: &str) -> bool {
    prefix.ends_with('/')
}

impl Index {
    fn matching<'a>(&'a self, key: &'a str) -> impl Iterator<Item = (&'a Arc<str>, &'a Group)> {
        let ancestors = key.bytes().enumerate().filter(|(_, b)| *b == b'/').map(|(at, _)| at + 1);
        let odd = self.odd_lengths.keys().copied().take_while(|len| *len <= key.len());
        ancestors.chain(odd).filter_map(|len| self.by_prefix.get_key_value(key.get(..len)?))
    }
}

impl Watchers {
    pub(super) fn register(
        &self,
        prefix: &str,
        part: Option<Interest>,
        after: Revision,
        now: Revision,
        limit: usize,
    ) -> Arc<Inbox> {
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
        let inbox = Arc::new(Inbox { prefix: prefix.clone(), part, contents, wake: Notify::new(), limit });
        if !ends_at_boundary(&prefix) {
            *index.odd_lengths.entry(prefix.len()).or_default() += 1;
        }
        index.by_prefix.entry(prefix).or_default().add(inbox.clone());
        inbox
    }

    pub(super) fn unregister(&self, inbox: &Arc<Inbox>) {
        let mut index = self.0.lock();
        let prefix = &inbox.prefix;
        let Some(group) = index.by_prefix.get_mut(prefix) else { return };
        if !group.remove(inbox) {
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
        let mut parts: HashMap<&Arc<str>, (Vec<&Change>, &Group)> = HashMap::new();
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
        for inbox in index.by_prefix.values().flat_map(Group::all) {
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
