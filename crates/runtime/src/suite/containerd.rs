//! A containerd of the test's own: its directories, socket, bridge and addresses. Dropping it leaves nothing behind.
//!
//! Programs are those that `tools/test-deps` fetches. Takes root.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use nix::{
    mount::{MntFlags, umount2},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use parking_lot::Mutex;

use super::image;

const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How much of its log a failing test shows.
const LOG_LINES: usize = 40;

pub struct Containerd {
    home: tempfile::TempDir,
    bridge: String,
    daemon: Mutex<Option<Child>>,
}

impl Containerd {
    /// Starts it and imports the images of [`image`].
    pub fn start() -> Self {
        assert!(nix::unistd::geteuid().is_root(), "containerd takes root");
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let (pid, number) = (std::process::id(), STARTED.fetch_add(1, Ordering::Relaxed));
        let home = tempfile::Builder::new().prefix("cri-").tempdir_in("/tmp").expect("make a directory");
        let bridge = format!("mc{pid}-{number}");
        assert!(bridge.len() <= 15, "{bridge} is the name of an interface");
        configure(home.path(), &bridge, number);
        let containerd = Self { home, bridge, daemon: Mutex::default() };
        containerd.resume();
        let archive = containerd.home().join("images.tar");
        image::write(&archive).expect("write images");
        containerd.ctr(&["images", "import", archive.to_str().expect("plain letters")]);
        containerd
    }

    pub fn socket(&self) -> PathBuf {
        self.home().join("containerd.sock")
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }

    pub fn bridge(&self) -> &str {
        &self.bridge
    }

    /// Starts the daemon and waits until it answers.
    pub fn resume(&self) {
        let tools = image::tools();
        let log = fs::OpenOptions::new().create(true).append(true).open(self.home().join("log")).expect("open a log");
        let path = format!(
            "{}:{}:/usr/sbin:/usr/bin:/sbin:/bin",
            tools.join("containerd/usr/bin").display(),
            tools.join("runc/usr/sbin").display()
        );
        let daemon = Command::new(tools.join("containerd/usr/bin/containerd"))
            .arg("--config")
            .arg(self.home().join("config.toml"))
            .env("PATH", path)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("share the log"))
            .stderr(log)
            .process_group(0)
            .spawn()
            .expect("run containerd: run tools/test-deps first");
        *self.daemon.lock() = Some(daemon);
        let deadline = Instant::now() + START_TIMEOUT;
        while !self.run_ctr(&["version"]).status.success() {
            assert!(Instant::now() < deadline, "containerd does not answer\n{}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends the daemon; containers go on.
    pub fn kill(&self) {
        if let Some(mut daemon) = self.daemon.lock().take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }

    pub fn is_running(&self) -> bool {
        self.daemon.lock().is_some()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.home().join("log")).unwrap_or_default()
    }

    /// What `ctr` prints; it must succeed.
    pub fn ctr(&self, arguments: &[&str]) -> String {
        let output = self.run_ctr(arguments);
        assert!(output.status.success(), "ctr {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn run_ctr(&self, arguments: &[&str]) -> std::process::Output {
        let mut command = Command::new(image::tools().join("containerd/usr/bin/ctr"));
        command.arg("--address").arg(self.socket()).args(["--namespace", "k8s.io"]).args(arguments);
        command.output().expect("run ctr")
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("containerd's log ends with:\n{}", lines[lines.len().saturating_sub(LOG_LINES)..].join("\n"));
        }
        self.kill();
        for pid in processes_naming(&self.socket()) {
            let _ = kill(pid, Signal::SIGKILL);
        }
        for path in mounts_below(self.home()) {
            let _ = umount2(&path, MntFlags::MNT_DETACH);
        }
        let _ = Command::new("ip").args(["link", "delete", &self.bridge]).stderr(Stdio::null()).status();
    }
}

/// Those started by one process have parts of one network of addresses.
fn configure(home: &Path, bridge: &str, number: u32) {
    let (tools, pid) = (image::tools(), std::process::id());
    let network = format!("10.{}.{}", 64 + (pid >> 8) % 64, pid % 256);
    let (first, last) = ((number % 4) * 64 + 2, (number % 4) * 64 + 62);
    fs::create_dir_all(home.join("cni")).expect("make a directory");
    let plugins = serde_json::json!({
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
                "ranges": [[{
                    "subnet": format!("{network}.0/24"),
                    "rangeStart": format!("{network}.{first}"),
                    "rangeEnd": format!("{network}.{last}"),
                    "gateway": format!("{network}.1"),
                }]],
            },
        }],
    });
    fs::write(home.join("cni/10-test.conflist"), plugins.to_string()).expect("write a network");
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
    bin_dir = "{tools}/cni/usr/lib/cni"
    conf_dir = "{home}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "{tools}/runc/usr/sbin/runc"
      SystemdCgroup = false
"#,
        home = home.display(),
        tools = tools.display(),
        pause = image::PAUSE,
    );
    fs::write(home.join("config.toml"), config).expect("write a configuration");
}

/// Shims of our containerd, which are told its socket.
fn processes_naming(socket: &Path) -> Vec<Pid> {
    let wanted = socket.display().to_string();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let names = |pid: &i32| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command.split(|byte| *byte == 0).any(|part| part == wanted.as_bytes())
    };
    pids.filter(names).map(Pid::from_raw).collect()
}

/// Mount points below a directory, innermost first.
pub fn mounts_below(path: &Path) -> Vec<PathBuf> {
    let mut below = mainstay_files::mountinfo::at_or_below(path).unwrap_or_default();
    below.retain(|point| point != path);
    below.reverse();
    below
}
