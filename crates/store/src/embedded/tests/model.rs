//! The engine against the reference model, over random histories with restarts.

use proptest::prelude::*;

use super::*;
use crate::{Compare, Expect, Memory, Op};

#[derive(Clone, Debug)]
enum Step {
    Commit {
        ops: Vec<(u8, Option<u8>)>,
        expect: Option<(u8, u8)>,
    },
    /// Several commits at once, which share a turn or not.
    Together(Vec<(u8, u8)>),
    Compact(u8),
    List {
        back: u8,
        start: u8,
        limit: Option<u8>,
    },
    Watch {
        back: u8,
        key: u8,
    },
    Reopen,
    Crash,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0..12u8;
    let step = prop_oneof![
        8 => (prop::collection::vec((key.clone(), any::<Option<u8>>()), 0..4), prop::option::of((key.clone(), 0..4u8)))
            .prop_map(|(ops, expect)| Step::Commit { ops, expect }),
        2 => prop::collection::vec((key.clone(), any::<u8>()), 1..6).prop_map(Step::Together),
        1 => (0..20u8).prop_map(Step::Compact),
        2 => (0..30u8, key.clone(), prop::option::of(0..6u8)).prop_map(|(back, start, limit)| Step::List { back, start, limit }),
        2 => (0..30u8, key).prop_map(|(back, key)| Step::Watch { back, key }),
        1 => Just(Step::Reopen),
        1 => Just(Step::Crash),
    ];
    prop::collection::vec(step, 1..60)
}

fn name(key: u8) -> String {
    format!("/{}/{}", key % 3, key)
}

fn txn(ops: &[(u8, Option<u8>)], compare: Option<Compare>) -> Txn {
    let op = |&(key, value): &(u8, Option<u8>)| match value {
        Some(value) => Op::Put { key: name(key).into(), value: vec![value; value as usize * 8].into() },
        None => Op::Delete { key: name(key).into() },
    };
    Txn { compares: compare.into_iter().collect(), ops: ops.iter().map(op).collect() }
}

fn options() -> Options {
    Options { watch_queue: 3, log_pages: 20, ..Options::default() }
}

async fn run(steps: Vec<Step>) {
    let model = Memory::new();
    let mut dir = tempfile::tempdir().expect("a directory");
    let mut store = Embedded::open(dir.path(), options()).expect("open");
    let mut compacted = Revision(0);
    for step in steps {
        let now = model.revision().await.expect("revision");
        let past = |back: u8| Revision(now.0.saturating_sub(back as u64));
        match step {
            Step::Commit { ops, expect } => {
                let compare = match expect {
                    None => None,
                    Some((key, kind)) => {
                        let current = model.get(&name(key)).await.expect("get").0.map(|e| e.modified);
                        let expect = match (kind, current) {
                            (0, _) => Expect::Absent,
                            (1, _) | (_, None) => Expect::ModifiedAt(now),
                            (_, Some(at)) => Expect::ModifiedAt(at),
                        };
                        Some(Compare { key: name(key).into(), expect })
                    }
                };
                let txn = txn(&ops, compare);
                let (ours, theirs) = (store.commit(txn.clone()).await, model.commit(txn).await);
                assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
            }
            Step::Together(writes) => {
                let all = writes.iter().map(|&(key, value)| store.commit(txn(&[(key, Some(value))], None)));
                // Polled in this order, each for the first time, they send their requests in this order.
                let ours = futures::future::join_all(all).await;
                for (ours, (key, value)) in ours.into_iter().zip(writes) {
                    let theirs = model.commit(txn(&[(key, Some(value))], None)).await;
                    assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
                }
            }
            Step::Compact(back) => {
                let (ours, theirs) = (store.compact(past(back)).await, model.compact(past(back)).await);
                assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
                if ours.is_ok() {
                    compacted = past(back);
                }
            }
            Step::List { back, start, limit } => {
                let start = name(start);
                let query =
                    List { prefix: "/1/", start: Some(&start), limit: limit.map(usize::from), at: Some(past(back)) };
                let (ours, theirs) = (store.list(query.clone()).await, model.list(query).await);
                assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
            }
            Step::Watch { back, key } => {
                let prefix = name(key);
                let (ours, theirs) =
                    (observed(&store, &prefix, past(back)).await, observed(&model, &prefix, past(back)).await);
                assert_eq!(ours, theirs);
            }
            Step::Reopen => {
                store.close().await.expect("close");
                store = Embedded::open(dir.path(), options()).expect("open");
            }
            Step::Crash => {
                let copy = damage::copy_of(&store, dir.path());
                drop(store);
                store = Embedded::open(copy.path(), options()).expect("open");
                dir = copy;
            }
        }
    }
    assert_eq!(image(&store, compacted).await, image(&model, compacted).await);
    store.close().await.expect("close");
    assert_eq!(verify(dir.path()).expect("verify").revision, model.revision().await.expect("revision"));
}

/// What a watch sees up to now, or how it is refused.
async fn observed(store: &impl Store, prefix: &str, after: Revision) -> Result<Vec<String>, String> {
    let mut watch = store.watch(prefix, after).await.map_err(|e| e.to_string())?;
    watch.request_progress();
    let mut observed = Vec::new();
    loop {
        match watch.next().await.map_err(|e| e.to_string())? {
            crate::WatchEvent::Changes(changes) => observed.extend(changes.iter().map(|c| format!("{c:?}"))),
            crate::WatchEvent::Progress(at) => {
                observed.push(format!("progress {at}"));
                return Ok(observed);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn the_engine_and_the_model_agree_over_random_histories(steps in steps()) {
        tokio::runtime::Runtime::new().expect("a runtime").block_on(run(steps));
    }
}
