//! Real etcd servers, each in a folder of its own that goes with it.

use std::{
    fs,
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V3_4,
    V3_5,
}

pub fn tool(name: &str) -> PathBuf {
    mainstay_testing::tool(&format!("bin/{name}"))
}

pub struct Server {
    version: Version,
    scheme: &'static str,
    pub client_port: u16,
    args: Vec<String>,
    home: TempDir,
    child: Option<Child>,
}

impl Server {
    pub fn start(version: Version) -> Self {
        Self::start_with(version, "http", &[])
    }

    /// A single member that takes clients by `scheme`.
    pub fn start_with(version: Version, scheme: &'static str, more: &[String]) -> Self {
        let [client, peer] = free_ports();
        let mut server = Self::prepare(version, scheme, client, "one", peer, &format!("one=http://127.0.0.1:{peer}"));
        server.args.extend_from_slice(more);
        server.launch();
        server
    }

    /// A cluster of three members.
    pub fn start_three(version: Version) -> [Self; 3] {
        let ports: [u16; 6] = free_ports();
        let name = |index: usize| ["one", "two", "three"][index];
        let cluster: Vec<_> =
            (0..3).map(|index| format!("{}=http://127.0.0.1:{}", name(index), ports[3 + index])).collect();
        let cluster = cluster.join(",");
        [0, 1, 2].map(|index| {
            let mut server = Self::prepare(version, "http", ports[index], name(index), ports[3 + index], &cluster);
            server.launch();
            server
        })
    }

    fn prepare(version: Version, scheme: &'static str, client: u16, name: &str, peer: u16, cluster: &str) -> Self {
        let home = tempfile::tempdir().expect("a folder");
        let args = [
            ("--name", name.to_owned()),
            ("--data-dir", home.path().join("data").display().to_string()),
            ("--listen-client-urls", format!("{scheme}://127.0.0.1:{client}")),
            ("--advertise-client-urls", format!("{scheme}://127.0.0.1:{client}")),
            ("--listen-peer-urls", format!("http://127.0.0.1:{peer}")),
            ("--initial-advertise-peer-urls", format!("http://127.0.0.1:{peer}")),
            ("--initial-cluster", cluster.to_owned()),
            ("--logger", "zap".to_owned()),
        ];
        let mut args: Vec<String> = args.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect();
        if version == Version::V3_5 {
            args.push("--unsafe-no-fsync".into());
        }
        Self { version, scheme, client_port: client, args, home, child: None }
    }

    /// Starts it, again if need be, on the data and ports it had.
    pub fn launch(&mut self) {
        let program = tool(match self.version {
            Version::V3_4 => "etcd-3.4",
            Version::V3_5 => "etcd-3.5",
        });
        let log = fs::OpenOptions::new().create(true).append(true).open(self.home.path().join("log")).expect("log");
        let child = Command::new(program)
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("log"))
            .stderr(log)
            .spawn();
        self.child = Some(child.expect("etcd starts"));
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("killed");
            child.wait().expect("gone");
        }
    }

    /// `STOP` leaves it on its feet but deaf, `CONT` wakes it.
    pub fn signal(&self, signal: &str) {
        let pid = self.child.as_ref().expect("running").id().to_string();
        let sent = Command::new("kill").args([&format!("-{signal}"), &pid]).status().expect("kill runs");
        assert!(sent.success());
        if signal == "STOP" {
            // The signal is sent before every thread has met it; a deaf server answers nothing any more.
            while !all_stopped(&pid) {
                std::thread::yield_now();
            }
        }
    }

    pub fn url(&self) -> String {
        let scheme = if self.scheme == "http" { "etcd" } else { self.scheme };
        format!("{scheme}://127.0.0.1:{}", self.client_port)
    }

    /// Takes clients at another port (a free one) from the next launch on; returns the one it had.
    pub fn listen_at(&mut self, port: Option<u16>) -> u16 {
        let had = self.client_port;
        self.client_port = port.unwrap_or_else(|| {
            let [port] = free_ports();
            port
        });
        for arg in &mut self.args {
            *arg = arg.replace(&format!("127.0.0.1:{had}"), &format!("127.0.0.1:{}", self.client_port));
        }
        had
    }

    /// Loses all data.
    pub fn forget(&self) {
        fs::remove_dir_all(self.home.path().join("data")).expect("removed");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.home.path().join("log")).unwrap_or_default();
            let tail: Vec<_> = log.lines().rev().take(15).collect();
            eprintln!("last words of etcd on port {}:", self.client_port);
            tail.iter().rev().for_each(|line| eprintln!("  {line}"));
        }
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Ports that nobody has now. They are held together while being chosen, so they differ.
fn free_ports<const N: usize>() -> [u16; N] {
    let held: Vec<_> = (0..N).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
    std::array::from_fn(|index| held[index].local_addr().expect("an address").port())
}

fn all_stopped(pid: &str) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a running process");
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    })
}
