//! Helpers of the suite.

use std::{sync::Arc, time::Duration};

use crate::{Change, Compare, Entry, Expect, List, Op, Outcome, Revision, Store, StoreError, Txn, Watch, WatchEvent};

pub(super) type Any = Arc<dyn Store>;

pub(super) fn put_op(key: &str, value: &str) -> Op {
    Op::Put { key: key.into(), value: value.as_bytes().to_vec().into() }
}

pub(super) fn delete_op(key: &str) -> Op {
    Op::Delete { key: key.into() }
}

pub(super) fn compare(key: &str, expect: Expect) -> Compare {
    Compare { key: key.into(), expect }
}

/// Commits and expects to succeed.
pub(super) async fn write(store: &Any, ops: Vec<Op>) -> Revision {
    let txn = Txn { compares: vec![], ops };
    match store.commit(txn).await.expect("commit") {
        Outcome::Committed(at) => at,
        Outcome::Conflict { .. } => panic!("a transaction without compares cannot conflict"),
    }
}

pub(super) async fn put(store: &Any, key: &str, value: &str) -> Revision {
    write(store, vec![put_op(key, value)]).await
}

pub(super) async fn delete(store: &Any, key: &str) -> Revision {
    write(store, vec![delete_op(key)]).await
}

pub(super) async fn get(store: &Any, key: &str) -> Option<Arc<Entry>> {
    store.get(key).await.expect("get").0
}

pub(super) fn text(entry: &Entry) -> String {
    format!("{}={}", entry.key, String::from_utf8_lossy(&entry.value))
}

/// A listing as `key=value` strings.
pub(super) async fn list(store: &Any, query: List<'_>) -> Vec<String> {
    let listing = store.list(query).await.expect("list");
    listing.entries.iter().map(|e| text(e)).collect()
}

/// A change as `revision key=value` or `revision key gone`.
pub(super) fn describe_change(change: &Change) -> String {
    match &change.current {
        Some(entry) => format!("{} {}", change.revision, text(entry)),
        None => format!("{} {} gone", change.revision, change.key),
    }
}

pub(super) fn at_revision(revision: Revision, what: &str) -> String {
    format!("{revision} {what}")
}

/// The next event, within a time no healthy store needs.
pub(super) async fn next_event(watch: &mut Box<dyn Watch>) -> Result<WatchEvent, StoreError> {
    tokio::time::timeout(Duration::from_secs(20), watch.next()).await.expect("an event in time")
}

/// The next `count` changes.
pub(super) async fn changes(watch: &mut Box<dyn Watch>, count: usize) -> Vec<Change> {
    let mut observed = Vec::new();
    while observed.len() < count {
        match next_event(watch).await.expect("watch") {
            WatchEvent::Changes(changes) => {
                assert!(!changes.is_empty(), "an event of changes has some");
                observed.extend(changes);
            }
            WatchEvent::Progress(_) => {}
        }
    }
    observed
}

pub(super) async fn events(watch: &mut Box<dyn Watch>, count: usize) -> Vec<String> {
    changes(watch, count).await.iter().map(describe_change).collect()
}

/// Asks for progress until it covers `revision`, answering the changes that came before.
pub(super) async fn drain_to(watch: &mut Box<dyn Watch>, revision: Revision) -> Vec<Change> {
    let mut observed = Vec::new();
    watch.request_progress();
    loop {
        match next_event(watch).await.expect("watch") {
            WatchEvent::Changes(changes) => observed.extend(changes),
            WatchEvent::Progress(at) if at >= revision => return observed,
            WatchEvent::Progress(_) => watch.request_progress(),
        }
    }
}

pub(super) async fn watch(store: &Any, prefix: &str, after: Revision) -> Box<dyn Watch> {
    store.watch(prefix, after).await.expect("watch")
}

/// The error of a watch that cannot be given, whether it comes at once or with the first event.
pub(super) async fn watch_error(store: &Any, prefix: &str, after: Revision) -> StoreError {
    match store.watch(prefix, after).await {
        Err(error) => error,
        Ok(mut watch) => next_event(&mut watch).await.expect_err("the watch to be refused"),
    }
}
