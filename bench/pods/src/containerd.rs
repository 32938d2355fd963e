//! containerd and runc of Debian, started for the measurement, with a bridge of its own.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use nix::{
    mount::{MntFlags, umount2},
    sys::signal::Signal,
};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::{cluster::run, image::PAUSE, process};

const BRIDGE: &str = "bench-pods0";

pub struct Containerd {
    dir: TempDir,
    /// Images and containers, on the same disk as ours.
    disk: TempDir,
    root: PathBuf,
    child: Child,
}

impl Containerd {
    pub async fn start(tools: &Path, archive: &Path) -> anyhow::Result<Self> {
        // Sockets have short names.
        let dir = tempfile::Builder::new().prefix("bench-ctrd-").tempdir_in("/run")?;
        let disk = tempfile::Builder::new().prefix("bench-ctrd-").tempdir_in(".")?;
        let root = dir.path().to_owned();
        fs::create_dir(root.join("cni"))?;
        fs::write(root.join("cni/10-bench.conflist"), network(&root).to_string())?;
        fs::write(root.join("config.toml"), config(&root, &disk.path().canonicalize()?, tools))?;
        let programs = tools.join("containerd/usr/bin");
        let path =
            format!("{}:{}:/usr/sbin:/usr/bin:/sbin:/bin", programs.display(), tools.join("runc/usr/sbin").display());
        let log = fs::File::create(root.join("log"))?;
        let child = Command::new(programs.join("containerd"))
            .arg("--config")
            .arg(root.join("config.toml"))
            .env("PATH", path)
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .context("start containerd")?;
        let mut containerd = Self { dir, disk, root, child };
        if let Err(error) = containerd.ready(&programs, archive).await {
            let log = fs::read_to_string(containerd.root.join("log")).unwrap_or_default();
            containerd.end().await?;
            return Err(error.context(log));
        }
        Ok(containerd)
    }

    async fn ready(&mut self, programs: &Path, archive: &Path) -> anyhow::Result<()> {
        let started = Instant::now();
        while !self.socket().exists() {
            if let Some(status) = self.child.try_wait()? {
                bail!("containerd ended early: {status}");
            }
            if started.elapsed() > Duration::from_secs(60) {
                bail!("containerd does not listen within a minute");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut import = Command::new(programs.join("ctr"));
        import.arg("--address").arg(self.socket()).args(["--namespace", "k8s.io", "images", "import"]).arg(archive);
        run(import.stdout(Stdio::null())).await
    }

    fn socket(&self) -> PathBuf {
        self.root.join("containerd.sock")
    }

    /// As `--runtime` wants it.
    pub fn runtime(&self) -> String {
        format!("cri://{}", self.socket().display())
    }

    /// Leaves nothing behind, even if pods were left.
    pub async fn end(mut self) -> anyhow::Result<()> {
        if let Some(pid) = self.child.id() {
            process::send(pid, Signal::SIGTERM)?;
            if tokio::time::timeout(Duration::from_secs(30), self.child.wait()).await.is_err() {
                self.child.kill().await?;
            }
        }
        let ours = self.root.display().to_string();
        let disk = self.disk.path().canonicalize()?.display().to_string();
        for (pid, arguments) in process::all() {
            let shim = arguments.first().is_some_and(|program| program.ends_with("containerd-shim-runc-v2"));
            if shim && arguments.iter().any(|argument| argument.starts_with(&ours)) {
                let _ = process::send(pid, Signal::SIGKILL);
            }
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
        for point in points
            .filter(|point| point.starts_with(&ours) || point.starts_with(&disk))
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
        {
            let _ = umount2(point, MntFlags::MNT_DETACH);
        }
        let _ = run(Command::new("ip").args(["link", "delete", BRIDGE]).stderr(Stdio::null())).await;
        self.disk.close().context("remove containerd's files")?;
        self.dir.close().context("remove containerd's directory")
    }
}

fn network(root: &Path) -> serde_json::Value {
    serde_json::json!({
        "cniVersion": "0.4.0",
        "name": "bench-pods",
        "plugins": [{
            "type": "bridge",
            "bridge": BRIDGE,
            "isGateway": true,
            "ipam": {
                "type": "host-local",
                "dataDir": root.join("addresses"),
                "ranges": [[{ "subnet": "10.213.0.0/16" }]],
            },
        }],
    })
}

fn config(root: &Path, disk: &Path, tools: &Path) -> String {
    let (root, disk, tools) = (root.display(), disk.display(), tools.display());
    format!(
        r#"version = 2
root = "{disk}/root"
state = "{root}/state"

[grpc]
address = "{root}/containerd.sock"

[ttrpc]
address = "{root}/ttrpc.sock"

[plugins."io.containerd.internal.v1.opt"]
path = "{disk}/opt"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE}"
restrict_oom_score_adj = true

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{tools}/cni/usr/lib/cni"
conf_dir = "{root}/cni"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "{tools}/runc/usr/sbin/runc"
"#
    )
}
