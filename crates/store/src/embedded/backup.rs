//! Backups: complete store files, written beside the running store and checked before they count.
//!
//! A backup is the newest contents at one revision, taken from memory: writers wait for nothing but
//! the copying of pointers, and damage on disk does not travel into it. It holds no history and no volatile keys.
//!
//! Clients of a restored store must not take old revisions for new ones. The lost store may have gone on after
//! the backup for nobody knows how long, so restoring moves the revision ahead by [`REVISION_JUMP`], more than any store
//! writes between two backups, and declares all before it compacted: who comes back with a revision from the lost
//! time is told to list anew, and no revision is given twice.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use mainstay_files::remove_file_if_exists;

use super::{
    disk::{self, Meta, Row},
    error::{BackupError, OpenError, RestoreError},
    load,
    lock::DirLock,
    paths,
};
use crate::{Entry, List, Revision, mvcc::State};

/// How far a restore moves the revision ahead.
pub const REVISION_JUMP: u64 = 1_000_000_000;

/// What a store file or a backup holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    pub revision: Revision,
    pub keys: u64,
}

/// Whether a restore may take the place of a store that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    Refuse,
    Replace,
}

fn entries(state: &State, keep: impl Fn(&str) -> bool) -> Vec<Arc<Entry>> {
    let all = state.list(&List::default()).map(|listing| listing.entries).unwrap_or_default();
    all.into_iter().filter(|e| keep(&e.key)).collect()
}

/// Writes what `state` holds, as far as `keep` agrees, to `file`.
pub(super) fn write(
    state: &parking_lot::RwLock<State>,
    keep: impl Fn(&str) -> bool,
    file: &Path,
) -> Result<Summary, BackupError> {
    let io = |path: &Path| {
        let path = path.to_path_buf();
        move |source| BackupError::Io { path, source }
    };
    if file.exists() {
        return Err(BackupError::Exists { file: file.to_path_buf() });
    }
    let folder = match file.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    fs::create_dir_all(folder).map_err(io(folder))?;
    let (mut entries, revision) = {
        let state = state.read();
        (entries(&state, keep), state.revision())
    };
    entries.sort_by_key(|e| e.modified);
    let partial = unfinished(file);
    let written = (|| {
        remove_file_if_exists(&partial).map_err(io(&partial))?;
        disk::write_file(&partial, Meta::new(revision), rows(&entries))
            .map_err(|source| BackupError::Write { file: file.to_path_buf(), source })?;
        fs::File::open(&partial).and_then(|f| f.sync_all()).map_err(io(&partial))?;
        let summary = verify_file(&partial).map_err(BackupError::Unusable)?;
        fs::rename(&partial, file).map_err(io(file))?;
        paths::sync_dir(folder).map_err(io(folder))?;
        Ok(summary)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&partial);
    }
    written
}

fn unfinished(file: &Path) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_os_string();
    name.push(".partial");
    file.with_file_name(name)
}

/// Entries in revision order as rows, numbered anew within each revision.
fn rows(entries: &[Arc<Entry>]) -> impl Iterator<Item = Row<'_>> {
    let mut last = (Revision(0), 0);
    entries.iter().map(move |entry| {
        last = if last.0 == entry.modified { (last.0, last.1 + 1) } else { (entry.modified, 0) };
        Row { seq: disk::seq(last.0, last.1), created: entry.created.0, key: &entry.key, value: Some(&entry.value) }
    })
}

/// Checks every row of a store file or backup that is not in use.
pub fn verify_file(file: &Path) -> Result<Summary, OpenError> {
    let loaded = load::file(file).map_err(|fault| fault.into_open_error(file, || None))?;
    Ok(summary(&loaded.state))
}

fn summary(state: &State) -> Summary {
    Summary { revision: state.revision(), keys: entries(state, |_| true).len() as u64 }
}

/// Checks every row of a data directory that is not in use, its log included.
pub fn verify(dir: &Path) -> Result<Summary, OpenError> {
    let _lock = DirLock::acquire(dir)?;
    Ok(summary(&load::dir(dir)?.state))
}

/// Backs up a data directory that is not in use.
pub fn backup_closed(dir: &Path, file: &Path) -> Result<Summary, BackupError> {
    let _lock = DirLock::acquire(dir).map_err(BackupError::Source)?;
    let loaded = load::dir(dir).map_err(BackupError::Source)?;
    write(&parking_lot::RwLock::new(loaded.state), |_| true, file)
}

/// The newest file in the directory's `backups` that verifies.
pub fn newest_usable(dir: &Path) -> Option<PathBuf> {
    let mut found: Vec<_> = fs::read_dir(paths::backups(dir))
        .ok()?
        .flatten()
        .filter_map(|entry| Some((entry.metadata().ok().filter(|m| m.is_file())?.modified().ok()?, entry.path())))
        .filter(|(_, path)| path.extension().is_none_or(|e| e != "partial"))
        .collect();
    found.sort();
    found.into_iter().rev().map(|(_, path)| path).find(|path| verify_file(path).is_ok())
}

/// Makes `dir` a store with the contents of the backup `file`.
pub fn restore(file: &Path, dir: &Path, existing: Existing) -> Result<Summary, RestoreError> {
    let io = |path: &Path| {
        let path = path.to_path_buf();
        move |source| RestoreError::Io { path, source }
    };
    let backup = load::file(file).map_err(|fault| RestoreError::Backup(fault.into_open_error(file, || None)))?;
    mainstay_files::create_private_dir(dir).map_err(io(dir))?;
    let target = |source| RestoreError::Target { dir: dir.to_path_buf(), source };
    let _lock = DirLock::acquire(dir).map_err(target)?;
    let db = paths::db(dir);
    let holds_data = db.exists() || paths::wal(dir).exists();
    let interrupted = paths::restoring(dir).exists();
    if holds_data && !interrupted && existing == Existing::Refuse {
        return Err(RestoreError::HoldsData { dir: dir.to_path_buf() });
    }
    // What is replaced may have gone further than the backup.
    let replaced = if db.exists() { load::file(&db).map_or(0, |l| l.state.revision().0) } else { 0 };
    let revision = Revision(backup.state.revision().0.max(replaced) + REVISION_JUMP);

    let fresh = paths::fresh(dir);
    remove_file_if_exists(&fresh).map_err(io(&fresh))?;
    let mut entries = entries(&backup.state, |_| true);
    entries.sort_by_key(|e| e.modified);
    disk::write_file(&fresh, Meta::new(revision), rows(&entries))
        .map_err(|source| RestoreError::Write { file: fresh.clone(), source })?;
    fs::File::open(&fresh).and_then(|f| f.sync_all()).map_err(io(&fresh))?;

    // From here to the end the directory is neither the old store nor the new one, and says so.
    let flag = paths::restoring(dir);
    mainstay_files::open_private(&flag).and_then(|_| paths::sync_dir(dir)).map_err(io(&flag))?;
    if holds_data {
        set_aside(dir).map_err(io(dir))?;
    }
    fs::rename(&fresh, &db).and_then(|()| paths::sync_dir(dir)).map_err(io(&db))?;
    remove_file_if_exists(&flag).and_then(|()| paths::sync_dir(dir)).map_err(io(&flag))?;
    verify_file(&db).map_err(target)
}

/// Moves the store's files out of the way, in place of those moved by the restore before this one.
fn set_aside(dir: &Path) -> io::Result<()> {
    let aside = paths::replaced(dir);
    mainstay_files::create_private_dir(&aside)?;
    for path in [paths::db(dir), paths::wal(dir), paths::marker(dir)] {
        let Some(name) = path.file_name() else { continue };
        match fs::rename(&path, aside.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(_) => remove_file_if_exists(&aside.join(name))?,
            Ok(()) => {}
        }
    }
    paths::sync_dir(dir)
}
