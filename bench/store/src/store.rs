//! The embedded store itself: commits under 1, 16 and 64 writers, and opening.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use mainstay_store::{Embedded, List, Op, Store, Txn, embedded::Options};

use super::{Times, apart, peak_memory};

const RUN: Duration = Duration::from_secs(5);
const OBJECTS: usize = 20_000;

pub fn all(dir: &Path) -> anyhow::Result<()> {
    println!("| writers | puts/s | p50 ms | p99 ms | worst ms | peak MiB |");
    println!("|---|---|---|---|---|---|");
    for writers in ["1", "16", "64"] {
        apart(&["commits", writers], dir)?;
    }
    println!();
    apart(&["open", "100000"], dir)
}

fn put(key: usize, n: usize) -> Txn {
    let key = format!("/registry/pods/namespace-{}/pod-{key}", key % 50).into();
    Txn { compares: vec![], ops: vec![Op::Put { key, value: vec![n as u8; 1024].into() }] }
}

/// Fills a store with `objects` objects of 1 KiB.
async fn fill(store: &Arc<Embedded>, objects: usize) -> anyhow::Result<()> {
    let writers: Vec<_> = (0..64)
        .map(|w| {
            let store = store.clone();
            tokio::spawn(async move {
                for key in (w..objects).step_by(64) {
                    store.commit(put(key, key)).await?;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for writer in writers {
        writer.await??;
    }
    Ok(())
}

/// Overwrites objects of a store of 20,000, history at its default.
pub fn commits(writers: usize, dir: &Path) -> anyhow::Result<()> {
    let dir = tempfile::tempdir_in(dir)?;
    tokio::runtime::Runtime::new()?.block_on(async {
        let store = Arc::new(Embedded::open(dir.path(), Options::default())?);
        fill(&store, OBJECTS).await?;
        let started = Instant::now();
        let tasks: Vec<_> = (0..writers)
            .map(|w| {
                let store = store.clone();
                tokio::spawn(async move {
                    let mut times = Times::default();
                    for n in (w..).step_by(writers) {
                        let begun = Instant::now();
                        if started.elapsed() > RUN {
                            break;
                        }
                        store.commit(put(n.wrapping_mul(7919) % OBJECTS, n)).await?;
                        times.0.push(begun.elapsed());
                    }
                    anyhow::Ok(times)
                })
            })
            .collect();
        let mut times = Times::default();
        for task in tasks {
            times.0.extend(task.await??.0);
        }
        let rate = times.0.len() as f64 / started.elapsed().as_secs_f64();
        println!("| {writers} | {rate:.0} | {} | {:.0} |", times.row(), peak_memory()?);
        store.close().await?;
        Ok(())
    })
}

pub fn open(objects: usize, dir: &Path) -> anyhow::Result<()> {
    let dir = tempfile::tempdir_in(dir)?;
    tokio::runtime::Runtime::new()?.block_on(async {
        let store = Arc::new(Embedded::open(dir.path(), Options::default())?);
        fill(&store, objects).await?;
        let begun = Instant::now();
        let backup = store.backup(dir.path().join("backup"))?;
        println!("backup of {} objects of 1 KiB: {:.2?}", backup.keys, begun.elapsed());
        store.close().await?;
        drop(store);
        let begun = Instant::now();
        let store = Embedded::open(dir.path(), Options::default())?;
        println!("open with {objects} objects of 1 KiB: {:.2?}", begun.elapsed());
        let begun = Instant::now();
        let listed = store.list(List { prefix: "/registry/pods/", ..List::default() }).await?;
        println!("list of {}: {:.2?}", listed.entries.len(), begun.elapsed());
        store.close().await?;
        Ok(())
    })
}
