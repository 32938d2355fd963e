//! A real etcd, of one member or of three.

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
    /// Its name, and the names and ports of all members.
    name: String,
    members: String,
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
        let (name, members) = ("default".to_owned(), format!("default=http://127.0.0.1:{peer}"));
        let child = launch(within(namespace.as_deref(), program), &dir, [client, peer], &name, &members);
        let etcd = Self { program, namespace, child, dir, client, peer, name, members };
        eventually("etcd answers", || etcd.answers().then_some(()));
        etcd
    }

    /// The members of one etcd.
    #[track_caller]
    pub fn start_three(program: &'static str) -> [Self; 3] {
        let ports = [0; 3].map(|_| [free_port(), free_port()]);
        let members = ports.iter().enumerate().map(|(n, [_, peer])| format!("m{n}=http://127.0.0.1:{peer}"));
        let members = members.collect::<Vec<_>>().join(",");
        let mut n = 0;
        let started = ports.map(|[client, peer]| {
            let dir = tempfile::Builder::new().prefix("mainstay-etcd-").tempdir().expect("make a directory");
            let name = format!("m{n}");
            n += 1;
            let child = launch(within(None, program), &dir, [client, peer], &name, &members);
            Self { program, namespace: None, child, dir, client, peer, name, members: members.clone() }
        });
        for member in &started {
            eventually("etcd answers", || member.answers().then_some(()));
        }
        started
    }

    /// `--store` for all members.
    pub fn flag_for(members: &[Self]) -> String {
        let all: Vec<String> = members.iter().map(|member| format!("127.0.0.1:{}", member.client)).collect();
        format!("etcd://{}", all.join(","))
    }

    /// Whether it is the leader among the members.
    pub fn is_leader(&self) -> bool {
        let status = self.ctl(&["endpoint", "status", "-w", "json"]).unwrap_or_default();
        let status: serde_json::Value = serde_json::from_str(&status).unwrap_or_default();
        let of = |field: &serde_json::Value| field.as_u64();
        let status = &status[0]["Status"];
        of(&status["leader"]).is_some() && of(&status["leader"]) == of(&status["header"]["member_id"])
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
        self.launch_again();
        eventually("etcd answers again", || self.answers().then_some(()));
    }

    /// As [`start_again`](Self::start_again), without waiting for it to answer: it may need the other members for that.
    pub fn launch_again(&mut self) {
        let etcd = within(self.namespace.as_deref(), self.program);
        self.child = launch(etcd, &self.dir, [self.client, self.peer], &self.name, &self.members);
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

fn launch(mut etcd: Command, dir: &TempDir, [client, peer]: [u16; 2], name: &str, members: &str) -> Child {
    let (client, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
    etcd.arg("--data-dir")
        .arg(dir.path().join("etcd"))
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--name", name, "--initial-cluster", members, "--unsafe-no-fsync"])
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
