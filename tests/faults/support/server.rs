//! The real binary, and ways to end it.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
};

use mainstay_testing::Daemon;
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
    daemon: Daemon,
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
        let daemon = launch(data, address, &flags, log.path());
        let mut server = Self { daemon, data: data.to_owned(), flags, address, log, _data: None };
        server.wait_until_it_serves();
        server
    }

    #[track_caller]
    fn wait_until_it_serves(&mut self) {
        let url = self.daemon.wait_until_it_serves();
        self.address = url.trim_start_matches("https://").parse().expect("an address");
    }

    /// Starts it again after its end, on the same data and port.
    #[track_caller]
    pub fn start_again(&mut self) {
        self.daemon = launch(&self.data, self.address, &self.flags, self.log.path());
        self.wait_until_it_serves();
    }

    /// Ends it as a power cut would.
    #[track_caller]
    pub fn kill(&mut self) {
        self.daemon.kill();
    }

    #[track_caller]
    pub fn signal(&self, name: &str) {
        self.daemon.signal(name);
    }

    /// Waits for it to end by itself.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        self.daemon.wait()
    }

    #[track_caller]
    pub fn is_running(&mut self) -> bool {
        self.daemon.exit_status().is_none()
    }

    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Everything it printed and logged since its last start.
    pub fn log(&self) -> String {
        self.daemon.log()
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
        assert!(self.is_running(), "the server ended:\n{}", self.log());
        assert_eq!(self.stranger().get("/livez").code, 200);
        self.client().get("/api/v1/namespaces/default").granted();
        let output = self.log();
        assert!(!output.contains("panicked"), "{output}");
    }
}

fn launch(data: &Path, listen: SocketAddr, flags: &[String], log: &Path) -> Daemon {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mainstay"));
    command.args(["server", "--listen", &listen.to_string(), "--data-dir"]).arg(data).args(flags);
    Daemon::spawn(command, &log.join("server.log"))
}
