//! Reads a database into memory and verifies all of it.

use std::{path::Path, sync::Arc, time::Instant};

use bytes::Bytes;
use rusqlite::Connection;

use super::{
    disk::{self, Meta, Row},
    error::{FileFault, OpenError},
    marker, paths, wal,
};
use crate::{
    Change, Entry, Revision,
    mvcc::{Garbage, State},
};

pub(super) struct Loaded {
    pub(super) db: Connection,
    pub(super) meta: Meta,
    pub(super) state: State,
    /// Rows that were to be removed when the store last stopped.
    pub(super) garbage: Vec<Garbage>,
}

/// Loads the store of a directory that is locked, and compares it with its log and its marker.
pub(super) fn dir(dir: &Path) -> Result<Loaded, OpenError> {
    let db = paths::db(dir);
    let at = |file: &Path, fault: FileFault| fault.into_open_error(file, || super::backup::newest_usable(dir));
    let log = paths::wal(dir);
    wal::inspect(&log).map_err(|fault| at(&log, fault))?;
    let loaded = file(&db).map_err(|fault| at(&db, fault))?;
    let mark = marker::read(&paths::marker(dir)).map_err(|e| at(&paths::marker(dir), e.into()))?;
    match mark.filter(|mark| mark.store == loaded.meta.store) {
        Some(mark) if mark.turn > loaded.meta.turn => {
            let lost = mark.turn - loaded.meta.turn;
            let why = format!("the last {lost} acknowledged commits are missing from it and its log");
            Err(at(&db, FileFault::damaged(why)))
        }
        _ => Ok(loaded),
    }
}

/// Loads one file, a store's or a backup's.
pub(super) fn file(file: &Path) -> Result<Loaded, FileFault> {
    let db = disk::connect(file)?;
    let sound: String = db.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if sound != "ok" {
        return Err(FileFault::damaged(sound.replace('\n', ": ")));
    }
    let meta = Meta::read(&db)?;
    let (state, garbage) = rows(&db, &meta)?;
    Ok(Loaded { db, meta, state, garbage })
}

fn rows(db: &Connection, meta: &Meta) -> Result<(State, Vec<Garbage>), FileFault> {
    let mut loading = Loading {
        state: State::new(Revision(0), Revision(meta.compacted)),
        compacted: Revision(meta.compacted),
        garbage: Vec::new(),
        pending: Vec::new(),
        now: Instant::now(),
    };
    let mut counted = Meta::default();
    let mut query = db.prepare("SELECT seq, created, key, value, checksum FROM version ORDER BY seq")?;
    let mut found = query.query([])?;
    while let Some(row) = found.next()? {
        let text = |at: usize| row.get_ref(at)?.as_str().map_err(rusqlite::Error::from);
        let row_ = Row {
            seq: row.get(0)?,
            created: row.get::<_, i64>(1)? as u64,
            key: text(2)?,
            value: row.get_ref(3)?.as_blob_or_null().map_err(rusqlite::Error::from)?,
        };
        let checksum = row_.checksum();
        if row.get::<_, i64>(4)? as u64 != checksum {
            return Err(FileFault::damaged(format!("row {} does not match its checksum", row_.seq)));
        }
        counted.add(checksum);
        loading.row(row_);
    }
    if !counted.same_rows(meta) {
        let why = format!("its {} rows are not the {} rows that were written", counted.rows, meta.rows);
        return Err(FileFault::damaged(why));
    }
    let (mut state, garbage) = loading.finish();
    if state.revision().0 > meta.revision {
        return Err(FileFault::damaged(format!("it has rows after its last revision {}", meta.revision)));
    }
    state.skip_to(Revision(meta.revision.max(meta.ceiling)));
    Ok((state, garbage))
}

/// Builds state from rows in order.
struct Loading {
    state: State,
    compacted: Revision,
    garbage: Vec<Garbage>,
    /// Changes of the transaction being read.
    pending: Vec<Change>,
    now: Instant,
}

impl Loading {
    fn row(&mut self, row: Row<'_>) {
        let revision = row.revision();
        if self.pending.first().is_some_and(|c| c.revision != revision) {
            self.flush();
        }
        let previous = self.state.get(row.key).cloned();
        let key = previous.as_ref().map_or_else(|| Arc::from(row.key), |p| p.key.clone());
        let current = row.value.map(|value| {
            Arc::new(Entry {
                key: key.clone(),
                value: Bytes::copy_from_slice(value),
                created: Revision(row.created),
                modified: revision,
                memo: Default::default(),
            })
        });
        if revision > self.compacted {
            self.pending.push(Change { key, revision, current, previous });
            return;
        }
        if let Some(previous) = previous {
            self.garbage.push(Garbage { revision: previous.modified, key: key.clone() });
        }
        match current {
            Some(entry) => self.state.restore(entry),
            None => {
                self.state.unrestore(&key);
                self.garbage.push(Garbage { revision, key });
            }
        }
        self.state.skip_to(revision);
    }

    fn flush(&mut self) {
        if !self.pending.is_empty() {
            self.state.apply_at(std::mem::take(&mut self.pending).into(), self.now);
        }
    }

    fn finish(mut self) -> (State, Vec<Garbage>) {
        self.flush();
        (self.state, self.garbage)
    }
}
