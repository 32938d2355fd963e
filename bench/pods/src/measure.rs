//! The figures themselves.

use std::time::{Duration, Instant};

use anyhow::Context;
use futures::{StreamExt, TryStreamExt};
use nix::sys::signal::Signal;

use crate::{
    Options,
    cluster::{Cluster, token},
    process,
    report::Figure,
};

pub async fn measure_all(cluster: &mut Cluster, options: &Options) -> anyhow::Result<Vec<Figure>> {
    let mut figures = vec![Figure::new("up to the first pod running", millis(cluster.first_pod_after), "ms", 2000.0)];
    let times = one_by_one(cluster, options.rounds).await.context("pods one by one")?;
    figures.push(Figure::new("pod created to running, p50", percentile(&times, 50.0), "ms", 50.0));
    figures.push(Figure::new("pod created to running, p99", percentile(&times, 99.0), "ms", 200.0));
    let times = crashes(cluster, options.crashes).await.context("crashes")?;
    figures.push(Figure::new("crashed to running again, p50", percentile(&times, 50.0), "ms", 50.0));
    figures.push(Figure::new("crashed to running again, worst", percentile(&times, 100.0), "ms", f64::NAN));
    let times = probed(cluster, options.probed).await.context("pods with a probe")?;
    let name = "pod with a default readiness probe created to ready, p50; it listens after 300 ms";
    figures.push(Figure::new(name, percentile(&times, 50.0), "ms", 1000.0));
    let took = at_once(cluster, options.pods).await.context("pods at once")?;
    let limit = 4000.0 * options.pods as f64 / 100.0;
    figures.push(Figure::new(&format!("{} pods at once, all running", options.pods), millis(took), "ms", limit));
    figures.extend(idle(cluster, options).await.context("idle")?);
    for number in 0..options.pods {
        cluster.pods.delete(&format!("many-{number}"), &Default::default()).await?;
    }
    let asked = Instant::now();
    cluster.watch.all_gone().await?;
    figures.push(Figure::new("the same pods gone again", millis(asked.elapsed()), "ms", f64::NAN));
    Ok(figures)
}

async fn one_by_one(cluster: &Cluster, rounds: usize) -> anyhow::Result<Vec<f64>> {
    let mut times = Vec::new();
    for round in 0..rounds {
        let name = format!("one-{round}");
        let asked = cluster.create(&name).await?;
        times.push(millis(cluster.watch.running(&name, 0).await? - asked));
        cluster.delete(&name).await?;
    }
    Ok(times)
}

async fn probed(cluster: &Cluster, rounds: usize) -> anyhow::Result<Vec<f64>> {
    let mut times = Vec::new();
    for round in 0..rounds {
        let name = format!("probed-{round}");
        let asked = cluster.create_probed(&name).await?;
        times.push(millis(cluster.watch.ready(&name).await? - asked));
        cluster.delete(&name).await?;
    }
    Ok(times)
}

/// Each pod crashes once: only the first restart comes without a pause.
async fn crashes(cluster: &Cluster, rounds: usize) -> anyhow::Result<Vec<f64>> {
    let mut times = Vec::new();
    for round in 0..rounds {
        let name = format!("crash-{round}");
        cluster.create(&name).await?;
        cluster.watch.running(&name, 0).await?;
        let pid = process::shell_of(&token(&name)).with_context(|| format!("find the process of {name}"))?;
        let killed = Instant::now();
        process::send(pid, Signal::SIGKILL)?;
        times.push(millis(cluster.watch.running(&name, 1).await? - killed));
        cluster.delete(&name).await?;
    }
    Ok(times)
}

async fn at_once(cluster: &Cluster, pods: usize) -> anyhow::Result<Duration> {
    let started = Instant::now();
    let names: Vec<String> = (0..pods).map(|number| format!("many-{number}")).collect();
    futures::stream::iter(&names).map(|name| cluster.create(name)).buffer_unordered(16).try_collect::<Vec<_>>().await?;
    let mut last = started;
    for name in &names {
        last = last.max(cluster.watch.running(name, 0).await?);
    }
    Ok(last - started)
}

async fn idle(cluster: &Cluster, options: &Options) -> anyhow::Result<Vec<Figure>> {
    tokio::time::sleep(Duration::from_secs(3)).await; // what was begun comes to rest
    let pid = cluster.pid()?;
    let shims = cluster.shims();
    let mut all = shims.clone();
    all.push(pid);
    let cpu = process::cpu_percent(&[pid], Duration::from_secs_f64(options.idle)).await?;
    let with_shims = process::cpu_percent(&all, Duration::from_secs_f64(options.idle)).await?;
    let private = shims.iter().filter_map(|shim| process::private_mb(*shim).ok()).sum::<f64>();
    Ok(vec![
        Figure::new("agent and server idle, memory (RSS)", process::rss_mb(pid)?, "MB", 80.0),
        Figure::new("agent and server idle, CPU", cpu, "% of a core", 2.0),
        Figure::new("the same with shims, CPU", with_shims, "% of a core", f64::NAN),
        Figure::new("shims", shims.len() as f64, "", f64::NAN),
        Figure::new("private memory per shim", private / shims.len().max(1) as f64, "MB", 1.0),
    ])
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn percentile(times: &[f64], percent: f64) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}
