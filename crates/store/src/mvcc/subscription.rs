//! A watch on the state in memory: delivers from its queue, or from history when it fell behind.

use std::{collections::VecDeque, sync::Arc};

use async_trait::async_trait;

use super::{
    Batch, Mvcc,
    fanout::{QueueState, WatchQueue},
};
use crate::{Change, Revision, StoreError, Watch, WatchEvent};

/// About how many changes one event carries.
const EVENT_CHANGES: usize = 512;
/// How many transactions of history are looked at under one hold of the state's lock.
const SCAN: usize = 4096;

pub(crate) struct Subscription {
    mvcc: Arc<Mvcc>,
    queue: Arc<WatchQueue>,
    progress_wanted: bool,
}

enum Step {
    Deliver(WatchEvent),
    /// There is more history to look at.
    Continue,
    Wait,
}

impl Subscription {
    pub(super) fn new(mvcc: Arc<Mvcc>, queue: Arc<WatchQueue>) -> Subscription {
        Subscription { mvcc, queue, progress_wanted: false }
    }

    fn step(&mut self) -> Result<Step, StoreError> {
        match &mut *self.queue.pending.lock() {
            QueueState::Closed => return Err(StoreError::Closing),
            QueueState::Live { batches, changes } if !batches.is_empty() => {
                return Ok(Step::Deliver(WatchEvent::Changes(take(batches, changes))));
            }
            QueueState::Live { .. } if !self.progress_wanted => return Ok(Step::Wait),
            QueueState::Live { .. } | QueueState::Behind { .. } => {}
        }
        self.step_with_state()
    }

    fn step_with_state(&mut self) -> Result<Step, StoreError> {
        let state = self.mvcc.state.read();
        let mut pending = self.queue.pending.lock();
        let after = match &*pending {
            QueueState::Closed => return Err(StoreError::Closing),
            QueueState::Live { batches, .. } if !batches.is_empty() => return Ok(Step::Continue),
            QueueState::Live { .. } => {
                self.progress_wanted = false;
                return Ok(Step::Deliver(WatchEvent::Progress(state.revision())));
            }
            QueueState::Behind { after } => *after,
        };
        state.check_watch(&self.queue.prefix, after)?;
        let mut found: Vec<Change> = Vec::new();
        let mut reached = None;
        for batch in state.since(after).take(SCAN) {
            found.extend(batch.iter().filter(|c| c.key.starts_with(&*self.queue.prefix)).cloned());
            reached = Some(batch[0].revision);
            if found.len() >= EVENT_CHANGES {
                break;
            }
        }
        *pending = match reached {
            Some(reached) if reached < state.revision() => QueueState::Behind { after: reached },
            // Nothing after `after`, or all of it is in `found`.
            Some(Revision(_)) | None => QueueState::live(),
        };
        Ok(if found.is_empty() { Step::Continue } else { Step::Deliver(WatchEvent::Changes(found)) })
    }
}

fn take(batches: &mut VecDeque<Batch>, waiting: &mut usize) -> Vec<Change> {
    let mut taken = Vec::new();
    while taken.len() < EVENT_CHANGES
        && let Some(batch) = batches.pop_front()
    {
        *waiting -= batch.len();
        taken.extend(batch.iter().cloned());
    }
    taken
}

#[async_trait]
impl Watch for Subscription {
    async fn next(&mut self) -> Result<WatchEvent, StoreError> {
        loop {
            match self.step()? {
                Step::Deliver(event) => return Ok(event),
                Step::Continue => {}
                Step::Wait => self.queue.wake.notified().await,
            }
        }
    }

    fn request_progress(&mut self) {
        self.progress_wanted = true;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.mvcc.watchers.unregister(&self.queue);
    }
}
