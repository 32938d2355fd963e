//! The SQLite database: rows, their checksums, and commits.
//!
//! `version` holds one row for each put and each deletion that history still covers, and for
//! each current key. Its row number is the revision shifted left by 16 bits plus the operation's place within
//! the transaction, so that rows lie in order of time, appends go to the end, and a version
//! is found by its revision without an index. `meta` is a single row: counters, and a digest over all rows.
//!
//! Each row carries a checksum over all of its columns. The digest is the wrapping sum and the xor of those
//! checksums together with their count, changed in the same commit as the rows: a row that was lost, doubled or
//! replaced by an older one shows at the next open even where each row by itself is intact.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use mainstay_files::Format;
use rusqlite::{Connection, ErrorCode, OpenFlags, config::DbConfig, params};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::{
    error::{FileFault, OpenError},
    marker::Marker,
    open_files::OpenFiles,
    reserve::{DatabaseSize, PAGE, Reserve, Space},
};
use crate::{Change, Revision, mvcc::Garbage};

/// Of the file, and so of backups. The number is where SQLite has one for its users (`user_version`).
pub const FORMAT: Format = Format::new("the store file", 1);
const APPLICATION: i64 = 0x6d73_7479;
/// Of the header of a SQLite file, and where in it the two numbers are that belong to its users.
const HEADER: usize = 100;
const USER_VERSION_AT: usize = 60;
const APPLICATION_ID_AT: usize = 68;
/// What a page holds of a large value.
const OVERFLOW_PAYLOAD: u64 = PAGE - 4;
/// More than a table with one large value needs beside the pages of that value.
const OVERHEAD_PAGES: u64 = 8;
/// Bits of a row number below the revision.
pub(super) const PLACE_BITS: u32 = 16;

const SCHEMA: &str = "
    CREATE TABLE version (
        seq INTEGER PRIMARY KEY, created INTEGER NOT NULL, key TEXT NOT NULL, value BLOB, checksum INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE meta (
        id INTEGER PRIMARY KEY, store INTEGER NOT NULL, turn INTEGER NOT NULL, revision INTEGER NOT NULL,
        ceiling INTEGER NOT NULL, floor INTEGER NOT NULL, rows INTEGER NOT NULL, digest_sum INTEGER NOT NULL,
        digest_xor INTEGER NOT NULL, checksum INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE writer (version TEXT NOT NULL) STRICT;";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Meta {
    /// Tells one store from another, so that a marker is not held against the wrong one.
    pub(super) store: u64,
    /// Commits so far.
    pub(super) turn: u64,
    /// Newest revision on disk.
    pub(super) revision: u64,
    /// Revisions up to here may have been given to versions that are not on disk.
    pub(super) ceiling: u64,
    /// Newest compacted revision.
    pub(super) compacted: u64,
    pub(super) rows: u64,
    digest_sum: u64,
    digest_xor: u64,
}

impl Meta {
    pub(super) fn new(revision: Revision) -> Meta {
        use std::hash::{BuildHasher, Hasher};
        let store = std::hash::RandomState::new().build_hasher().finish();
        Meta { store, revision: revision.0, compacted: revision.0, ..Meta::default() }
    }

    pub(super) fn add(&mut self, checksum: u64) {
        self.rows = self.rows.wrapping_add(1);
        self.digest_sum = self.digest_sum.wrapping_add(checksum);
        self.digest_xor ^= checksum;
    }

    fn remove(&mut self, checksum: u64) {
        self.rows = self.rows.wrapping_sub(1);
        self.digest_sum = self.digest_sum.wrapping_sub(checksum);
        self.digest_xor ^= checksum;
    }

    /// Whether `self`, built up from rows by [`Meta::add`], counts the same rows as `other`.
    pub(super) fn same_rows(&self, other: &Meta) -> bool {
        (self.rows, self.digest_sum, self.digest_xor) == (other.rows, other.digest_sum, other.digest_xor)
    }

    fn fields(&self) -> [u64; 8] {
        [
            self.store,
            self.turn,
            self.revision,
            self.ceiling,
            self.compacted,
            self.rows,
            self.digest_sum,
            self.digest_xor,
        ]
    }

    fn checksum(&self) -> u64 {
        let mut bytes = [0; 64];
        for (to, field) in bytes.chunks_exact_mut(8).zip(self.fields()) {
            to.copy_from_slice(&field.to_le_bytes());
        }
        xxh3_64(&bytes)
    }

    pub(super) fn read(db: &Connection) -> Result<Meta, FileFault> {
        let mut query = db.prepare("SELECT * FROM meta")?;
        let mut found = query.query([])?;
        let Some(row) = found.next()? else { return Err(FileFault::damaged("its meta row is missing")) };
        let field = |at: usize| row.get::<_, i64>(at).map(|v| v as u64);
        let meta = Meta {
            store: field(1)?,
            turn: field(2)?,
            revision: field(3)?,
            ceiling: field(4)?,
            compacted: field(5)?,
            rows: field(6)?,
            digest_sum: field(7)?,
            digest_xor: field(8)?,
        };
        if field(9)? != meta.checksum() {
            return Err(FileFault::damaged("its meta row does not match its checksum"));
        }
        if found.next()?.is_some() {
            return Err(FileFault::damaged("it has more than one meta row"));
        }
        Ok(meta)
    }

    pub(super) fn write(&self, db: &Connection) -> rusqlite::Result<()> {
        let fields = self.fields().into_iter().chain([self.checksum()]).map(|v| v as i64);
        let sql = "INSERT OR REPLACE INTO meta VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
        db.prepare_cached(sql)?.execute(rusqlite::params_from_iter(fields))?;
        Ok(())
    }
}

/// One row of `version`.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) seq: i64,
    pub(super) created: u64,
    pub(super) key: &'a str,
    pub(super) value: Option<&'a [u8]>,
}

impl<'a> Row<'a> {
    pub(super) fn from_change(change: &'a Change, place: usize) -> Row<'a> {
        Row {
            seq: seq(change.revision, place),
            created: change.current.as_ref().map_or(0, |e| e.created.0),
            key: &change.key,
            value: change.current.as_ref().map(|e| &*e.value),
        }
    }

    pub(super) fn revision(&self) -> Revision {
        Revision((self.seq >> PLACE_BITS) as u64)
    }

    pub(super) fn checksum(&self) -> u64 {
        let mut head = [0; 25];
        head[..8].copy_from_slice(&self.seq.to_le_bytes());
        head[8..16].copy_from_slice(&self.created.to_le_bytes());
        head[16..24].copy_from_slice(&(self.key.len() as u64).to_le_bytes());
        head[24] = self.value.is_some() as u8;
        let seed = xxh3_64_with_seed(self.key.as_bytes(), xxh3_64(&head));
        xxh3_64_with_seed(self.value.unwrap_or_default(), seed)
    }

    pub(super) fn insert(&self, db: &Connection) -> rusqlite::Result<u64> {
        let checksum = self.checksum();
        db.prepare_cached("INSERT INTO version VALUES (?, ?, ?, ?, ?)")?.execute(params![
            self.seq,
            self.created as i64,
            self.key,
            self.value,
            checksum as i64
        ])?;
        Ok(checksum)
    }
}

pub(super) fn seq(revision: Revision, place: usize) -> i64 {
    ((revision.0 << PLACE_BITS) | place as u64) as i64
}

/// Why a commit did not happen. None of it did.
#[derive(Clone, Debug)]
pub(super) enum CommitError {
    Full,
    /// The files are not where they belong; nothing was written.
    Missing(Arc<str>),
    /// The file can no longer be trusted to hold what is written to it, until it is opened anew.
    Broken(Arc<str>),
}

/// What one commit changes besides its rows.
pub(super) struct CommitMeta {
    pub(super) revision: Revision,
    pub(super) compacted: Revision,
    pub(super) ceiling: u64,
}

pub(super) struct Disk {
    db: Connection,
    dir: PathBuf,
    meta: Meta,
    marker: Marker,
    files: Arc<OpenFiles>,
    reserve: Reserve,
    /// Pages in the write-ahead log, as SQLite reported after the last commit.
    wal_pages: Arc<AtomicU64>,
    /// Pages in it when the reserve was last looked at.
    refilled_at: u64,
    /// A commit failed: its frames must be cleared from the log before the next one is written.
    dirty_log: bool,
    /// The files were missing at the last commit, so that it is logged once.
    missing: bool,
    broken: Option<Arc<str>>,
}

/// Opens a database for the only user it has. Nothing is written to it by opening or closing.
pub(super) fn connect(file: &Path) -> Result<Connection, FileFault> {
    check_header(file)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(file, flags)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    // Exclusive: no shared-memory file, no lock traffic; the directory's lock is what keeps others out.
    db.pragma_update(None, "locking_mode", "exclusive")?;
    db.pragma_update(None, "synchronous", "full")?;
    db.pragma_update(None, "cache_size", -2048)?;
    db.pragma_update(None, "cache_spill", false)?;
    db.pragma_update(None, "temp_store", "memory")?;
    let found: i64 = db.pragma_query_value(None, "application_id", |row| row.get(0))?;
    if found != APPLICATION {
        return Err(FileFault::damaged("it is not a store file"));
    }
    let format: i64 = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
    check_format(format, || db.query_row("SELECT version FROM writer", [], |row| row.get(0)).ok())?;
    if format != i64::from(FORMAT.number) {
        return Err(FileFault::damaged(format!("its format {format} is unknown")));
    }
    Ok(db)
}

/// Before SQLite touches the file: recovering its log would change it.
fn check_header(file: &Path) -> Result<(), FileFault> {
    let mut header = [0; HEADER];
    let read = File::open(file).and_then(|mut file| file.read_exact(&mut header));
    if read.is_err() || !header.starts_with(b"SQLite format 3\0") {
        return Ok(()); // damaged, or not there: SQLite says it better
    }
    let number =
        |at: usize| i64::from(i32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]));
    if number(APPLICATION_ID_AT) != APPLICATION {
        return Ok(());
    }
    check_format(number(USER_VERSION_AT), || {
        let uri =
            format!("file:{}?immutable=1", file.to_str()?.replace('%', "%25").replace('?', "%3f").replace('#', "%23"));
        let db =
            Connection::open_with_flags(uri, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI).ok()?;
        db.query_row("SELECT version FROM writer", [], |row| row.get(0)).ok()
    })
}

fn check_format(found: i64, writer: impl FnOnce() -> Option<String>) -> Result<(), FileFault> {
    if found <= i64::from(FORMAT.number) {
        return Ok(());
    }
    let found = u32::try_from(found).unwrap_or(u32::MAX);
    FORMAT.check_number(found, writer()).map_err(FileFault::Newer)
}

/// Whether this program reads the file at all. Nothing is changed, and it may be in use; one that is not there is no newer one.
pub fn check_readable(file: &Path) -> Result<(), OpenError> {
    check_header(file).map_err(|fault| fault.into_open_error(file, || None))
}

/// Writes a complete database in one go, synced, under a name nobody looks at yet.
pub(super) fn write_file<'a>(
    file: &Path,
    mut meta: Meta,
    rows: impl Iterator<Item = Row<'a>>,
) -> rusqlite::Result<Meta> {
    // SQLite would create it with a mode that others can read, and its log after its likeness.
    mainstay_files::create_private(file).map_err(|error| cannot_create(&error))?;
    let mut db = Connection::open(file)?;
    db.pragma_update(None, "application_id", APPLICATION)?;
    db.pragma_update(None, "user_version", FORMAT.number)?;
    db.pragma_update(None, "journal_mode", "off")?;
    db.pragma_update(None, "synchronous", "full")?;
    let txn = db.transaction()?;
    txn.execute_batch(SCHEMA)?;
    txn.execute("INSERT INTO writer (version) VALUES (?1)", [mainstay_files::VERSION])?;
    for row in rows {
        meta.add(row.insert(&txn)?);
    }
    meta.write(&txn)?;
    txn.commit()?;
    db.close().map_err(|(_, error)| error)?;
    Ok(meta)
}

/// In the words of SQLite, which would have said it a moment later.
fn cannot_create(error: &std::io::Error) -> rusqlite::Error {
    let code = match error.kind() {
        std::io::ErrorKind::StorageFull => rusqlite::ffi::SQLITE_FULL,
        _ => rusqlite::ffi::SQLITE_CANTOPEN,
    };
    rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), Some(error.to_string()))
}

impl Disk {
    /// With at most `reserve` bytes set aside for when the file system is full.
    pub(super) fn new(
        mut db: Connection,
        dir: &Path,
        meta: Meta,
        marker: Marker,
        reserve: u64,
    ) -> Result<Disk, FileFault> {
        let mode: String = db.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
        if mode != "wal" {
            return Err(FileFault::damaged(format!("its journal cannot be changed from {mode}")));
        }
        db.pragma_update(None, "wal_autocheckpoint", 0)?;
        // SQLite opens the log with the first read after the change, and cannot checkpoint before.
        Meta::read(&db)?;
        // Leftovers of the last run count as a full log, so that they are checkpointed soon.
        let wal_pages = Arc::new(AtomicU64::new(1));
        let observed = wal_pages.clone();
        db.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, pages: std::ffi::c_int| {
            observed.store(pages.max(0) as u64, Ordering::Relaxed);
            Ok(())
        }))?;
        let files = Arc::new(OpenFiles::open(dir)?);
        let reserve = Reserve::new(reserve, &files);
        let dir = dir.to_path_buf();
        let (refilled_at, dirty_log, missing, broken) = (0, false, false, None);
        let mut disk =
            Disk { db, dir, meta, marker, files, reserve, wal_pages, refilled_at, dirty_log, missing, broken };
        disk.refill();
        Ok(disk)
    }

    pub(super) fn files(&self) -> &Arc<OpenFiles> {
        &self.files
    }

    /// How much room there is; looks anew while there is little.
    pub(super) fn space(&mut self) -> Space {
        if self.reserve.space(0) != Space::Ample {
            self.refill();
        }
        self.reserve.space(self.wal_pages())
    }

    /// Pages of the log from which on it is to be checkpointed.
    pub(super) fn log_limit(&self, wanted: u64) -> u64 {
        self.reserve.log_pages(wanted)
    }

    fn refill(&mut self) {
        self.refilled_at = self.wal_pages();
        match self.database_size() {
            Ok(size) => self.reserve.refill(&self.files, size),
            Err(error) => tracing::debug!(%error, "cannot ask for the size of the database"),
        }
    }

    fn database_size(&self) -> rusqlite::Result<DatabaseSize> {
        let count = |pragma: &str| -> rusqlite::Result<u64> {
            Ok(self.db.prepare_cached(pragma)?.query_row([], |row| row.get::<_, i64>(0))? as u64)
        };
        Ok(DatabaseSize { pages: count("PRAGMA page_count")?, free_pages: count("PRAGMA freelist_count")? })
    }

    /// Turns what is allocated behind the database into free pages of it. Nothing is lost if that fails but the reserve.
    fn secure_reserve(&mut self) {
        let pages = self.database_size().map_or(0, |size| self.reserve.pages_to_secure(&self.files, size));
        if pages <= OVERHEAD_PAGES || self.dirty_log || self.broken.is_some() {
            return;
        }
        let bytes = (pages - OVERHEAD_PAGES) * OVERFLOW_PAYLOAD;
        let grown = self.db.execute_batch(&format!(
            "BEGIN IMMEDIATE; CREATE TABLE filler (bytes BLOB); INSERT INTO filler VALUES (zeroblob({bytes})); \
             DROP TABLE filler; COMMIT"
        ));
        if let Err(error) = grown {
            tracing::debug!(%error, "cannot turn reserved disk space into pages of the database");
            if !self.db.is_autocommit() {
                let _ = self.db.execute_batch("ROLLBACK");
            }
            self.dirty_log = true;
        }
    }

    pub(super) fn meta(&self) -> &Meta {
        &self.meta
    }

    pub(super) fn wal_pages(&self) -> u64 {
        self.wal_pages.load(Ordering::Relaxed)
    }

    /// Why nothing is written any more.
    pub(super) fn broken(&self) -> Option<&Arc<str>> {
        self.broken.as_ref()
    }

    /// Writes rows and removes garbage, durably and all at once, or not at all.
    pub(super) fn commit<'a>(
        &mut self,
        rows: impl Iterator<Item = Row<'a>>,
        garbage: &[Garbage],
        commit_meta: CommitMeta,
    ) -> Result<(), CommitError> {
        if let Some(why) = &self.broken {
            return Err(CommitError::Broken(why.clone()));
        }
        let missing = self.files.missing();
        if let Some(why) = missing.as_ref().filter(|_| !self.missing) {
            tracing::error!(error = %why, "store refuses writes");
        }
        self.missing = missing.is_some();
        if let Some(why) = missing {
            return Err(CommitError::Missing(why));
        }
        if self.dirty_log {
            self.clear_log()?;
        }
        match self.try_commit(rows, garbage, commit_meta) {
            Ok(meta) => {
                self.meta = meta;
                self.marker.record(meta.turn);
                if let Some(why) = self.files.missing() {
                    return Err(self.give_up(why));
                }
                // Asking SQLite costs as much as writing a small row. A log that began anew is shorter than it was.
                let pages = self.wal_pages();
                if self.reserve.is_look_due(pages.checked_sub(self.refilled_at).unwrap_or(pages)) {
                    self.refill();
                }
                Ok(())
            }
            Err(error) => {
                if !self.db.is_autocommit() {
                    let _ = self.db.execute_batch("ROLLBACK");
                }
                self.dirty_log = true;
                Err(self.explain(error))
            }
        }
    }

    fn try_commit<'a>(
        &mut self,
        rows: impl Iterator<Item = Row<'a>>,
        garbage: &[Garbage],
        commit_meta: CommitMeta,
    ) -> rusqlite::Result<Meta> {
        let mut meta = self.meta;
        meta.turn += 1;
        meta.revision = commit_meta.revision.0;
        meta.compacted = commit_meta.compacted.0;
        meta.ceiling = commit_meta.ceiling;
        self.db.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        for row in rows {
            meta.add(row.insert(&self.db)?);
        }
        let mut delete = self
            .db
            .prepare_cached("DELETE FROM version WHERE seq BETWEEN ?1 AND ?2 AND key = ?3 RETURNING checksum")?;
        for old in garbage {
            let first = seq(old.revision, 0);
            let last = seq(old.revision, (1 << PLACE_BITS) - 1);
            let mut gone = delete.query(params![first, last, &*old.key])?;
            while let Some(row) = gone.next()? {
                meta.remove(row.get::<_, i64>(0)? as u64);
            }
        }
        drop(delete);
        meta.write(&self.db)?;
        self.db.prepare_cached("COMMIT")?.execute([])?;
        Ok(meta)
    }

    /// Moves the write-ahead log into the database, so that the log starts over.
    pub(super) fn checkpoint(&mut self) -> Result<(), CommitError> {
        self.secure_reserve();
        self.run_checkpoint("PRAGMA wal_checkpoint(PASSIVE)")
    }

    /// After a failed commit the log may end in frames that look like a commit. They go before the next one.
    fn clear_log(&mut self) -> Result<(), CommitError> {
        self.run_checkpoint("PRAGMA wal_checkpoint(TRUNCATE)")?;
        self.dirty_log = false;
        self.reserve.log_was_cut();
        self.refill();
        Ok(())
    }

    fn run_checkpoint(&mut self, sql: &str) -> Result<(), CommitError> {
        let checkpoint = self.db.query_row(sql, [], |_| Ok(()));
        match checkpoint {
            Ok(()) => {
                self.wal_pages.store(0, Ordering::Relaxed);
                self.reserve.database_was_cut();
                self.refill();
                Ok(())
            }
            Err(error) => Err(self.explain(error)),
        }
    }

    /// Everything in the database file itself, nothing in the log.
    pub(super) fn close(mut self, commit_meta: CommitMeta) -> Result<(), CommitError> {
        let changed = (self.meta.revision, self.meta.ceiling) != (commit_meta.revision.0, commit_meta.ceiling);
        if changed {
            self.commit(std::iter::empty(), &[], commit_meta)?;
        }
        if let Some(why) = &self.broken {
            return Err(CommitError::Broken(why.clone()));
        }
        // Cutting the log would give its reserve to whoever fills the disk, and the next start may need it.
        match self.space() {
            Space::Short | Space::Spent if !self.dirty_log => self.checkpoint(),
            Space::Ample | Space::Short | Space::Spent => self.clear_log(),
        }
    }

    fn explain(&mut self, error: rusqlite::Error) -> CommitError {
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => return CommitError::Full,
            // Growing a file that is mapped or preallocated reports a full disk as a failed write.
            Some(ErrorCode::SystemIoFailure) if self.disk_is_full() => return CommitError::Full,
            _ => {}
        }
        // After a failed fsync the kernel may drop what it could not write and report success the next time,
        // so nothing is written any more until a new start has read back what the disk really holds.
        self.give_up(error.to_string().into())
    }

    /// From here on nothing is written, until a new start has read what is really there.
    fn give_up(&mut self, why: Arc<str>) -> CommitError {
        tracing::error!(error = %why, dir = %self.dir.display(), "store cannot write any more; restart after mending the disk");
        self.broken = Some(why.clone());
        CommitError::Broken(why)
    }

    fn disk_is_full(&self) -> bool {
        let probe = self.dir.join("store.probe");
        let outcome = std::fs::write(&probe, [0u8; 64 << 10]);
        let _ = std::fs::remove_file(&probe);
        outcome.is_err_and(|e| matches!(e.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded))
    }
}
