//! The [`Store`] trait, which every backend implements, and the values of its calls.

use std::{any::Any, fmt, sync::Arc, sync::OnceLock};

use async_trait::async_trait;
use bytes::Bytes;

/// A point in the store's history. `Revision(0)` is before everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One version of one key.
#[derive(Debug)]
pub struct Entry {
    pub key: Arc<str>,
    pub value: Bytes,
    /// Revision at which this incarnation of the key was created.
    pub created: Revision,
    /// Revision that wrote this version.
    pub modified: Revision,
    /// A place for the reader to keep what it derived from `value`.
    pub memo: Memo,
}

/// A write-once slot beside an entry, so that what is parsed from a value is parsed once
/// however many lists and watches pass it on. The store never looks inside.
#[derive(Default)]
pub struct Memo(OnceLock<Box<dyn Any + Send + Sync>>);

impl Memo {
    /// The value kept here, made by `derive` if there is none yet.
    ///
    /// One reader owns the slot: asking for a second type is a programming error.
    pub fn get_or_init<T: Any + Send + Sync>(&self, derive: impl FnOnce() -> T) -> &T {
        self.0.get_or_init(|| Box::new(derive())).downcast_ref().expect("a memo holds one type")
    }
}

impl fmt::Debug for Memo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.get().is_some() { "Memo(set)" } else { "Memo(empty)" })
    }
}

/// What must hold of a key for a transaction to be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    Absent,
    ModifiedAt(Revision),
}

#[derive(Clone, Debug)]
pub struct Compare {
    pub key: Arc<str>,
    pub expect: Expect,
}

#[derive(Clone, Debug)]
pub enum Op {
    Put { key: Arc<str>, value: Bytes },
    Delete { key: Arc<str> },
}

/// If every compare holds, all operations happen at one revision; otherwise none does.
/// A key may appear in at most one operation.
#[derive(Clone, Debug, Default)]
pub struct Txn {
    pub compares: Vec<Compare>,
    pub ops: Vec<Op>,
}

#[derive(Debug)]
pub enum Outcome {
    /// Durable. A transaction that changed nothing (deletes of absent keys) reports the
    /// revision at which it found that out.
    Committed(Revision),
    /// Some compare did not hold; `current` is what each compared key holds, in order.
    Conflict { current: Vec<Option<Arc<Entry>>> },
}

/// A range of keys in order, as of one revision.
#[derive(Clone, Debug, Default)]
pub struct List<'a> {
    pub prefix: &'a str,
    /// First key to return (inclusive); must lie within the prefix.
    pub start: Option<&'a str>,
    pub limit: Option<usize>,
    /// The past revision to read at; the newest if absent.
    pub at: Option<Revision>,
}

#[derive(Debug)]
pub struct Listing {
    pub entries: Vec<Arc<Entry>>,
    /// The revision the listing is true of.
    pub revision: Revision,
    /// How many more keys lie behind the last one returned.
    pub remaining: u64,
}

/// One key's change. `previous` is what the key held before, if anything.
#[derive(Clone, Debug)]
pub struct Change {
    pub key: Arc<str>,
    /// The revision of the transaction; for a put, equal to `current.modified`.
    pub revision: Revision,
    /// What the key holds now; `None` when it was deleted.
    pub current: Option<Arc<Entry>>,
    pub previous: Option<Arc<Entry>>,
}

#[derive(Debug)]
pub enum WatchEvent {
    /// Changes in revision order; those of one transaction are never split over two events.
    Changes(Vec<Change>),
    /// Everything up to here has been delivered.
    Progress(Revision),
}

/// A running watch. Dropping it ends it.
#[async_trait]
pub trait Watch: Send {
    /// The next event. Cancel safe: a dropped call loses nothing.
    /// After an error the watch is over.
    async fn next(&mut self) -> Result<WatchEvent, StoreError>;

    /// Asks for a [`WatchEvent::Progress`], which follows once it can truthfully be given.
    fn request_progress(&mut self);
}

/// A value of each entry by which watches are indexed, such as a field: a change wakes only the watches of its values.
pub trait WatchIndex: Send + Sync {
    /// Indexes of one prefix that have the same name give the same values.
    fn name(&self) -> &str;

    fn value<'a>(&self, entry: &'a Entry) -> &'a str;
}

/// Of all changes below a prefix, those of entries with this value, before or after the change.
#[derive(Clone)]
pub struct IndexMatch {
    pub index: Arc<dyn WatchIndex>,
    pub value: Box<str>,
}

#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The newest committed version of a key, and the revision at which that was so.
    async fn get(&self, key: &str) -> Result<(Option<Arc<Entry>>, Revision), StoreError>;

    async fn list(&self, query: List<'_>) -> Result<Listing, StoreError>;

    /// As [`get`](Self::get), or an older version if the newest cannot be found out, for those to whom any will do.
    async fn get_any(&self, key: &str) -> Result<(Option<Arc<Entry>>, Revision), StoreError> {
        self.get(key).await
    }

    /// As [`list`](Self::list), or an older state if the newest cannot be found out, for those to whom any will do.
    async fn list_any(&self, query: List<'_>) -> Result<Listing, StoreError> {
        self.list(query).await
    }

    async fn commit(&self, txn: Txn) -> Result<Outcome, StoreError>;

    /// Every change below `prefix` after (not at) `after`, in order, without gaps.
    async fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, StoreError>;

    /// The same for somebody who is interested in a part of it. Changes outside of it may be left out, or not:
    /// whoever watches looks for himself. A backend that leaves them out saves a thousand watches of a thousand
    /// parts from being woken for each other's changes.
    async fn watch_indexed(
        &self,
        prefix: &str,
        after: Revision,
        only: IndexMatch,
    ) -> Result<Box<dyn Watch>, StoreError> {
        drop(only);
        self.watch(prefix, after).await
    }

    /// Forgets history at and before `at`, except what is still current there.
    async fn compact(&self, at: Revision) -> Result<(), StoreError>;

    /// The newest committed revision. Also answers whether the store can be reached.
    async fn revision(&self) -> Result<Revision, StoreError>;

    /// What keeps the store from doing all it is for, although it answers: [`StoreError::NoSpace`] if it takes no new keys,
    /// another error if it takes no writes at all.
    async fn health(&self) -> Result<(), StoreError> {
        self.revision().await.map(drop)
    }
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    #[error("revision {requested} has been compacted, the oldest kept is {oldest}")]
    Compacted { requested: Revision, oldest: Revision },
    #[error("revision {requested} is in the future, the newest is {newest}")]
    Future { requested: Revision, newest: Revision },
    #[error("no space left on the store's disk")]
    NoSpace,
    #[error("transaction of {size} bytes is over the limit of {limit}")]
    TooLarge { size: usize, limit: usize },
    /// Not carried out, or not known to be: a transaction may or may not have happened.
    #[error("store unreachable: {why}")]
    Unavailable { why: Arc<str> },
    #[error("store did not answer in time: {why}")]
    Timeout { why: Arc<str> },
    #[error("store failed: {why}")]
    Failed { why: Arc<str> },
    #[error("store is closing")]
    Closing,
}
