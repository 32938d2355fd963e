use std::{ops::Deref, sync::Arc};

use async_trait::async_trait;
use tempfile::TempDir;

use super::*;

/// A store in a directory that goes with it.
struct Temp {
    store: Embedded,
    _dir: TempDir,
}

impl Deref for Temp {
    type Target = Embedded;
    fn deref(&self) -> &Embedded {
        &self.store
    }
}

fn temp(options: Options) -> Temp {
    let dir = tempfile::tempdir().expect("a directory");
    Temp { store: Embedded::open(dir.path(), options).expect("open"), _dir: dir }
}

#[async_trait]
impl Store for Temp {
    async fn get(&self, key: &str) -> Result<(Option<Arc<Entry>>, Revision), StoreError> {
        self.store.get(key).await
    }
    async fn list(&self, query: List<'_>) -> Result<Listing, StoreError> {
        self.store.list(query).await
    }
    async fn commit(&self, txn: Txn) -> Result<Outcome, StoreError> {
        self.store.commit(txn).await
    }
    async fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, StoreError> {
        self.store.watch(prefix, after).await
    }
    async fn compact(&self, at: Revision) -> Result<(), StoreError> {
        self.store.compact(at).await
    }
    async fn revision(&self) -> Result<Revision, StoreError> {
        self.store.revision().await
    }
}

mod suite {
    use super::*;
    crate::store_suite!(async || temp(Options::default()));
}

/// The same claims where nearly every watch falls behind and every turn cleans up.
mod suite_under_pressure {
    use super::*;
    crate::store_suite!(async || temp(Options { watch_queue: 1, log_pages: 1, batch_txns: 2, ..Options::default() }));
}
