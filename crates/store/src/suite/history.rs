use super::tools::*;
use crate::{List, Revision, StoreError};

fn below(at: Revision) -> List<'static> {
    List { prefix: "/p/", at: Some(at), ..List::default() }
}

pub async fn list_at_a_past_revision_sees_the_past(store: Any) {
    let mut truth = Vec::new();
    for n in 0..4 {
        let at = put(&store, "/p/a", &n.to_string()).await;
        truth.push((at, vec![format!("/p/a={n}")]));
    }
    let at = put(&store, "/p/b", "x").await;
    truth.push((at, vec!["/p/a=3".to_owned(), "/p/b=x".to_owned()]));
    for (at, expected) in truth {
        assert_eq!(list(&store, below(at)).await, expected, "at {at}");
    }
}

pub async fn list_at_a_past_revision_sees_deleted_keys(store: Any) {
    let written = put(&store, "/p/a", "1").await;
    let deleted = delete(&store, "/p/a").await;
    let again = put(&store, "/p/a", "2").await;
    assert_eq!(list(&store, below(written)).await, ["/p/a=1"]);
    assert!(list(&store, below(deleted)).await.is_empty());
    assert_eq!(list(&store, below(again)).await, ["/p/a=2"]);
}

pub async fn list_in_the_future_is_refused(store: Any) {
    let now = put(&store, "/p/a", "1").await;
    let ahead = Revision(now.0 + 1);
    match store.list(below(ahead)).await {
        Err(StoreError::Future { requested, .. }) => assert_eq!(requested, ahead),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

pub async fn list_before_the_compacted_revision_is_refused(store: Any) {
    let first = put(&store, "/p/a", "1").await;
    let second = put(&store, "/p/a", "2").await;
    put(&store, "/p/a", "3").await;
    store.compact(second).await.expect("compact");
    match store.list(below(first)).await {
        Err(StoreError::Compacted { requested, .. }) => assert_eq!(requested, first),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

pub async fn list_at_the_compacted_revision_works(store: Any) {
    put(&store, "/p/a", "1").await;
    put(&store, "/p/b", "1").await;
    let second = put(&store, "/p/a", "2").await;
    put(&store, "/p/a", "3").await;
    delete(&store, "/p/b").await;
    store.compact(second).await.expect("compact");
    assert_eq!(list(&store, below(second)).await, ["/p/a=2", "/p/b=1"]);
}

pub async fn compaction_keeps_what_is_current(store: Any) {
    put(&store, "/p/a", "1").await;
    put(&store, "/p/b", "1").await;
    put(&store, "/p/a", "2").await;
    let last = delete(&store, "/p/b").await;
    store.compact(last).await.expect("compact");
    assert_eq!(list(&store, List { prefix: "/p/", ..List::default() }).await, ["/p/a=2"]);
    assert!(get(&store, "/p/b").await.is_none());
    let again = put(&store, "/p/b", "2").await;
    assert_eq!(get(&store, "/p/b").await.expect("the key").created, again);
    assert_eq!(store.revision().await.expect("revision"), again);
}

pub async fn compacting_twice_at_one_revision_is_refused(store: Any) {
    put(&store, "/p/a", "1").await;
    let second = put(&store, "/p/a", "2").await;
    store.compact(second).await.expect("compact");
    assert!(matches!(store.compact(second).await, Err(StoreError::Compacted { .. })));
}

pub async fn compacting_the_future_is_refused(store: Any) {
    let now = put(&store, "/p/a", "1").await;
    assert!(matches!(store.compact(Revision(now.0 + 1)).await, Err(StoreError::Future { .. })));
    assert_eq!(list(&store, below(now)).await, ["/p/a=1"]);
}

pub async fn a_watch_from_before_the_compacted_revision_is_refused(store: Any) {
    let first = put(&store, "/p/a", "1").await;
    put(&store, "/p/a", "2").await;
    let third = put(&store, "/p/a", "3").await;
    store.compact(third).await.expect("compact");
    match watch_error(&store, "/p/", first).await {
        StoreError::Compacted { oldest, .. } => assert!(oldest > first),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

pub async fn a_watch_from_the_compacted_revision_works(store: Any) {
    put(&store, "/p/a", "1").await;
    let second = put(&store, "/p/a", "2").await;
    let third = put(&store, "/p/a", "3").await;
    store.compact(second).await.expect("compact");
    let mut watch = watch(&store, "/p/", second).await;
    let observed = changes(&mut watch, 1).await;
    assert_eq!(describe_change(&observed[0]), at_revision(third, "/p/a=3"));
    assert_eq!(text(observed[0].previous.as_ref().expect("a previous value")), "/p/a=2");
}
