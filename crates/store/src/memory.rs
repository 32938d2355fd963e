//! The reference model of a store, in memory and as plain as possible.
//!
//! It keeps every transaction ever made and answers from that log; compaction only moves
//! a line that nobody may ask behind. Other backends are compared with it, and tests that need a
//! store and not a disk use it.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{Change, Entry, Expect, List, Listing, Op, Outcome, Revision, Store, StoreError, Txn, Watch, WatchEvent};

type Keys = BTreeMap<Arc<str>, Arc<Entry>>;

/// A store in memory. Clones share their contents.
#[derive(Clone)]
pub struct Memory(Arc<Shared>);

struct Shared {
    model: Mutex<Model>,
    newest: watch::Sender<Revision>,
}

/// All transactions in order, and what the keys are after them. Without watches: these are up to the store around it.
#[derive(Default)]
pub struct Model {
    log: Vec<Change>,
    current: Keys,
    revision: Revision,
    compacted: Revision,
}

impl Memory {
    pub fn new() -> Memory {
        Memory(Arc::new(Shared { model: Mutex::default(), newest: watch::Sender::new(Revision(0)) }))
    }
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::new()
    }
}

impl Model {
    pub fn revision(&self) -> Revision {
        self.revision
    }

    pub fn get(&self, key: &str) -> Option<Arc<Entry>> {
        self.current.get(key).cloned()
    }

    pub fn list(&self, query: &List<'_>) -> Result<Listing, StoreError> {
        let revision = query.at.unwrap_or(self.revision);
        self.check_readable(revision)?;
        let past;
        let keys = match revision == self.revision {
            true => &self.current,
            false => {
                past = self.keys_at(revision);
                &past
            }
        };
        let first = query.start.unwrap_or(query.prefix).max(query.prefix);
        let from = (Bound::Included(first), Bound::Unbounded);
        let within = keys.range::<str, _>(from).take_while(|(key, _)| key.starts_with(query.prefix));
        let mut entries: Vec<_> = within.map(|(_, entry)| entry.clone()).collect();
        let limit = query.limit.unwrap_or(usize::MAX).min(entries.len());
        let remaining = (entries.len() - limit) as u64;
        entries.truncate(limit);
        Ok(Listing { entries, revision, remaining })
    }

    /// What was changed by transactions after this one, in order.
    pub fn changes_after(&self, revision: Revision) -> &[Change] {
        &self.log[self.log.partition_point(|change| change.revision <= revision)..]
    }

    pub fn compact(&mut self, at: Revision) -> Result<(), StoreError> {
        if at <= self.compacted {
            return Err(StoreError::Compacted { requested: at, oldest: self.compacted });
        }
        self.check_readable(at)?;
        self.compacted = at;
        Ok(())
    }

    pub fn check_readable(&self, at: Revision) -> Result<(), StoreError> {
        if at > self.revision {
            return Err(StoreError::Future { requested: at, newest: self.revision });
        }
        if at < self.compacted {
            return Err(StoreError::Compacted { requested: at, oldest: self.compacted });
        }
        Ok(())
    }

    /// The whole contents at a revision, by replay.
    fn keys_at(&self, revision: Revision) -> Keys {
        let mut keys = Keys::new();
        for change in self.log.iter().take_while(|c| c.revision <= revision) {
            match &change.current {
                Some(entry) => keys.insert(change.key.clone(), entry.clone()),
                None => keys.remove(&change.key),
            };
        }
        keys
    }

    fn holds(&self, key: &str, expect: Expect) -> bool {
        match (expect, self.current.get(key)) {
            (Expect::Absent, current) => current.is_none(),
            (Expect::ModifiedAt(at), current) => current.is_some_and(|e| e.modified == at),
        }
    }

    pub fn commit(&mut self, txn: Txn) -> Result<Outcome, StoreError> {
        crate::check::txn(&txn, crate::check::TXN_BYTES)?;
        if !txn.compares.iter().all(|c| self.holds(&c.key, c.expect)) {
            let current = txn.compares.iter().map(|c| self.current.get(&c.key).cloned()).collect();
            return Ok(Outcome::Conflict { current });
        }
        let revision = Revision(self.revision.0 + 1);
        for op in txn.ops {
            let (key, current, previous) = match op {
                Op::Put { key, value } => {
                    let previous = self.current.get(&key).cloned();
                    let created = previous.as_ref().map_or(revision, |p| p.created);
                    let entry =
                        Entry { key: key.clone(), value, created, modified: revision, memo: Default::default() };
                    let entry = Arc::new(entry);
                    self.current.insert(key.clone(), entry.clone());
                    (key, Some(entry), previous)
                }
                Op::Delete { key } => match self.current.remove(&key) {
                    Some(previous) => (key, None, Some(previous)),
                    None => continue,
                },
            };
            self.log.push(Change { key, revision, current, previous });
            self.revision = revision;
        }
        Ok(Outcome::Committed(self.revision))
    }
}

#[async_trait]
impl Store for Memory {
    async fn get(&self, key: &str) -> Result<(Option<Arc<Entry>>, Revision), StoreError> {
        let model = self.0.model.lock();
        Ok((model.get(key), model.revision()))
    }

    async fn list(&self, query: List<'_>) -> Result<Listing, StoreError> {
        self.0.model.lock().list(&query)
    }

    async fn commit(&self, txn: Txn) -> Result<Outcome, StoreError> {
        let mut model = self.0.model.lock();
        let outcome = model.commit(txn)?;
        self.0.newest.send_replace(model.revision);
        Ok(outcome)
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, StoreError> {
        self.0.model.lock().check_readable(after)?;
        let newest = self.0.newest.subscribe();
        Ok(Box::new(Follower { store: self.clone(), prefix: prefix.into(), after, newest, progress_wanted: false }))
    }

    async fn compact(&self, at: Revision) -> Result<(), StoreError> {
        self.0.model.lock().compact(at)
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        Ok(self.0.model.lock().revision)
    }
}

struct Follower {
    store: Memory,
    prefix: String,
    after: Revision,
    newest: watch::Receiver<Revision>,
    progress_wanted: bool,
}

impl Follower {
    fn poll_event(&mut self) -> Option<WatchEvent> {
        let model = self.store.0.model.lock();
        let news = model.changes_after(self.after).iter().filter(|change| change.key.starts_with(&self.prefix));
        let news: Vec<Change> = news.cloned().collect();
        self.after = model.revision;
        if !news.is_empty() {
            return Some(WatchEvent::Changes(news));
        }
        std::mem::take(&mut self.progress_wanted).then_some(WatchEvent::Progress(self.after))
    }
}

#[async_trait]
impl Watch for Follower {
    async fn next(&mut self) -> Result<WatchEvent, StoreError> {
        loop {
            self.newest.mark_unchanged();
            if let Some(event) = self.poll_event() {
                return Ok(event);
            }
            // The sender lives in `store`, so this waits for a commit and nothing else.
            if self.newest.changed().await.is_err() {
                return Err(StoreError::Closing);
            }
        }
    }

    fn request_progress(&mut self) {
        self.progress_wanted = true;
    }
}

#[cfg(test)]
mod tests {
    crate::store_suite!(async || super::Memory::new());
}
