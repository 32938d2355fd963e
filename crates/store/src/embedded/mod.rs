//! The store in one file: durable before it answers, and served from memory.
//!
//! Everything current, and the history that watches may resume from, is in memory (`mvcc`); SQLite
//! beneath it is the journal that survives. One at a time writes (`writer`), the store's thread or a caller that finds nobody
//! writing (`queue`): it takes the transactions that have queued up, decides them in order, commits them to disk with one fsync,
//! and only then makes them visible and answers. A commit that fails changes nothing.
//!
//! # What is promised
//!
//! * An acknowledged transaction is on disk. `kill -9` or power loss at any moment loses none of them, and never
//!   leaves part of one.
//! * Revisions never go back and are never given twice, also where volatile keys took some that
//!   were never on disk: their ceiling is recorded ahead of use, and a start after a crash continues beyond it.
//! * A full disk refuses what makes the store larger with [`StoreError::NoSpace`]. Deletions and updates of what is there go
//!   on from space set aside before (`reserve`), and so do reads, watches and volatile writes. Everything resumes by
//!   itself when there is room.
//! * Nothing is acknowledged once the files were removed or replaced under the running store (`open_files`).
//! * History, the file and its log stay bounded whatever is written, without anyone looking after them.
//!
//! # What is detected
//!
//! A flipped bit, a lost, doubled or stale row, or a truncated or missing file is reported when
//! the store is opened, with the newest backup in `backups/` that verifies. This rests on three things: checksums per row and a
//! digest over all of them (`disk`), a look at the write-ahead log before SQLite reads it (`wal`), and a note of the last
//! acknowledged commit (`marker`). One case stays open: after a *power loss*, damage within the very last transaction of
//! the log looks like a transaction that was being written, if the marker had not reached the disk either.

mod backup;
mod disk;
mod error;
mod load;
mod lock;
mod marker;
mod open_files;
mod paths;
mod plan;
mod queue;
mod reserve;
#[cfg(test)]
mod tests;
mod wal;
mod writer;

use std::{
    collections::VecDeque,
    fs,
    path::Path,
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use mainstay_files::remove_file_if_exists;
use parking_lot::Mutex;
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::oneshot,
};

use crate::{Entry, IndexMatch, List, Listing, Outcome, Revision, Store, StoreError, Txn, Watch, check, mvcc::Mvcc};
use disk::{Disk, Meta};
use error::FileFault;
use lock::DirLock;
use open_files::OpenFiles;
use queue::{RequestQueue, ServedByCaller};
use writer::{HeldWriter, Pending, Reply, Request, Writer, WriterSlot};

pub use backup::{Existing, REVISION_JUMP, Summary, backup_closed, newest_usable, restore, verify, verify_file};
pub use disk::{FORMAT, check_readable};
pub use error::{BackupError, OpenError, RestoreError};
pub use paths::backups as backups_dir;

/// Some hundreds of deletions fit into it even where none of them makes room for the next.
const RESERVE_BYTES: u64 = 16 << 20;

#[derive(Clone, Debug)]
pub struct Options {
    /// History older than this may be forgotten.
    pub history: Duration,
    /// So may history beyond this many changes, or this many bytes. Volatile keys do not count.
    pub history_events: usize,
    pub history_bytes: usize,
    /// Changes of volatile keys that watches may resume from.
    pub volatile_history: usize,
    /// Keys below these prefixes live in memory only: they cost no fsync and are gone after a restart.
    pub volatile: Vec<Arc<str>>,
    /// Most transactions that share a commit.
    pub batch_txns: usize,
    /// Bytes of transactions after which no more are added to a commit.
    pub batch_bytes: usize,
    /// Most bytes of keys and values in one transaction.
    pub txn_bytes: usize,
    /// Pages of the write-ahead log beyond which it is folded into the file.
    pub log_pages: u64,
    /// Most bytes of disk set aside for when it is full; less on a small file system, none if zero.
    pub reserve: u64,
    /// Changes held for a watch that does not read them; beyond that it reads from history.
    pub watch_queue: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            history: Duration::from_secs(300),
            history_events: 100_000,
            history_bytes: 128 << 20,
            volatile_history: 10_000,
            volatile: Vec::new(),
            batch_txns: 512,
            batch_bytes: 4 << 20,
            txn_bytes: check::TXN_BYTES,
            log_pages: 1000,
            reserve: RESERVE_BYTES,
            watch_queue: 1024,
        }
    }
}

impl Options {
    fn is_volatile(&self, key: &str) -> bool {
        self.volatile.iter().any(|prefix| key.starts_with(&**prefix))
    }

    /// The age at which history is looked through, somewhat beyond the age at which it is let go of, so
    /// that it goes in larger pieces.
    fn stale(&self) -> Duration {
        self.history + self.history / 5
    }
}

/// A running store. Dropping it closes it, waiting for the writer to finish; [`Embedded::close`] also tells how that went.
pub struct Embedded {
    mvcc: Arc<Mvcc>,
    options: Options,
    files: Arc<OpenFiles>,
    trouble: Arc<Mutex<Option<StoreError>>>,
    queue: Arc<RequestQueue>,
    writer: Arc<WriterSlot>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Embedded {
    /// Opens the store in `dir`, or makes one. Blocks while it reads the file.
    pub fn open(dir: impl AsRef<Path>, options: Options) -> Result<Embedded, OpenError> {
        let (writer, lock) = prepare(dir.as_ref(), &options)?;
        let (mvcc, files, trouble) = (writer.mvcc.clone(), writer.disk.files().clone(), writer.trouble.clone());
        let queue = writer.queue.clone();
        let writer = Arc::new(Mutex::new(Some(writer)));
        let (served, slot) = (queue.clone(), writer.clone());
        let run = move || {
            writer::run(&slot, &served);
            drop(lock);
        };
        let spawned = thread::Builder::new().name("store".into()).spawn(run);
        let thread = spawned.map_err(|source| OpenError::Io { path: dir.as_ref().to_path_buf(), source })?;
        Ok(Embedded { mvcc, options, files, trouble, queue, writer, thread: Mutex::new(Some(thread)) })
    }

    /// Writes a backup to `file`, which must not exist. Blocks; writers go on meanwhile.
    pub fn backup(&self, file: impl AsRef<Path>) -> Result<Summary, BackupError> {
        backup::write(&self.mvcc.state, |key| !self.options.is_volatile(key), file.as_ref())
    }

    /// Finishes what is queued, folds the log into the file and lets go of the directory.
    pub async fn close(&self) -> Result<(), StoreError> {
        let (reply, answer) = oneshot::channel();
        let outcome = match self.queue.push_last(Request::Close { reply }) {
            Ok(()) => answer.await.unwrap_or(Err(StoreError::Closing)),
            Err(_) => return Err(StoreError::Closing),
        };
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
        outcome
    }

    fn push_request<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> Result<PendingReply<T>, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.queue.push(request(reply)).map_err(|_| StoreError::Closing)?;
        Ok(PendingReply(answer))
    }

    /// Sees to it that what is queued is served: by the caller, if it may block and nobody else does, or else by the thread.
    async fn serve_queue(&self) {
        let may_block = Handle::try_current().is_ok_and(|h| h.runtime_flavor() == RuntimeFlavor::MultiThread);
        if !may_block {
            return self.queue.call_thread();
        }
        if self.writer.is_locked() {
            return; // whoever holds it looks at the queue afterwards
        }
        let request = ServedByCaller(Some(&self.queue));
        // Those that are about to commit too, on this thread or in this very task, share the fsync.
        tokio::task::yield_now().await;
        let Some(mut held) = HeldWriter::try_lock(&self.writer, &self.queue) else { return request.done() };
        let due = match held.writer() {
            None => None,
            Some(_) if self.queue.is_empty() => None, // somebody was faster
            // Without handing its other tasks on, this thread would keep everybody's sockets waiting for a slow disk.
            Some(writer) => tokio::task::block_in_place(|| writer.serve_as_caller()),
        };
        drop(held);
        request.done();
        self.queue.hand_over(due);
    }

    fn open_state(&self) -> Result<parking_lot::RwLockReadGuard<'_, crate::mvcc::State>, StoreError> {
        if self.queue.is_closed() { Err(StoreError::Closing) } else { Ok(self.mvcc.state.read()) }
    }
}

/// The answer to a request, once there is one.
struct PendingReply<T>(oneshot::Receiver<Result<T, StoreError>>);

impl<T> PendingReply<T> {
    async fn receive(self) -> Result<T, StoreError> {
        // A writer that is gone without an answer may or may not have got to it.
        let gone = || StoreError::Unavailable { why: "the store stopped before it answered".into() };
        self.0.await.unwrap_or_else(|_| Err(gone()))
    }
}

/// Everything that can fail about starting.
fn prepare(dir: &Path, options: &Options) -> Result<(Writer, DirLock), OpenError> {
    let io = |path: &Path| {
        let path = path.to_path_buf();
        move |source| OpenError::Io { path, source }
    };
    mainstay_files::create_private_dir(dir).map_err(io(dir))?;
    let lock = DirLock::acquire(dir)?;
    restrict_files(dir).map_err(io(dir))?;
    if paths::restoring(dir).exists() {
        return Err(OpenError::HalfRestored { dir: dir.to_path_buf() });
    }
    let db = paths::db(dir);
    if !db.exists() {
        create(dir)?;
    }
    let mut loaded = load::dir(dir)?;
    if !options.volatile.is_empty() {
        loaded.state.forget_before_now(options.volatile.clone());
    }
    let marker = paths::marker(dir);
    let marker = marker::Marker::open(&marker, loaded.meta.store).map_err(io(&marker))?;
    let disk = Disk::new(loaded.db, dir, loaded.meta, marker, options.reserve)
        .map_err(|fault| fault.into_open_error(&db, || newest_usable(dir)))?;
    let writer = Writer {
        mvcc: Mvcc::new(loaded.state),
        disk,
        queue: Arc::default(),
        options: options.clone(),
        garbage: VecDeque::from(loaded.garbage),
        trouble: Arc::default(),
        upkeep_failed: None,
        last_batch: None,
        last_turn: Instant::now(),
    };
    Ok((writer, lock))
}

/// Every file here holds Secrets. An earlier version may have left some open, a write-ahead log above all: SQLite makes
/// it with the mode of the database and leaves an old one as it is.
fn restrict_files(dir: &Path) -> std::io::Result<()> {
    // By name: the directory may be an administrator's, with other things in it.
    let mut restricted = Vec::new();
    for file in paths::files(dir) {
        restricted.extend(mainstay_files::restrict_file(&file)?);
    }
    for directory in [paths::backups(dir), paths::replaced(dir)] {
        restricted.extend(mainstay_files::restrict_tree(&directory, &|_| false)?);
    }
    if let Some(first) = restricted.first() {
        let (path, mode) = (first.path.display(), format!("{:04o}", first.previous_mode));
        let more = restricted.len() - 1;
        tracing::warn!(%path, mode, more, "other users of this machine could read the store; it is closed to them now");
    }
    Ok(())
}

/// Makes an empty store, complete before it has its name.
fn create(dir: &Path) -> Result<(), OpenError> {
    let db = paths::db(dir);
    let leftover =
        [paths::marker(dir), paths::wal(dir)].into_iter().find(|p| fs::metadata(p).is_ok_and(|m| m.len() > 0));
    if let Some(leftover) = leftover {
        let why = format!("it is missing, but {} is there", leftover.display());
        return Err(FileFault::Damaged(why).into_open_error(&db, || newest_usable(dir)));
    }
    let fresh = paths::fresh(dir);
    let io = |source| OpenError::Io { path: fresh.clone(), source };
    remove_file_if_exists(&fresh).map_err(io)?;
    disk::write_file(&fresh, Meta::new(Revision(0)), std::iter::empty())
        .map_err(|source| OpenError::Sqlite { file: fresh.clone(), source })?;
    fs::File::open(&fresh).and_then(|f| f.sync_all()).map_err(io)?;
    fs::rename(&fresh, &db).and_then(|()| paths::sync_dir(dir)).map_err(io)
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.queue.close();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

#[async_trait]
impl Store for Embedded {
    async fn get(&self, key: &str) -> Result<(Option<Arc<Entry>>, Revision), StoreError> {
        let state = self.open_state()?;
        Ok((state.get(key).cloned(), state.revision()))
    }

    async fn list(&self, query: List<'_>) -> Result<Listing, StoreError> {
        self.open_state()?.list(&query)
    }

    async fn commit(&self, txn: Txn) -> Result<Outcome, StoreError> {
        check::txn(&txn, self.options.txn_bytes)?;
        let reply = self.push_request(|reply| Request::Commit(Pending { txn, reply }))?;
        self.serve_queue().await;
        reply.receive().await
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, StoreError> {
        drop(self.open_state()?);
        Ok(Box::new(self.mvcc.watch(prefix, None, after, self.options.watch_queue)?))
    }

    async fn watch_indexed(
        &self,
        prefix: &str,
        after: Revision,
        part: IndexMatch,
    ) -> Result<Box<dyn Watch>, StoreError> {
        drop(self.open_state()?);
        Ok(Box::new(self.mvcc.watch(prefix, Some(part), after, self.options.watch_queue)?))
    }

    async fn compact(&self, at: Revision) -> Result<(), StoreError> {
        let reply = self.push_request(|reply| Request::Compact { at, reply })?;
        self.queue.call_thread();
        reply.receive().await
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        Ok(self.open_state()?.revision())
    }

    async fn health(&self) -> Result<(), StoreError> {
        drop(self.open_state()?);
        match (self.files.missing(), &*self.trouble.lock()) {
            (Some(why), _) => Err(StoreError::Failed { why }),
            (None, Some(trouble)) => Err(trouble.clone()),
            (None, None) => Ok(()),
        }
    }
}
