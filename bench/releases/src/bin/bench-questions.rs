//! How long the commands about machines take with many of them, and how much memory the server that answers them needs.
//!
//! A real server with the embedded store gets as many Machine objects as asked for, each with the status that an agent would report. Then every
//! question is asked by the real command, from the start of its process to its end.
//!
//! `cargo build --release -p mainstay -p bench-releases && target/release/bench-questions --spawn target/release/mainstay`

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use clap::Parser;
use futures::{StreamExt, TryStreamExt, stream};
use kube::{
    Api, Client, Config,
    api::{Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use mainstay_api::machine::{Machine, MachineSpec};
use serde_json::json;

/// Requests under way at once.
const AT_ONCE: usize = 32;

#[derive(Debug, Parser)]
struct Options {
    /// The mainstay to measure
    #[arg(long, value_name = "FILE", default_value = "target/release/mainstay")]
    spawn: PathBuf,

    #[arg(long, value_name = "N", default_value_t = 10_000)]
    machines: usize,

    /// How often each question is asked; the fastest and the slowest are printed
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,

    #[arg(long, default_value_t = 16443)]
    port: u16,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let options = Options::parse();
    let directory = tempfile::tempdir()?;
    let server = Server::start(&options, directory.path())?;
    let client = server.client().await?;
    println!("memory of an empty server: {}", server.memory()?);
    let began = Instant::now();
    let machines: Api<Machine> = Api::all(client);
    let each = stream::iter(0..options.machines).map(|number| create(machines.clone(), number));
    each.buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
    println!("{} machines made in {:?}", options.machines, began.elapsed());
    for arguments in QUESTIONS {
        let times: Vec<Duration> =
            (0..options.rounds).map(|_| server.ask(arguments)).collect::<anyhow::Result<Vec<_>>>()?;
        let (fastest, slowest) = (times.iter().min(), times.iter().max());
        println!("{:<45} {fastest:?} to {slowest:?}", arguments.join(" "));
    }
    println!("memory of the server: {}", server.memory()?);
    Ok(())
}

const QUESTIONS: &[&[&str]] = &[
    &["list"],
    &["list", "--unaccounted"],
    &["current-version"],
    &["pending-update", "--hostname", "m00042"],
    &["running-versions"],
    &["hosts-at-version", "v2"],
    &["verify-hosts", "v1", "m00001", "m00002"],
    &["check-single-version", "v1", "-v"],
    &["get-failures"],
    &["local-health", "--hostname", "m00042"],
    &["ping"],
    &["cache-services"],
];

/// As an agent would report it; one in a hundred runs another version, one in a thousand fails.
async fn create(machines: Api<Machine>, number: usize) -> anyhow::Result<()> {
    let name = format!("m{number:05}");
    let labels = [("rack".to_owned(), (number / 40).to_string())].into();
    let spec = MachineSpec { expected: true, version: Some("v1".to_owned()), ..MachineSpec::default() };
    let mut machine = Machine::new(&name, spec);
    machine.metadata.labels = Some(labels);
    machines.create(&PostParams::default(), &machine).await.with_context(|| format!("create {name}"))?;
    let since = "2026-01-01T00:00:00Z";
    let state = json!({"state": "success", "since": since});
    let validated = match number % 1_000 {
        0 => {
            json!({"state": "failed", "since": since, "message": "check 10-disk: exit code 1", "output": "disk is full"})
        }
        _ => state.clone(),
    };
    let running = if number.is_multiple_of(100) { "v2" } else { "v1" };
    let version = json!({"running": running, "runningSince": since, "wanted": "v1"});
    let status = json!({"provisioned": state, "configured": state, "validated": validated, "version": version});
    let patch = Patch::Merge(json!({ "status": status }));
    machines.patch_status(&name, &PatchParams::default(), &patch).await.with_context(|| format!("report {name}"))?;
    Ok(())
}

struct Server {
    process: Child,
    program: PathBuf,
    directory: PathBuf,
}

impl Server {
    fn start(options: &Options, directory: &Path) -> anyhow::Result<Self> {
        let listen = format!("127.0.0.1:{}", options.port);
        let mut command = Command::new(&options.spawn);
        command.args(["server", "--listen", &listen, "--log", "warn", "--data-dir"]).arg(directory);
        let process =
            command.stdout(Stdio::null()).spawn().with_context(|| format!("start {}", options.spawn.display()))?;
        Ok(Self { process, program: options.spawn.clone(), directory: directory.to_owned() })
    }

    /// Once it answers.
    async fn client(&self) -> anyhow::Result<Client> {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            if let Ok(file) = Kubeconfig::read_from(self.directory.join("admin.kubeconfig")) {
                let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
                let client = Client::try_from(config)?;
                if client.apiserver_version().await.is_ok() {
                    return Ok(client);
                }
            }
            if Instant::now() > deadline {
                bail!("the server does not answer");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn ask(&self, arguments: &[&str]) -> anyhow::Result<Duration> {
        let mut command = Command::new(&self.program);
        command.arg("machine").args(arguments).arg("--data-dir").arg(&self.directory);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let began = Instant::now();
        let status = command.status()?;
        match status.code() {
            Some(0..=3) => Ok(began.elapsed()),
            _ => bail!("{}: {status}", arguments.join(" ")),
        }
    }

    /// Resident now, and at most so far.
    fn memory(&self) -> anyhow::Result<String> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
        Ok(format!("{} resident, at most {}", field("VmRSS:"), field("VmHWM:")))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
