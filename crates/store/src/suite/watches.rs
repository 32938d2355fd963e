use std::time::Duration;

use super::tools::*;
use crate::{Revision, StoreError, WatchEvent};

pub async fn a_watch_sees_changes_after_its_revision_in_order(store: Any) {
    let before = put(&store, "/p/a", "0").await;
    let mut watch = watch(&store, "/p/", before).await;
    let first = put(&store, "/p/a", "1").await;
    let second = put(&store, "/p/b", "2").await;
    let third = delete(&store, "/p/a").await;
    let expected = [at_revision(first, "/p/a=1"), at_revision(second, "/p/b=2"), at_revision(third, "/p/a gone")];
    assert_eq!(events(&mut watch, 3).await, expected);
}

pub async fn a_watch_sees_nothing_outside_its_prefix(store: Any) {
    let before = put(&store, "/p/a", "0").await;
    let mut watch = watch(&store, "/p/", before).await;
    for key in ["/p", "/q/a", "/pa", "/o/p/a", "/"] {
        put(&store, key, "1").await;
    }
    let inside = put(&store, "/p/b/c/d", "2").await;
    let outside = put(&store, "/q/b", "3").await;
    let observed: Vec<_> = drain_to(&mut watch, outside).await.iter().map(describe_change).collect();
    assert_eq!(observed, [at_revision(inside, "/p/b/c/d=2")]);
}

pub async fn a_watch_with_an_odd_prefix_sees_what_starts_with_it(store: Any) {
    let before = put(&store, "/x", "0").await;
    let mut one = watch(&store, "/p/na", before).await;
    let mut all = watch(&store, "", before).await;
    let first = put(&store, "/p/name", "1").await;
    let second = put(&store, "/p/n", "2").await;
    let third = put(&store, "/p/na", "3").await;
    let last = put(&store, "/p/nb", "4").await;
    let observed: Vec<_> = drain_to(&mut one, last).await.iter().map(describe_change).collect();
    assert_eq!(observed, [at_revision(first, "/p/name=1"), at_revision(third, "/p/na=3")]);
    let expected = [
        at_revision(first, "/p/name=1"),
        at_revision(second, "/p/n=2"),
        at_revision(third, "/p/na=3"),
        at_revision(last, "/p/nb=4"),
    ];
    assert_eq!(events(&mut all, 4).await, expected);
}

pub async fn changes_carry_previous_values(store: Any) {
    let before = put(&store, "/x", "0").await;
    let mut watch = watch(&store, "/p/", before).await;
    let first = put(&store, "/p/a", "1").await;
    put(&store, "/p/a", "2").await;
    let third = delete(&store, "/p/a").await;
    put(&store, "/p/a", "4").await;
    let observed = changes(&mut watch, 4).await;
    let previous: Vec<_> = observed.iter().map(|c| c.previous.as_ref().map(|p| text(p))).collect();
    assert_eq!(previous, [None, Some("/p/a=1".to_owned()), Some("/p/a=2".to_owned()), None]);
    assert_eq!(observed[1].previous.as_ref().expect("a previous value").modified, first);
    assert_eq!(observed[1].current.as_ref().expect("a value").created, first);
    assert_eq!((observed[2].revision, &*observed[2].key), (third, "/p/a"));
}

pub async fn a_watch_resumes_at_every_revision(store: Any) {
    let start = put(&store, "/x", "0").await;
    let mut truth = Vec::new();
    for n in 0..12 {
        let key = format!("/p/{}", n % 3);
        truth.push(match n % 4 {
            3 => at_revision(delete(&store, &key).await, &format!("{key} gone")),
            _ => at_revision(put(&store, &key, &n.to_string()).await, &format!("{key}={n}")),
        });
    }
    for skip in 0..=truth.len() {
        let mut watch = watch(&store, "/p/", Revision(start.0 + skip as u64)).await;
        assert_eq!(events(&mut watch, truth.len() - skip).await, truth[skip..], "after {skip}");
    }
}

pub async fn a_transaction_arrives_in_one_notice(store: Any) {
    let before = put(&store, "/x", "0").await;
    let mut live = watch(&store, "/p/", before).await;
    for n in 0..30 {
        write(&store, (0..=n % 5).map(|k| put_op(&format!("/p/{k}"), &n.to_string())).collect()).await;
    }
    let mut late = watch(&store, "/p/", before).await;
    for watch in [&mut live, &mut late] {
        let mut done = 0;
        while done < 30 {
            let WatchEvent::Changes(changes) = next_event(watch).await.expect("watch") else { continue };
            for part in changes.chunk_by(|a, b| a.revision == b.revision) {
                assert_eq!(part.len(), done % 5 + 1, "transaction {done} in one piece");
                done += 1;
            }
        }
    }
}

pub async fn a_transaction_is_cut_to_the_prefix(store: Any) {
    let before = put(&store, "/x", "0").await;
    let mut live = watch(&store, "/p/", before).await;
    let written = write(&store, vec![put_op("/p/a", "1"), put_op("/q/a", "1"), put_op("/p/b", "1")]).await;
    let mut late = watch(&store, "/p/", before).await;
    for watch in [&mut live, &mut late] {
        let mut observed: Vec<_> = drain_to(watch, written).await.iter().map(describe_change).collect();
        observed.sort();
        assert_eq!(observed, [at_revision(written, "/p/a=1"), at_revision(written, "/p/b=1")]);
    }
}

pub async fn a_watch_of_the_future_is_refused(store: Any) {
    let now = put(&store, "/p/a", "0").await;
    let ahead = Revision(now.0 + 10);
    assert!(
        matches!(watch_error(&store, "/p/", ahead).await, StoreError::Future { requested, .. } if requested == ahead)
    );
}

pub async fn progress_is_given_when_asked_for(store: Any) {
    let before = put(&store, "/p/a", "0").await;
    let mut watch = watch(&store, "/p/", before).await;
    let elsewhere = put(&store, "/q/a", "1").await;
    assert!(drain_to(&mut watch, elsewhere).await.is_empty());
    let again = put(&store, "/q/a", "2").await;
    assert!(drain_to(&mut watch, again).await.is_empty());
}

pub async fn progress_comes_after_the_changes_it_covers(store: Any) {
    let before = put(&store, "/p/a", "0").await;
    let mut watch = watch(&store, "/p/", before).await;
    let mut last = before;
    for n in 0..50 {
        watch.request_progress();
        let written = put(&store, "/p/a", &n.to_string()).await;
        let mut covered = Revision(0);
        while last < written {
            match next_event(&mut watch).await.expect("watch") {
                WatchEvent::Changes(changes) => {
                    for change in changes {
                        assert!(change.revision > covered, "progress {covered} was given before {}", change.revision);
                        last = change.revision;
                    }
                }
                WatchEvent::Progress(at) => covered = at,
            }
        }
    }
}

pub async fn many_watches_of_one_prefix_all_see_a_change(store: Any) {
    let before = put(&store, "/p/a", "0").await;
    let mut all = Vec::new();
    for _ in 0..100 {
        all.push(watch(&store, "/p/", before).await);
    }
    let written = put(&store, "/p/a", "1").await;
    for watch in &mut all {
        assert_eq!(events(watch, 1).await, [at_revision(written, "/p/a=1")]);
    }
}

pub async fn a_dropped_next_loses_nothing(store: Any) {
    let before = put(&store, "/p/a", "0").await;
    let mut watch = watch(&store, "/p/", before).await;
    let mut expected = Vec::new();
    let mut observed = Vec::new();
    for n in 0..40 {
        // Given up at once, with nothing to see or with something on its way.
        if let Ok(event) = tokio::time::timeout(Duration::ZERO, watch.next()).await
            && let WatchEvent::Changes(changes) = event.expect("watch")
        {
            observed.extend(changes.iter().map(describe_change));
        }
        expected.push(at_revision(put(&store, "/p/a", &n.to_string()).await, &format!("/p/a={n}")));
    }
    let missing = expected.len() - observed.len();
    observed.extend(events(&mut watch, missing).await);
    assert_eq!(observed, expected);
}

pub async fn a_slow_watch_misses_nothing(store: Any) {
    let before = put(&store, "/p/a", "0").await;
    let mut watch = watch(&store, "/p/", before).await;
    let mut expected = Vec::new();
    for n in 0..60 {
        let ops = (0..50).map(|k| put_op(&format!("/p/{k}"), &n.to_string())).collect();
        expected.push(write(&store, ops).await);
    }
    let observed = changes(&mut watch, 60 * 50).await;
    let revisions: Vec<_> =
        observed.chunk_by(|a, b| a.revision == b.revision).map(|c| (c[0].revision, c.len())).collect();
    assert_eq!(revisions, expected.into_iter().map(|at| (at, 50)).collect::<Vec<_>>());
}
