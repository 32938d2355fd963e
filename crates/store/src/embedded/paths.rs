//! Paths of the store's files within its directory.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

pub(super) fn db(dir: &Path) -> PathBuf {
    dir.join("store.db")
}

pub(super) fn wal(dir: &Path) -> PathBuf {
    dir.join("store.db-wal")
}

pub(super) fn fresh(dir: &Path) -> PathBuf {
    dir.join("store.db.new")
}

pub(super) fn marker(dir: &Path) -> PathBuf {
    dir.join("store.marker")
}

pub(super) fn lock(dir: &Path) -> PathBuf {
    dir.join("store.lock")
}

/// Exists while a restore is replacing the store.
pub(super) fn restoring(dir: &Path) -> PathBuf {
    dir.join("store.restoring")
}

/// The store as it was before the last restore.
pub(super) fn replaced(dir: &Path) -> PathBuf {
    dir.join("replaced")
}

/// All files of a store that may be there.
pub(super) fn files(dir: &Path) -> [PathBuf; 7] {
    let shared_memory = dir.join("store.db-shm");
    [db(dir), wal(dir), shared_memory, fresh(dir), marker(dir), lock(dir), restoring(dir)]
}

/// Where backups are looked for when the store is damaged.
pub fn backups(dir: &Path) -> PathBuf {
    dir.join("backups")
}

/// Makes names created, renamed or removed in `dir` durable.
pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}
