//! Measures a Kubernetes API server over loopback TLS with kept-alive connections.
//!
//! `--spawn target/release/mainstay` starts ours in a temporary directory (and can then also
//! measure start, memory and idle CPU); `--kubeconfig FILE` measures whatever is there. Every figure
//! is printed beside that of an upstream kube-apiserver + etcd on a machine like ours.

mod absurd;
mod client;
mod custom;
mod disk;
mod flood;
mod load;
mod report;
mod server;
mod watchers;

use std::{path::PathBuf, time::Duration};

use anyhow::Context;
use clap::Parser;
use client::Target;
use load::Kind;
use report::Report;
use server::Spawned;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
struct Options {
    /// Start this mainstay binary and measure it
    #[arg(long, value_name = "BINARY", conflicts_with = "kubeconfig", required_unless_present = "kubeconfig")]
    spawn: Option<PathBuf>,
    /// Measure the server this kubeconfig names
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Seconds per figure
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Objects in the list that is read
    #[arg(long, default_value_t = 10_000)]
    list: usize,
    /// Watches that wait for one write
    #[arg(long, default_value_t = 1_000)]
    watchers: usize,
    /// Objects present at the measured restart (with --spawn)
    #[arg(long, default_value_t = 100_000)]
    restart_with: usize,
    /// CustomResourceDefinitions whose memory is measured (with --spawn)
    #[arg(long, default_value_t = 500)]
    definitions: usize,
    /// Custom objects, and ConfigMaps to compare them with
    #[arg(long, default_value_t = 100_000)]
    custom_objects: usize,
    /// Connections that flood the server with LISTs
    #[arg(long, default_value_t = 400)]
    flood: usize,
    /// Create, change and read as a service account with the role `edit`, not as an administrator, to whom neither roles nor fairness apply
    #[arg(long)]
    account: bool,
    /// Measure only what contains this word
    #[arg(long, default_value = "")]
    only: String,
    /// LIST this path again and again with the token of FLOOD_TOKEN until standard input ends, then print what was answered
    #[arg(long, value_name = "PATH", hide = true)]
    flooder: Option<String>,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run(options))
}

async fn run(options: Options) -> anyhow::Result<()> {
    if let (Some(path), Some(kubeconfig)) = (&options.flooder, &options.kubeconfig) {
        return flood::flood_until_told(kubeconfig, path, options.flood).await;
    }
    let report = Report::new(&options.only);
    report.note(&format!("disk: fdatasync of 1 KiB p50 {:.0} µs, p99 {:.0} µs", disk::fsync().0, disk::fsync().1));
    let mut spawned = None;
    let target = match (&options.spawn, &options.kubeconfig) {
        (Some(binary), _) => {
            let server = Spawned::start(binary, None).await?;
            report.figure(
                "start to /readyz, empty",
                server.ready_after.as_secs_f64() * 1e3,
                "ms",
                Some(("upstream", 2300.0)),
            );
            if report.wants("idle") {
                let idle = server.idle(Duration::from_secs(10)).await?;
                report.figure("idle memory (RSS)", idle.rss_mb, "MB", Some(("upstream", 437.0)));
                report.figure("idle CPU", idle.cpu_percent, "% of a core", None);
            }
            let target = Target::from_kubeconfig(&server.kubeconfig())?;
            spawned = Some(server);
            target
        }
        (None, Some(file)) => Target::from_kubeconfig(file)?,
        (None, None) => anyhow::bail!("--spawn or --kubeconfig"),
    };
    let time = Duration::from_secs_f64(options.seconds);
    let namespace = load::make_namespace(&target).await.context("make a namespace to measure in")?;
    let client = match options.account {
        true => target.with_token(&flood::make_account(&target, &namespace, "measuring").await?),
        false => target.clone(),
    };
    for (kind, clients, upstream) in [
        (Kind::Create, 1, Some(541.0)),
        (Kind::Create, 16, Some(1398.0)),
        (Kind::Create, 64, Some(1398.0)),
        (Kind::Update, 16, Some(914.0)),
        (Kind::Apply, 1, None),
        (Kind::Apply, 16, None),
        (Kind::Get, 1, Some(1060.0)),
        (Kind::Get, 16, Some(3399.0)),
    ] {
        let what = if kind == Kind::Apply { "a Deployment" } else { "1 KiB ConfigMap" };
        let name = format!("{} {what}, {clients} clients", kind.name());
        if !report.wants(&name) {
            continue;
        }
        let done = load::run(&client, &namespace, kind, clients, time).await.with_context(|| name.clone())?;
        report.rate(&name, &done, upstream.map(|rate| ("upstream", rate)));
        if kind == Kind::Create && clients > 1 && spawned.is_some() {
            let raw = disk::store_rate(clients, time / 2)?;
            report.figure(&format!("  the store alone, {clients} writers"), raw, "puts/s", None);
            report.note(&format!("  API / store: {:.2}", done.per_second() / raw));
        }
    }
    if report.wants("LIST") {
        let listed = load::fill(&target, &namespace, options.list).await?;
        let done = load::run(&target, &listed, Kind::List, 1, time).await?;
        let two = load::run(&target, &listed, Kind::List, 2, time).await?;
        let best = if two.per_second() > done.per_second() { two } else { done };
        report.rate(&format!("LIST of {}", options.list), &best, Some(("upstream", 8.6)));
    }
    if report.wants("watchers") {
        let delay = watchers::run(&target, &namespace, options.watchers, 50).await?;
        report.figure(&format!("one write to {} watchers, p50", options.watchers), delay.p50, "ms", None);
        report.figure(
            &format!("one write to {} watchers, p99", options.watchers),
            delay.p99,
            "ms",
            Some(("limit", 50.0)),
        );
    }
    if report.wants("flood") {
        let kubeconfig = spawned.as_ref().map(Spawned::kubeconfig).or(options.kubeconfig.clone());
        let kubeconfig = kubeconfig.context("--spawn or --kubeconfig")?;
        flood::run(&target, &kubeconfig, options.flood, time, &report).await?;
    }
    if let Some(server) = &spawned
        && report.wants("absurd bodies")
    {
        absurd::run(&target, server, &report).await?;
    }
    if let Some(binary) = options.spawn.as_ref().filter(|_| report.wants("custom")) {
        custom::run(binary, options.definitions, options.custom_objects, &report).await?;
    }
    if let Some(server) = spawned {
        report.figure("memory after the run (RSS)", server.rss_mb()?, "MB", Some(("upstream", 1400.0)));
        if report.wants("restart") {
            load::fill(&target, &namespace, options.restart_with).await?;
            let again = server.restart().await?;
            let name = format!("start to /readyz, {} objects", options.restart_with);
            report.figure(&name, again.ready_after.as_secs_f64() * 1e3, "ms", Some(("limit", 3000.0)));
            again.stop().await?;
        } else {
            server.stop().await?;
        }
    }
    Ok(())
}
