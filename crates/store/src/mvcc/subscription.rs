//! The reader's end of a watch.

use std::{collections::VecDeque, sync::Arc};

use async_trait::async_trait;

use super::{
    Batch, Mvcc,
    fanout::{Contents, Inbox},
};
use crate::{Change, Notice, Revision, StoreError, Watch};

/// About how many changes one notice carries.
const NOTICE_CHANGES: usize = 512;
/// How many transactions of history are looked at under one hold of the state's lock.
const SCAN: usize = 4096;

pub(crate) struct Subscription {
    mvcc: Arc<Mvcc>,
    inbox: Arc<Inbox>,
    progress_wanted: bool,
}

enum Step {
    Give(Notice),
    /// There is more history to look at.
    Again,
    Wait,
}

impl Subscription {
    pub(super) fn new(mvcc: Arc<Mvcc>, inbox: Arc<Inbox>) -> Subscription {
        Subscription { mvcc, inbox, progress_wanted: false }
    }

    fn step(&mut self) -> Result<Step, StoreError> {
        match &mut *self.inbox.contents.lock() {
            Contents::Closed => return Err(StoreError::Closing),
            Contents::Live { batches, changes } if !batches.is_empty() => {
                return Ok(Step::Give(Notice::Changes(take(batches, changes))));
            }
            Contents::Live { .. } if !self.progress_wanted => return Ok(Step::Wait),
            Contents::Live { .. } | Contents::Behind { .. } => {}
        }
        self.step_with_state()
    }

    fn step_with_state(&mut self) -> Result<Step, StoreError> {
        let state = self.mvcc.state.read();
        let mut contents = self.inbox.contents.lock();
        let after = match &*contents {
            Contents::Closed => return Err(StoreError::Closing),
            Contents::Live { batches, .. } if !batches.is_empty() => return Ok(Step::Again),
            Contents::Live { .. } => {
                self.progress_wanted = false;
                return Ok(Step::Give(Notice::Progress(state.revision())));
            }
            Contents::Behind { after } => *after,
        };
        state.check_watch(&self.inbox.prefix, after)?;
        let mut found: Vec<Change> = Vec::new();
        let mut reached = None;
        for batch in state.since(after).take(SCAN) {
            found.extend(batch.iter().filter(|c| c.key.starts_with(&*self.inbox.prefix)).cloned());
            reached = Some(batch[0].revision);
            if found.len() >= NOTICE_CHANGES {
                break;
            }
        }
        *contents = match reached {
            Some(reached) if reached < state.revision() => Contents::Behind { after: reached },
            // Nothing after `after`, or all of it is in `found`.
            Some(Revision(_)) | None => Contents::live(),
        };
        Ok(if found.is_empty() { Step::Again } else { Step::Give(Notice::Changes(found)) })
    }
}

fn take(batches: &mut VecDeque<Batch>, waiting: &mut usize) -> Vec<Change> {
    let mut taken = Vec::new();
    while taken.len() < NOTICE_CHANGES
        && let Some(batch) = batches.pop_front()
    {
        *waiting -= batch.len();
        taken.extend(batch.iter().cloned());
    }
    taken
}

#[async_trait]
impl Watch for Subscription {
    async fn next(&mut self) -> Result<Notice, StoreError> {
        loop {
            match self.step()? {
                Step::Give(notice) => return Ok(notice),
                Step::Again => {}
                Step::Wait => self.inbox.wake.notified().await,
            }
        }
    }

    fn request_progress(&mut self) {
        self.progress_wanted = true;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.mvcc.watchers.unregister(&self.inbox);
    }
}
