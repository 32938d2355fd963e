//! A store above which every value is as the API writes it, whatever it is below.

use std::sync::Arc;

use async_trait::async_trait;
use mainstay_store::{
    Change, Entry, IndexMatch, List, Listing, Outcome, Revision, Store, StoreError, Txn, Watch, WatchEvent,
};
use tokio::sync::RwLock;

use super::{codec::Codec, keyring::Keyring};

/// Who writes to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    /// Nobody but us: only what we seal is not as the API wants it.
    Ourselves,
    /// Also upstream's API server, which may have stored any object in any form.
    AnyServer,
}

pub struct EncodedStore {
    pub(super) inner: Arc<dyn Store>,
    pub(super) codec: Arc<Codec>,
    writers: Writers,
    /// Held by writes from when they are sealed until they are committed, so that a change of keys waits for them.
    sealing: RwLock<()>,
}

impl EncodedStore {
    pub(super) fn new(inner: Arc<dyn Store>, codec: Arc<Codec>, writers: Writers) -> Self {
        Self { inner, codec, writers, sealing: RwLock::new(()) }
    }

    /// Changes the keys. Once this returns, nothing is under way that older ones sealed.
    pub(super) async fn set_keyring(&self, keyring: Keyring) {
        let _none_under_way = self.sealing.write().await;
        self.codec.set_keyring(keyring);
    }

    /// Whether values below a prefix may have to be decoded. Those of other prefixes cost nothing.
    fn may_be_encoded(&self, prefix: &str) -> bool {
        self.writers == Writers::AnyServer || self.codec.keyring().covers_any_below(prefix)
    }

    fn decode_all(&self, entries: &mut [Arc<Entry>]) {
        for entry in entries {
            let decoded = self.codec.decode_entry(entry.clone());
            *entry = decoded;
        }
    }

    async fn watch_decoded(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, StoreError> {
        let inner = self.inner.watch(prefix, after).await?;
        Ok(Box::new(DecodedWatch { inner, codec: self.codec.clone() }))
    }
}

#[async_trait]
impl Store for EncodedStore {
    async fn get(&self, key: &str) -> Result<(Option<Arc<Entry>>, Revision), StoreError> {
        let (entry, revision) = self.inner.get(key).await?;
        self.codec.resolve(entry.iter()).await;
        Ok((entry.map(|entry| self.codec.decode_entry(entry)), revision))
    }

    async fn list(&self, query: List<'_>) -> Result<Listing, StoreError> {
        let prefix = query.prefix;
        let mut listing = self.inner.list(query).await?;
        if self.may_be_encoded(prefix) {
            self.codec.resolve(listing.entries.iter()).await;
            self.decode_all(&mut listing.entries);
        }
        Ok(listing)
    }

    async fn get_any(&self, key: &str) -> Result<(Option<Arc<Entry>>, Revision), StoreError> {
        let (entry, revision) = self.inner.get_any(key).await?;
        Ok((entry.map(|entry| self.codec.decode_entry(entry)), revision))
    }

    async fn list_any(&self, query: List<'_>) -> Result<Listing, StoreError> {
        let prefix = query.prefix;
        let mut listing = self.inner.list_any(query).await?;
        if self.may_be_encoded(prefix) {
            self.decode_all(&mut listing.entries);
        }
        Ok(listing)
    }

    async fn commit(&self, txn: Txn) -> Result<Outcome, StoreError> {
        let Txn { compares, ops } = txn;
        let _sealing = if self.codec.seals(&ops) { Some(self.sealing.read().await) } else { None };
        let ops = ops.into_iter().map(|op| self.codec.encode(op)).collect::<Result<_, _>>()?;
        let mut outcome = self.inner.commit(Txn { compares, ops }).await?;
        if let Outcome::Conflict { current } = &mut outcome {
            self.codec.resolve(current.iter().flatten()).await;
            for entry in current.iter_mut().flatten() {
                let decoded = self.codec.decode_entry(entry.clone());
                *entry = decoded;
            }
        }
        Ok(outcome)
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, StoreError> {
        if self.may_be_encoded(prefix) {
            self.watch_decoded(prefix, after).await
        } else {
            self.inner.watch(prefix, after).await
        }
    }

    async fn watch_indexed(
        &self,
        prefix: &str,
        after: Revision,
        only: IndexMatch,
    ) -> Result<Box<dyn Watch>, StoreError> {
        // The index looks into values, which the store below cannot read if they are encoded.
        if self.may_be_encoded(prefix) {
            self.watch_decoded(prefix, after).await
        } else {
            self.inner.watch_indexed(prefix, after, only).await
        }
    }

    async fn compact(&self, at: Revision) -> Result<(), StoreError> {
        self.inner.compact(at).await
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        self.inner.revision().await
    }

    async fn health(&self) -> Result<(), StoreError> {
        self.inner.health().await
    }
}

struct DecodedWatch {
    inner: Box<dyn Watch>,
    codec: Arc<Codec>,
}

#[async_trait]
impl Watch for DecodedWatch {
    async fn next(&mut self) -> Result<WatchEvent, StoreError> {
        let mut event = self.inner.next().await?;
        if let WatchEvent::Changes(changes) = &mut event {
            for Change { current, previous, .. } in &*changes {
                self.codec.resolve([current, previous].into_iter().flatten()).await;
            }
            for Change { current, previous, .. } in changes {
                for entry in [current, previous].into_iter().flatten() {
                    let decoded = self.codec.decode_entry(entry.clone());
                    *entry = decoded;
                }
            }
        }
        Ok(event)
    }

    fn request_progress(&mut self) {
        self.inner.request_progress();
    }
}
