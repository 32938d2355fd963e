//! A containerd of the test's own: its directories, socket, bridge and addresses. Dropping it leaves nothing behind.

use std::{
    fs,
    net::Ipv4Addr,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use mainstay_runtime::{
    Runtime,
    cgroup::Cgroup,
    cri::{Cri, CriSettings},
    suite::{self, image},
};
use nix::{
    mount::{MntFlags, umount2},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use parking_lot::Mutex;

pub struct Containerd {
    home: tempfile::TempDir,
    pub instance: String,
    bridge: String,
    process: Mutex<Option<Child>>,
    pub runtime: Arc<Cri>,
}

impl Containerd {
    pub async fn start() -> Self {
        assert!(nix::unistd::geteuid().is_root(), "containerd wants root");
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Relaxed);
        let pid = std::process::id();
        let home = tempfile::Builder::new().prefix("cri-").tempdir_in("/tmp").expect("make a directory");
        let instance = format!("mainstay-cri-{pid}-{number}");
        let bridge = format!("mc{pid}-{number}");
        assert!(bridge.len() <= 15, "{bridge} is the name of an interface");
        configure(home.path(), &bridge, Ipv4Addr::new(10, 64 + (pid >> 8) as u8 % 128, pid as u8, 0).octets(), number);
        let socket = home.path().join("containerd.sock");
        let runtime = Cri::connect(&format!("unix://{}", socket.display()), CriSettings::new(&instance));
        let runtime = Arc::new(runtime.expect("the address is fine"));
        let containerd = Self { home, instance, bridge, process: Mutex::default(), runtime };
        containerd.resume().await;
        containerd.import().await;
        containerd
    }

    pub fn socket(&self) -> PathBuf {
        self.home.path().join("containerd.sock")
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }

    pub fn bridge(&self) -> &str {
        &self.bridge
    }

    pub fn another(&self, instance: &str) -> Cri {
        Cri::connect(&self.socket().display().to_string(), CriSettings::new(instance)).expect("the address is fine")
    }

    /// Starts the daemon and waits until it answers.
    pub async fn resume(&self) {
        let tools = image::tools();
        let log = fs::OpenOptions::new().create(true).append(true).open(self.home.path().join("log")).expect("a log");
        let path = format!(
            "{}:{}:/usr/sbin:/usr/bin:/sbin:/bin",
            tools.join("containerd/usr/bin").display(),
            tools.join("runc/usr/sbin").display()
        );
        let child = Command::new(tools.join("containerd/usr/bin/containerd"))
            .arg("--config")
            .arg(self.home.path().join("config.toml"))
            .env("PATH", path)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .process_group(0)
            .spawn()
            .expect("run containerd: run tools/test-deps first");
        *self.process.lock() = Some(child);
        let deadline = Instant::now() + Duration::from_secs(60);
        while let Err(error) = self.runtime.about().await {
            assert!(Instant::now() < deadline, "containerd does not answer: {error}\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Ends the daemon; containers go on.
    pub fn kill(&self) {
        if let Some(mut child) = self.process.lock().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.home.path().join("log")).unwrap_or_default()
    }

    async fn import(&self) {
        let archive = self.home.path().join("images.tar");
        image::write(&archive).expect("write images");
        let archive = archive.to_str().expect("plain letters").to_owned();
        let output = self.ctr(&["images", "import", &archive]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // The CRI part of containerd hears of it a little later.
        let deadline = Instant::now() + Duration::from_secs(30);
        for name in [image::PLAIN, image::CONFIGURED, image::PAUSE] {
            while self.runtime.images().find(name).await.expect("ask for an image").is_none() {
                assert!(Instant::now() < deadline, "{name} does not appear\n{}", self.log());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    pub fn ctr(&self, arguments: &[&str]) -> std::process::Output {
        let program = image::tools().join("containerd/usr/bin/ctr");
        let mut command = Command::new(program);
        command.arg("--address").arg(self.socket()).args(["--namespace", "k8s.io"]).args(arguments);
        command.output().expect("run ctr")
    }
}

fn configure(home: &Path, bridge: &str, [a, b, c, _]: [u8; 4], number: u32) {
    let tools = image::tools();
    let (from, to) = ((number as u8 % 4) * 64 + 2, (number as u8 % 4) * 64 + 62);
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
                "ranges": [[{
                    "subnet": format!("{a}.{b}.{c}.0/24"),
                    "rangeStart": format!("{a}.{b}.{c}.{from}"),
                    "rangeEnd": format!("{a}.{b}.{c}.{to}"),
                    "gateway": format!("{a}.{b}.{c}.1"),
                }]],
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

#[async_trait]
impl suite::Subject for Containerd {
    fn runtime(&self) -> Arc<dyn Runtime> {
        self.runtime.clone()
    }

    async fn reopen(&self) -> Arc<dyn Runtime> {
        Arc::new(self.another(&self.instance))
    }

    fn image(&self) -> String {
        image::PLAIN.to_owned()
    }

    fn scratch(&self) -> PathBuf {
        self.home.path().join("scratch")
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the end of containerd's log:\n{}", tail(&self.log()));
        }
        if self.process.lock().is_some() {
            let (socket, instance) = (self.socket(), self.instance.clone());
            // Through the runtime first: it gives back what is outside of its directories.
            let removed = std::thread::spawn(move || remove_all(&socket, &instance)).join();
            if !matches!(removed, Ok(true)) {
                eprintln!("some pods of the test could not be removed in order");
            }
        }
        self.kill();
        for pid in processes_naming(&self.socket()) {
            let _ = kill(pid, Signal::SIGKILL);
        }
        let _ = Cgroup::at(&self.instance).kill_all(Duration::from_secs(5));
        let _ = Cgroup::at(&self.instance).remove();
        for path in mounts_below(self.home.path()) {
            let _ = umount2(&path, MntFlags::MNT_DETACH);
        }
        let _ = Command::new("ip").args(["link", "delete", &self.bridge]).stderr(Stdio::null()).status();
    }
}

fn remove_all(socket: &Path, instance: &str) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a tokio runtime");
    let all = async {
        let cri = Cri::connect(&socket.display().to_string(), CriSettings::new(instance)).ok()?;
        for sandbox in cri.observe(None).await.ok()?.sandboxes {
            cri.remove_sandbox(&sandbox.id).await.ok()?;
        }
        Some(())
    };
    runtime
        .block_on(async { tokio::time::timeout(Duration::from_secs(60), all).await.is_ok_and(|done| done.is_some()) })
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

/// Innermost first.
pub fn mounts_below(path: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = text.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    let mut below: Vec<_> = points.filter(|point| point.starts_with(path)).collect();
    below.sort();
    below.reverse();
    below
}

fn tail(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}
