use std::{future::Future, pin::pin, sync::Arc, task::Poll, time::Instant};

use super::*;
use crate::{Entry, IndexMatch, List, Watch, WatchEvent, WatchIndex};

fn mvcc() -> Arc<Mvcc> {
    Mvcc::new(State::new(Revision(0), Revision(0)))
}

fn entry(key: &str, created: u64, modified: u64) -> Arc<Entry> {
    let value = format!("{modified}").into_bytes().into();
    Arc::new(Entry {
        key: key.into(),
        value,
        created: Revision(created),
        modified: Revision(modified),
        memo: Default::default(),
    })
}

/// Puts `keys` in one transaction.
fn put(mvcc: &Mvcc, keys: &[&str]) -> Revision {
    let revision = Revision(mvcc.state.read().revision().0 + 1);
    let change = |key: &&str| {
        let previous = mvcc.state.read().get(key).cloned();
        let created = previous.as_ref().map_or(revision.0, |p| p.created.0);
        Change { key: (*key).into(), revision, current: Some(entry(key, created, revision.0)), previous }
    };
    let batch: Batch = keys.iter().map(change).collect();
    mvcc.apply([batch]);
    revision
}

fn delete(mvcc: &Mvcc, key: &str) -> Revision {
    let revision = Revision(mvcc.state.read().revision().0 + 1);
    let previous = mvcc.state.read().get(key).cloned();
    mvcc.apply([Arc::from([Change { key: key.into(), revision, current: None, previous }])]);
    revision
}

/// What the watch has to give without waiting.
fn ready(watch: &mut Subscription) -> Option<Result<WatchEvent, StoreError>> {
    let waker = std::task::Waker::noop();
    match pin!(watch.next()).poll(&mut std::task::Context::from_waker(waker)) {
        Poll::Ready(event) => Some(event),
        Poll::Pending => None,
    }
}

fn revisions(watch: &mut Subscription) -> Vec<u64> {
    let mut observed = Vec::new();
    while let Some(Ok(WatchEvent::Changes(changes))) = ready(watch) {
        observed.extend(changes.iter().map(|c| c.revision.0));
    }
    observed
}

#[test]
fn a_write_wakes_its_watchers_and_no_others() {
    struct Count(std::sync::atomic::AtomicUsize);
    impl std::task::Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }
    let mvcc = mvcc();
    let wait = |prefix: &str| {
        let woken = Arc::new(Count(Default::default()));
        let mut watch = mvcc.watch(prefix, None, Revision(0), 10).expect("watch");
        let waker = woken.clone().into();
        let mut next = Box::pin(async move { watch.next().await.map(drop) });
        assert!(next.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
        (woken, next)
    };
    let quiet: Vec<_> = ["/registry/pods/b/", "/registry/secrets/", "/registry/pods/a/xy"].map(&wait).into();
    let busy: Vec<_> =
        ["", "/", "/registry/", "/registry/pods/", "/registry/pods/a/", "/registry/pods/a/x"].map(&wait).into();
    put(&mvcc, &["/registry/pods/a/x"]);
    let count = |(woken, _): &(Arc<Count>, _)| woken.0.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(quiet.iter().map(count).collect::<Vec<_>>(), [0; 3]);
    assert_eq!(busy.iter().map(count).collect::<Vec<_>>(), [1; 6]);
}

#[test]
fn a_thousand_watchers_of_one_prefix_share_what_they_are_sent() {
    let mvcc = mvcc();
    let mut watches: Vec<_> = (0..1000).map(|_| mvcc.watch("/p/", None, Revision(0), 1000).expect("watch")).collect();
    for n in 0..100 {
        put(&mvcc, &[&format!("/p/{n}")]);
    }
    let entries = |watch: &mut Subscription| {
        let mut entries = Vec::new();
        while let Some(Ok(WatchEvent::Changes(changes))) = ready(watch) {
            entries.extend(changes.iter().map(|change| (change.revision.0, change.current.as_ref().map(Arc::as_ptr))));
        }
        entries
    };
    let first = entries(&mut watches[0]);
    assert_eq!(first.iter().map(|(revision, _)| *revision).collect::<Vec<_>>(), (1..=100).collect::<Vec<_>>());
    for watch in &mut watches[1..] {
        assert_eq!(entries(watch), first, "the same entries in memory, not copies");
    }
}

#[test]
fn a_dropped_watch_leaves_nothing_behind() {
    let mvcc = mvcc();
    let watches =
        ["", "/p", "/p/", "/p", "/q/"].map(|prefix| mvcc.watch(prefix, None, Revision(0), 10).expect("watch"));
    assert!(!mvcc.watchers.is_empty());
    drop(watches);
    assert!(mvcc.watchers.is_empty());
}

#[test]
fn a_watch_that_falls_behind_reads_on_from_history() {
    let mvcc = mvcc();
    let mut watch = mvcc.watch("/p/", None, Revision(0), 5).expect("watch");
    put(&mvcc, &["/p/a"]);
    assert_eq!(revisions(&mut watch), [1]);
    for _ in 0..3000 {
        put(&mvcc, &["/p/a", "/p/b"]);
        put(&mvcc, &["/q/a"]);
    }
    let expected: Vec<u64> = (0..3000).flat_map(|n| [2 * n + 2, 2 * n + 2]).collect();
    assert_eq!(revisions(&mut watch), expected);
    put(&mvcc, &["/p/a"]);
    assert_eq!(revisions(&mut watch), [6002]);
}

#[test]
fn a_watch_that_was_quiet_survives_compaction_and_then_a_burst() {
    let mvcc = mvcc();
    let mut watch = mvcc.watch("/p/", None, Revision(0), 2).expect("watch");
    for _ in 0..10 {
        put(&mvcc, &["/q/a"]);
    }
    mvcc.state.write().raise_compacted(Revision(10));
    while mvcc.state.read().untrimmed() {
        mvcc.state.write().trim(3);
    }
    for _ in 0..5 {
        put(&mvcc, &["/p/a"]);
    }
    assert_eq!(revisions(&mut watch), [11, 12, 13, 14, 15]);
}

#[test]
fn a_watch_that_fell_behind_compacted_history_fails() {
    let mvcc = mvcc();
    let mut watch = mvcc.watch("/p/", None, Revision(0), 2).expect("watch");
    for _ in 0..5 {
        put(&mvcc, &["/p/a"]);
    }
    mvcc.state.write().raise_compacted(Revision(3));
    let refused = StoreError::Compacted { requested: Revision(0), oldest: Revision(3) };
    match ready(&mut watch) {
        Some(Err(error)) => assert_eq!(error.to_string(), refused.to_string()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn progress_waits_for_what_is_queued() {
    let mvcc = mvcc();
    let mut watch = mvcc.watch("/p/", None, Revision(0), 10).expect("watch");
    put(&mvcc, &["/p/a"]);
    put(&mvcc, &["/q/a"]);
    watch.request_progress();
    assert!(matches!(ready(&mut watch), Some(Ok(WatchEvent::Changes(changes))) if changes.len() == 1));
    assert!(matches!(ready(&mut watch), Some(Ok(WatchEvent::Progress(Revision(2))))));
    assert!(ready(&mut watch).is_none());
}

#[test]
fn trimming_step_by_step_names_each_unreachable_version_once() {
    let mvcc = mvcc();
    put(&mvcc, &["/a", "/b"]);
    put(&mvcc, &["/a"]);
    delete(&mvcc, "/b");
    put(&mvcc, &["/b"]);
    put(&mvcc, &["/a"]);
    let compacted = Revision(4);
    mvcc.state.write().raise_compacted(compacted);
    let mut garbage = Vec::new();
    while mvcc.state.read().untrimmed() {
        garbage.extend(mvcc.state.write().trim(1));
    }
    let garbage: Vec<_> = garbage.iter().map(|g| format!("{}@{}", g.key, g.revision)).collect();
    assert_eq!(garbage, ["/a@1", "/b@1", "/b@3"]);
    let state = mvcc.state.read();
    let at = |at| {
        state
            .list(&List { at: Some(Revision(at)), ..List::default() })
            .map(|l| l.entries.iter().map(|e| e.modified.0).collect::<Vec<_>>())
    };
    assert_eq!(at(4).expect("the compacted is kept"), [2, 4]);
    assert_eq!(at(5).expect("and what follows"), [5, 4]);
    assert!(at(3).is_err());
}

#[test]
fn retention_counts_changes_and_time() {
    let mvcc = mvcc();
    for _ in 0..10 {
        put(&mvcc, &["/a", "/b"]);
    }
    let state = mvcc.state.read();
    assert_eq!(state.events(), 20);
    assert_eq!(state.retention_target(20, usize::MAX, None), None);
    assert_eq!(state.retention_target(19, usize::MAX, None), Some(Revision(1)));
    assert_eq!(state.retention_target(4, usize::MAX, None), Some(Revision(8)));
    assert_eq!(state.retention_target(100, usize::MAX, state.oldest()), None);
    assert_eq!(state.retention_target(100, usize::MAX, Some(Instant::now())), Some(Revision(10)));
}

#[test]
fn retention_counts_bytes() {
    let mvcc = mvcc();
    for _ in 0..9 {
        put(&mvcc, &["/a"]);
    }
    let state = mvcc.state.read();
    let each = state.history_bytes() / 9;
    assert_eq!(state.retention_target(100, 9 * each, None), None);
    assert_eq!(state.retention_target(100, 7 * each, None), Some(Revision(2)));
}

#[test]
fn changes_of_volatile_keys_push_out_only_their_own_history() {
    let mvcc = mvcc();
    mvcc.state.write().forget_before_now(vec!["/offers/".into()]);
    put(&mvcc, &["/pods/a"]);
    let offers = std::iter::repeat_with(|| put(&mvcc, &["/offers/n"])).take(50);
    offers.for_each(drop);
    put(&mvcc, &["/pods/a"]);
    mvcc.state.write().trim_volatile(10);
    let state = mvcc.state.read();
    assert_eq!((state.events(), state.volatile_changes()), (2, 10));
    assert_eq!(state.retention_target(2, usize::MAX, None), None, "durable history is whole");
    let retained: Vec<u64> = state.since(Revision(0)).map(|batch| batch[0].revision.0).collect();
    let expected: Vec<u64> = std::iter::once(1).chain(42..=52).collect();
    assert_eq!(retained, expected, "in the order of revisions");
    assert!(state.check_watch("/pods/", Revision(0)).is_ok());
    assert!(state.check_watch("/offers/", Revision(40)).is_err(), "a watch that would miss changes is refused");
    assert!(state.check_watch("/offers/", Revision(41)).is_ok());
}

/// What stands before the colon of a value.
struct Owner;

impl WatchIndex for Owner {
    fn name(&self) -> &str {
        "owner"
    }

    fn value<'a>(&self, entry: &'a Entry) -> &'a str {
        std::str::from_utf8(&entry.value).ok().and_then(|text| text.split(':').next()).unwrap_or_default()
    }
}

fn owned_by(value: &str) -> Option<IndexMatch> {
    Some(IndexMatch { index: Arc::new(Owner), value: value.into() })
}

/// Puts each key with its value, in one transaction.
fn give(mvcc: &Mvcc, pairs: &[(&str, &str)]) -> Revision {
    let revision = Revision(mvcc.state.read().revision().0 + 1);
    let change = |(key, value): &(&str, &str)| {
        let previous = mvcc.state.read().get(key).cloned();
        let current = Entry {
            key: (*key).into(),
            value: value.as_bytes().to_vec().into(),
            created: previous.as_ref().map_or(revision, |p| p.created),
            modified: revision,
            memo: Default::default(),
        };
        Change { key: (*key).into(), revision, current: Some(Arc::new(current)), previous }
    };
    let batch: Batch = pairs.iter().map(change).collect();
    mvcc.apply([batch]);
    revision
}

#[test]
fn a_watch_of_a_part_is_sent_what_enters_changes_within_and_leaves_it() {
    let mvcc = mvcc();
    let mut all = mvcc.watch("/p/", None, Revision(0), 100).expect("watch");
    let [mut n1, mut n2] = ["n1", "n2"].map(|own| mvcc.watch("/p/", owned_by(own), Revision(0), 100).expect("watch"));
    let nobody = give(&mvcc, &[("/p/a", ":1")]).0;
    let entered = give(&mvcc, &[("/p/a", "n1:2")]).0;
    let within = give(&mvcc, &[("/p/a", "n1:3")]).0;
    let moved = give(&mvcc, &[("/p/a", "n2:4")]).0;
    let both = give(&mvcc, &[("/p/b", "n1:5"), ("/p/c", "n2:5"), ("/p/d", ":5"), ("/q/e", "n1:5")]).0;
    let deleted = delete(&mvcc, "/p/b").0;
    assert_eq!(revisions(&mut n1), [entered, within, moved, both, deleted]);
    assert_eq!(revisions(&mut n2), [moved, both]);
    assert_eq!(revisions(&mut all), [nobody, entered, within, moved, both, both, both, deleted]);
}

#[test]
fn watches_of_parts_leave_nothing_behind_and_end_with_the_store() {
    let mvcc = mvcc();
    let watches = ["a", "a", "b"].map(|own| mvcc.watch("/p/", owned_by(own), Revision(0), 10).expect("watch"));
    let mut whole = mvcc.watch("/p/", None, Revision(0), 10).expect("watch");
    drop(watches);
    give(&mvcc, &[("/p/x", "a:1")]);
    assert_eq!(revisions(&mut whole), [1]);
    let mut late = mvcc.watch("/p/", owned_by("a"), Revision(1), 10).expect("watch");
    mvcc.close();
    assert!(matches!(ready(&mut late), Some(Err(StoreError::Closing))));
    drop((whole, late));
    assert!(mvcc.watchers.is_empty());
}

#[test]
fn a_watch_of_a_part_that_falls_behind_misses_nothing_of_it() {
    let mvcc = mvcc();
    let mut own = mvcc.watch("/p/", owned_by("n1"), Revision(0), 3).expect("watch");
    let mut expected = Vec::new();
    for n in 0..20 {
        let value = if n % 2 == 0 { "n1:x" } else { "n2:x" };
        let revision = give(&mvcc, &[(&format!("/p/{n}"), value)]).0;
        if n % 2 == 0 {
            expected.push(revision);
        }
    }
    let observed = revisions(&mut own);
    assert!(expected.iter().all(|revision| observed.contains(revision)), "{observed:?}");
    assert!(observed.is_sorted());
}
