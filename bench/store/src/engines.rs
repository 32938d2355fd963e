//! One workload on several engines: append rows of 1 KiB under rising numbers and remove those that are
//! 20,000 rows old, with one durable commit for each so many puts. That is what the store asks of its file.

use std::{
    fs::File,
    io::Write,
    os::unix::fs::FileExt,
    path::Path,
    time::{Duration, Instant},
};

use redb::ReadableDatabase as _;

use super::{Times, apart, peak_memory};

const KEPT: u64 = 20_000;
const VALUE: usize = 1024;
const RUN: Duration = Duration::from_secs(5);

pub fn all(dir: &Path) -> anyhow::Result<()> {
    println!("| engine | puts per commit | puts/s | p50 ms | p99 ms | worst ms | peak MiB | file MiB |");
    println!("|---|---|---|---|---|---|---|---|");
    for name in ["append", "sqlite", "redb", "fjall"] {
        for puts in ["1", "16", "64"] {
            apart(&["engine", name, puts], dir)?;
        }
    }
    let times = fdatasync(dir)?;
    println!("\nfdatasync of 4 KiB written over allocated space: p50 | p99 | worst ms: {}", times.row());
    Ok(())
}

trait Engine {
    /// Writes rows `from..to`, removes the rows `KEPT` below them, and returns once that is durable.
    fn commit(&mut self, from: u64, to: u64) -> anyhow::Result<()>;
}

fn value(seq: u64) -> Vec<u8> {
    let mut state = seq.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let bytes = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    });
    bytes.take(VALUE).collect()
}

fn removed(from: u64, to: u64) -> std::ops::Range<u64> {
    from.saturating_sub(KEPT)..to.saturating_sub(KEPT)
}

pub fn measure(name: &str, puts: u64, dir: &Path) -> anyhow::Result<()> {
    let dir = tempfile::tempdir_in(dir)?;
    let mut engine: Box<dyn Engine> = match name {
        "append" => Box::new(Append::new(dir.path())?),
        "sqlite" => Box::new(Sqlite::new(dir.path())?),
        "redb" => Box::new(Redb::new(dir.path())?),
        "fjall" => Box::new(Fjall::new(dir.path())?),
        other => anyhow::bail!("no engine {other}"),
    };
    let mut next = 0;
    while next < KEPT {
        engine.commit(next, next + 500)?;
        next += 500;
    }
    let mut times = Times::default();
    let started = Instant::now();
    while started.elapsed() < RUN {
        let begun = Instant::now();
        engine.commit(next, next + puts)?;
        times.0.push(begun.elapsed());
        next += puts;
    }
    let rate = (times.0.len() as u64 * puts) as f64 / started.elapsed().as_secs_f64();
    let (peak, size) = (peak_memory()?, size(dir.path())?);
    println!("| {name} | {puts} | {rate:.0} | {} | {peak:.0} | {:.0} |", times.row(), size as f64 / 1048576.0);
    Ok(())
}

fn size(dir: &Path) -> std::io::Result<u64> {
    let mut total = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        total += if meta.is_dir() { size(&entry.path())? } else { meta.len() };
    }
    Ok(total)
}

fn fdatasync(dir: &Path) -> anyhow::Result<Times> {
    let dir = tempfile::tempdir_in(dir)?;
    let file = File::create(dir.path().join("f"))?;
    file.write_all_at(&vec![0; 8 << 20], 0)?;
    file.sync_all()?;
    let mut times = Times::default();
    for n in 0..2000u64 {
        file.write_all_at(&[n as u8; 4096], n * 4096)?;
        let begun = Instant::now();
        file.sync_data()?;
        times.0.push(begun.elapsed());
    }
    Ok(times)
}

/// A file that only grows: the least any engine could do.
struct Append(File);

impl Append {
    fn new(dir: &Path) -> anyhow::Result<Append> {
        Ok(Append(File::create(dir.join("log"))?))
    }
}

impl Engine for Append {
    fn commit(&mut self, from: u64, to: u64) -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        for seq in from..to {
            bytes.extend(seq.to_le_bytes());
            bytes.extend(value(seq));
        }
        self.0.write_all(&bytes)?;
        Ok(self.0.sync_data()?)
    }
}

struct Sqlite {
    db: rusqlite::Connection,
    pages: u64,
}

impl Sqlite {
    fn new(dir: &Path) -> anyhow::Result<Sqlite> {
        let db = rusqlite::Connection::open(dir.join("db"))?;
        db.pragma_update(None, "locking_mode", "exclusive")?;
        db.pragma_update(None, "journal_mode", "wal")?;
        db.pragma_update(None, "synchronous", "full")?;
        db.pragma_update(None, "wal_autocheckpoint", 0)?;
        db.pragma_update(None, "cache_size", -2048)?;
        db.execute_batch(
            "CREATE TABLE version (seq INTEGER PRIMARY KEY, value BLOB) STRICT;
             CREATE TABLE meta (id INTEGER PRIMARY KEY, revision INTEGER) STRICT;",
        )?;
        Ok(Sqlite { db, pages: 0 })
    }
}

impl Engine for Sqlite {
    fn commit(&mut self, from: u64, to: u64) -> anyhow::Result<()> {
        let txn = self.db.transaction()?;
        for seq in from..to {
            txn.prepare_cached("INSERT INTO version VALUES (?, ?)")?.execute((seq as i64, value(seq)))?;
        }
        for seq in removed(from, to) {
            txn.prepare_cached("DELETE FROM version WHERE seq = ?")?.execute([seq as i64])?;
        }
        txn.prepare_cached("INSERT OR REPLACE INTO meta VALUES (1, ?)")?.execute([to as i64])?;
        txn.commit()?;
        // As the store does it, and counted into the commit.
        self.pages += 3 + (to - from) * 2 / 3;
        if self.pages > 1000 {
            self.db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
            self.pages = 0;
        }
        Ok(())
    }
}

const TABLE: redb::TableDefinition<u64, &[u8]> = redb::TableDefinition::new("version");

struct Redb(redb::Database);

impl Redb {
    fn new(dir: &Path) -> anyhow::Result<Redb> {
        let db = redb::Database::builder().set_cache_size(2 << 20).create(dir.join("db"))?;
        drop(db.begin_read()?);
        Ok(Redb(db))
    }
}

impl Engine for Redb {
    fn commit(&mut self, from: u64, to: u64) -> anyhow::Result<()> {
        let txn = self.0.begin_write()?;
        {
            let mut table = txn.open_table(TABLE)?;
            for seq in from..to {
                table.insert(seq, &*value(seq))?;
            }
            for seq in removed(from, to) {
                table.remove(seq)?;
            }
        }
        Ok(txn.commit()?)
    }
}

struct Fjall {
    db: fjall::Database,
    rows: fjall::Keyspace,
}

impl Fjall {
    fn new(dir: &Path) -> anyhow::Result<Fjall> {
        let db = fjall::Database::builder(dir.join("db")).cache_size(2 << 20).open()?;
        let rows = db.keyspace("version", fjall::KeyspaceCreateOptions::default)?;
        Ok(Fjall { db, rows })
    }
}

impl Engine for Fjall {
    fn commit(&mut self, from: u64, to: u64) -> anyhow::Result<()> {
        let mut batch = self.db.batch().durability(Some(fjall::PersistMode::SyncData));
        for seq in from..to {
            batch.insert(&self.rows, seq.to_be_bytes(), value(seq));
        }
        for seq in removed(from, to) {
            batch.remove(&self.rows, seq.to_be_bytes());
        }
        Ok(batch.commit()?)
    }
}
