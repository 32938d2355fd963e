//! The etcd and the servers that are measured.

use std::{
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use kube::{Client, Config, config::Kubeconfig};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::process::{Child, Command};

const PATIENCE: Duration = Duration::from_secs(60);

pub struct Etcd {
    child: Child,
    url: String,
}

impl Etcd {
    pub fn start(program: &Path, data: &Path) -> anyhow::Result<Self> {
        let (client, peer) = (free_port()?, free_port()?);
        let (own, peers) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
        let child = Command::new(program)
            .arg("--data-dir")
            .arg(data)
            .args(["--listen-client-urls", &own, "--advertise-client-urls", &own])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("default={peers}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        Ok(Self { child, url: format!("etcd://127.0.0.1:{client}") })
    }

    pub async fn end(mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }
}

pub struct Server {
    binary: PathBuf,
    arguments: Vec<String>,
    data: PathBuf,
    address: String,
    child: Child,
    pub client: Client,
}

impl Server {
    pub async fn start(binary: &Path, dir: &Path, name: &str, etcd: &Etcd) -> anyhow::Result<Self> {
        let (data, keys) = (dir.join(name), dir.join("encryption-config.yaml"));
        let address = format!("127.0.0.1:{}", free_port()?);
        let flags = [
            "server",
            "--log",
            "error",
            "--listen",
            &address,
            "--store",
            &etcd.url,
            "--data-dir",
            &data.display().to_string(),
            "--encryption-provider-config",
            &keys.display().to_string(),
        ];
        let arguments: Vec<String> = flags.into_iter().map(str::to_owned).collect();
        let mut child = launch(binary, &arguments)?;
        let client = connect(&mut child, &data).await?;
        Ok(Self { binary: binary.to_owned(), arguments, data, address, child, client })
    }

    /// Whether this is how it calls itself in elections.
    pub fn has_identity(&self, identity: &str) -> bool {
        self.address == identity
    }

    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = self.child.id().context("the server has ended")?;
        Ok(kill(Pid::from_raw(i32::try_from(pid)?), signal)?)
    }

    pub async fn end(&mut self, signal: Signal) -> anyhow::Result<()> {
        self.signal(signal)?;
        self.child.wait().await?;
        Ok(())
    }

    /// Waits for its end and starts it again.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.child.wait().await?;
        self.child = launch(&self.binary, &self.arguments)?;
        self.client = connect(&mut self.child, &self.data).await?;
        Ok(())
    }
}

fn launch(binary: &Path, arguments: &[String]) -> anyhow::Result<Child> {
    let mut command = Command::new(binary);
    command.args(arguments).stdout(Stdio::null()).kill_on_drop(true);
    command.spawn().with_context(|| format!("start {}", binary.display()))
}

async fn connect(child: &mut Child, data: &Path) -> anyhow::Result<Client> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            bail!("mainstay ended early: {status}");
        }
        if let Ok(config) = Kubeconfig::read_from(data.join("admin.kubeconfig")) {
            let config = Config::from_custom_kubeconfig(config, &Default::default()).await?;
            let client = Client::try_from(config)?;
            if client.apiserver_version().await.is_ok() {
                return Ok(client);
            }
        }
        if started.elapsed() > PATIENCE {
            bail!("mainstay does not answer");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
