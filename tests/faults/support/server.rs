//! The real binary, and ways to end it.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use tempfile::TempDir;

use super::{Authority, Client, Identity};
use crate::harness::{
    PATIENCE,
    command::{self, Output},
};

/// A directory that goes away with the test.
pub fn data_dir() -> TempDir {
    tempfile::Builder::new().prefix("mainstay-faults-").tempdir().expect("make a directory")
}

/// Runs the binary to its end.
#[track_caller]
pub fn mainstay(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mainstay"));
    command.args(args).env("NO_COLOR", "1");
    command::run(command, &format!("mainstay {}", args.join(" ")), "", PATIENCE)
}

pub struct Server {
    child: Child,
    data: PathBuf,
    flags: Vec<String>,
    address: SocketAddr,
    log: TempDir,
    _data: Option<TempDir>,
}

impl Server {
    #[track_caller]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    #[track_caller]
    pub fn start_with(flags: &[&str]) -> Self {
        let dir = data_dir();
        let mut server = Self::start_in(&dir.path().join("data"), flags);
        server._data = Some(dir);
        server
    }

    /// Starts on a data directory that someone else looks after.
    #[track_caller]
    pub fn start_in(data: &Path, flags: &[&str]) -> Self {
        let log = data_dir();
        let flags: Vec<String> = flags.iter().map(|f| (*f).to_owned()).collect();
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let child = launch(data, address, &flags, log.path());
        let mut server = Self { child, data: data.to_owned(), flags, address, log, _data: None };
        server.await_start();
        server
    }

    #[track_caller]
    fn await_start(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let said = self.said();
            if said.contains("Ctrl-C") {
                let url = said.lines().find_map(|line| line.trim().strip_prefix("API")).expect("an address").trim();
                self.address = url.trim_start_matches("https://").parse().expect("an address");
                return;
            }
            if let Some(status) = self.child.try_wait().expect("ask for the server's state") {
                panic!("the server ended with {status}:\n{said}");
            }
            assert!(Instant::now() < deadline, "the server did not start:\n{said}");
            std::thread::sleep(Duration::from_millis(3));
        }
    }

    /// Starts it again after its end, on the same data and port.
    #[track_caller]
    pub fn start_again(&mut self) {
        self.child = launch(&self.data, self.address, &self.flags, self.log.path());
        self.await_start();
    }

    /// Ends it as a power cut would.
    #[track_caller]
    pub fn kill(&mut self) {
        self.child.kill().expect("kill the server");
        self.child.wait().expect("wait for the server's end");
    }

    #[track_caller]
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args(["-s", name, &self.pid().to_string()]).status();
        assert!(status.expect("run kill").success(), "cannot send SIG{name}");
    }

    /// Waits for it to end by itself.
    #[track_caller]
    pub fn ended_within(&mut self, patience: Duration) -> ExitStatus {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.child.try_wait().expect("ask for the server's state") {
                return status;
            }
            assert!(Instant::now() < deadline, "still running after {patience:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[track_caller]
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("ask for the server's state").is_none()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Everything it printed and logged since its last start.
    pub fn said(&self) -> String {
        fs::read_to_string(self.log.path().join("server.log")).unwrap_or_default()
    }

    /// The most memory it ever had, in MiB.
    #[track_caller]
    pub fn peak_memory(&self) -> u64 {
        self.memory("VmHWM:")
    }

    /// What it has now, in MiB.
    #[track_caller]
    pub fn resident_memory(&self) -> u64 {
        self.memory("VmRSS:")
    }

    #[track_caller]
    fn memory(&self, field: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("the server lives");
        let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("a size");
        line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") / 1024
    }

    fn pki(&self, name: &str) -> String {
        let path = self.data.join("pki").join(name);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// A client with the administrator's certificate.
    pub fn client(&self) -> Client {
        self.client_as(&Identity { certificate: self.pki("admin.crt"), key: self.pki("admin.key") })
    }

    pub fn client_as(&self, identity: &Identity) -> Client {
        Client::new(self.address, &self.pki("ca.crt"), Some(identity))
    }

    /// A client without any credentials.
    pub fn stranger(&self) -> Client {
        Client::new(self.address, &self.pki("ca.crt"), None)
    }

    /// The cluster's own CA.
    pub fn authority(&self) -> Authority {
        Authority::of(&self.pki("ca.crt"), &self.pki("ca.key"))
    }

    /// It runs, and answers a stranger and the administrator.
    #[track_caller]
    pub fn assert_well(&mut self) {
        assert!(self.is_running(), "the server ended:\n{}", self.said());
        assert_eq!(self.stranger().get("/livez").code, 200);
        self.client().get("/api/v1/namespaces/default").granted();
        let said = self.said();
        assert!(!said.contains("panicked"), "{said}");
    }
}

fn launch(data: &Path, listen: SocketAddr, flags: &[String], log: &Path) -> Child {
    let log = fs::File::create(log.join("server.log")).expect("make a log file");
    Command::new(env!("CARGO_BIN_EXE_mainstay"))
        .args(["server", "--listen", &listen.to_string(), "--data-dir"])
        .arg(data)
        .args(flags)
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .stderr(log.try_clone().expect("share the log file"))
        .stdout(log)
        .spawn()
        .expect("start the server")
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let said = self.said();
            let lines: Vec<&str> = said.lines().collect();
            eprintln!("the server's log ends with:");
            lines[lines.len().saturating_sub(40)..].iter().for_each(|line| eprintln!("  {line}"));
        }
    }
}
