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

/// Transactions, oldest first, and how much they are.
#[derive(Default)]
struct History {
    records: VecDeque<Record>,
    changes: usize,
    /// Of keys and values that were written.
    bytes: usize,
}

impl History {
    fn push(&mut self, record: Record) {
        self.changes += record.batch.len();
        self.bytes += size(&record.batch);
        self.records.push_back(record);
    }

    /// Takes the oldest transaction off, if it is at or before `revision`.
    fn pop_until(&mut self, revision: Revision) -> Option<Record> {
        let record = self.records.pop_front_if(|record| record.revision() <= revision)?;
        self.changes -= record.batch.len();
        self.bytes -= size(&record.batch);
        Some(record)
    }

    fn oldest(&self) -> Option<&Record> {
        self.records.front()
    }

    fn since(&self, after: Revision) -> impl Iterator<Item = &Batch> {
        let from = self.records.partition_point(|record| record.revision() <= after);
        self.records.range(from..).map(|record| &record.batch)
    }
}

fn size(batch: &Batch) -> usize {
    batch.iter().map(|change| change.key.len() + change.current.as_ref().map_or(0, |entry| entry.value.len())).sum()
}

/// Two sequences in the order of revisions.
fn merged<'a>(
    a: impl Iterator<Item = &'a Batch>,
    b: impl Iterator<Item = &'a Batch>,
) -> impl Iterator<Item = &'a Batch> {
    let (mut a, mut b) = (a.peekable(), b.peekable());
    std::iter::from_fn(move || match (a.peek(), b.peek()) {
        (Some(x), Some(y)) if x[0].revision > y[0].revision => b.next(),
        (Some(_), _) => a.next(),
        (None, _) => b.next(),
    })
}

/// A stored version that nothing can ask for any more.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Garbage {
    pub(crate) revision: Revision,
    pub(crate) key: Arc<str>,
}

pub(crate) struct State {
    keys: BTreeMap<Arc<str>, Versions>,
    history: History,
    /// Transactions of volatile keys alone: they are many, and must not push out what others resume from.
    volatile: History,
    revision: Revision,
    compacted: Revision,
    /// Volatile keys, and the revision before which nothing of them is known: that of the last restart, or of the
    /// newest change of theirs that was forgotten.
    forgotten: Vec<Arc<str>>,
    forgotten_at: Revision,
}

impl State {
    pub(crate) fn new(revision: Revision, compacted: Revision) -> State {
        State {
            keys: BTreeMap::new(),
            history: History::default(),
            volatile: History::default(),
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
        self.history.changes
    }

    /// Changes of volatile keys that are kept.
    pub(crate) fn volatile_changes(&self) -> usize {
        self.volatile.changes
    }

    pub(crate) fn history_bytes(&self) -> usize {
        self.history.bytes
    }

    /// When the oldest transaction in history was applied.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.history.oldest().map(|record| record.at)
    }

    fn is_volatile(&self, key: &str) -> bool {
        self.forgotten.iter().any(|prefix| key.starts_with(&**prefix))
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
        let is_volatile = batch.iter().all(|change| self.is_volatile(&change.key));
        let history = if is_volatile { &mut self.volatile } else { &mut self.history };
        history.push(Record { at, batch });
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
        merged(self.history.since(after), self.volatile.since(after))
    }

    /// The revision to compact at so that no more than `events` changes, no more than `bytes` and nothing from before
    /// `since` is kept; `None` if that is so already.
    pub(crate) fn retention_target(&self, events: usize, bytes: usize, since: Option<Instant>) -> Option<Revision> {
        let mut over = self.history.changes.saturating_sub(events);
        let mut over_bytes = self.history.bytes.saturating_sub(bytes);
        let mut target = None;
        for record in &self.history.records {
            if over == 0 && over_bytes == 0 && since.is_none_or(|since| record.at >= since) {
                break;
            }
            over = over.saturating_sub(record.batch.len());
            over_bytes = over_bytes.saturating_sub(size(&record.batch));
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
        let is_gone = |history: &History| history.oldest().is_some_and(|record| record.revision() <= self.compacted);
        is_gone(&self.history) || is_gone(&self.volatile)
    }

    /// Forgets the oldest changes of volatile keys beyond so many: watches of them resume no further back.
    pub(crate) fn trim_volatile(&mut self, most: usize) {
        while self.volatile.changes > most {
            let Some(record) = self.volatile.pop_until(self.revision) else { return };
            self.forgotten_at = self.forgotten_at.max(record.revision());
            record.batch.iter().for_each(|change| self.trim_key(&change.key, change.revision));
        }
    }

    /// Frees what compaction made unreachable, until about `limit` changes are done. Garbage comes in an
    /// order in which it is safe to remove any prefix of it: what a deletion hid goes before the deletion.
    pub(crate) fn trim(&mut self, limit: usize) -> Vec<Garbage> {
        let mut garbage = Vec::new();
        let mut done = 0;
        while done < limit {
            let record = self.history.pop_until(self.compacted).or_else(|| self.volatile.pop_until(self.compacted));
            let Some(record) = record else { break };
            done += record.batch.len();
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
