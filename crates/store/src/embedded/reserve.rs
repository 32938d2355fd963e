//! Disk space set aside within the store's own files, so that a full disk refuses growth and nothing else.
//!
//! A commit needs room at the end of the write-ahead log, and a checkpoint needs room at the end of the database. Both are
//! allocated ahead of use with `fallocate(2)`, beyond the end of the file (`FALLOC_FL_KEEP_SIZE`). While the reserve is whole,
//! everything is written. When it cannot be made whole, because the file system has no room, only transactions that free
//! space or leave it as it was are written, out of the reserve: deletions, and updates of what is there already. As
//! history is cut short meanwhile, their pages are used again and the store does not grow.
//!
//! A checkpoint makes SQLite cut the database to its pages, and with it what is allocated behind them: whoever fills the disk at
//! that moment would have it. So before a checkpoint on a disk that is nearly full, the room behind the database becomes free
//! pages of the database, which no checkpoint gives up.
//!
//! Refused: a ballast file that is deleted when the disk is full. What it frees is anybody's, and whoever filled the disk is
//! usually still writing.
//!
//! File systems without `fallocate` give no such promise; there the store looks at the free space and stops growing early.

use std::{fs::File, os::unix::fs::MetadataExt};

use nix::{
    errno::Errno,
    fcntl::{FallocateFlags, fallocate},
    sys::statvfs::fstatvfs,
};

use super::open_files::OpenFiles;
use crate::Change;

/// A page of the database with its header in the write-ahead log.
const FRAME: u64 = PAGE + 24;
pub(super) const PAGE: u64 = 4096;
/// The reserve is at most this part of the file system.
const PART_OF_FILE_SYSTEM: u64 = 16;
/// With less free space than this many times the reserve, others might fill the disk within one checkpoint.
const NEARLY_FULL: u64 = 8;
/// An update may make an object this much larger and still use the reserve: conditions, a deletion timestamp.
const SMALL_GROWTH: usize = 4096;

/// How much room the store has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    /// The reserve is whole.
    Ample,
    /// The file system is full; the reserve is used.
    Short,
    /// Half of the log's reserve is used and cannot be checkpointed; the rest is for deletions.
    Spent,
}

/// What a transaction does to the size of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Growth {
    /// It only deletes.
    Frees,
    /// It changes what is there, by little.
    Keeps,
    /// It creates a key, or makes values larger.
    Grows,
}

impl Growth {
    pub(super) fn from_changes<'a>(changes: impl Iterator<Item = &'a Change>) -> Growth {
        let (mut before, mut after, mut creates, mut updates) = (0, 0, false, false);
        for change in changes {
            before += change.previous.as_ref().map_or(0, |entry| entry.value.len());
            if let Some(entry) = &change.current {
                after += entry.value.len();
                creates |= change.previous.is_none();
                updates = true;
            }
        }
        match (creates || after > before + SMALL_GROWTH, updates) {
            (true, _) => Growth::Grows,
            (false, true) => Growth::Keeps,
            (false, false) => Growth::Frees,
        }
    }
}

impl Space {
    pub(super) fn admits(self, growth: Growth) -> bool {
        match self {
            Space::Ample => true,
            Space::Short => growth != Growth::Grows,
            Space::Spent => growth == Growth::Frees,
        }
    }
}

/// Pages of the database, those in the log included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DatabaseSize {
    pub(super) pages: u64,
    /// Those of them that hold nothing.
    pub(super) free_pages: u64,
}

/// The space set aside in the files of one store.
#[derive(Debug)]
pub(super) struct Reserve {
    /// Bytes set aside in the log; the database has a quarter of it. Zero for none.
    bytes: u64,
    /// Bytes of the log and of the database known to be allocated.
    log_allocated: u64,
    db_allocated: u64,
    whole: bool,
}

impl Reserve {
    /// At most `wanted` bytes, less on a small file system.
    pub(super) fn new(wanted: u64, files: &OpenFiles) -> Reserve {
        let capacity = fstatvfs(&*files.db).map_or(u64::MAX, |found| found.blocks() * found.fragment_size());
        let bytes = wanted.min(capacity / PART_OF_FILE_SYSTEM);
        Reserve { bytes, log_allocated: 0, db_allocated: 0, whole: true }
    }

    /// Pages of the log from which on it is checkpointed: early, so that most of its reserve stays unused. On a full disk as late
    /// as possible, because a checkpoint ends with giving up what is allocated behind the database.
    pub(super) fn log_pages(&self, wanted: u64) -> u64 {
        match (self.bytes, self.whole) {
            (0, _) => wanted,
            (bytes, true) => wanted.min((bytes / 4 / FRAME).max(1)),
            (bytes, false) => (bytes / 2 / FRAME).max(1),
        }
    }

    pub(super) fn space(&self, log_pages: u64) -> Space {
        match (self.whole, log_pages * FRAME <= self.bytes / 2) {
            (true, _) => Space::Ample,
            (false, true) => Space::Short,
            (false, false) => Space::Spent,
        }
    }

    /// How many free pages are to be added to the database before a checkpoint, so that what is allocated behind it is not given up.
    pub(super) fn pages_to_secure(&self, files: &OpenFiles, size: DatabaseSize) -> u64 {
        if self.bytes == 0 || self.covers_growth(size) {
            return 0;
        }
        let is_nearly_full = fstatvfs(&*files.db)
            .is_ok_and(|found| found.blocks_available() * found.fragment_size() < NEARLY_FULL * self.bytes);
        if is_nearly_full { (self.db_allocated / PAGE).saturating_sub(size.pages) } else { 0 }
    }

    /// Whether free pages of the database are reserve enough.
    fn covers_growth(&self, size: DatabaseSize) -> bool {
        size.free_pages * PAGE >= self.bytes / 8
    }

    /// SQLite shortened the database to its pages, as it does at each checkpoint, and with it what was allocated behind them.
    pub(super) fn database_was_cut(&mut self) {
        self.db_allocated = 0;
    }

    pub(super) fn log_was_cut(&mut self) {
        self.log_allocated = 0;
    }

    /// Whether it is time to look at the reserve: it is not whole, or so many pages were written since the last look that the
    /// database may have grown by a quarter of what is allocated behind it.
    pub(super) fn is_look_due(&self, pages_written: u64) -> bool {
        self.bytes > 0 && (!self.whole || pages_written * PAGE > self.bytes / 16)
    }

    /// Allocates what is missing for a database of this size.
    pub(super) fn refill(&mut self, files: &OpenFiles, size: DatabaseSize) {
        if self.bytes == 0 {
            return;
        }
        let (used, ahead) = (size.pages * PAGE, self.bytes / 4);
        let mut whole = true;
        if self.log_allocated < self.bytes {
            whole &= allocate(&files.log, self.bytes);
            self.log_allocated = if whole { self.bytes } else { 0 };
        }
        if self.db_allocated < used + ahead / 4 * 3 && !self.covers_growth(size) {
            let allocated = allocate(&files.db, used + ahead);
            self.db_allocated = if allocated { used + ahead } else { 0 };
            whole &= allocated;
        }
        if self.whole != whole {
            // Whoever is refused for it says so to people.
            tracing::debug!(whole, "the store's reserve of disk space changed");
        }
        self.whole = whole;
    }
}

/// Whether the file has blocks of its own up to `end`. What cannot be allocated ahead must at least be free.
fn allocate(file: &File, end: u64) -> bool {
    let (Ok(length), Ok(free)) = (i64::try_from(end), fstatvfs(file)) else { return false };
    let (free, block) = (free.blocks_available() * free.fragment_size(), free.fragment_size());
    let allocated = file.metadata().map_or(0, |found| found.blocks() * 512);
    // Cheap to ask, while some file systems allocate as far as they can and then undo it.
    if free + block < end.saturating_sub(allocated) {
        return false;
    }
    loop {
        return match fallocate(file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, length) {
            Ok(()) | Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => true,
            Err(Errno::EINTR) => continue,
            Err(_) => false,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Entry, Revision};

    fn entry(size: usize) -> Arc<Entry> {
        Arc::new(Entry {
            key: "/k".into(),
            value: vec![0; size].into(),
            created: Revision(1),
            modified: Revision(1),
            memo: Default::default(),
        })
    }

    fn change(before: Option<usize>, after: Option<usize>) -> Change {
        Change { key: "/k".into(), revision: Revision(2), current: after.map(entry), previous: before.map(entry) }
    }

    fn growth(changes: &[(Option<usize>, Option<usize>)]) -> Growth {
        let changes: Vec<Change> = changes.iter().map(|(before, after)| change(*before, *after)).collect();
        Growth::from_changes(changes.iter())
    }

    #[test]
    fn creating_grows_updating_keeps_and_deleting_frees() {
        assert_eq!(growth(&[(None, Some(1))]), Growth::Grows);
        assert_eq!(growth(&[(Some(10), Some(10 + SMALL_GROWTH))]), Growth::Keeps);
        assert_eq!(growth(&[(Some(10), Some(11 + SMALL_GROWTH))]), Growth::Grows);
        assert_eq!(growth(&[(Some(10), None), (Some(5), None)]), Growth::Frees);
        assert_eq!(growth(&[(Some(100_000), None), (Some(1), Some(90_000))]), Growth::Keeps, "what is freed counts");
        assert_eq!(growth(&[(Some(100_000), None), (None, Some(1))]), Growth::Grows, "a new key is a new key");
        assert_eq!(growth(&[]), Growth::Frees);
    }

    #[test]
    fn less_is_admitted_the_less_room_there_is() {
        let admitted = |space: Space| {
            [Growth::Frees, Growth::Keeps, Growth::Grows].into_iter().filter(|growth| space.admits(*growth)).count()
        };
        assert_eq!([Space::Ample, Space::Short, Space::Spent].map(admitted), [3, 2, 1]);
    }

    #[test]
    fn the_last_half_of_the_log_is_for_deletions() {
        let short = Reserve { bytes: 16 << 20, log_allocated: 0, db_allocated: 0, whole: false };
        assert_eq!(short.space(10), Space::Short);
        assert_eq!(short.space(3000), Space::Spent);
        assert_eq!(Reserve { whole: true, ..short }.space(3000), Space::Ample);
    }

    #[test]
    fn free_pages_of_the_database_are_reserve_enough() {
        let short = Reserve { bytes: 16 << 20, log_allocated: 0, db_allocated: 0, whole: false };
        let size = |free_pages| DatabaseSize { pages: 2000, free_pages };
        assert!(short.covers_growth(size(512)) && !short.covers_growth(size(511)));
    }

    #[test]
    fn the_reserve_is_looked_at_before_half_of_it_can_be_used_and_always_while_it_is_short() {
        let whole = Reserve { bytes: 16 << 20, log_allocated: 0, db_allocated: 0, whole: true };
        assert!(!whole.is_look_due(256) && whole.is_look_due(257));
        assert!(Reserve { whole: false, ..whole }.is_look_due(0));
        assert!(Reserve { bytes: 1 << 10, ..whole }.is_look_due(1), "a small one at every commit");
        assert!(!Reserve { bytes: 0, ..whole }.is_look_due(1 << 20));
    }

    #[test]
    fn a_small_reserve_is_checkpointed_before_it_is_full() {
        let of = |bytes| Reserve { bytes, log_allocated: 0, db_allocated: 0, whole: true }.log_pages(1000);
        assert_eq!(of(0), 1000, "without a reserve the log may have any size");
        assert_eq!(of(16 << 20), 1000);
        assert_eq!(of(512 << 10), 31);
        assert_eq!(of(1), 1);
        let short = Reserve { bytes: 16 << 20, log_allocated: 0, db_allocated: 0, whole: false };
        assert_eq!(short.log_pages(1000), 2036);
    }
}
