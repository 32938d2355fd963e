//! The multi-version state held in memory: what reads, lists and watches are answered from.
//!
//! A key maps to its newest version and to the older ones that history still covers; history
//! is the list of transactions after the newest compacted revision. Everything
//! here happens in memory and cannot fail: durability is the caller's business, who applies a
//! transaction only once it is on disk.
//!
//! Locks are taken in one order, the state before a watch's queue. Changes enter queues under the
//! state's write lock, so whoever holds its read lock and finds a queue empty knows that the
//! queue's owner has seen everything up to [`State::revision`].

mod fanout;
mod state;
mod subscription;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use parking_lot::RwLock;

use crate::{Change, IndexMatch, Revision, StoreError};

pub(crate) use state::{Garbage, State};
pub(crate) use subscription::Subscription;

/// Changes of one transaction, or those of them that lie below one prefix. Never empty.
pub(crate) type Batch = Arc<[Change]>;

/// State and its watchers.
pub(crate) struct Mvcc {
    pub(crate) state: RwLock<State>,
    watchers: fanout::Watchers,
}

impl Mvcc {
    pub(crate) fn new(state: State) -> Arc<Mvcc> {
        Arc::new(Mvcc { state: RwLock::new(state), watchers: fanout::Watchers::default() })
    }

    /// Makes committed transactions visible, to readers and watchers at once.
    pub(crate) fn apply(&self, transactions: impl IntoIterator<Item = Batch>) {
        let mut state = self.state.write();
        for batch in transactions {
            state.apply(batch.clone());
            self.watchers.deliver(&batch);
        }
    }

    /// Follows `prefix`, or a part of it, from `after`, holding at most `queue` undelivered changes in memory.
    pub(crate) fn watch(
        self: &Arc<Self>,
        prefix: &str,
        part: Option<IndexMatch>,
        after: Revision,
        queue: usize,
    ) -> Result<Subscription, StoreError> {
        let state = self.state.read();
        state.check_watch(prefix, after)?;
        let queue = self.watchers.register(prefix, part, after, state.revision(), queue);
        drop(state);
        Ok(Subscription::new(self.clone(), queue))
    }

    /// Ends every watch with [`StoreError::Closing`].
    pub(crate) fn close(&self) {
        self.watchers.close();
    }
}
