//! Damage is reported, or it did no harm: never a store that opens with something else in it.

use std::{collections::BTreeMap, sync::mpsc};

use super::*;

/// A copy of a running store's files, taken between two commits: what `kill -9` would leave.
pub(super) fn copy_of(store: &Embedded, dir: &Path) -> TempDir {
    let copy = tempfile::tempdir().expect("a directory");
    let files = [paths::db(dir), paths::wal(dir), paths::marker(dir)].map(|from| {
        let to = copy.path().join(from.file_name().expect("a name"));
        (from, to)
    });
    let (done, copied) = mpsc::channel();
    let job = move || {
        let copied = files.into_iter().try_for_each(|(from, to)| fs::copy(from, to).map(drop));
        done.send(copied).expect("the test waits");
    };
    assert!(store.queue.push(Request::Run(Box::new(job))).is_ok(), "an open store");
    store.queue.call_thread();
    copied.recv().expect("an answer").expect("copies");
    copy
}

/// The files of a store that was killed, and what it held.
struct Killed {
    files: BTreeMap<&'static str, Vec<u8>>,
    image: Vec<String>,
    compacted: Revision,
}

const DB: &str = "store.db";
const WAL: &str = "store.db-wal";
const MARKER: &str = "store.marker";

/// A store with deletions, overflow pages, free pages, a checkpointed part and a log of many commits.
async fn killed() -> Killed {
    let dir = tempfile::tempdir().expect("a directory");
    let options = Options { log_pages: 1 << 20, ..Options::default() };
    let store = Embedded::open(dir.path(), options.clone()).expect("open");
    for n in 0..120u32 {
        let size = if n % 17 == 0 { 6000 } else { 80 };
        commit(&store, put_txn(&format!("/k/{}", n % 40), vec![n as u8; size])).await;
        if n % 9 == 0 {
            commit(&store, delete_txn(&format!("/k/{}", n % 40))).await;
        }
    }
    let compacted = Revision(60);
    store.compact(compacted).await.expect("compact");
    while store.mvcc.state.read().untrimmed() {
        tokio::task::yield_now().await;
    }
    store.close().await.expect("close");
    let store = Embedded::open(dir.path(), options).expect("open");
    for n in 0..30u32 {
        commit(&store, put_txn(&format!("/w/{}", n % 10), vec![n as u8; 300])).await;
    }
    let image = image(&store, compacted).await;
    let copy = copy_of(&store, dir.path());
    let read = |name| (name, fs::read(copy.path().join(name)).expect("read"));
    Killed { files: [DB, WAL, MARKER].map(read).into(), image, compacted }
}

impl Killed {
    fn lay_out(&self, damage: impl FnOnce(&mut BTreeMap<&'static str, Vec<u8>>)) -> TempDir {
        let dir = tempfile::tempdir().expect("a directory");
        let mut files = self.files.clone();
        damage(&mut files);
        for (name, bytes) in files {
            fs::write(dir.path().join(name), bytes).expect("write");
        }
        dir
    }

    /// Opens a damaged copy. If that succeeds nothing may be missing, now or after more use.
    async fn check(&self, what: &str, damage: impl FnOnce(&mut BTreeMap<&'static str, Vec<u8>>)) -> Option<String> {
        let dir = self.lay_out(damage);
        let store = match Embedded::open(dir.path(), Options::default()) {
            Err(error @ OpenError::Damaged { .. }) => return Some(error.to_string()),
            Err(error) => panic!("{what}: not reported as damage: {error:?}"),
            Ok(store) => store,
        };
        assert_eq!(image(&store, self.compacted).await, self.image, "{what}");
        for n in 0..5 {
            commit(&store, put_txn(&format!("/later/{n}"), vec![1; 2000])).await;
        }
        let before = image(&store, self.compacted).await;
        store.close().await.unwrap_or_else(|e| panic!("{what}: close: {e}"));
        let store = Embedded::open(dir.path(), Options::default()).unwrap_or_else(|e| panic!("{what}: reopen: {e}"));
        assert_eq!(image(&store, self.compacted).await, before, "{what}");
        None
    }
}

/// Places to damage, the same ones every time.
fn places(seed: u64, count: usize, len: usize) -> impl Iterator<Item = (usize, u8)> {
    let mut state = seed;
    (0..count).map(move |_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 24) as usize % len, 1 << (state >> 61))
    })
}

async fn flip_many(name: &'static str, seed: u64, count: usize) -> usize {
    let killed = killed().await;
    let mut reported = 0;
    for (at, bit) in places(seed, count, killed.files[name].len()) {
        let damage = |files: &mut BTreeMap<_, Vec<u8>>| files.get_mut(name).expect("the file")[at] ^= bit;
        let error = killed.check(&format!("{name} byte {at} bit {bit:#x}"), damage).await;
        if let Some(error) = &error {
            assert!(error.contains(DB), "the file or its log is named: {error}");
        }
        reported += error.is_some() as usize;
    }
    reported
}

#[tokio::test]
async fn an_undamaged_copy_opens() {
    let killed = killed().await;
    assert_eq!(killed.check("no damage", |_| ()).await, None);
}

#[tokio::test]
async fn flipped_bits_in_the_database_are_reported_or_harmless() {
    let reported = flip_many(DB, 1, 300).await;
    assert!(reported > 100, "{reported} of 300");
}

#[tokio::test]
async fn flipped_bits_in_the_log_are_reported() {
    let reported = flip_many(WAL, 2, 300).await;
    assert!(reported > 290, "{reported} of 300");
}

#[tokio::test]
async fn flipped_bits_in_the_log_are_reported_without_a_marker() {
    let killed = killed().await;
    // Short of the last transactions, which could as well have been interrupted.
    let len = killed.files[WAL].len() - 10 * 4120;
    for (at, bit) in places(3, 150, len) {
        let damage = |files: &mut BTreeMap<_, Vec<u8>>| {
            files.get_mut(WAL).expect("the file")[at] ^= bit;
            files.remove(MARKER);
        };
        killed.check(&format!("byte {at} bit {bit:#x}"), damage).await;
    }
}

#[tokio::test]
async fn flipped_bits_in_the_marker_are_harmless() {
    assert_eq!(flip_many(MARKER, 4, 40).await, 0);
}

#[tokio::test]
async fn truncated_files_are_reported_or_harmless() {
    let killed = killed().await;
    for name in [DB, WAL] {
        let len = killed.files[name].len();
        let mut reported = 0;
        for (at, _) in places(5, 60, len) {
            let damage = |files: &mut BTreeMap<_, Vec<u8>>| files.get_mut(name).expect("the file").truncate(at);
            let error = killed.check(&format!("{name} cut to {at} of {len}"), damage).await;
            // The end of the database may be in the log as well.
            assert!(error.is_some() || name == DB, "{name} cut to {at} of {len} lost something");
            reported += error.is_some() as usize;
        }
        assert!(reported > 40, "{name}: {reported} of 60");
    }
}

#[tokio::test]
async fn missing_files_are_reported() {
    let killed = killed().await;
    for name in [DB, WAL] {
        let error = killed.check(&format!("no {name}"), |files| drop(files.remove(name))).await;
        assert!(error.is_some_and(|e| e.contains(DB)));
    }
    assert_eq!(killed.check("no marker", |files| drop(files.remove(MARKER))).await, None);
}

#[tokio::test]
async fn a_lost_or_doubled_row_is_reported() {
    for sql in [
        "DELETE FROM version WHERE seq = (SELECT max(seq) FROM version)",
        "INSERT INTO version SELECT seq + 1, created, key, value, checksum FROM version LIMIT 1",
        "UPDATE version SET value = x'00' WHERE seq = (SELECT max(seq) FROM version)",
        "DELETE FROM meta",
        "UPDATE meta SET revision = revision + 1",
        "DROP TABLE version",
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Embedded::open(dir.path(), Options::default()).expect("open");
        for n in 0..5 {
            commit(&store, put_txn(&format!("/{n}"), "v")).await;
        }
        drop(store);
        rusqlite::Connection::open(paths::db(dir.path())).expect("open").execute(sql, []).expect("damage");
        let error = Embedded::open(dir.path(), Options::default()).err().unwrap_or_else(|| panic!("{sql}: opened"));
        assert!(matches!(error, OpenError::Damaged { .. }), "{sql}: {error}");
    }
}

#[tokio::test]
async fn damage_names_the_file_and_the_newest_backup_that_verifies() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Embedded::open(dir.path(), Options::default()).expect("open");
    commit(&store, put_txn("/a", "1")).await;
    let backups = backups_dir(dir.path());
    for (age, name) in [(3, "a.db"), (2, "b.db"), (1, "c.db")] {
        let file = backups.join(name);
        store.backup(&file).expect("backup");
        let time = std::time::SystemTime::now() - Duration::from_secs(age * 100);
        fs::File::options().write(true).open(&file).and_then(|f| f.set_modified(time)).expect("set the time");
    }
    drop(store);
    let damage = |file: &Path| {
        let mut bytes = fs::read(file).expect("read");
        let at = bytes.len() / 2;
        bytes[at..].fill(0x55);
        let time = fs::metadata(file).and_then(|m| m.modified()).expect("the time");
        fs::write(file, bytes).expect("write");
        fs::File::options().write(true).open(file).and_then(|f| f.set_modified(time)).expect("set the time");
    };
    damage(&backups.join("c.db"));
    damage(&paths::db(dir.path()));
    let error = Embedded::open(dir.path(), Options::default()).err().expect("a refusal").to_string();
    assert!(error.contains(&*paths::db(dir.path()).to_string_lossy()), "{error}");
    assert!(error.contains(&*backups.join("b.db").to_string_lossy()), "{error}");
    restore(&backups.join("b.db"), dir.path(), Existing::Replace).expect("restore");
    let store = Embedded::open(dir.path(), Options::default()).expect("open");
    assert!(store.get("/a").await.expect("get").0.is_some());
}
