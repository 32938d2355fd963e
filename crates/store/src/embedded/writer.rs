//! The writer: takes the queued transactions, decides them, commits them together, and answers.
//!
//! The store's thread holds it, or a caller that found nobody writing (`queue`). Upkeep is the thread's alone, in steps small
//! enough that no writer notices: history beyond its retention is let go of, rows it needed are removed in passing by commits
//! that happen anyway (or by ones of their own when nobody writes), and the write-ahead log is folded back into the file after
//! answering. With nothing to write and nothing to clean the thread sleeps without a timer.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use super::{
    Options,
    disk::{CommitError, CommitMeta, Disk, Row},
    plan::{Plan, plan},
    queue::{RequestQueue, Wakeup},
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
/// Rows are removed by commits of their own once nothing was written for this long: commits that come remove them in passing.
const QUIET: Duration = Duration::from_millis(10);
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
    pub(super) queue: Arc<RequestQueue>,
    pub(super) options: Options,
    pub(super) garbage: VecDeque<Garbage>,
    /// What keeps the store from writing all it is asked to.
    pub(super) trouble: Arc<Mutex<Option<StoreError>>>,
    /// When upkeep last failed.
    pub(super) upkeep_failed: Option<Instant>,
    /// When requests were last served, and when anything was last done.
    pub(super) last_batch: Option<Instant>,
    pub(super) last_turn: Instant,
}

/// The place of the writer; empty once the store is closed.
pub(super) type WriterSlot = Mutex<Option<Writer>>;

/// The writer in somebody's hands. A panic among them leaves no writer behind that stopped midway: the store is then closed.
pub(super) struct HeldWriter<'a> {
    slot: MutexGuard<'a, Option<Writer>>,
    queue: &'a RequestQueue,
}

impl<'a> HeldWriter<'a> {
    pub(super) fn lock(slot: &'a WriterSlot, queue: &'a RequestQueue) -> HeldWriter<'a> {
        HeldWriter { slot: slot.lock(), queue }
    }

    /// `None` while somebody else has it.
    pub(super) fn try_lock(slot: &'a WriterSlot, queue: &'a RequestQueue) -> Option<HeldWriter<'a>> {
        Some(HeldWriter { slot: slot.try_lock()?, queue })
    }

    pub(super) fn writer(&mut self) -> Option<&mut Writer> {
        self.slot.as_mut()
    }
}

impl Drop for HeldWriter<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            *self.slot = None;
            self.queue.abandon();
        }
    }
}

/// The store's thread. Runs until asked to close, or until every handle is gone.
pub(super) fn run(slot: &WriterSlot, queue: &RequestQueue) {
    let closing = loop {
        let timeout = HeldWriter::lock(slot, queue).writer().and_then(|writer| writer.next_timeout());
        let wakeup = queue.wait(timeout);
        let mut held = HeldWriter::lock(slot, queue);
        let Some(writer) = held.writer() else { return };
        match wakeup {
            Wakeup::Called => {
                if let Some(closing) = writer.run_turn() {
                    break Some(closing);
                }
            }
            // Callers may have written since it was set.
            Wakeup::TimedOut if writer.next_timeout() == Some(Duration::ZERO) => writer.idle(),
            Wakeup::TimedOut => {}
            Wakeup::Closed => break None,
        }
    };
    let Some(writer) = slot.lock().take() else { return };
    queue.abandon();
    writer.mvcc.close();
    let outcome = writer.finish();
    match closing {
        Some(reply) => drop(reply.send(outcome)),
        None => drop(outcome.inspect_err(|error| tracing::warn!(%error, "store did not close cleanly"))),
    }
}

impl Writer {
    /// Serves what is queued, then does the upkeep that cannot wait. Answers the reply to give when asked to close.
    pub(super) fn run_turn(&mut self) -> Option<Reply<()>> {
        if self.is_log_full() {
            self.checkpoint(); // left to the thread by a caller
        }
        self.commit_queued();
        let closing = match self.queue.pop_other() {
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
        if self.is_log_full() {
            self.checkpoint();
        }
        self.report_health();
        closing
    }

    /// Commits the transactions at the head of the queue together.
    pub(super) fn commit_queued(&mut self) {
        let mut commits = Vec::new();
        let mut bytes = 0;
        while commits.len() < self.options.batch_txns
            && bytes < self.options.batch_bytes
            && let Some(pending) = self.queue.pop_commit()
        {
            bytes += pending.txn.size();
            commits.push(pending);
        }
        if !commits.is_empty() {
            self.commit(commits);
        }
        self.trim_history();
        self.report_health();
        self.last_turn = Instant::now();
        self.last_batch = Some(self.last_turn);
    }

    /// As a caller does it, in place of the thread. Answers when the thread is needed next. A full log is the thread's to fold
    /// into the file, before anything else is added to it.
    pub(super) fn serve_as_caller(&mut self) -> Option<Duration> {
        if !self.is_log_full() {
            self.commit_queued();
        }
        if self.is_log_full() { Some(Duration::ZERO) } else { self.next_timeout() }
    }

    fn is_log_full(&self) -> bool {
        self.disk.wal_pages() >= self.disk.log_limit(self.options.log_pages)
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
        let stale = state.oldest().is_some_and(|at| now.saturating_duration_since(at) >= self.options.stale());
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
        self.last_turn = Instant::now();
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
        let rest_of = |delay: Duration, since: Instant| delay.saturating_sub(since.elapsed());
        let retention = state.oldest().map(|oldest| rest_of(self.options.stale(), oldest));
        if self.disk.broken().is_some() {
            return retention;
        }
        if self.trouble.lock().is_some() {
            return Some(rest_of(UPKEEP_RETRY, self.last_turn));
        }
        if let Some(failed) = self.upkeep_failed {
            return Some(rest_of(UPKEEP_RETRY, failed));
        }
        if state.untrimmed() || !self.garbage.is_empty() {
            return Some(self.last_batch.map_or(Duration::ZERO, |last| rest_of(QUIET, last)));
        }
        let log = (self.disk.wal_pages() > 0).then(|| rest_of(CHECKPOINT_DELAY, self.last_turn));
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
