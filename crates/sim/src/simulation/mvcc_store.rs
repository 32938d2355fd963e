//! The store in memory: all transactions in order, and watches that are woken by the changes of their prefix alone.
//!
//! `mainstay_store::Memory` is the plainest model there is and looks through its whole log for every watch; with hundreds of
//! watches in a run that is most of the time. This one passes the same suite.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use mainstay_store::{
    Change, Entry, Expect, List, Listing, Op, Outcome, Revision, Store, StoreError, TXN_BYTES, Txn, Watch, WatchEvent,
};
use parking_lot::Mutex;
use tokio::sync::mpsc;

type Keys = BTreeMap<Arc<str>, Arc<Entry>>;

#[derive(Clone, Default)]
pub struct MvccStore(Arc<Mutex<Model>>);

#[derive(Default)]
struct Model {
    log: Vec<Change>,
    current: Keys,
    revision: Revision,
    compacted: Revision,
    watches: Vec<Subscription>,
}

struct Subscription {
    prefix: Box<str>,
    changes: mpsc::UnboundedSender<Vec<Change>>,
}

impl Model {
    fn check_readable(&self, at: Revision) -> Result<(), StoreError> {
        if at > self.revision {
            return Err(StoreError::Future { requested: at, newest: self.revision });
        }
        if at < self.compacted {
            return Err(StoreError::Compacted { requested: at, oldest: self.compacted });
        }
        Ok(())
    }

    fn keys_at(&self, revision: Revision) -> Keys {
        let mut keys = Keys::new();
        for change in self.log.iter().take_while(|change| change.revision <= revision) {
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
            (Expect::ModifiedAt(at), current) => current.is_some_and(|entry| entry.modified == at),
        }
    }

    fn commit(&mut self, txn: Txn) -> Result<Outcome, StoreError> {
        mainstay_store::check_txn(&txn, TXN_BYTES)?;
        if !txn.compares.iter().all(|compare| self.holds(&compare.key, compare.expect)) {
            let current = txn.compares.iter().map(|compare| self.current.get(&compare.key).cloned()).collect();
            return Ok(Outcome::Conflict { current });
        }
        let revision = Revision(self.revision.0 + 1);
        let mut changes = Vec::new();
        for op in txn.ops {
            let (key, current, previous) = match op {
                Op::Put { key, value } => {
                    let previous = self.current.get(&key).cloned();
                    let created = previous.as_ref().map_or(revision, |previous| previous.created);
                    let memo = Default::default();
                    let entry = Arc::new(Entry { key: key.clone(), value, created, modified: revision, memo });
                    self.current.insert(key.clone(), entry.clone());
                    (key, Some(entry), previous)
                }
                Op::Delete { key } => match self.current.remove(&key) {
                    Some(previous) => (key, None, Some(previous)),
                    None => continue,
                },
            };
            changes.push(Change { key, revision, current, previous });
        }
        if !changes.is_empty() {
            self.revision = revision;
            self.watches.retain(|watch| watch.send(&changes));
            self.log.extend(changes);
        }
        Ok(Outcome::Committed(self.revision))
    }
}

impl Subscription {
    /// Whether somebody still listens.
    fn send(&self, changes: &[Change]) -> bool {
        let news = changes.iter().filter(|change| change.key.starts_with(&*self.prefix));
        let news: Vec<Change> = news.cloned().collect();
        if news.is_empty() { !self.changes.is_closed() } else { self.changes.send(news).is_ok() }
    }
}

#[async_trait]
impl Store for MvccStore {
    async fn get(&self, key: &str) -> Result<(Option<Arc<Entry>>, Revision), StoreError> {
        let model = self.0.lock();
        Ok((model.current.get(key).cloned(), model.revision))
    }

    async fn list(&self, query: List<'_>) -> Result<Listing, StoreError> {
        let model = self.0.lock();
        let revision = query.at.unwrap_or(model.revision);
        model.check_readable(revision)?;
        let past;
        let keys = match revision == model.revision {
            true => &model.current,
            false => {
                past = model.keys_at(revision);
                &past
            }
        };
        let first = query.start.unwrap_or(query.prefix).max(query.prefix);
        let from = (std::ops::Bound::Included(first), std::ops::Bound::Unbounded);
        let found = keys.range::<str, _>(from).take_while(|(key, _)| key.starts_with(query.prefix));
        let mut entries: Vec<_> = found.map(|(_, entry)| entry.clone()).collect();
        let limit = query.limit.unwrap_or(usize::MAX).min(entries.len());
        let remaining = (entries.len() - limit) as u64;
        entries.truncate(limit);
        Ok(Listing { entries, revision, remaining })
    }

    async fn commit(&self, txn: Txn) -> Result<Outcome, StoreError> {
        self.0.lock().commit(txn)
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, StoreError> {
        let mut model = self.0.lock();
        model.check_readable(after)?;
        let (sender, changes) = mpsc::unbounded_channel();
        let subscription = Subscription { prefix: prefix.into(), changes: sender };
        let missed = &model.log[model.log.partition_point(|change| change.revision <= after)..];
        subscription.send(missed);
        model.watches.push(subscription);
        Ok(Box::new(Follower { store: self.clone(), changes, progress_wanted: false }))
    }

    async fn compact(&self, at: Revision) -> Result<(), StoreError> {
        let mut model = self.0.lock();
        if at <= model.compacted {
            return Err(StoreError::Compacted { requested: at, oldest: model.compacted });
        }
        model.check_readable(at)?;
        model.compacted = at;
        Ok(())
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        Ok(self.0.lock().revision)
    }
}

struct Follower {
    store: MvccStore,
    changes: mpsc::UnboundedReceiver<Vec<Change>>,
    progress_wanted: bool,
}

#[async_trait]
impl Watch for Follower {
    async fn next(&mut self) -> Result<WatchEvent, StoreError> {
        if let Ok(changes) = self.changes.try_recv() {
            return Ok(WatchEvent::Changes(changes));
        }
        if std::mem::take(&mut self.progress_wanted) {
            // Commits send before they return: whatever is not here has not happened.
            return Ok(WatchEvent::Progress(self.store.0.lock().revision));
        }
        self.changes.recv().await.map(WatchEvent::Changes).ok_or(StoreError::Closing)
    }

    fn request_progress(&mut self) {
        self.progress_wanted = true;
    }
}

#[cfg(test)]
mod tests {
    mainstay_store::store_suite!(async || super::MvccStore::default());
}
