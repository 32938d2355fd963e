//! A cluster of one: the real binary in a directory of its own, on a port the kernel picked.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use mainstay_testing::Daemon;
use tempfile::TempDir;

use super::{
    PATIENCE, SmallDisk,
    command::{Output, run},
};

/// What most people have.
const UMASK: &str = "0022";

pub struct Cluster {
    server: Daemon,
    /// Before the directory, which cannot be removed while it is mounted.
    disk: Option<SmallDisk>,
    dir: TempDir,
    url: String,
    parts: Parts,
    flags: Vec<String>,
    umask: &'static str,
    /// The binary, or a copy of it.
    program: PathBuf,
}

/// Which parts of the binary run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parts {
    /// The API and its controllers: pods are objects that nobody runs.
    Server,
    /// The machine runs pods, too. Takes root.
    ServerAndAgent,
}

impl Cluster {
    #[track_caller]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts with more flags.
    #[track_caller]
    pub fn start_with(flags: &[&str]) -> Self {
        Self::launch_in_new_directory(Parts::Server, UMASK, owned(flags), None)
    }

    /// A cluster in which pods really run. Everything they leave on the machine goes with it.
    #[track_caller]
    pub fn with_pods(flags: &[&str]) -> Self {
        Self::with_pods_and_umask(UMASK, flags)
    }

    /// Likewise, started by somebody with this umask.
    #[track_caller]
    pub fn with_pods_and_umask(umask: &'static str, flags: &[&str]) -> Self {
        // A test machine's disk may be nearly full without that being what is tested.
        let flags = [machine_flags(), owned(&["--evict-disk", "0"]), owned(flags)].concat();
        Self::launch_in_new_directory(Parts::ServerAndAgent, umask, flags, None)
    }

    /// Likewise, with the data directory on a file system of this size, whose room is looked after.
    #[track_caller]
    pub fn with_pods_on_disk(size: &str, flags: &[&str]) -> Self {
        Self::launch_in_new_directory(
            Parts::ServerAndAgent,
            UMASK,
            [machine_flags(), owned(flags)].concat(),
            Some(size),
        )
    }

    /// A cluster with pods whose program is a file of its own, which may be replaced, and whose port stays the same.
    #[track_caller]
    pub fn with_pods_of(program: &Path, flags: &[&str]) -> Self {
        let port =
            std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
        let flags = [machine_flags(), owned(&["--evict-disk", "0"]), owned(flags)].concat();
        let dir = tempfile::Builder::new().prefix("mainstay-test-").tempdir().expect("make a directory");
        let listen = format!("127.0.0.1:{port}");
        let mut server = launch(program, Parts::ServerAndAgent, UMASK, dir.path(), &listen, &flags);
        let url = server.wait_until_it_serves();
        let program = program.to_owned();
        Self { server, disk: None, dir, url, parts: Parts::ServerAndAgent, flags, umask: UMASK, program }
    }

    /// The file system of the data directory, if it has one of its own.
    pub fn disk(&self) -> Option<&SmallDisk> {
        self.disk.as_ref()
    }

    #[track_caller]
    fn launch_in_new_directory(parts: Parts, umask: &'static str, flags: Vec<String>, disk: Option<&str>) -> Self {
        let dir = tempfile::Builder::new().prefix("mainstay-test-").tempdir().expect("make a directory");
        let disk = disk.map(|size| {
            let data = dir.path().join("data");
            fs::create_dir(&data).expect("make a directory");
            SmallDisk::mount(&data, size)
        });
        let program = PathBuf::from(env!("CARGO_BIN_EXE_mainstay"));
        let mut server = launch(&program, parts, umask, dir.path(), "127.0.0.1:0", &flags);
        let url = server.wait_until_it_serves();
        Self { server, disk, dir, url, parts, flags, umask, program }
    }

    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Ends the server as a power cut would.
    #[track_caller]
    pub fn kill(&mut self) {
        self.server.kill();
    }

    /// Starts the server again, on the same data and the same port.
    #[track_caller]
    pub fn start_again(&mut self) {
        let address = self.url.trim_start_matches("https://").to_owned();
        self.server = launch(&self.program, self.parts, self.umask, self.dir.path(), &address, &self.flags);
        self.url = self.server.wait_until_it_serves();
    }

    /// From its next start on, this flag has this value.
    #[track_caller]
    pub fn set_flag(&mut self, flag: &str, value: &str) {
        let at = self.flags.iter().position(|known| known == flag).expect("the flag was given");
        self.flags[at + 1] = value.to_owned();
    }

    /// Asks the server to end, and returns how it did.
    #[track_caller]
    pub fn terminate(&mut self) -> ExitStatus {
        self.server.signal("TERM");
        self.server.wait()
    }

    /// Runs another command of the binary on this cluster's data.
    #[track_caller]
    pub fn mainstay(&self, command: &str, file: &str) -> Output {
        let mut program = Command::new(env!("CARGO_BIN_EXE_mainstay"));
        program.args([command, file, "--data-dir"]).arg(self.dir.path().join("data"));
        if command == "restore" {
            program.arg("--force");
        }
        run(program, &format!("mainstay {command} {file}"), "", PATIENCE)
    }

    /// Runs a command with any arguments on this cluster's data.
    #[track_caller]
    pub fn mainstay_with(&self, arguments: &[&str]) -> Output {
        let mut program = Command::new(env!("CARGO_BIN_EXE_mainstay"));
        program.args(arguments).arg("--data-dir").arg(self.data_dir());
        run(program, &format!("mainstay {}", arguments.join(" ")), "", PATIENCE)
    }

    /// Runs `mainstay image` on this cluster's data.
    #[track_caller]
    pub fn image(&self, arguments: &[&str]) -> Output {
        let mut program = Command::new(env!("CARGO_BIN_EXE_mainstay"));
        program.arg("image").args(arguments).arg("--data-dir").arg(self.data_dir());
        run(program, &format!("mainstay image {}", arguments.join(" ")), "", PATIENCE)
    }

    /// The same for a command that takes nothing else.
    #[track_caller]
    pub fn mainstay_alone(&self, command: &str) -> Output {
        let mut program = Command::new(env!("CARGO_BIN_EXE_mainstay"));
        program.args([command, "--data-dir"]).arg(self.data_dir());
        run(program, &format!("mainstay {command}"), "", PATIENCE)
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("data/admin.kubeconfig")
    }

    /// A client as anyone would make one from the administrator's kubeconfig.
    pub async fn client(&self) -> Client {
        let file = Kubeconfig::read_from(self.kubeconfig()).expect("read the kubeconfig");
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.expect("understand it");
        Client::try_from(config).expect("make a client")
    }

    /// A directory for the client's own files: caches, manifests.
    pub fn home(&self) -> &Path {
        self.dir.path()
    }

    /// Writes a file below [`Self::home`] and returns its path.
    pub fn file(&self, name: &str, content: &str) -> String {
        let path = self.dir.path().join(name);
        fs::create_dir_all(path.parent().expect("a file is in a directory")).expect("make a directory");
        fs::write(&path, content).expect("write a file");
        path.to_str().expect("temporary paths are UTF-8").to_owned()
    }

    /// What the server printed.
    pub fn log(&self) -> String {
        self.server.log()
    }
}

fn owned(flags: &[&str]) -> Vec<String> {
    flags.iter().map(|&flag| flag.to_owned()).collect()
}

/// Flags of a machine beside others on the same computer.
fn machine_flags() -> Vec<String> {
    // Clusters side by side on one machine must not share addresses.
    static STARTED: AtomicU32 = AtomicU32::new(0);
    let id = std::process::id() + STARTED.fetch_add(1, Ordering::Relaxed) * 3_200;
    let [pods, services] = [128, 28].map(|base| format!("10.{}.{}.0/22", base + (id >> 6) % 100, (id % 64) * 4));
    let flags = ["--agent-port", "0", "--node-name", "here", "--pod-range", &pods, "--service-range", &services];
    flags.map(str::to_owned).to_vec()
}

fn launch(program: &Path, parts: Parts, umask: &str, dir: &Path, listen: &str, flags: &[String]) -> Daemon {
    let parts = match parts {
        Parts::Server => "server",
        Parts::ServerAndAgent => "up",
    };
    let mut command = Command::new("sh");
    command
        .args(["-c", "umask \"$0\"; exec \"$@\"", umask])
        .arg(program)
        .args([parts, "--listen", listen, "--data-dir"])
        .arg(dir.join("data"))
        .args(flags);
    Daemon::spawn(command, &dir.join("server.log"))
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.server.exit_status().is_none() {
            self.server.kill();
        }
        if self.parts == Parts::ServerAndAgent {
            let mut down = Command::new(env!("CARGO_BIN_EXE_mainstay"));
            let down = down.arg("down").arg("--data-dir").arg(self.data_dir()).stdout(Stdio::null()).status();
            assert!(std::thread::panicking() || down.is_ok_and(|status| status.success()), "mainstay down failed");
        }
    }
}
