use std::time::Duration;

use mainstay_testing::until;

use super::*;
use crate::WatchEvent;

async fn value(store: &impl Store, key: &str) -> Option<String> {
    let (entry, _) = store.get(key).await.expect("get");
    entry.map(|e| String::from_utf8_lossy(&e.value).into_owned())
}

fn rows(dir: &Path) -> i64 {
    let db = rusqlite::Connection::open(paths::db(dir)).expect("open");
    db.query_row("SELECT count(*) FROM version", [], |row| row.get(0)).expect("count")
}

#[tokio::test]
async fn contents_revision_and_history_survive_a_clean_stop() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Embedded::open(dir.path(), Options::default()).expect("open");
    commit(&store, put_txn("/a", "1")).await;
    commit(&store, put_txn("/a", "2")).await;
    commit(&store, delete_txn("/a")).await;
    commit(&store, put_txn("/b", "3")).await;
    let before = image(&store, Revision(0)).await;
    store.close().await.expect("close");
    assert_eq!(fs::metadata(paths::wal(dir.path())).map_or(0, |m| m.len()), 0, "the log is folded in");
    let store = Embedded::open(dir.path(), Options::default()).expect("open");
    assert_eq!(image(&store, Revision(0)).await, before);
    assert_eq!(commit(&store, put_txn("/c", "4")).await, Revision(5));
}

#[tokio::test]
async fn a_closed_store_refuses_everything_and_ends_watches() {
    let temp = temp(Options::default());
    let now = commit(&temp, put_txn("/a", "1")).await;
    let mut watch = temp.watch("/", now).await.expect("watch");
    temp.close().await.expect("close");
    assert!(matches!(watch.next().await, Err(StoreError::Closing)));
    assert!(matches!(temp.get("/a").await, Err(StoreError::Closing)));
    assert!(matches!(temp.commit(put_txn("/a", "2")).await, Err(StoreError::Closing)));
    assert!(matches!(temp.watch("/", now).await, Err(StoreError::Closing)));
    assert!(matches!(temp.close().await, Err(StoreError::Closing)));
}

#[test]
fn a_second_process_is_refused_with_the_directory_and_the_holder() {
    let dir = tempfile::tempdir().expect("a directory");
    let _store = Embedded::open(dir.path(), Options::default()).expect("open");
    let error = Embedded::open(dir.path(), Options::default()).err().expect("a refusal").to_string();
    assert!(error.contains(&*dir.path().to_string_lossy()), "{error}");
    assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
}

#[tokio::test]
async fn volatile_keys_cost_no_commit_and_are_gone_after_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = Options { volatile: vec!["/leases/".into()], ..Options::default() };
    let store = Embedded::open(dir.path(), options.clone()).expect("open");
    let durable = commit(&store, put_txn("/a", "1")).await;
    let mut watch = store.watch("/leases/", durable).await.expect("watch");
    let size = || fs::metadata(paths::wal(dir.path())).expect("log").len();
    let before = size();
    let mut last = durable;
    for n in 0..20 {
        last = commit(&store, put_txn("/leases/node", n.to_string())).await;
    }
    assert_eq!(last, Revision(durable.0 + 20));
    assert_eq!(size(), before, "nothing was written");
    let mut observed = 0;
    while observed < 20 {
        if let WatchEvent::Changes(changes) = watch.next().await.expect("event") {
            observed += changes.len();
        }
    }
    drop(store);
    let store = Embedded::open(dir.path(), options).expect("open");
    assert_eq!(store.revision().await.expect("revision"), last, "exact after a clean stop");
    assert_eq!(value(&store, "/a").await.as_deref(), Some("1"));
    assert_eq!(value(&store, "/leases/node").await, None);
    // Who watched a volatile key must list again; everyone else resumes.
    assert!(
        matches!(store.watch("/leases/", durable).await, Err(StoreError::Compacted { oldest, .. }) if oldest == last)
    );
    assert!(store.watch("/leases/", last).await.is_ok());
    assert!(store.watch("/a", durable).await.is_ok());
}

#[tokio::test]
async fn revisions_of_volatile_writes_are_not_given_again_after_a_crash() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = Options { volatile: vec!["/leases/".into()], ..Options::default() };
    let store = Embedded::open(dir.path(), options.clone()).expect("open");
    let durable = commit(&store, put_txn("/a", "1")).await;
    let last = commit(&store, put_txn("/leases/node", "1")).await;
    let crashed = damage::copy_of(&store, dir.path());
    let again = Embedded::open(crashed.path(), options).expect("open");
    let resumed = again.revision().await.expect("revision");
    assert!(resumed >= last, "{resumed} is before {last}");
    assert!(commit(&again, put_txn("/b", "1")).await > last);
    let mut watch = again.watch("/b", durable).await.expect("watch");
    assert!(matches!(watch.next().await, Ok(WatchEvent::Changes(changes)) if changes.len() == 1));
}

#[tokio::test]
async fn history_past_its_age_is_let_go_of_while_idle() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = Options { history: Duration::from_millis(30), ..Options::default() };
    let store = Embedded::open(dir.path(), options).expect("open");
    let first = commit(&store, put_txn("/a", "0")).await;
    for n in 1..300 {
        commit(&store, put_txn("/a", n.to_string())).await;
    }
    commit(&store, put_txn("/b", "x")).await;
    commit(&store, delete_txn("/b")).await;
    until("the first revision is compacted", async || store.watch("/", first).await.is_err()).await;
    let resting = async || {
        let state = store.mvcc.state.read();
        state.events() == 0
    };
    until("history is empty", resting).await;
    assert_eq!(value(&store, "/a").await.as_deref(), Some("299"));
    store.close().await.expect("close");
    // Closing does not wait for the last rows to go; the next start picks them up.
    let store = Embedded::open(dir.path(), Options::default()).expect("open");
    store.close().await.expect("close");
    let again = Embedded::open(dir.path(), Options::default()).expect("open");
    assert_eq!(value(&again, "/a").await.as_deref(), Some("299"));
    assert_eq!(value(&again, "/b").await, None);
    assert_eq!(again.mvcc.state.read().events(), 0);
}

#[tokio::test]
async fn leftover_rows_are_removed_after_a_start() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Embedded::open(dir.path(), Options::default()).expect("open");
    let mut last = Revision(0);
    for n in 0..500 {
        last = commit(&store, put_txn(&format!("/{}", n % 7), n.to_string())).await;
    }
    last = last.max(commit(&store, delete_txn("/3")).await);
    store.compact(last).await.expect("compact");
    drop(store);
    let (mut writer, lock) = prepare(dir.path(), &Options::default()).expect("open");
    let mut turns = 0;
    while writer.next_timeout() == Some(Duration::ZERO) {
        writer.idle();
        turns += 1;
        assert!(turns < 100, "cleaning comes to an end");
    }
    drop((writer, lock));
    assert_eq!(rows(dir.path()), 6);
    let store = Embedded::open(dir.path(), Options::default()).expect("open");
    assert_eq!(store.list(List::default()).await.expect("list").entries.len(), 6);
}

#[test]
fn a_store_with_nothing_to_do_sets_no_timer() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut writer, _lock) = prepare(dir.path(), &Options::default()).expect("open");
    writer.idle();
    assert_eq!(writer.next_timeout(), None);
    let (reply, mut answer) = oneshot::channel();
    assert!(writer.queue.push(Request::Commit(Pending { txn: put_txn("/a", "1"), reply })).is_ok());
    assert!(writer.run_turn().is_none());
    assert!(answer.try_recv().expect("an answer").is_ok());
    let rest = writer.next_timeout().expect("a log to fold in");
    assert!(rest > Duration::from_secs(1) && rest < Duration::from_secs(60), "{rest:?}");
    writer.idle();
    let rest = writer.next_timeout().expect("history to let go of");
    assert!(rest > Duration::from_secs(300), "{rest:?}");
}

#[tokio::test]
async fn a_backup_holds_one_moment_and_restores_with_later_revisions() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = Options { volatile: vec!["/leases/".into()], ..Options::default() };
    let store = Embedded::open(dir.path(), options).expect("open");
    for n in 0..50 {
        commit(&store, put_txn(&format!("/k/{}", n % 20), n.to_string())).await;
    }
    let pair = Txn { compares: vec![], ops: [put_txn("/x", "1").ops, put_txn("/y", "1").ops].concat() };
    commit(&store, pair).await;
    commit(&store, put_txn("/leases/n", "1")).await;
    let file = backups_dir(dir.path()).join("one.db");
    let taken = store.backup(&file).expect("backup");
    assert_eq!(taken, Summary { revision: store.revision().await.expect("revision"), keys: 22 });
    assert!(matches!(store.backup(&file), Err(BackupError::Exists { .. })));
    let lost = commit(&store, put_txn("/k/0", "after the backup")).await;

    let target = tempfile::tempdir().expect("a directory");
    let restored = restore(&file, target.path(), Existing::Refuse).expect("restore");
    assert_eq!(restored.keys, 22);
    let error = restore(&file, target.path(), Existing::Refuse).expect_err("a refusal");
    assert!(matches!(error, RestoreError::HoldsData { .. }), "{error}");
    let again = Embedded::open(target.path(), Options::default()).expect("open");
    assert_eq!(value(&again, "/k/0").await.as_deref(), Some("40"));
    assert_eq!(value(&again, "/y").await.as_deref(), Some("1"));
    assert_eq!(value(&again, "/leases/n").await, None);
    let next = commit(&again, put_txn("/k/0", "new")).await;
    assert!(next.0 > lost.0 + 1000, "no revision is given twice");
    assert!(matches!(again.watch("/k/", lost).await, Err(StoreError::Compacted { .. })));
    let error = restore(&file, target.path(), Existing::Replace).expect_err("a refusal while in use");
    assert!(matches!(error, RestoreError::Target { source: OpenError::Locked { .. }, .. }), "{error}");
    again.close().await.expect("close");

    let replaced = restore(&file, target.path(), Existing::Replace).expect("restore");
    assert!(replaced.revision > next, "also beyond what the replaced store had given");
    assert_eq!(verify(target.path()).expect("verify"), replaced);
}

#[tokio::test]
async fn a_closed_directory_can_be_backed_up_and_verified() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Embedded::open(dir.path(), Options::default()).expect("open");
    let last = commit(&store, put_txn("/a", "1")).await;
    let crashed = damage::copy_of(&store, dir.path());
    drop(store);
    for dir in [dir.path(), crashed.path()] {
        let expected = Summary { revision: last, keys: 1 };
        assert_eq!(verify(dir).expect("verify"), expected);
        let file = dir.join("b.db");
        assert_eq!(backup_closed(dir, &file).expect("backup"), expected);
        assert_eq!(verify_file(&file).expect("verify"), expected);
    }
}

#[tokio::test]
async fn an_interrupted_restore_is_not_taken_for_a_store() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Embedded::open(dir.path(), Options::default()).expect("open");
    commit(&store, put_txn("/a", "1")).await;
    let file = dir.path().join("b.db");
    store.backup(&file).expect("backup");
    drop(store);
    fs::write(paths::restoring(dir.path()), b"").expect("write");
    let error = Embedded::open(dir.path(), Options::default()).err().expect("a refusal");
    assert!(matches!(error, OpenError::HalfRestored { .. }), "{error}");
    restore(&file, dir.path(), Existing::Refuse).expect("running it again is enough");
    let store = Embedded::open(dir.path(), Options::default()).expect("open");
    assert_eq!(value(&store, "/a").await.as_deref(), Some("1"));
}

#[tokio::test]
async fn a_file_of_a_later_format_is_refused_by_its_number() {
    let dir = tempfile::tempdir().expect("a directory");
    drop(Embedded::open(dir.path(), Options::default()).expect("open"));
    let db = rusqlite::Connection::open(paths::db(dir.path())).expect("open");
    db.pragma_update(None, "user_version", 9).expect("write");
    drop(db);
    let before = contents(dir.path());
    let error = Embedded::open(dir.path(), Options::default()).err().expect("a refusal");
    assert!(matches!(&error, OpenError::Newer { source, .. } if source.found == 9), "{error}");
    let text = mainstay_errors::error_chain(&error);
    assert!(text.contains(&format!("use Mainstay {}, which wrote it", mainstay_files::VERSION)), "{text}");
    assert_eq!(contents(dir.path()), before, "refused, and untouched");
    let error = super::super::check_readable(&paths::db(dir.path())).expect_err("a refusal");
    assert!(matches!(error, OpenError::Newer { .. }), "{error}");
}

/// Of the database and its log; the lock file may come and go.
fn contents(dir: &std::path::Path) -> [Option<Vec<u8>>; 3] {
    [paths::db(dir), paths::wal(dir), paths::marker(dir)].map(|file| fs::read(file).ok())
}

/// What the version that introduced format 1 wrote; every later one must read it.
#[tokio::test]
async fn a_store_and_a_backup_of_format_1_are_read() {
    let dir = tempfile::tempdir().expect("a directory");
    let fixture = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/format-1/store.db");
    if std::env::var_os("MAINSTAY_WRITE_FIXTURES").is_some() && !fixture.exists() {
        let store = Embedded::open(dir.path().join("new"), Options::default()).expect("open");
        commit(&store, put_txn("/registry/configmaps/default/a", "{}")).await;
        commit(&store, put_txn("/registry/configmaps/default/b", "{\"data\":{}}")).await;
        fs::create_dir_all(fixture.parent().expect("a parent")).expect("make the directory");
        store.backup(&fixture).expect("backup");
    }
    let held = "{\"data\":{}}";
    restore(&fixture, &dir.path().join("restored"), Existing::Refuse).expect("restore");
    let store = Embedded::open(dir.path().join("restored"), Options::default()).expect("open");
    assert_eq!(value(&store, "/registry/configmaps/default/b").await.as_deref(), Some(held));
    let opened = dir.path().join("opened");
    fs::create_dir(&opened).expect("make a directory");
    fs::copy(&fixture, paths::db(&opened)).expect("copy");
    let store = Embedded::open(&opened, Options::default()).expect("open");
    assert_eq!(value(&store, "/registry/configmaps/default/b").await.as_deref(), Some(held));
}
