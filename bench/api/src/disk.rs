//! The limits underneath: the disk's fsync, and the store without an API in front.

use std::{
    fs::File,
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use mainstay_store::{Compare, Embedded, Expect, Op, Outcome, Store, Txn, embedded::Options};

/// fdatasync after 1 KiB appended: p50 and p99 in µs.
pub fn fsync() -> (f64, f64) {
    let Ok(dir) = tempfile::tempdir_in(".") else { return (f64::NAN, f64::NAN) };
    let Ok(mut file) = File::create(dir.path().join("probe")) else { return (f64::NAN, f64::NAN) };
    let mut times: Vec<f64> = (0..500)
        .filter_map(|_| {
            let start = Instant::now();
            file.write_all(&[7; 1024]).ok()?;
            file.sync_data().ok()?;
            Some(start.elapsed().as_secs_f64() * 1e6)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let at = |q: usize| times.get(times.len() * q / 100).copied().unwrap_or(f64::NAN);
    (at(50), at(99))
}

/// Puts per second that the embedded store acknowledges to this many concurrent writers.
pub fn store_rate(writers: usize, time: Duration) -> anyhow::Result<f64> {
    let dir = tempfile::tempdir_in(".")?;
    let store = Arc::new(Embedded::open(dir.path(), Options::default())?);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let count = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let tasks: Vec<_> = (0..writers)
        .map(|writer| {
            let (store, count) = (store.clone(), count.clone());
            runtime.spawn(async move {
                let value = bytes::Bytes::from(vec![b'x'; 1024]);
                for n in 0.. {
                    if start.elapsed() > time {
                        return Ok(());
                    }
                    let key: Arc<str> = format!("/registry/configmaps/bench/w{writer}-{n}").into();
                    let txn = Txn {
                        compares: vec![Compare { key: key.clone(), expect: Expect::Absent }],
                        ops: vec![Op::Put { key, value: value.clone() }],
                    };
                    match store.commit(txn).await {
                        Ok(Outcome::Committed(_)) => count.fetch_add(1, Ordering::Relaxed),
                        other => anyhow::bail!("{other:?}"),
                    };
                }
                Ok(())
            })
        })
        .collect();
    // The caller runs inside a runtime of its own, so the wait must happen on another thread.
    std::thread::scope(|scope| {
        scope
            .spawn(|| {
                runtime.block_on(async {
                    for task in tasks {
                        task.await??;
                    }
                    anyhow::Ok(())
                })
            })
            .join()
            .unwrap_or_else(|_| Err(anyhow::anyhow!("a writer panicked")))
    })?;
    let rate = count.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
    std::thread::spawn(move || drop(runtime)).join().ok();
    Ok(rate)
}
