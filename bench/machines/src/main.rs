//! Measures how soon the pod of a machine whose plug is pulled runs elsewhere. Takes root. With `--hollow` it measures instead what
//! heartbeats of thousands of machines cost the server, without root ([`hollow`]).
//!
//! Machines are network namespaces with their own agents and containers, on one bridge. One pod runs on one of them; its wire
//! is cut; the time ends when another pod is Ready on another machine. Then the wire is whole again, and the next run begins
//! when all machines are Ready and the old pod has gone.

mod fleet;
mod hollow;
mod workload;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::{Parser, ValueEnum};

use crate::{fleet::Fleet, workload::Workload};

#[derive(Debug, Parser)]
struct Options {
    /// The mainstay to measure
    #[arg(long, value_name = "FILE", default_value = "target/release/mainstay")]
    spawn: PathBuf,

    /// How often the plug is pulled, per kind of workload
    #[arg(long, value_name = "N", default_value_t = 20)]
    runs: usize,

    /// Machines, without the server's
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(3..=50))]
    machines: u8,

    /// What the pod belongs to
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Kind::Deployment, Kind::StatefulSet])]
    workload: Vec<Kind>,

    /// Register so many hollow machines instead, and measure what their heartbeats cost
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16_000))]
    hollow: Option<u32>,

    /// For how long, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    Deployment,
    StatefulSet,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let options = Options::parse();
    if let Some(machines) = options.hollow {
        return hollow::measure(&options.spawn, machines as usize, Duration::from_secs(options.seconds)).await;
    }
    let fleet = Fleet::start(&options.spawn, options.machines).await?;
    for kind in options.workload {
        let mut times = Vec::new();
        let workload = Workload::create(&fleet, kind).await?;
        for run in 1..=options.runs {
            fleet.all_ready().await?;
            let before = workload.settled().await?;
            let pulled = Instant::now();
            fleet.plug(&before.node, false)?;
            let after = workload.replaced(&before).await;
            let took = pulled.elapsed();
            fleet.plug(&before.node, true)?;
            let after = after?;
            println!("{kind:?} run {run}: {} -> {}, {:.2} s", before.node, after.node, took.as_secs_f64());
            times.push(took);
        }
        workload.delete().await?;
        report(kind, times);
    }
    Ok(())
}

fn report(kind: Kind, mut times: Vec<Duration>) {
    times.sort();
    let Some(longest) = times.last() else { return };
    let at = |share: usize| times[(times.len() * share).div_ceil(100).clamp(1, times.len()) - 1].as_secs_f64();
    println!(
        "{kind:?}: plug pulled to replacement ready over {} runs: p50 {:.2} s, p99 {:.2} s, longest {:.2} s",
        times.len(),
        at(50),
        at(99),
        longest.as_secs_f64()
    );
}
