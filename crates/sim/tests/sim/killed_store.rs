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
    left: AtomicUsize,
    dead: AtomicBool,
    pub cut: Notify,
}

impl KilledStore {
    pub fn after(inner: Arc<Embedded>, binds: usize) -> Arc<Self> {
        Arc::new(Self { inner, left: AtomicUsize::new(binds), dead: AtomicBool::new(false), cut: Notify::new() })
    }

    fn check(&self) -> Result<(), StoreError> {
        match self.dead.load(SeqCst) {
            true => Err(StoreError::Unavailable { why: "killed".into() }),
            false => Ok(()),
        }
    }

    fn count(&self, txn: &Txn) -> Result<(), StoreError> {
        self.check()?;
        let binds = txn.ops.iter().any(|op| match op {
            Op::Put { key, value } => {
                key.starts_with("/registry/pods/") && value.windows(10).any(|text| text == b"\"nodeName\"")
            }
            Op::Delete { .. } => false,
        });
        if binds && self.left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_err() {
            self.dead.store(true, SeqCst);
            self.cut.notify_one();
        }
        self.check()
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
        self.count(&txn)?;
        self.inner.commit(txn).await
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
