//! Bounded, whatever is written; and what happens when the disk is full.

use std::{
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
};

use super::*;

fn size(dir: &Path) -> u64 {
    [paths::db(dir), paths::wal(dir)].iter().map(|f| fs::metadata(f).map_or(0, |m| m.len())).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_churn_of_the_same_keys_stays_bounded() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = Options { history_events: 500, log_pages: 200, ..Options::default() };
    let store = Arc::new(Embedded::open(dir.path(), options).expect("open"));
    let largest = Arc::new(AtomicUsize::new(0));
    let churn = async |rounds: usize| {
        let writers = (0..32).map(|w| {
            let (store, largest) = (store.clone(), largest.clone());
            tokio::spawn(async move {
                for n in 0..rounds {
                    let key = format!("/k/{}", w * 4 + n % 4);
                    let txn = if n % 10 == 9 { delete_txn(&key) } else { put_txn(&key, vec![n as u8; 1024]) };
                    commit(&*store, txn).await;
                    largest.fetch_max(store.mvcc.state.read().events(), Ordering::Relaxed);
                }
            })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.await.expect("writer");
        }
    };
    churn(100).await;
    let settled = size(dir.path());
    churn(400).await;
    let later = size(dir.path());
    assert!(later < settled * 3 / 2, "{settled} bytes grew to {later}");
    assert!(later < 6 << 20, "{later} bytes for 128 keys and 500 changes of 1 KiB");
    assert!(largest.load(Ordering::Relaxed) < 1200, "history in memory is bounded: {largest:?}");
}

/// A small file system of its own, unmounted when dropped.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn mount(size: &str) -> Tmpfs {
        let dir = tempfile::tempdir().expect("a directory").keep();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(&dir).status();
        assert!(
            mounted.as_ref().is_ok_and(|status| status.success()),
            "THIS TEST NEEDS ROOT: mounting a tmpfs at {} failed: {mounted:?}",
            dir.display()
        );
        Tmpfs(dir)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(&self.0).status();
        if unmounted.is_ok_and(|status| status.success()) {
            let _ = fs::remove_dir(&self.0);
        }
    }
}

/// Takes all the room there is.
fn fill(ballast: &Path) {
    let mut file = fs::File::create(ballast).expect("create");
    let mut block = 1 << 20;
    while block > 0 {
        match std::io::Write::write_all(&mut file, &vec![1; block]) {
            Ok(()) => {}
            Err(_) => block /= 2,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_writes_serves_reads_and_recovers_by_itself() {
    let disk = Tmpfs::mount("8m");
    let dir = disk.0.join("data");
    let ballast = disk.0.join("ballast");
    let options = Options { volatile: vec!["/leases/".into()], ..Options::default() };
    let store = Embedded::open(&dir, options.clone()).expect("open");
    let mut acknowledged = Vec::new();
    let mut refusals = 0;
    commit(&store, put_txn("/leases/n", "0")).await;
    for round in 0..3 {
        // Until it is refused; then for some more, because a refusal may make room by clearing the log.
        let mut refused_here = 0;
        for n in 0.. {
            if n == 20 {
                fill(&ballast);
            }
            let key = format!("/k/{round}/{n}");
            match store.commit(put_txn(&key, vec![round; 16 << 10])).await {
                Ok(_) => acknowledged.push(key),
                Err(StoreError::NoSpace) => refused_here += 1,
                Err(other) => panic!("{other}"),
            }
            assert!(n < 2000, "the disk never filled up");
            if refused_here == 20 {
                break;
            }
        }
        refusals += refused_here;
        let (entry, _) = store.get(&acknowledged[0]).await.expect("reads are served");
        assert!(entry.is_some());
        let listed = store.list(List { prefix: "/k/", ..List::default() }).await.expect("lists are served");
        assert_eq!(listed.entries.len(), acknowledged.len(), "what was refused did not happen");
        assert!(store.commit(put_txn("/leases/n", "1")).await.is_ok(), "heartbeats get through");
        fs::remove_file(&ballast).expect("make room");
        let key = format!("/k/{round}/after");
        commit(&store, put_txn(&key, "there is room again")).await;
        acknowledged.push(key);
        for key in acknowledged.drain(1..) {
            commit(&store, delete_txn(&key)).await;
        }
    }
    assert_eq!(refusals, 60);
    for n in 0..10 {
        let key = format!("/last/{n}");
        commit(&store, put_txn(&key, vec![9; 1000])).await;
        acknowledged.push(key);
    }
    fill(&ballast);
    drop(store);

    let store = Embedded::open(&dir, options.clone()).expect("a full disk does not prevent the start");
    for key in &acknowledged {
        assert!(store.get(key).await.expect("get").0.is_some(), "{key} was acknowledged");
    }
    fs::remove_file(&ballast).expect("make room");
    commit(&store, put_txn("/k/new", "1")).await;
    store.close().await.expect("close");
    verify(&dir).expect("verify");
}

/// Grows the ballast by whatever room there is: somebody fills the disk without pause.
fn refill(ballast: &Path) {
    let mut file = fs::File::options().append(true).create(true).open(ballast).expect("open");
    for size in [64 << 10, 4096] {
        while std::io::Write::write_all(&mut file, &vec![1; size]).is_ok() {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_growth_and_takes_deletions_and_updates() {
    let disk = Tmpfs::mount("256m");
    let (dir, ballast) = (disk.0.join("data"), disk.0.join("ballast"));
    let options = Options { volatile: vec!["/leases/".into()], ..Options::default() };
    let store = Embedded::open(&dir, options.clone()).expect("open");
    const KEYS: usize = 200;
    for n in 0..KEYS {
        commit(&store, put_txn(&format!("/k/{n}"), vec![n as u8; 3000])).await;
    }
    fill(&ballast);
    assert!(matches!(store.health().await, Ok(()) | Err(StoreError::NoSpace)));
    let mut taken = 0;
    while store.commit(put_txn(&format!("/new/{taken}"), vec![0; 3000])).await.is_ok() {
        refill(&ballast);
        taken += 1;
        assert!(taken < 2000, "new keys are taken for ever");
    }
    for round in 0..10u8 {
        for n in 0..KEYS {
            commit(&store, put_txn(&format!("/k/{n}"), vec![round; 3500])).await;
        }
    }
    let refused = store.commit(put_txn("/new/last", "x")).await;
    assert!(matches!(refused, Err(StoreError::NoSpace)), "{refused:?}");
    let grown = store.commit(put_txn("/k/0", vec![0; 20_000])).await;
    assert!(matches!(grown, Err(StoreError::NoSpace)), "{grown:?}");
    let exists = Txn {
        compares: vec![crate::Compare { key: "/k/1".into(), expect: crate::Expect::Absent }],
        ..put_txn("/k/1", "x")
    };
    assert!(
        matches!(store.commit(exists).await, Ok(Outcome::Conflict { .. })),
        "a conflict comes before the want of room"
    );
    assert!(matches!(store.health().await, Err(StoreError::NoSpace)));
    drop(store);

    refill(&ballast);
    let store = Embedded::open(&dir, options).expect("a full disk does not prevent the start");
    commit(&store, put_txn("/leases/n", "the first needs a higher ceiling on disk")).await;
    for n in 0..KEYS {
        refill(&ballast);
        commit(&store, delete_txn(&format!("/k/{n}"))).await;
    }
    let left = store.list(List { prefix: "/k/", ..List::default() }).await.expect("list").entries.len();
    assert_eq!(left, 0);
    fs::remove_file(&ballast).expect("make room");
    commit(&store, put_txn("/new/last", "there is room again")).await;
    while let Err(error) = store.health().await {
        assert!(matches!(error, StoreError::NoSpace), "{error}");
        tokio::task::yield_now().await;
    }
    store.close().await.expect("close");
    verify(&dir).expect("verify");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_acknowledged_once_the_files_are_gone() {
    let parent = tempfile::tempdir().expect("a directory");
    let (dir, aside) = (parent.path().join("store"), parent.path().join("aside"));
    let options = Options { volatile: vec!["/leases/".into()], ..Options::default() };
    let store = Embedded::open(&dir, options).expect("open");
    commit(&store, put_txn("/k/1", "1")).await;
    commit(&store, put_txn("/leases/n", "1")).await;
    let refused = async || match store.commit(put_txn("/k/2", "2")).await {
        Err(StoreError::Failed { why }) => why.to_string(),
        other => panic!("{other:?}"),
    };
    fs::rename(&dir, &aside).expect("move it");
    let why = refused().await;
    assert!(why.contains(dir.to_str().expect("UTF-8")) && why.contains("removed"), "{why}");
    assert!(matches!(store.health().await, Err(StoreError::Failed { .. })));
    commit(&store, put_txn("/leases/n", "2")).await;
    assert!(store.get("/k/1").await.expect("reads are served").0.is_some());

    fs::rename(&aside, &dir).expect("move it back");
    commit(&store, put_txn("/k/3", "3")).await;
    assert!(store.health().await.is_ok());
    fs::remove_dir_all(&dir).expect("remove it");
    fs::create_dir(&dir).expect("make another");
    assert!(refused().await.contains("removed"));
    let saved = parent.path().join("saved");
    store.backup(&saved).expect("what is in memory can be saved");
    assert_eq!(verify_file(&saved).expect("verify").keys, 2);
}
