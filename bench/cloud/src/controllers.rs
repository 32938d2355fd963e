//! The controllers of Klusters in a process of their own: what they ask of the cloud, and their memory.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::Arc,
};

use anyhow::Context;
use clap::Args;
use mainstay_cloud::{
    context::{Clouds, ClusterNetwork, Pace},
    kluster_parts::KlusterParts,
    klusters::{KlusterMetrics, KlusterSettings},
    manager::{self, ControllerSelection},
    metrics::CloudMetrics,
    openstack::{CallCounter, CloudsFile, session::Deadlines},
};
use mainstay_controllers::{ControllerMetrics, runtime::Clock};
use tokio::io::AsyncBufReadExt;
use tokio_util::sync::CancellationToken;

use crate::apis::read_client;

/// All that look after Klusters that run. Routes are left out: Neutron takes 30 of them on a router.
const CONTROLLERS: [&str; 6] = ["deorbiter", "flight", "hammertime", "launchctl", "routegc", "servicing"];

#[derive(Args)]
pub struct ControllerArguments {
    #[arg(long)]
    kubeconfig: PathBuf,
    #[arg(long)]
    clouds: PathBuf,
}

/// Runs the controllers until the end of the input; each line of it is answered with the counts of calls.
pub async fn run(arguments: ControllerArguments) -> anyhow::Result<()> {
    let client = read_client(&arguments.kubeconfig).await?;
    let calls = Arc::<CallCounter>::default();
    let file = CloudsFile::read(Some(&arguments.clouds))?;
    let settings = manager::Settings {
        clouds: Clouds::new(file, None, Deadlines::default(), calls.clone())?,
        network: ClusterNetwork::default(),
        has_default_storage: false,
        klusters: KlusterSettings::default(),
        kluster_metrics: KlusterMetrics::default(),
        kluster_parts: KlusterParts::default(),
        controllers: ControllerSelection::parse(&CONTROLLERS.map(str::to_owned))?,
        pace: Pace::default(),
        clock: Clock::default(),
        metrics: CloudMetrics::default(),
    };
    let stop = CancellationToken::new();
    let running = tokio::spawn(manager::run(client, settings, ControllerMetrics::default(), stop.clone()));
    let mut lines = tokio::io::BufReader::new(tokio::io::stdin()).lines();
    while lines.next_line().await?.is_some() {
        let counts = calls.counts();
        let named: BTreeMap<String, u64> = counts
            .into_iter()
            .map(|((service, operation), count)| (format!("{}: {operation}", service.name()), count))
            .collect();
        println!("{}", serde_json::to_string(&named)?);
    }
    stop.cancel();
    running.await?.map_err(|error| anyhow::anyhow!(error.chain()))
}

pub struct ControllerProcess {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl ControllerProcess {
    pub fn start(kubeconfig: &Path, clouds: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("controllers").arg("--kubeconfig").arg(kubeconfig).arg("--clouds").arg(clouds);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take().context("no output")?);
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    /// How often each operation was tried so far.
    pub fn counts(&mut self) -> anyhow::Result<BTreeMap<String, u64>> {
        self.input.as_mut().context("no input")?.write_all(b"\n")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        serde_json::from_str(&line).context("the controllers have ended")
    }

    /// Resident memory, and what of it is not pages of the program.
    pub fn memory(&self) -> anyhow::Result<String> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let kilobytes = |name: &str| -> Option<u64> {
            status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().nth(1)?.parse().ok())
        };
        let megabytes = |name: &str| kilobytes(name).unwrap_or_default() as f64 / 1024.0;
        Ok(format!(
            "{:.1} MB, of it {:.1} MB its own; at most {:.1} MB",
            megabytes("VmRSS"),
            megabytes("RssAnon"),
            megabytes("VmHWM")
        ))
    }

    pub fn stop(&mut self) -> anyhow::Result<()> {
        drop(self.input.take());
        self.child.wait().map(drop).context("wait for the controllers")
    }
}

impl Drop for ControllerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
