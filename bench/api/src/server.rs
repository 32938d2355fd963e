//! A mainstay started for the measurement, and what `/proc` says of it.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use http::Method;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::client::Target;

pub struct Spawned {
    binary: PathBuf,
    dir: TempDir,
    child: Child,
    /// From exec to the first good answer of `/readyz`.
    pub ready_after: Duration,
}

pub struct Idle {
    pub rss_mb: f64,
    pub cpu_percent: f64,
}

impl Spawned {
    pub async fn start(binary: &Path, dir: Option<TempDir>) -> anyhow::Result<Self> {
        let dir = match dir {
            Some(dir) => dir,
            None => tempfile::tempdir_in(".")?,
        };
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let started = Instant::now();
        let mut child = Command::new(binary)
            .args(["server", "--log", "warn", "--listen", &format!("127.0.0.1:{port}"), "--data-dir"])
            .arg(dir.path())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}", binary.display()))?;
        let kubeconfig = dir.path().join("admin.kubeconfig");
        loop {
            if let Some(status) = child.try_wait()? {
                bail!("{} ended early: {status}", binary.display());
            }
            if started.elapsed() > Duration::from_secs(60) {
                bail!("not ready within a minute");
            }
            let fresh =
                fs::metadata(&kubeconfig).is_ok() && fs::read_to_string(&kubeconfig)?.contains(&port.to_string());
            if fresh
                && let Ok(target) = Target::from_kubeconfig(&kubeconfig)
                && let Ok(mut connection) = target.connect().await
                && connection.call(Method::GET, "/readyz", Default::default()).await.is_ok()
            {
                break;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(Self { binary: binary.to_owned(), dir, child, ready_after: started.elapsed() })
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("admin.kubeconfig")
    }

    fn pid(&self) -> anyhow::Result<u32> {
        self.child.id().context("the server has ended")
    }

    pub fn rss_mb(&self) -> anyhow::Result<f64> {
        self.status_mb("VmRSS:")
    }

    /// Starts to look for the most memory anew.
    pub fn reset_peak(&self) -> anyhow::Result<()> {
        Ok(fs::write(format!("/proc/{}/clear_refs", self.pid()?), "5")?)
    }

    /// The most it has had since then.
    pub fn peak_mb(&self) -> anyhow::Result<f64> {
        self.status_mb("VmHWM:")
    }

    fn status_mb(&self, field: &str) -> anyhow::Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()?))?;
        let line = status.lines().find_map(|line| line.strip_prefix(field)).with_context(|| format!("no {field}"))?;
        let kb: f64 = line.trim().trim_end_matches(" kB").trim().parse()?;
        Ok(kb / 1024.0)
    }

    /// CPU time used so far, in clock ticks (100 a second).
    fn ticks(&self) -> anyhow::Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid()?))?;
        let behind_name = stat.rsplit_once(')').context("odd /proc/stat")?.1;
        let fields: Vec<&str> = behind_name.split_whitespace().collect();
        Ok(fields[11].parse::<f64>()? + fields[12].parse::<f64>()?)
    }

    pub async fn idle(&self, time: Duration) -> anyhow::Result<Idle> {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let before = self.ticks()?;
        tokio::time::sleep(time).await;
        let used = self.ticks()? - before;
        Ok(Idle { rss_mb: self.rss_mb()?, cpu_percent: used / time.as_secs_f64() })
    }

    pub async fn stop(mut self) -> anyhow::Result<TempDir> {
        let pid = self.pid()?.to_string();
        Command::new("kill").args(["-TERM", &pid]).status().await?;
        tokio::time::timeout(Duration::from_secs(30), self.child.wait()).await.context("did not stop")??;
        Ok(self.dir)
    }

    pub async fn restart(self) -> anyhow::Result<Self> {
        let binary = self.binary.clone();
        let dir = self.stop().await?;
        Self::start(&binary, Some(dir)).await
    }
}
