//! The writer thread: takes the queued transactions, decides them, commits them together, and answers.
//!
//! Upkeep happens here too, in steps small enough that no writer notices: history beyond its
//! retention is let go of, rows it needed are removed in passing by commits that happen anyway (or by ones of their
//! own when nobody writes), and the write-ahead log is folded back into the file after answering. With nothing to write and nothing
//! to clean the thread sleeps without a timer.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{
    Options,
    disk::{CommitError, CommitMeta, Disk, Row},
    plan::{Plan, plan},
    reserve::{Growth, Space},
};
use crate::{
    Change, Outcome, Revision, StoreError, Txn,
    mvcc::{Garbage, Mvcc},
};

/// Most history changes let go of, and most rows removed, in one turn.
const TRIM_STEP: usize = 128;
/// How many volatile writes may happen between two commits that make room for more.
const CEILING_STEP: u64 = 100_000;
/// Changes of history kept while the disk is full, so that the pages of older ones can be used again.
const SHORT_HISTORY: usize = 64;
/// A log that nobody adds to is folded into the file after this long.
const CHECKPOINT_DELAY: Duration = Duration::from_secs(5);
/// Upkeep that failed (a full disk) is tried again this often.
const UPKEEP_RETRY: Duration = Duration::from_secs(5);

pub(super) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

pub(super) enum Request {
    Commit(Pending),
    Compact {
        at: Revision,
        reply: Reply<()>,
    },
    Close {
        reply: Reply<()>,
    },
    /// Something to do while nothing is being written.
    #[cfg(test)]
    Run(Box<dyn FnOnce() + Send>),
}

pub(super) struct Pending {
    pub(super) txn: Txn,
    pub(super) reply: Reply<Outcome>,
}

pub(super) struct Writer {
    pub(super) mvcc: Arc<Mvcc>,
    pub(super) disk: Disk,
    pub(super) requests: Receiver<Request>,
    pub(super) options: Options,
    pub(super) garbage: VecDeque<Garbage>,
    /// What keeps the store from writing all it is asked to.
    pub(super) trouble: Arc<Mutex<Option<StoreError>>>,
    /// When upkeep last failed.
    pub(super) upkeep_failed: Option<Instant>,
}

impl Writer {
    /// Runs until asked to close, or until every handle is gone.
    pub(super) fn run(mut self) {
        let closing = loop {
            let first = match self.next_timeout() {
                None => self.requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(rest) => self.requests.recv_timeout(rest),
            };
            match first {
                Ok(first) => {
                    if let Some(closing) = self.run_batch(first) {
                        break Some(closing);
                    }
                }
                Err(RecvTimeoutError::Timeout) => self.idle(),
                Err(RecvTimeoutError::Disconnected) => break None,
            }
        };
        self.mvcc.close();
        let outcome = self.finish();
        match closing {
            Some(reply) => drop(reply.send(outcome)),
            None => drop(outcome.inspect_err(|error| tracing::warn!(%error, "store did not close cleanly"))),
        }
    }

    /// Handles `first` and whatever has queued up behind it. Answers the reply to give when asked to close.
    pub(super) fn run_batch(&mut self, first: Request) -> Option<Reply<()>> {
        let mut commits = Vec::new();
        let mut bytes = 0;
        let mut other = None;
        let mut next = Some(first);
        while let Some(request) = next {
            match request {
                Request::Commit(pending) => {
                    bytes += pending.txn.size();
                    commits.push(pending);
                }
                // Carried out after what came before it; what follows waits for the next turn.
                request => {
                    other = Some(request);
                    break;
                }
            }
            let full = commits.len() >= self.options.batch_txns || bytes >= self.options.batch_bytes;
            next = if full { None } else { self.requests.try_recv().ok() };
        }
        if !commits.is_empty() {
            self.commit(commits);
        }
        let closing = match other {
            None | Some(Request::Commit(_)) => None,
            Some(Request::Compact { at, reply }) => {
                let _ = reply.send(self.compact(at));
                None
            }
            Some(Request::Close { reply }) => Some(reply),
            #[cfg(test)]
            Some(Request::Run(job)) => {
                job();
                None
            }
        };
        if self.disk.wal_pages() >= self.disk.log_limit(self.options.log_pages) {
            self.checkpoint();
        }
        self.trim_history();
        self.report_health();
        closing
    }

    fn commit(&mut self, pending: Vec<Pending>) {
        let plan = self.plan(&pending);
        let error = match self.write(&plan) {
            Ok(()) => return self.publish(plan, pending),
            // What frees space still finds room in the reserve, once it is not in the same commit as what does not.
            Err(StoreError::NoSpace) if self.disk.space() != Space::Ample => {
                let plan = self.plan(&pending);
                match self.write(&plan) {
                    Ok(()) => return self.publish(plan, pending),
                    Err(error) => error,
                }
            }
            Err(error) => error,
        };
        // Heartbeats must get through while the disk is full.
        let (volatile, durable): (Vec<_>, Vec<_>) =
            pending.into_iter().partition(|p| p.txn.ops.iter().all(|op| self.options.is_volatile(op.key())));
        for pending in durable {
            let _ = pending.reply.send(Err(error.clone()));
        }
        self.commit_volatile(volatile, &error);
    }

    /// What the transactions come to with the room there is now.
    fn plan(&mut self, pending: &[Pending]) -> Plan {
        let space = self.disk.space();
        let options = &self.options;
        let admit = |changes: &[Change]| {
            let durable = changes.iter().filter(|change| !options.is_volatile(&change.key));
            if space.admits(Growth::from_changes(durable)) { Ok(()) } else { Err(StoreError::NoSpace) }
        };
        plan(&self.mvcc.state.read(), pending.iter().map(|p| &p.txn), admit)
    }

    fn commit_volatile(&mut self, pending: Vec<Pending>, error: &StoreError) {
        let plan = plan(&self.mvcc.state.read(), pending.iter().map(|p| &p.txn), |_| Ok(()));
        if plan.revision.0 > self.disk.meta().ceiling.max(self.mvcc.state.read().revision().0) {
            for pending in pending {
                let _ = pending.reply.send(Err(error.clone()));
            }
            return;
        }
        self.publish(plan, pending);
    }

    fn publish(&mut self, plan: Plan, pending: Vec<Pending>) {
        self.mvcc.apply(plan.changes);
        for (pending, outcome) in pending.into_iter().zip(plan.outcomes) {
            let _ = pending.reply.send(outcome);
        }
    }

    /// Makes a plan durable. Volatile changes only need room below the ceiling.
    fn write(&mut self, plan: &Plan) -> Result<(), StoreError> {
        let options = &self.options;
        let durable = |key: &str| !options.is_volatile(key);
        let changes = || plan.changes.iter().flat_map(|batch| batch.iter().enumerate());
        let any_durable = changes().any(|(_, c)| durable(&c.key));
        let any_volatile = changes().any(|(_, c)| !durable(&c.key));
        let ceiling = self.disk.meta().ceiling;
        let over_ceiling = any_volatile && plan.revision.0 > ceiling;
        if !any_durable && !over_ceiling {
            return Ok(());
        }
        // A commit that happens anyway makes room for volatile writes early.
        let low = !options.volatile.is_empty() && plan.revision.0 + CEILING_STEP / 2 > ceiling;
        let ceiling = if over_ceiling || low { plan.revision.0 + CEILING_STEP } else { ceiling };
        let rows = changes().filter(|(_, c)| durable(&c.key)).map(|(place, c)| Row::from_change(c, place));
        // Rows that go need room in the log like rows that come.
        let step = if self.disk.space() == Space::Spent { 0 } else { self.garbage.len().min(TRIM_STEP) };
        let compacted = self.mvcc.state.read().compacted();
        let garbage = &self.garbage.make_contiguous()[..step];
        self.disk
            .commit(rows, garbage, CommitMeta { revision: plan.revision, compacted, ceiling })
            .map_err(to_store_error)?;
        self.garbage.drain(..step);
        Ok(())
    }

    fn compact(&mut self, at: Revision) -> Result<(), StoreError> {
        let commit_meta = {
            let state = self.mvcc.state.read();
            state.check_compact(at)?;
            CommitMeta { revision: self.disk_revision(), compacted: at, ceiling: self.disk.meta().ceiling }
        };
        self.disk.commit(std::iter::empty(), &[], commit_meta).map_err(to_store_error)?;
        self.mvcc.state.write().raise_compacted(at);
        Ok(())
    }

    fn disk_revision(&self) -> Revision {
        Revision(self.disk.meta().revision)
    }

    fn checkpoint(&mut self) {
        self.upkeep_failed = self.disk.checkpoint().is_err().then(Instant::now);
    }

    /// Lets go of history past its retention, some of it.
    fn trim_history(&mut self) {
        let most = match self.disk.space() {
            Space::Ample => self.options.history_events,
            Space::Short | Space::Spent => self.options.history_events.min(SHORT_HISTORY),
        };
        let state = self.mvcc.state.read();
        let bytes = self.options.history_bytes;
        let crowded = state.events() > most + most / 16 || state.history_bytes() > bytes + bytes / 16;
        let now = Instant::now();
        let stale = state.oldest().is_some_and(|at| now.saturating_duration_since(at) > self.options.stale());
        let target = match crowded || stale {
            true => state.retention_target(most, bytes, now.checked_sub(self.options.history)),
            false => None,
        };
        let volatile = self.options.volatile_history;
        let crowded_volatile = state.volatile_changes() > volatile + volatile / 16;
        let due = target.is_some() || crowded_volatile || state.untrimmed();
        drop(state);
        if !due {
            return;
        }
        let mut state = self.mvcc.state.write();
        if let Some(target) = target {
            state.raise_compacted(target);
        }
        state.trim_volatile(volatile);
        let garbage = state.trim(TRIM_STEP);
        drop(state);
        self.garbage.extend(garbage.into_iter().filter(|g| !self.options.is_volatile(&g.key)));
    }

    /// One step of what can be done while nobody writes.
    pub(super) fn idle(&mut self) {
        self.upkeep_failed = None;
        self.trim_history();
        let space = self.disk.space();
        if space == Space::Spent {
            self.checkpoint();
        } else if !self.garbage.is_empty() {
            let nothing = Plan { outcomes: Vec::new(), changes: Vec::new(), revision: self.disk_revision() };
            self.upkeep_failed = self.remove_garbage(&nothing).is_err().then(Instant::now);
        } else if self.disk.wal_pages() > 0 && space == Space::Ample {
            self.checkpoint();
        }
        self.report_health();
    }

    /// Tells [`super::Embedded`] what is wrong, or that nothing is.
    fn report_health(&mut self) {
        let space = self.disk.space();
        *self.trouble.lock() = match self.disk.broken() {
            Some(why) => Some(StoreError::Failed { why: why.clone() }),
            None if space != Space::Ample => Some(StoreError::NoSpace),
            None => None,
        };
    }

    fn remove_garbage(&mut self, nothing: &Plan) -> Result<(), StoreError> {
        let step = self.garbage.len().min(TRIM_STEP);
        let compacted = self.mvcc.state.read().compacted();
        let commit_meta = CommitMeta { revision: nothing.revision, compacted, ceiling: self.disk.meta().ceiling };
        let garbage = &self.garbage.make_contiguous()[..step];
        self.disk.commit(std::iter::empty(), garbage, commit_meta).map_err(to_store_error)?;
        self.garbage.drain(..step);
        Ok(())
    }

    /// How long there is nothing to do unless somebody asks; `None` for as long as that may take.
    pub(super) fn next_timeout(&self) -> Option<Duration> {
        let state = self.mvcc.state.read();
        let retention = state.oldest().map(|oldest| {
            let age = Instant::now().saturating_duration_since(oldest);
            self.options.stale().saturating_sub(age) + Duration::from_millis(1)
        });
        if self.disk.broken().is_some() {
            return retention;
        }
        if self.trouble.lock().is_some() {
            return Some(UPKEEP_RETRY);
        }
        if let Some(failed) = self.upkeep_failed {
            return Some(UPKEEP_RETRY.saturating_sub(failed.elapsed()).max(Duration::from_millis(1)));
        }
        if state.untrimmed() || !self.garbage.is_empty() {
            return Some(Duration::ZERO);
        }
        let log = (self.disk.wal_pages() > 0).then_some(CHECKPOINT_DELAY);
        [log, retention].into_iter().flatten().min()
    }

    fn finish(self) -> Result<(), StoreError> {
        let state = self.mvcc.state.read();
        let commit_meta = CommitMeta { revision: state.revision(), compacted: state.compacted(), ceiling: 0 };
        drop(state);
        self.disk.close(commit_meta).map_err(to_store_error)
    }
}

fn to_store_error(error: CommitError) -> StoreError {
    match error {
        CommitError::Full => StoreError::NoSpace,
        CommitError::Missing(why) => StoreError::Failed { why },
        CommitError::Broken(why) => StoreError::Failed { why },
    }
}
