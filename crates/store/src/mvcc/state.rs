//! Keys, their versions, and the history of transactions.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    sync::Arc,
    time::Instant,
};

use super::Batch;
use crate::{Entry, List, Listing, Revision, StoreError};

struct Version {
    revision: Revision,
    /// `None` where the key was deleted.
    entry: Option<Arc<Entry>>,
}

struct Versions {
    newest: Version,
    /// Oldest first; empty for keys that did not change since the compacted revision.
    older: Vec<Version>,
}

impl Versions {
    fn entry_at(&self, revision: Revision) -> Option<&Arc<Entry>> {
        if self.newest.revision <= revision {
            return self.newest.entry.as_ref();
        }
        self.older.iter().rev().find(|v| v.revision <= revision)?.entry.as_ref()
    }
}

struct Record {
    at: Instant,
    batch: Batch,
}

impl Record {
    fn revision(&self) -> Revision {
        self.batch[0].revision
    }
}

/// A stored version that nothing can ask for any more.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Garbage {
    pub(crate) revision: Revision,
    pub(crate) key: Arc<str>,
}

pub(crate) struct State {
    keys: BTreeMap<Arc<str>, Versions>,
    history: VecDeque<Record>,
    /// Changes in `history`.
    events: usize,
    revision: Revision,
    compacted: Revision,
    /// Keys that did not outlive the last restart, and the revision of that restart: no history of
    /// theirs reaches further back.
    forgotten: Vec<Arc<str>>,
    forgotten_at: Revision,
}

impl State {
    pub(crate) fn new(revision: Revision, compacted: Revision) -> State {
        State {
            keys: BTreeMap::new(),
            history: VecDeque::new(),
            events: 0,
            revision,
            compacted,
            forgotten: Vec::new(),
            forgotten_at: Revision(0),
        }
    }

    /// Declares that before the present revision nothing is known of keys below `prefixes`.
    pub(crate) fn forget_before_now(&mut self, prefixes: Vec<Arc<str>>) {
        self.forgotten = prefixes;
        self.forgotten_at = self.revision;
    }

    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }

    pub(crate) fn compacted(&self) -> Revision {
        self.compacted
    }

    pub(crate) fn events(&self) -> usize {
        self.events
    }

    /// When the oldest transaction in history was applied.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.history.front().map(|r| r.at)
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Arc<Entry>> {
        self.keys.get(key)?.newest.entry.as_ref()
    }

    pub(crate) fn list(&self, query: &List<'_>) -> Result<Listing, StoreError> {
        let at = query.at.unwrap_or(self.revision);
        if at > self.revision {
            return Err(StoreError::Future { requested: at, newest: self.revision });
        }
        self.check_kept(query.prefix, at)?;
        let start = query.start.map_or(query.prefix, |s| s.max(query.prefix));
        let mut live = self
            .keys
            .range::<str, _>((Bound::Included(start), Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(query.prefix))
            .filter_map(|(_, versions)| versions.entry_at(at));
        let entries = live.by_ref().take(query.limit.unwrap_or(usize::MAX)).cloned().collect();
        Ok(Listing { entries, revision: at, remaining: live.count() as u64 })
    }

    pub(crate) fn check_watch(&self, prefix: &str, after: Revision) -> Result<(), StoreError> {
        if after > self.revision {
            return Err(StoreError::Future { requested: after, newest: self.revision });
        }
        self.check_kept(prefix, after)
    }

    fn check_kept(&self, prefix: &str, at: Revision) -> Result<(), StoreError> {
        let overlaps = |p: &Arc<str>| p.starts_with(prefix) || prefix.starts_with(&**p);
        let oldest = match self.forgotten_at > self.compacted && self.forgotten.iter().any(overlaps) {
            true => self.forgotten_at,
            false => self.compacted,
        };
        if at < oldest { Err(StoreError::Compacted { requested: at, oldest }) } else { Ok(()) }
    }

    /// Adds a transaction newer than all before.
    pub(crate) fn apply(&mut self, batch: Batch) {
        self.apply_at(batch, Instant::now());
    }

    pub(crate) fn apply_at(&mut self, batch: Batch, at: Instant) {
        self.revision = batch[0].revision;
        for change in batch.iter() {
            let newest = Version { revision: change.revision, entry: change.current.clone() };
            match self.keys.get_mut(&change.key) {
                Some(versions) => {
                    let superseded = std::mem::replace(&mut versions.newest, newest);
                    versions.older.push(superseded);
                }
                None => {
                    self.keys.insert(change.key.clone(), Versions { newest, older: Vec::new() });
                }
            }
        }
        self.events += batch.len();
        self.history.push_back(Record { at, batch });
    }

    /// Puts back a version that is current at the compacted revision, while loading; keys in any order.
    pub(crate) fn restore(&mut self, entry: Arc<Entry>) {
        let newest = Version { revision: entry.modified, entry: Some(entry.clone()) };
        self.keys.insert(entry.key.clone(), Versions { newest, older: Vec::new() });
    }

    /// Undoes [`State::restore`] of a key.
    pub(crate) fn unrestore(&mut self, key: &str) {
        self.keys.remove(key);
    }

    /// Moves to a later revision that no transaction took.
    pub(crate) fn skip_to(&mut self, revision: Revision) {
        self.revision = self.revision.max(revision);
    }

    /// Transactions after `after`, oldest first.
    pub(super) fn since(&self, after: Revision) -> impl Iterator<Item = &Batch> {
        let from = self.history.partition_point(|r| r.revision() <= after);
        self.history.range(from..).map(|r| &r.batch)
    }

    /// The revision to compact at so that no more than `events` changes and nothing from before `since`
    /// is kept; `None` if that is so already.
    pub(crate) fn retention_target(&self, events: usize, since: Option<Instant>) -> Option<Revision> {
        let mut over = self.events.saturating_sub(events);
        let mut target = None;
        for record in &self.history {
            if over == 0 && since.is_none_or(|since| record.at >= since) {
                break;
            }
            over = over.saturating_sub(record.batch.len());
            target = Some(record.revision());
        }
        target.filter(|t| *t > self.compacted)
    }

    pub(crate) fn check_compact(&self, at: Revision) -> Result<(), StoreError> {
        if at > self.revision {
            return Err(StoreError::Future { requested: at, newest: self.revision });
        }
        if at <= self.compacted {
            return Err(StoreError::Compacted { requested: at, oldest: self.compacted });
        }
        Ok(())
    }

    /// Declares history at and before `compacted` gone. [`State::trim`] then frees it bit by bit.
    pub(crate) fn raise_compacted(&mut self, compacted: Revision) {
        self.compacted = self.compacted.max(compacted);
    }

    /// Whether [`State::trim`] has anything to do.
    pub(crate) fn untrimmed(&self) -> bool {
        self.history.front().is_some_and(|r| r.revision() <= self.compacted)
    }

    /// Frees what compaction made unreachable, until about `limit` changes are done. Garbage comes in an
    /// order in which it is safe to remove any prefix of it: what a deletion hid goes before the deletion.
    pub(crate) fn trim(&mut self, limit: usize) -> Vec<Garbage> {
        let mut garbage = Vec::new();
        let mut done = 0;
        while done < limit && self.untrimmed() {
            let Some(record) = self.history.pop_front() else { break };
            done += record.batch.len();
            self.events -= record.batch.len();
            for change in record.batch.iter() {
                self.trim_key(&change.key, change.revision);
                if let Some(previous) = &change.previous {
                    garbage.push(Garbage { revision: previous.modified, key: change.key.clone() });
                }
                if change.current.is_none() {
                    garbage.push(Garbage { revision: change.revision, key: change.key.clone() });
                }
            }
        }
        garbage
    }

    /// Drops versions of `key` that were superseded at or before `at`.
    fn trim_key(&mut self, key: &str, at: Revision) {
        let Some(versions) = self.keys.get_mut(key) else { return };
        if versions.newest.revision <= at {
            match versions.newest.entry {
                Some(_) => versions.older = Vec::new(),
                None => drop(self.keys.remove(key)),
            }
            return;
        }
        // The last version at or before `at` is what the key held then; a deletion need not be kept.
        let covered = versions.older.partition_point(|v| v.revision <= at);
        let Some(last) = covered.checked_sub(1) else { return };
        let drop_last = versions.older[last].entry.is_none();
        versions.older.drain(..if drop_last { covered } else { last });
        if versions.older.is_empty() {
            versions.older = Vec::new();
        }
    }
}
