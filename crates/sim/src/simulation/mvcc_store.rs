//! The store in memory: all transactions in order, and watches that are woken by the changes of their prefix alone.
//!
//! `mainstay_store::Memory` has every watch look at every change; with hundreds of watches in a run that is most of the time. This one is
//! the same model with other watches, and passes the same suite.

use std::sync::Arc;

use async_trait::async_trait;
use mainstay_store::{
    Change, Entry, List, Listing, Outcome, Revision, Store, StoreError, Txn, Watch, WatchEvent, memory::Model,
};
use parking_lot::Mutex;
use tokio::sync::mpsc;

#[derive(Clone, Default)]
pub struct MvccStore(Arc<Mutex<Content>>);

#[derive(Default)]
struct Content {
    model: Model,
    watches: Vec<Subscription>,
}

struct Subscription {
    prefix: Box<str>,
    changes: mpsc::UnboundedSender<Vec<Change>>,
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
        let content = self.0.lock();
        Ok((content.model.get(key), content.model.revision()))
    }

    async fn list(&self, query: List<'_>) -> Result<Listing, StoreError> {
        self.0.lock().model.list(&query)
    }

    async fn commit(&self, txn: Txn) -> Result<Outcome, StoreError> {
        let Content { model, watches } = &mut *self.0.lock();
        let before = model.revision();
        let outcome = model.commit(txn)?;
        let changes = model.changes_after(before);
        if !changes.is_empty() {
            watches.retain(|watch| watch.send(changes));
        }
        Ok(outcome)
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, StoreError> {
        let Content { model, watches } = &mut *self.0.lock();
        model.check_readable(after)?;
        let (sender, changes) = mpsc::unbounded_channel();
        let subscription = Subscription { prefix: prefix.into(), changes: sender };
        subscription.send(model.changes_after(after));
        watches.push(subscription);
        Ok(Box::new(Follower { store: self.clone(), changes, progress_wanted: false }))
    }

    async fn compact(&self, at: Revision) -> Result<(), StoreError> {
        self.0.lock().model.compact(at)
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        Ok(self.0.lock().model.revision())
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
            return Ok(WatchEvent::Progress(self.store.0.lock().model.revision()));
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
