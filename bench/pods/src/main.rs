//! Measures pods through the API, from outside: `mainstay up` is started as a user would, and what it answers counts.
//!
//! `--spawn target/release/mainstay` measures the built-in runtime, and then, if `tools/test-deps` has fetched them,
//! containerd and runc below the same agent in the same run. Both run the same image, a static busybox, which is
//! present before anything is measured.

mod cluster;
mod containerd;
mod image;
mod measure;
mod pod_watch;
mod process;
mod report;

use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;
use cluster::Cluster;
use containerd::Containerd;
use report::Report;

#[derive(Parser)]
pub struct Options {
    /// The mainstay binary to measure
    #[arg(long, value_name = "BINARY")]
    spawn: PathBuf,
    /// Where `tools/test-deps` has put busybox, containerd, runc and the CNI plugins
    #[arg(long, env = "MAINSTAY_TOOLS", value_name = "DIR", default_value = ".tools")]
    tools: PathBuf,
    /// Measure only the built-in runtime
    #[arg(long)]
    alone: bool,
    /// Pods made one after the other
    #[arg(long, default_value_t = 100)]
    rounds: usize,
    /// Pods made at once
    #[arg(long, default_value_t = 100)]
    pods: usize,
    /// Processes killed one after the other
    #[arg(long, default_value_t = 20)]
    crashes: usize,
    /// Pods with a default readiness probe, made one after the other
    #[arg(long, default_value_t = 10)]
    probed: usize,
    /// Seconds of idleness
    #[arg(long, default_value_t = 10.0)]
    idle: f64,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let report = runtime.block_on(run(&options))?;
    print!("{report}");
    Ok(())
}

async fn run(options: &Options) -> anyhow::Result<Report> {
    let dir = tempfile::Builder::new().prefix("bench-pods-").tempdir_in(".").context("make a directory")?;
    let tools = options.tools.canonicalize().with_context(|| format!("--tools {}", options.tools.display()))?;
    let archive = dir.path().canonicalize()?.join("image.tar");
    image::write(&tools.join("busybox/bin/busybox"), &archive)?;
    let mut report = Report::default();

    let mut cluster = Cluster::start(options, "builtin", &archive).await?;
    let ours = measure::measure_all(&mut cluster, options).await;
    cluster.end().await?;
    report.add("built-in", ours?);
    print!("{report}");

    if !options.alone {
        let containerd = Containerd::start(&tools, &archive).await?;
        let mut cluster = Cluster::start(options, &containerd.runtime(), &archive).await?;
        let theirs = measure::measure_all(&mut cluster, options).await;
        cluster.end().await?;
        containerd.end().await?;
        report.add("containerd", theirs?);
    }
    Ok(report)
}
