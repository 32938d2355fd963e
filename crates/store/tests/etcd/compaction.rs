//! Compacted revisions.

use std::time::Duration;

use mainstay_store::{List, Revision, Store, StoreError, etcd::compactor};
use tokio_util::sync::CancellationToken;

use crate::{
    changes, claims, client, delete, put,
    server::{Server, Version},
    within, write,
};

claims! {
    what_was_compacted_is_refused_by_name_and_the_rest_is_kept,
    a_deletion_at_the_compacted_revision_is_never_silently_missed,
    a_running_watch_does_not_notice_compaction,
    compactors_take_turns_and_keep_the_last_interval,
    the_compactor_stops_when_asked_to,
}

async fn what_was_compacted_is_refused_by_name_and_the_rest_is_kept(version: Version) {
    let server = Server::start(version);
    let store = client(&server).await;
    for number in 2..12 {
        write(&store, vec![put("/r/a", &number.to_string())]).await;
    }
    let oldest = Revision(8);
    store.compact(oldest).await.expect("compact");

    let gone = |error: Option<StoreError>, at| match error {
        Some(StoreError::Compacted { requested, oldest: reported }) => assert_eq!((requested, reported), (at, oldest)),
        other => panic!("{other:?}"),
    };
    for at in [Revision(0), Revision(7), oldest] {
        gone(store.compact(at).await.err(), at);
    }
    let list = |at| store.list(List { prefix: "/r/", at: Some(at), ..List::default() });
    for at in [Revision(0), Revision(7)] {
        gone(list(at).await.err(), at);
        gone(store.watch("/r/", at).await.err(), at);
    }
    assert_eq!(&*list(oldest).await.expect("kept").entries[0].value, b"8");
    let mut watch = store.watch("/r/", oldest).await.expect("kept");
    assert_eq!(changes(&mut *watch, 3).await, ["9 /r/a 8>9", "10 /r/a 9>10", "11 /r/a 10>11"]);

    match store.compact(Revision(100)).await {
        Err(StoreError::Future { requested, newest }) => assert_eq!((requested.0, newest.0), (100, 11)),
        other => panic!("{other:?}"),
    }
}

async fn a_deletion_at_the_compacted_revision_is_never_silently_missed(version: Version) {
    let server = Server::start(version);
    let store = client(&server).await;
    write(&store, vec![put("/r/a", "1")]).await;
    let deleted = write(&store, vec![delete("/r/a")]).await;
    write(&store, vec![put("/r/b", "1")]).await;
    store.compact(deleted).await.expect("compact");
    let refused = store.watch("/r/", Revision(deleted.0 - 1)).await.err();
    assert!(matches!(refused, Some(StoreError::Compacted { .. })), "{refused:?}");
    let mut watch = store.watch("/r/", deleted).await.expect("watch");
    assert_eq!(changes(&mut *watch, 1).await, [format!("{} /r/b ->1", deleted.0 + 1)]);
}

async fn a_running_watch_does_not_notice_compaction(version: Version) {
    let server = Server::start(version);
    let store = client(&server).await;
    let start = store.revision().await.expect("revision");
    let mut watch = store.watch("/r/", start).await.expect("watch");
    for number in 0..5 {
        let at = write(&store, vec![put("/r/a", &number.to_string())]).await;
        assert_eq!(changes(&mut *watch, 1).await.len(), 1);
        store.compact(at).await.expect("compact");
    }
}

async fn compactors_take_turns_and_keep_the_last_interval(version: Version) {
    let server = Server::start(version);
    let (one, two) = (client(&server).await, client(&server).await);
    let (mut seen_by_one, mut seen_by_two) = Default::default();
    let readable = |at| one.list(List { prefix: "/r/", at: Some(at), ..List::default() });
    let old = write(&one, vec![put("/r/a", "old")]).await;
    for turn in 0..4 {
        let before = write(&one, vec![put("/r/a", "new")]).await;
        seen_by_one = compactor::compact_once(&one, seen_by_one).await.expect("turn");
        seen_by_two = compactor::compact_once(&two, seen_by_two).await.expect("turn");
        readable(before).await.expect("this interval is kept");
        if turn > 0 {
            let gone = readable(old).await.err();
            assert!(matches!(gone, Some(StoreError::Compacted { .. })), "turn {turn}: {gone:?}");
        }
    }
    let (key, _) = one.get("compact_rev_key").await.expect("get");
    assert!(String::from_utf8_lossy(&key.expect("there").value).parse::<u64>().expect("a number") > old.0);
}

async fn the_compactor_stops_when_asked_to(version: Version) {
    let server = Server::start(version);
    let store = client(&server).await;
    let stop = CancellationToken::new();
    let running = tokio::spawn(compactor::run(store.clone(), Duration::from_millis(20), stop.clone()));
    let old = write(&store, vec![put("/r/a", "1")]).await;
    write(&store, vec![put("/r/a", "2")]).await;
    within("compaction", async {
        while store.list(List { prefix: "/r/", at: Some(old), ..List::default() }).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    stop.cancel();
    within("the compactor", running).await.expect("ended in order");
}
