//! Processes of mainstay started for the measurement.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use kube::{Client, Config, config::Kubeconfig};
use tempfile::TempDir;

/// Nobody else on this machine may use these meanwhile.
const RANGES: [&str; 4] = ["--pod-range", "10.232.0.0/16", "--service-range", "10.233.0.0/16"];
const MACHINE: [&str; 6] = ["--node-name", "bench", "--agent-port", "0", "--evict-disk", "0"];
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Cluster {
    binary: PathBuf,
    dir: TempDir,
    url: String,
    running: Vec<Child>,
    agent: Option<u32>,
    pub client: Client,
}

impl Cluster {
    /// Server and agent in one process.
    pub async fn up(binary: &Path) -> anyhow::Result<Self> {
        Self::start(binary, "up", &MACHINE).await
    }

    /// The server alone.
    pub async fn server(binary: &Path) -> anyhow::Result<Self> {
        Self::start(binary, "server", &[]).await
    }

    async fn start(binary: &Path, verb: &str, more: &[&str]) -> anyhow::Result<Self> {
        let binary = binary.canonicalize().with_context(|| format!("--spawn {}", binary.display()))?;
        let dir = tempfile::Builder::new().prefix("bench-data-").tempdir_in(".")?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let listen = format!("127.0.0.1:{port}");
        let mut child = spawn(&binary, verb, &dir.path().join("server"), &[&["--listen", &listen], more].concat())?;
        let client = connect(&mut child, &dir.path().join("server/admin.kubeconfig")).await?;
        let agent = (verb == "up").then(|| child.id());
        Ok(Self { binary, dir, url: format!("https://{listen}"), running: vec![child], agent, client })
    }

    /// Adds an agent in a process of its own.
    pub fn join(&mut self) -> anyhow::Result<()> {
        let mut token = Command::new(&self.binary);
        let text = token.args(["token", "create", "--data-dir"]).arg(self.dir.path().join("server")).output()?;
        let token = String::from_utf8(text.stdout)?;
        let flags = ["--server", &self.url, "--token", token.trim()];
        let child = spawn(&self.binary, "agent", &self.dir.path().join("agent"), &[&flags[..], &MACHINE].concat())?;
        self.agent = Some(child.id());
        self.running.push(child);
        Ok(())
    }

    /// Of the process that the agent is in, in bytes.
    pub fn agent_memory(&self) -> anyhow::Result<u64> {
        let id = self.agent.context("there is no agent")?;
        let status = fs::read_to_string(format!("/proc/{id}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
        Ok(line.trim().trim_end_matches("kB").trim().parse::<u64>()? << 10)
    }

    /// Ends everything and leaves nothing behind.
    pub fn end(mut self) -> anyhow::Result<()> {
        for child in self.running.iter_mut().rev() {
            let _ = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
            let _ = child.wait();
        }
        for part in ["agent", "server"].map(|part| self.dir.path().join(part)).iter().filter(|part| part.exists()) {
            let ended =
                Command::new(&self.binary).args(["down", "--data-dir"]).arg(part).stdout(Stdio::null()).status()?;
            anyhow::ensure!(ended.success(), "mainstay down: {ended}");
        }
        Ok(())
    }
}

fn spawn(binary: &Path, verb: &str, data: &Path, more: &[&str]) -> anyhow::Result<Child> {
    let mut command = Command::new(binary);
    command.args([verb, "--log", "warn", "--data-dir"]).arg(data).args(RANGES).args(more).stdout(Stdio::null());
    command.spawn().with_context(|| format!("start {}", binary.display()))
}

async fn connect(child: &mut Child, kubeconfig: &Path) -> anyhow::Result<Client> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
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
