//! Watches while etcd is well.

use mainstay_store::{Revision, Store, StoreError, WatchEvent};

use crate::{
    changes, claims, client, delete, put,
    server::{Server, Version},
    within, write,
};

claims! {
    a_watch_reports_what_came_and_what_was_there_before,
    a_watch_begins_in_the_past_and_goes_on_in_the_present,
    a_transaction_too_big_for_one_message_is_one_notice,
    a_watch_from_the_future_is_refused,
    progress_follows_everything_that_happened_before_it_was_asked_for,
    progress_does_not_overtake_a_key_that_came_and_went,
    progress_of_many_watches_under_load_is_never_ahead_of_their_changes,
    a_slow_reader_holds_up_nobody_else,
    hundreds_of_watches_share_a_connection,
}

async fn a_watch_reports_what_came_and_what_was_there_before(version: Version) {
    let server = Server::start(version);
    let store = client(&server).await;
    let start = store.revision().await.expect("revision");
    let mut watch = store.watch("/r/", start).await.expect("watch");
    write(&store, vec![put("/r/a", "1"), put("/s/b", "1")]).await;
    write(&store, vec![put("/r/a", "2")]).await;
    write(&store, vec![delete("/r/a")]).await;
    assert_eq!(changes(&mut *watch, 3).await, ["2 /r/a ->1", "3 /r/a 1>2", "4 /r/a 2>-"]);
}

async fn a_watch_begins_in_the_past_and_goes_on_in_the_present(version: Version) {
    let server = Server::start(version);
    let store = client(&server).await;
    for number in 2..10 {
        assert_eq!(write(&store, vec![put("/r/a", &number.to_string())]).await, Revision(number));
    }
    let mut watch = store.watch("/r/", Revision(7)).await.expect("watch");
    let mut whole = store.watch("", Revision(0)).await.expect("watch");
    assert_eq!(changes(&mut *watch, 2).await, ["8 /r/a 7>8", "9 /r/a 8>9"]);
    write(&store, vec![put("/r/a", "10")]).await;
    assert_eq!(changes(&mut *watch, 1).await, ["10 /r/a 9>10"]);
    assert_eq!(changes(&mut *whole, 9).await.len(), 9);
}

async fn a_transaction_too_big_for_one_message_is_one_notice(version: Version) {
    let server = Server::start_with(version, "http", &["--max-request-bytes".into(), "12000000".into()]);
    let store = client(&server).await;
    let big = "x".repeat(100_000);
    let mut ops: Vec<_> = (0..100).map(|key| put(&format!("/r/{key:03}"), &big)).collect();
    let start = write(&store, vec![put("/r/before", "1")]).await;
    let at = write(&store, ops.clone()).await;
    // Updated once more: with what was there before, it is twice as much.
    ops.push(put("/r/more", "1"));
    let then = write(&store, ops).await;
    let mut watch = store.watch("/r/", Revision(start.0 - 1)).await.expect("watch");
    let mut events = Vec::new();
    while events.iter().flatten().count() < 202 {
        match within("an event", watch.next()).await.expect("watch goes on") {
            WatchEvent::Changes(changes) => {
                events.push(changes.iter().map(|change| change.revision).collect::<Vec<_>>())
            }
            WatchEvent::Progress(_) => panic!("nobody asked"),
        }
    }
    for revision in [start, at, then] {
        let holding = events.iter().filter(|event| event.contains(&revision)).count();
        assert_eq!(holding, 1, "revision {revision} in {holding} events");
    }
}

async fn a_watch_from_the_future_is_refused(version: Version) {
    let server = Server::start(version);
    let store = client(&server).await;
    let newest = write(&store, vec![put("/r/a", "1")]).await;
    match store.watch("/r/", Revision(newest.0 + 1)).await.err() {
        Some(StoreError::Future { requested, newest: reported }) => {
            assert_eq!((requested, reported), (Revision(newest.0 + 1), newest));
        }
        other => panic!("{other:?}"),
    }
}

async fn progress_follows_everything_that_happened_before_it_was_asked_for(version: Version) {
    let server = Server::start(version);
    let store = client(&server).await;
    let start = store.revision().await.expect("revision");
    let mut watch = store.watch("/r/", start).await.expect("watch");
    let ours = write(&store, vec![put("/r/a", "1")]).await;
    let newest = write(&store, vec![put("/s/a", "1")]).await;
    watch.request_progress();
    let mut delivered = Revision(0);
    loop {
        match within("progress", watch.next()).await.expect("watch goes on") {
            WatchEvent::Changes(changes) => delivered = changes.last().expect("a change").revision,
            WatchEvent::Progress(at) => {
                assert!(at >= newest, "{at} < {newest}");
                break;
            }
        }
    }
    assert_eq!(delivered, ours);
    // Nothing happens here, much elsewhere: progress is what moves.
    for _ in 0..3 {
        let newest = write(&store, vec![put("/s/a", "1")]).await;
        watch.request_progress();
        match within("progress", watch.next()).await.expect("watch goes on") {
            WatchEvent::Progress(at) => assert!(at >= newest, "{at} < {newest}"),
            WatchEvent::Changes(changes) => panic!("{changes:?}"),
        }
    }
}

async fn progress_does_not_overtake_a_key_that_came_and_went(version: Version) {
    let server = Server::start(version);
    let store = client(&server).await;
    for _ in 0..3 {
        let start = store.revision().await.expect("revision");
        let created = write(&store, vec![put("/r/a", "1")]).await;
        let deleted = write(&store, vec![delete("/r/a")]).await;
        let mut watch = store.watch("/r/", start).await.expect("watch");
        watch.request_progress();
        let reported = changes(&mut *watch, 2).await;
        assert_eq!(reported, [format!("{created} /r/a ->1"), format!("{deleted} /r/a 1>-")]);
        match within("progress", watch.next()).await.expect("watch goes on") {
            WatchEvent::Progress(at) => assert!(at >= deleted, "{at} < {deleted}"),
            WatchEvent::Changes(changes) => panic!("{changes:?}"),
        }
    }
}

async fn progress_of_many_watches_under_load_is_never_ahead_of_their_changes(version: Version) {
    let server = Server::start(version);
    let store = client(&server).await;
    let first = write(&store, vec![put("/r/first", "1")]).await;
    let writer = tokio::spawn({
        let store = store.clone();
        async move {
            for number in 0..300 {
                let key = format!("/r/{}", number % 7);
                let op = if number % 3 == 2 { delete(&key) } else { put(&key, &number.to_string()) };
                write(&store, vec![op]).await;
            }
            write(&store, vec![put("/r/last", "1")]).await
        }
    });
    let mut readers = Vec::new();
    for _ in 0..4 {
        // From the past, so that it is behind while it is asked.
        let mut watch = store.watch("/r/", Revision(first.0 - 1)).await.expect("watch");
        readers.push(tokio::spawn(async move {
            let (mut reported, mut lines, mut done) = (Revision(0), Vec::new(), false);
            watch.request_progress();
            while !done {
                match within("an event", watch.next()).await.expect("watch goes on") {
                    WatchEvent::Progress(at) => {
                        reported = at;
                        watch.request_progress();
                    }
                    WatchEvent::Changes(changes) => {
                        for change in changes {
                            assert!(change.revision > reported, "{} after progress {reported}", change.revision);
                            done |= &*change.key == "/r/last";
                            lines.push(crate::line(&change));
                        }
                    }
                }
            }
            lines
        }));
    }
    let last = within("the writer", writer).await.expect("writer");
    // The test's own watch never asks, so it cannot be misled.
    let mut plain = store.watch("/r/", Revision(first.0 - 1)).await.expect("watch");
    let mut truth = Vec::new();
    while !truth.last().is_some_and(|line: &String| line.starts_with(&format!("{last} "))) {
        truth.extend(changes(&mut *plain, 1).await);
    }
    for reader in readers {
        assert_eq!(within("a reader", reader).await.expect("reader"), truth);
    }
}

async fn a_slow_reader_holds_up_nobody_else(version: Version) {
    let server = Server::start(version);
    let store = client(&server).await;
    let start = store.revision().await.expect("revision");
    let mut sleepers = Vec::new();
    for _ in 0..8 {
        sleepers.push(store.watch("/r/", start).await.expect("watch"));
    }
    let mut awake = store.watch("/r/", start).await.expect("watch");
    let big = "x".repeat(1 << 20);
    for number in 0..40 {
        write(&store, vec![put("/r/a", &format!("{number} {big}"))]).await;
        assert_eq!(changes(&mut *awake, 1).await.len(), 1);
    }
    for mut sleeper in sleepers {
        assert_eq!(changes(&mut *sleeper, 40).await.len(), 40);
    }
}

async fn hundreds_of_watches_share_a_connection(version: Version) {
    let server = Server::start(version);
    let store = client(&server).await;
    let start = store.revision().await.expect("revision");
    let mut watches = Vec::new();
    for _ in 0..500 {
        watches.push(store.watch("/r/", start).await.expect("watch"));
    }
    write(&store, vec![put("/r/a", "1")]).await;
    for watch in &mut watches {
        assert_eq!(changes(&mut **watch, 1).await, ["2 /r/a ->1"]);
    }
    drop(watches);
    assert_eq!(write(&store, vec![put("/r/a", "2")]).await, Revision(3));
}
