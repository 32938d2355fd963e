//! A real etcd of one member.

use std::{
    net::TcpListener,
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;

use super::{eventually, tool};

pub struct Etcd {
    program: &'static str,
    /// The network namespace it runs in, if not the tests' own.
    namespace: Option<String>,
    child: Child,
    dir: TempDir,
    client: u16,
    peer: u16,
}

impl Etcd {
    /// `program` is as in the tools: `bin/etcd-3.4`.
    #[track_caller]
    pub fn start(program: &'static str) -> Self {
        Self::start_within(program, None)
    }

    /// On the loopback interface of a network namespace.
    #[track_caller]
    pub fn start_within(program: &'static str, namespace: Option<String>) -> Self {
        let dir = tempfile::Builder::new().prefix("mainstay-etcd-").tempdir().expect("make a directory");
        let (client, peer) = (free_port(), free_port());
        let child = launch(within(namespace.as_deref(), program), &dir, client, peer);
        let etcd = Self { program, namespace, child, dir, client, peer };
        eventually("etcd answers", || etcd.answers().then_some(()));
        etcd
    }

    pub fn flag(&self) -> String {
        format!("etcd://127.0.0.1:{}", self.client)
    }

    /// A file for the keys that all servers on it need; the first server makes it.
    pub fn key_file(&self) -> String {
        self.dir.path().join("encryption-config.yaml").display().to_string()
    }

    /// Where its files are.
    pub fn data_dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    fn answers(&self) -> bool {
        self.ctl(&["endpoint", "health"]).is_some()
    }

    /// What etcdctl prints, if it succeeds.
    pub fn ctl(&self, args: &[&str]) -> Option<String> {
        let output = within(self.namespace.as_deref(), "bin/etcdctl-3.4")
            .arg(format!("--endpoints=http://127.0.0.1:{}", self.client))
            .args(["--dial-timeout=1s", "--command-timeout=2s"])
            .args(args)
            .env("ETCDCTL_API", "3")
            .output()
            .expect("run etcdctl");
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    #[track_caller]
    pub fn kill(&mut self) {
        self.child.kill().expect("kill etcd");
        self.child.wait().expect("wait for etcd's end");
    }

    /// Starts it again after a kill, with the same data and address.
    #[track_caller]
    pub fn start_again(&mut self) {
        self.child = launch(within(self.namespace.as_deref(), self.program), &self.dir, self.client, self.peer);
        eventually("etcd answers again", || self.answers().then_some(()));
    }

    /// `STOP` and `CONT`.
    #[track_caller]
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status();
        assert!(status.expect("run kill").success(), "cannot send SIG{name}");
        if name == "STOP" {
            // The signal is sent before every thread has met it.
            eventually("etcd is deaf", || self.is_stopped().then_some(()));
        }
    }

    fn is_stopped(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("a running process");
        threads.flatten().all(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
        })
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("an address").port()
}

/// A tool, in a network namespace if one is named.
fn within(namespace: Option<&str>, program: &str) -> Command {
    let Some(namespace) = namespace else { return Command::new(tool(program)) };
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{namespace}")).arg(tool(program));
    command
}

fn launch(mut etcd: Command, dir: &TempDir, client: u16, peer: u16) -> Child {
    let (client, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
    etcd.arg("--data-dir")
        .arg(dir.path().join("etcd"))
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}"), "--unsafe-no-fsync"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("start etcd")
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
