mod damage;
mod lifecycle;
mod model;
mod served_by_callers;
mod space;

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

fn put_txn(key: &str, value: impl Into<Vec<u8>>) -> Txn {
    Txn { compares: vec![], ops: vec![crate::Op::Put { key: key.into(), value: value.into().into() }] }
}

fn delete_txn(key: &str) -> Txn {
    Txn { compares: vec![], ops: vec![crate::Op::Delete { key: key.into() }] }
}

async fn commit(store: &impl Store, txn: Txn) -> Revision {
    match store.commit(txn).await.expect("commit") {
        Outcome::Committed(at) => at,
        Outcome::Conflict { current } => panic!("conflict with {current:?}"),
    }
}

/// Everything a store holds, as text: contents, revision, and the history after `after`.
async fn image(store: &impl Store, after: Revision) -> Vec<String> {
    let listing = store.list(List::default()).await.expect("list");
    let mut image: Vec<_> = listing.entries.iter().map(|e| format!("{e:?}")).collect();
    image.push(format!("at {}", listing.revision));
    let mut watch = store.watch("", after).await.expect("watch");
    watch.request_progress();
    loop {
        match watch.next().await.expect("event") {
            crate::WatchEvent::Changes(changes) => image.extend(changes.iter().map(|c| format!("{c:?}"))),
            crate::WatchEvent::Progress(_) => return image,
        }
    }
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
