//! The server, and what it and the processes that it started have used.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use kube::{Client, Config, config::Kubeconfig};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
/// What the kernel counts CPU time in, on every machine that we run on.
const TICKS_PER_SECOND: u64 = 100;

pub struct Server {
    _directory: TempDir,
    process: Child,
    pub client: Client,
}

impl Server {
    pub async fn start(binary: &Path) -> anyhow::Result<Self> {
        let binary = binary.canonicalize().with_context(|| format!("--spawn {}", binary.display()))?;
        let directory = tempfile::Builder::new().prefix("bench-data-").tempdir_in(".")?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let mut command = Command::new(&binary);
        command.args(["server", "--log", "warn", "--listen", &format!("127.0.0.1:{port}"), "--data-dir"]);
        let mut process = command.arg(directory.path()).stdout(Stdio::null()).spawn()?;
        let client = connect(&mut process, &directory.path().join("admin.kubeconfig")).await?;
        Ok(Self { _directory: directory, process, client })
    }

    /// Of the server and its children, those that ended included.
    pub fn cpu_time(&self) -> anyhow::Result<Duration> {
        let own = stat(self.process.id())?;
        // User and system time, and the same of children that were waited for.
        let mut ticks: u64 = own[11..15].iter().sum();
        for child in self.children()? {
            ticks += stat(child).map_or(0, |stat| stat[11..13].iter().sum());
        }
        Ok(Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND))
    }

    /// Resident memory of the server and its children, in bytes.
    pub fn memory(&self) -> anyhow::Result<u64> {
        let mut sum = resident(self.process.id())?;
        for child in self.children()? {
            sum += resident(child).unwrap_or_default();
        }
        Ok(sum)
    }

    fn children(&self) -> anyhow::Result<Vec<u32>> {
        let id = self.process.id();
        let mut children = Vec::new();
        for task in fs::read_dir(format!("/proc/{id}/task"))? {
            let text = fs::read_to_string(task?.path().join("children")).unwrap_or_default();
            children.extend(text.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
        Ok(children)
    }

    pub fn end(mut self) -> anyhow::Result<()> {
        Command::new("kill").args(["-TERM", &self.process.id().to_string()]).status()?;
        self.process.wait()?;
        Ok(())
    }
}

/// The numbers after the name of the program.
fn stat(id: u32) -> anyhow::Result<Vec<u64>> {
    let text = fs::read_to_string(format!("/proc/{id}/stat"))?;
    let (_, numbers) = text.rsplit_once(')').context("/proc/…/stat")?;
    let numbers: Vec<u64> = numbers.split_whitespace().map(|number| number.parse().unwrap_or_default()).collect();
    anyhow::ensure!(numbers.len() > 15, "/proc/{id}/stat is too short");
    Ok(numbers)
}

fn resident(id: u32) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse::<u64>()? << 10)
}

async fn connect(process: &mut Child, kubeconfig: &Path) -> anyhow::Result<Client> {
    let started = Instant::now();
    loop {
        if let Some(status) = process.try_wait()? {
            bail!("mainstay ended early: {status}");
        }
        if started.elapsed() > PATIENCE {
            bail!("the API does not answer within {PATIENCE:?}");
        }
        if let Ok(kubeconfig) = Kubeconfig::read_from(kubeconfig)
            && let Ok(config) = Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await
            && let Ok(client) = Client::try_from(config)
            && client.apiserver_version().await.is_ok()
        {
            return Ok(client);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
