//! Pods all the way: created by clients over TLS, bound, durable, and reported by hollow nodes.
//!
//! `--spawn target/release/mainstay` starts ours in a temporary directory, anew for every size; `--kubeconfig FILE` measures
//! whatever is there, a kube-apiserver with its kube-scheduler for one. Both are given the same: a thousand nodes
//! and the same pods. Load, nodes and server share the cores.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::Context;
use clap::Args;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use mainstay_sim::{
    figures::Figure,
    fleet::{Access, Settings, WatchMode},
    process::Process,
    progress::{Progress, grouped},
    scenario::{self, ClusterUnderTest, Plan},
};
use tokio_util::sync::CancellationToken;

use crate::server::Spawned;

/// What an upstream kube-scheduler does on a machine of this kind, and what we want of ours.
const COMPARED: [(&str, f64, f64); 2] =
    [("pods bound while they are created", 242.0, 4840.0), ("pods bound from a backlog", 363.0, 7260.0)];
/// Clients that the nodes share, so that none of them waits for another's connection.
const SHARED: usize = 8;

#[derive(Args)]
pub struct Options {
    /// Start this mainstay binary and measure it
    #[arg(long, value_name = "BINARY", conflicts_with = "kubeconfig", required_unless_present = "kubeconfig")]
    spawn: Option<PathBuf>,
    /// Measure the cluster this kubeconfig names
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Hollow nodes
    #[arg(long, default_value_t = 1000)]
    nodes: usize,
    /// Pods; several sizes are measured one after the other
    #[arg(long, value_delimiter = ',', default_values_t = [10_000, 30_000])]
    pods: Vec<usize>,
    /// Clients that create pods
    #[arg(long, default_value_t = 16)]
    clients: usize,
    /// Replicas of a Deployment that is scaled up at the end; 0 for none
    #[arg(long, default_value_t = 5000)]
    deployment: usize,
    /// RunningFleet do not report pods as running, as those of scheduler_perf do not
    #[arg(long)]
    no_reports: bool,
    /// One watch for each node, as agents have
    #[arg(long)]
    watch_each: bool,
    /// Leave out the round from a backlog
    #[arg(long)]
    no_backlog: bool,
    /// Seconds to look at idle CPU
    #[arg(long, default_value_t = 10)]
    idle: u64,
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    for pods in &options.pods {
        measure(&runtime, options, *pods, 0)?;
    }
    if options.deployment > 0 {
        measure(&runtime, options, 0, options.deployment)?;
    }
    Ok(())
}

fn measure(runtime: &tokio::runtime::Runtime, options: &Options, pods: usize, deployment: usize) -> anyhow::Result<()> {
    let spawned = options.spawn.as_deref().map(Spawned::start).transpose()?;
    let file = match (&spawned, &options.kubeconfig) {
        (Some(server), _) => server.kubeconfig(),
        (None, Some(file)) => file.clone(),
        (None, None) => anyhow::bail!("--spawn or --kubeconfig"),
    };
    let what = if pods > 0 { format!("{} pods", grouped(pods)) } else { "a Deployment".to_owned() };
    println!("{what}, {} nodes, {} clients:", grouped(options.nodes), options.clients);
    let nodes = Settings {
        start_delay: (!options.no_reports).then_some(Duration::ZERO),
        watch_mode: if options.watch_each { WatchMode::PerNode } else { WatchMode::Shared },
        ..Settings::new(options.nodes)
    };
    let idle = Duration::from_secs(if deployment > 0 { options.idle } else { 0 });
    let plan = Plan { nodes, pods, backlog: !options.no_backlog, deployment, idle };
    runtime.block_on(async {
        let cluster = cluster(&file, options.clients, spawned.as_ref().map(Spawned::process)).await?;
        scenario::run(&cluster, &plan, Progress::Hidden, CancellationToken::new(), print_figure).await
    })?;
    Ok(())
}

fn print_figure(figure: &Figure) {
    let compared = COMPARED.iter().find(|(name, ..)| *name == figure.name).map(|(_, upstream, goal)| {
        let (ratio, met) = (figure.value / upstream, if figure.value >= *goal { "met" } else { "missed" });
        format!("  upstream {upstream:.0} ({ratio:.1}x), goal {}: {met}", grouped(*goal as usize))
    });
    println!("{figure}{}", compared.unwrap_or_default());
}

async fn cluster(kubeconfig: &Path, clients: usize, server: Option<Process>) -> anyhow::Result<ClusterUnderTest> {
    let config = Kubeconfig::read_from(kubeconfig).with_context(|| format!("read {}", kubeconfig.display()))?;
    let mut config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    config.read_timeout = None;
    let some = |count: usize| (0..count).map(|_| Client::try_from(config.clone())).collect::<Result<Vec<_>, _>>();
    let shared = some(SHARED)?;
    let admin = shared[0].clone();
    let next = AtomicUsize::new(0);
    let node_client = Arc::new(move |_: &str| shared[next.fetch_add(1, Relaxed) % shared.len()].clone());
    Ok(ClusterUnderTest { access: Access { admin, node_client }, clients: some(clients)?, server })
}
