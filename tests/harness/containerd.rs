//! A containerd of the test's own: its directories, socket, bridge and addresses. Dropping it leaves nothing behind.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use mainstay_runtime::suite::image;
use tempfile::TempDir;

use super::{
    PATIENCE,
    command::{Output, run},
    eventually, host, tool,
};

/// A shell, and little more, that it holds without any registry.
pub const IMAGE: &str = image::PLAIN;

pub struct Containerd {
    home: TempDir,
    bridge: String,
    daemon: Child,
}

impl Containerd {
    #[track_caller]
    pub fn start() -> Self {
        let home = tempfile::Builder::new().prefix("cri-").tempdir_in("/tmp").expect("make a directory");
        let bridge = format!("mt{}", std::process::id());
        configure(home.path(), &bridge);
        let [bin, runc] = ["containerd/usr/bin", "runc/usr/sbin"].map(|name| tool(name).display().to_string());
        let log = fs::File::create(home.path().join("log")).expect("a log");
        let daemon = Command::new(tool("containerd/usr/bin/containerd"))
            .arg("--config")
            .arg(home.path().join("config.toml"))
            .env("PATH", format!("{bin}:{runc}:/usr/sbin:/usr/bin:/sbin:/bin"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .expect("run containerd");
        let containerd = Self { home, bridge, daemon };
        eventually("containerd answers", || (containerd.ctr(&["version"]).code == 0).then_some(()));
        let archive = containerd.home.path().join("images.tar");
        image::write(&archive).expect("write images");
        containerd.ctr(&["images", "import", &archive.display().to_string()]).ok();
        containerd
    }

    pub fn socket(&self) -> PathBuf {
        self.home.path().join("containerd.sock")
    }

    #[track_caller]
    pub fn ctr(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(tool("containerd/usr/bin/ctr"));
        command.arg("--address").arg(self.socket()).args(["--namespace", "k8s.io"]).args(arguments);
        run(command, &format!("ctr {}", arguments.join(" ")), "", PATIENCE)
    }
}

fn configure(home: &Path, bridge: &str) {
    let id = std::process::id();
    let (b, c) = (64 + (id >> 8) % 60, id % 256);
    fs::create_dir_all(home.join("cni")).expect("make a directory");
    let network = serde_json::json!({
        "cniVersion": "0.4.0",
        "name": bridge,
        "plugins": [{
            "type": "bridge",
            "bridge": bridge,
            "isGateway": true,
            "ipMasq": false,
            "ipam": {
                "type": "host-local",
                "dataDir": home.join("addresses"),
                "ranges": [[{"subnet": format!("10.{b}.{c}.0/24")}]],
            },
        }],
    });
    fs::write(home.join("cni/10-test.conflist"), network.to_string()).expect("write a network");
    let config = format!(
        r#"version = 2
root = "{home}/root"
state = "{home}/state"
[grpc]
  address = "{home}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni}"
    conf_dir = "{home}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "{runc}"
      SystemdCgroup = false
"#,
        home = home.display(),
        cni = tool("cni/usr/lib/cni").display(),
        runc = tool("runc/usr/sbin/runc").display(),
        pause = image::PAUSE,
    );
    fs::write(home.join("config.toml"), config).expect("write a configuration");
}

impl Drop for Containerd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.home.path().join("log")).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("containerd's log ends with:\n{}", lines[lines.len().saturating_sub(20)..].join("\n"));
        }
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        // Shims, which are told its socket.
        for pid in host::pids(&self.socket().display().to_string()) {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid as i32), nix::sys::signal::Signal::SIGKILL);
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
        let mut below: Vec<PathBuf> = points.filter(|point| point.starts_with(self.home.path())).collect();
        below.sort();
        for point in below.iter().rev() {
            let _ = nix::mount::umount2(point, nix::mount::MntFlags::MNT_DETACH);
        }
        let _ = Command::new("ip").args(["link", "delete", &self.bridge]).stderr(Stdio::null()).status();
    }
}
