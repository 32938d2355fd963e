//! A store that stops after some binds, as if the server was killed: what was acknowledged stays, the rest fails.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
};

use async_trait::async_trait;
use mainstay_store::{
    Embedded, Entry, IndexMatch, List, Listing, Op, Outcome, Revision, Store, StoreError, Txn, Watch,
};
use tokio::sync::Notify;

pub struct KilledStore {
    pub inner: Arc<Embedded>,
    /// Binds that are let through before the cut; never cut if it is `usize::MAX`.
    most: usize,
    /// Those that were let through and not refused by their compares, say of an offer that has expired.
    binds: AtomicUsize,
    dead: AtomicBool,
    pub cut: Notify,
}

impl KilledStore {
    pub fn after(inner: Arc<Embedded>, binds: usize) -> Arc<Self> {
        let (count, dead) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Self { inner, most: binds, binds: count, dead, cut: Notify::new() })
    }

    /// How many binds are in the store by now.
    pub fn binds(&self) -> usize {
        self.binds.load(SeqCst)
    }

    fn check(&self) -> Result<(), StoreError> {
        match self.dead.load(SeqCst) {
            true => Err(StoreError::Unavailable { why: "killed".into() }),
            false => Ok(()),
        }
    }

    /// Whether the transaction is a bind, which is counted.
    fn count(&self, txn: &Txn) -> Result<bool, StoreError> {
        self.check()?;
        let binds = txn.ops.iter().any(|op| match op {
            Op::Put { key, value } => {
                key.starts_with("/registry/pods/") && value.windows(10).any(|text| text == b"\"nodeName\"")
            }
            Op::Delete { .. } => false,
        });
        let one_more = |binds: usize| (binds < self.most).then_some(binds + 1);
        if binds && self.binds.fetch_update(SeqCst, SeqCst, one_more).is_err() {
            self.dead.store(true, SeqCst);
            self.cut.notify_one();
        }
        self.check().map(|()| binds)
    }
}

#[async_trait]
impl Store for KilledStore {
    async fn get(&self, key: &str) -> Result<(Option<Arc<Entry>>, Revision), StoreError> {
        self.check()?;
        self.inner.get(key).await
    }

    async fn list(&self, query: List<'_>) -> Result<Listing, StoreError> {
        self.check()?;
        self.inner.list(query).await
    }

    async fn commit(&self, txn: Txn) -> Result<Outcome, StoreError> {
        let binds = self.count(&txn)?;
        let outcome = self.inner.commit(txn).await;
        if binds && !matches!(outcome, Ok(Outcome::Committed(_))) {
            self.binds.fetch_sub(1, SeqCst);
        }
        outcome
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, StoreError> {
        self.check()?;
        self.inner.watch(prefix, after).await
    }

    async fn watch_indexed(
        &self,
        prefix: &str,
        after: Revision,
        part: IndexMatch,
    ) -> Result<Box<dyn Watch>, StoreError> {
        self.check()?;
        self.inner.watch_indexed(prefix, after, part).await
    }

    async fn compact(&self, at: Revision) -> Result<(), StoreError> {
        self.inner.compact(at).await
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        self.check()?;
        self.inner.revision().await
    }
}
