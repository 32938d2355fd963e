use std::collections::HashSet;

use super::tools::*;
use crate::{Expect, List, Outcome, Revision, Txn};

pub async fn of_racing_creators_one_wins(store: Any) {
    for round in 0..10 {
        let key = format!("/p/{round}");
        let racers: Vec<_> = (0..8)
            .map(|n| {
                let (store, key) = (store.clone(), key.clone());
                tokio::spawn(async move {
                    let ops = vec![put_op(&key, &n.to_string())];
                    let txn = Txn { compares: vec![compare(&key, Expect::Absent)], ops };
                    matches!(store.commit(txn).await.expect("commit"), Outcome::Committed(_)).then_some(n)
                })
            })
            .collect();
        let mut winners = Vec::new();
        for racer in racers {
            winners.extend(racer.await.expect("racer"));
        }
        let [winner] = winners[..] else { panic!("winners {winners:?}") };
        assert_eq!(text(&get(&store, &key).await.expect("the key")), format!("{key}={winner}"));
    }
}

pub async fn increments_are_not_lost(store: Any) {
    put(&store, "/n", "0").await;
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut current = get(&store, "/n").await;
                let mut done = 0;
                while done < 25 {
                    let entry = current.expect("the key");
                    let n: u64 = String::from_utf8_lossy(&entry.value).parse().expect("a number");
                    let compares = vec![compare("/n", Expect::ModifiedAt(entry.modified))];
                    let txn = Txn { compares, ops: vec![put_op("/n", &(n + 1).to_string())] };
                    current = match store.commit(txn).await.expect("commit") {
                        Outcome::Committed(_) => {
                            done += 1;
                            get(&store, "/n").await
                        }
                        Outcome::Conflict { mut current } => current.remove(0),
                    };
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.expect("worker");
    }
    assert_eq!(text(&get(&store, "/n").await.expect("the key")), "/n=100");
}

pub async fn a_watcher_sees_each_write_of_concurrent_writers_once_in_order(store: Any) {
    const WRITERS: usize = 4;
    const WRITES: usize = 50;
    let before = put(&store, "/p", "0").await;
    let mut watch = watch(&store, "/p/", before).await;
    let writers: Vec<_> = (0..WRITERS)
        .map(|w| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut written = Vec::new();
                for n in 0..WRITES {
                    let key = format!("/p/{w}");
                    written.push(at_revision(put(&store, &key, &n.to_string()).await, &format!("{key}={n}")));
                    put(&store, &format!("/q/{w}"), "elsewhere").await;
                }
                written
            })
        })
        .collect();
    let observed = changes(&mut watch, WRITERS * WRITES).await;
    assert!(observed.is_sorted_by(|a, b| a.revision < b.revision), "in order, each once");
    let mut acknowledged = HashSet::new();
    for writer in writers {
        acknowledged.extend(writer.await.expect("writer"));
    }
    assert_eq!(observed.iter().map(describe_change).collect::<HashSet<_>>(), acknowledged);
    let rest = drain_to(&mut watch, store.revision().await.expect("revision")).await;
    assert!(rest.is_empty(), "nothing came twice");
}

pub async fn list_then_watch_has_no_gap(store: Any) {
    const WRITES: u64 = 150;
    let writer = {
        let store = store.clone();
        tokio::spawn(async move {
            let mut last = Revision(0);
            for n in 1..=WRITES {
                last = put(&store, "/p/n", &n.to_string()).await;
            }
            last
        })
    };
    let number = |value: &[u8]| String::from_utf8_lossy(value).parse::<u64>().expect("a number");
    for _ in 0..20 {
        let listing = store.list(List { prefix: "/p/", ..List::default() }).await.expect("list");
        let listed = listing.entries.first().map_or(0, |e| number(&e.value));
        if listed == WRITES {
            break;
        }
        let mut watch = watch(&store, "/p/", listing.revision).await;
        let next = changes(&mut watch, 1).await;
        assert_eq!(number(&next[0].current.as_ref().expect("a value").value), listed + 1);
    }
    let last = writer.await.expect("writer");
    let entry = get(&store, "/p/n").await.expect("the key");
    assert_eq!((entry.modified, number(&entry.value)), (last, WRITES));
}
