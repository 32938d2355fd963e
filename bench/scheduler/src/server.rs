//! A mainstay started for the measurement.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use mainstay_sim::process::Process;
use tempfile::TempDir;

/// Room for the pods' addresses of thousands of machines.
const POD_RANGE: &str = "10.128.0.0/10";

pub struct Spawned {
    dir: TempDir,
    child: Child,
}

impl Spawned {
    pub fn start(binary: &Path) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir_in(".")?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let mut command = Command::new(binary);
        command.args(["server", "--log", "error", "--pod-range", POD_RANGE]);
        command.args(["--listen", &format!("127.0.0.1:{port}"), "--data-dir"]).arg(dir.path());
        let child = command.stdout(Stdio::null()).spawn().with_context(|| format!("start {}", binary.display()))?;
        let mut server = Self { dir, child };
        let started = Instant::now();
        while !fs::metadata(server.kubeconfig()).is_ok_and(|file| file.len() > 0) {
            if let Some(status) = server.child.try_wait()? {
                bail!("{} ended early: {status}", binary.display());
            }
            if started.elapsed() > Duration::from_secs(30) {
                bail!("{} wrote no kubeconfig within 30 s", binary.display());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("admin.kubeconfig")
    }

    pub fn process(&self) -> Process {
        Process { id: self.child.id() }
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        let id = self.child.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &id]).status();
        let _ = self.child.wait();
    }
}
