//! Callers that may block commit by themselves while nobody else does, and nothing that is queued is forgotten.

use std::{collections::BTreeSet, time::Instant};

use futures::future::join_all;

use super::*;
use crate::{WatchEvent, WatchIndex};

/// Remembers which threads made changes visible.
#[derive(Default)]
struct ThreadRecorder(Mutex<BTreeSet<String>>);

impl WatchIndex for ThreadRecorder {
    fn name(&self) -> &str {
        "thread"
    }

    fn value<'a>(&self, _: &'a Entry) -> &'a str {
        let name = thread::current().name().unwrap_or_default().to_owned();
        self.0.lock().insert(name);
        ""
    }
}

async fn record_threads(store: &Embedded) -> (Arc<ThreadRecorder>, Box<dyn Watch>) {
    let recorder = Arc::new(ThreadRecorder::default());
    let part = IndexMatch { index: recorder.clone(), value: "".into() };
    let watch = store.watch_indexed("/", Revision(0), part).await.expect("watch");
    (recorder, watch)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_caller_commits_by_itself() {
    let store = temp(Options::default());
    let (recorder, _watch) = record_threads(&store).await;
    for n in 0..20 {
        commit(&*store, put_txn(&format!("/{n}"), "1")).await;
    }
    // The thread may have been awake for the first of them.
    let threads = recorder.0.lock().clone();
    assert!(threads.iter().any(|name| name != "store"), "{threads:?}");
}

#[tokio::test]
async fn a_caller_that_may_not_block_leaves_it_to_the_thread() {
    let store = temp(Options::default());
    let (recorder, _watch) = record_threads(&store).await;
    commit(&*store, put_txn("/a", "1")).await;
    assert_eq!(*recorder.0.lock(), BTreeSet::from(["store".to_owned()]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_of_one_task_share_an_fsync() {
    let store = temp(Options::default());
    let before = store.writer.lock().as_ref().expect("a writer").disk.meta().turn;
    let commits = (0..50).map(|n| commit(&*store, put_txn(&format!("/{n}"), "1")));
    assert_eq!(join_all(commits).await.into_iter().collect::<BTreeSet<_>>().len(), 50);
    let after = store.writer.lock().as_ref().expect("a writer").disk.meta().turn;
    assert!(after - before <= 3, "{} commits to disk", after - before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn many_callers_are_all_answered_and_watched_in_order() {
    // A log that is always full, so that the thread takes part all the time.
    let store = Arc::new(temp(Options { log_pages: 4, batch_txns: 3, ..Options::default() }));
    let mut watch = store.watch("/", Revision(0)).await.expect("watch");
    let writers = (0..8).map(|writer| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut given = Vec::new();
            for n in 0..40 {
                given.push(commit(&**store, put_txn(&format!("/{writer}/{n}"), "1")).await);
            }
            assert!(given.is_sorted());
            given
        })
    });
    let given: Vec<_> = join_all(writers).await.into_iter().flat_map(|given| given.expect("a writer")).collect();
    assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), 320, "each has a revision of its own");
    let mut seen = Vec::new();
    while seen.len() < 320 {
        if let WatchEvent::Changes(changes) = watch.next().await.expect("an event") {
            seen.extend(changes.iter().map(|change| change.revision));
        }
    }
    assert!(seen.is_sorted());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dropped_caller_queued_is_still_committed() {
    let store = temp(Options::default());
    let mut abandoned = Box::pin(store.commit(put_txn("/a", "1")));
    // Queued at the first poll, served at the second, which never comes.
    assert!(futures::poll!(&mut abandoned).is_pending());
    drop(abandoned);
    let deadline = Instant::now() + Duration::from_secs(20);
    while store.get("/a").await.expect("get").0.is_none() {
        assert!(Instant::now() < deadline, "nobody committed it");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_of_a_lone_caller_is_checkpointed() {
    let store = temp(Options { log_pages: 8, ..Options::default() });
    for n in 0..40 {
        commit(&*store, put_txn(&format!("/{n}"), vec![0; 5000])).await;
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while store.writer.lock().as_ref().expect("a writer").disk.wal_pages() >= 8 {
        assert!(Instant::now() < deadline, "the thread was not called");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_whoever_holds_the_writer_closes_the_store() {
    let store = temp(Options::default());
    let (slot, queue) = (store.writer.clone(), store.queue.clone());
    let panicked = thread::spawn(move || {
        let _held = HeldWriter::lock(&slot, &queue);
        panic!("on purpose");
    });
    assert!(panicked.join().is_err());
    assert!(matches!(store.commit(put_txn("/a", "1")).await, Err(StoreError::Closing)));
    assert!(matches!(store.close().await, Err(StoreError::Closing)));
}
