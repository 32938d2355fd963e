//! The etcd backend (version 3.4 or newer).
//!
//! What holds, and why:
//!
//! - Reads are linearizable: etcd confirms with its quorum that nothing newer was committed
//!   before it answers. A list is read in pages at one revision, so it is as consistent as a
//!   single answer and no message grows with the list.
//! - A commit is one etcd transaction. If a compare fails, etcd reads the compared keys within the
//!   same transaction, so that `Conflict` tells what the decision was based on.
//! - A write is repeated at another member only if it cannot be carried out twice: it compares a
//!   key that it changes. Otherwise, and if no member answers, the caller gets
//!   [`StoreError::Unavailable`] or [`StoreError::Timeout`] and must look.
//! - Without a quorum, whoever says that any version will do gets what a member has at hand.
//! - Every call ends within the configured deadline, etcd or not. Members are tried in turn, and
//!   all of it resumes by itself once etcd is back.
//! - A watch outlives its connection: it resumes behind the last transaction it delivered, for
//!   however long etcd is away, without losing or repeating any. It ends with `Compacted` if the
//!   missed part is gone, and with `Future` if etcd's history is shorter than what the watch has
//!   seen (restored from a backup).
//!
//! Keys are used as they come; values are opaque. Compaction is the callers' task, see
//! [`compactor`].

pub mod compactor;
mod config;
mod error;
mod pool;
mod proto;
mod range;
mod txn;
mod watch;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::time::{Instant, sleep_until, timeout};

pub use config::{EtcdConfig, EtcdConfigError};

use self::{
    error::EtcdError,
    pool::{CallKind, Pool, signed},
    proto::CompactionRequest,
};
use crate::{Entry, List, Listing, Outcome, Revision, Store, StoreError, Txn, Watch};

/// How long the quorum may take to confirm what a member has at hand, for those who can do without.
const CONFIRMATION: Duration = Duration::from_secs(1);

/// A client of an etcd cluster. Clones share their connections.
#[derive(Clone, Debug)]
pub struct Etcd {
    pool: Arc<Pool>,
}

#[derive(Debug, thiserror::Error)]
pub enum EtcdConnectError {
    #[error(transparent)]
    Config(#[from] EtcdConfigError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Etcd {
    /// Connects when first used. Must be called within a tokio runtime.
    pub fn lazy(config: &EtcdConfig) -> Result<Self, EtcdConfigError> {
        Ok(Self { pool: Arc::new(Pool::new(config)?) })
    }

    /// Waits for etcd to answer, up to the configured connect deadline. A refusal (a wrong
    /// password, say) ends the wait at once.
    pub async fn connect(config: &EtcdConfig) -> Result<Self, EtcdConnectError> {
        let etcd = Self::lazy(config)?;
        let deadline = Instant::now() + config.connect_deadline;
        let mut pause = std::time::Duration::from_millis(100);
        loop {
            let last = match tokio::time::timeout_at(deadline, etcd.revision()).await {
                Ok(Ok(_)) => return Ok(etcd),
                Ok(Err(error @ (StoreError::Unavailable { .. } | StoreError::Timeout { .. }))) => error,
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => etcd.pool.error(EtcdError::Late { why: "no answer at all".into() }),
            };
            let next = Instant::now() + pause;
            if next >= deadline {
                return Err(last.into());
            }
            sleep_until(next).await;
            pause = (pause * 2).min(std::time::Duration::from_secs(2));
        }
    }

    /// The oldest revision that can still be read or watched from, as far as etcd tells: zero if
    /// nothing was ever compacted.
    async fn oldest(&self, near: &str, requested: Revision) -> Revision {
        let reported = watch::compacted_at(&self.pool, near).await;
        reported.unwrap_or_else(|| self.pool.known_compaction().max(Revision(requested.0.saturating_add(1))))
    }

    /// The port's error for a request that named a revision.
    async fn error_at(&self, fault: EtcdError, near: &str, requested: Revision) -> StoreError {
        match fault {
            EtcdError::Compacted => StoreError::Compacted { requested, oldest: self.oldest(near, requested).await },
            EtcdError::Future => match self.pool.newest().await {
                Ok(newest) => StoreError::Future { requested, newest },
                Err(fault) => self.pool.error(fault),
            },
            fault => self.pool.error(fault),
        }
    }
}

#[async_trait]
impl Store for Etcd {
    async fn get(&self, key: &str) -> Result<(Option<Arc<Entry>>, Revision), StoreError> {
        range::get(&self.pool, key).await
    }

    async fn list(&self, query: List<'_>) -> Result<Listing, StoreError> {
        range::list(self, query).await
    }

    async fn get_any(&self, key: &str) -> Result<(Option<Arc<Entry>>, Revision), StoreError> {
        match timeout(CONFIRMATION, self.get(key)).await {
            Ok(Err(StoreError::Unavailable { .. } | StoreError::Timeout { .. })) | Err(_) => {
                range::get_stale(&self.pool, key).await
            }
            Ok(answer) => answer,
        }
    }

    async fn list_any(&self, query: List<'_>) -> Result<Listing, StoreError> {
        match timeout(CONFIRMATION, self.list(query.clone())).await {
            Ok(Err(StoreError::Unavailable { .. } | StoreError::Timeout { .. })) | Err(_) => {
                range::list_stale(self, query).await
            }
            Ok(answer) => answer,
        }
    }

    async fn commit(&self, txn: Txn) -> Result<Outcome, StoreError> {
        txn::commit(&self.pool, txn).await
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, StoreError> {
        watch::open(self, prefix, after).await
    }

    async fn compact(&self, at: Revision) -> Result<(), StoreError> {
        let request = CompactionRequest { revision: signed(at) };
        let answer =
            self.pool.call(CallKind::Write, |connection| async move { connection.kv().compact(request).await }).await;
        match answer {
            Ok(_) => {
                self.pool.record_compaction(at);
                Ok(())
            }
            Err(fault) => Err(self.error_at(fault, "", at).await),
        }
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        self.pool.newest().await.map_err(|fault| self.pool.error(fault))
    }
}
