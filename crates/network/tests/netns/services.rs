//! A machine with pods behind Services, and a neighbour as a client outside the cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use mainstay_network::{
    Bridge, Protocol, Settings,
    services::{
        Drift, KernelProxy, KernelSettings,
        frontend::{BackendPool, Frontend, WithoutBackends},
    },
};
use mainstay_testing::tool;
use tokio::sync::Mutex;

use super::{Netns, machine_and_neighbour};

pub const MACHINE: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 1);
pub const NEIGHBOUR: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 2);
pub const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);

/// How long a silence is taken for one.
const SILENCE: Duration = Duration::from_millis(700);

pub fn tcp(address: impl Into<Option<Ipv4Addr>>, port: u16) -> Frontend {
    Frontend { address: address.into(), protocol: Protocol::Tcp, port }
}

pub fn udp(address: impl Into<Option<Ipv4Addr>>, port: u16) -> Frontend {
    Frontend { protocol: Protocol::Udp, ..tcp(address, port) }
}

pub fn pool(backends: impl IntoIterator<Item = SocketAddrV4>) -> BackendPool {
    BackendPool {
        backends: backends.into_iter().collect::<BTreeSet<_>>().into_iter().collect(),
        affinity: None,
        masquerade: false,
        through_user_space: false,
        without_backends: WithoutBackends::Reject,
        internal: None,
        terminating: Vec::new(),
    }
}

/// The kernel's side of one machine, used inside its namespace.
#[derive(Clone)]
pub struct Rules(Arc<Mutex<KernelProxy>>);

impl Rules {
    pub fn new(settings: KernelSettings) -> Self {
        Self(Arc::new(Mutex::new(KernelProxy::new(settings))))
    }

    pub fn replace(&self, machine: &Netns, frontends: impl IntoIterator<Item = (Frontend, BackendPool)>) {
        let (kernel, frontends) = (self.0.clone(), frontends.into_iter().collect());
        machine.run_async(move || async move { kernel.lock().await.replace(frontends).await.unwrap() });
    }

    pub fn apply(&self, machine: &Netns, changes: impl IntoIterator<Item = (Frontend, Option<BackendPool>)>) {
        let (kernel, changes): (_, BTreeMap<_, _>) = (self.0.clone(), changes.into_iter().collect());
        machine.run_async(move || async move { kernel.lock().await.apply(changes).await.unwrap() });
    }

    pub fn reconcile(&self, machine: &Netns) -> Drift {
        let kernel = self.0.clone();
        machine.run_async(move || async move { kernel.lock().await.reconcile().await.unwrap() })
    }
}

pub fn settings(instance: &str, services: &str) -> KernelSettings {
    let pods = "10.244.0.0/16".parse().unwrap();
    KernelSettings { instance: instance.into(), services: services.parse().unwrap(), pods, proxy_port: 9 }
}

pub struct TestCluster {
    pub machine: Netns,
    pub neighbour: Netns,
    pub pods: Vec<Netns>,
    pub addresses: Vec<Ipv4Addr>,
    pub rules: Rules,
    _directory: tempfile::TempDir,
}

impl TestCluster {
    /// With pods that serve TCP and UDP at port 80, saying who they are and as whom they see the client.
    pub fn new(count: usize) -> Self {
        Self::with(count, settings("mainstay", "10.96.0.0/16"))
    }

    pub fn with(count: usize, settings: KernelSettings) -> Self {
        let (machine, neighbour) = machine_and_neighbour(1500);
        let pods: Vec<Netns> = (0..count).map(|_| Netns::new()).collect();
        let paths: Vec<PathBuf> = pods.iter().map(|pod| pod.path.clone()).collect();
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().to_owned();
        let addresses: Vec<Ipv4Addr> = machine.run_async(move || async move {
            let cluster = "10.244.0.0/16".parse().unwrap();
            let bridge = Bridge::new(Settings { instance: "mainstay".into(), directory: own, cluster }).unwrap();
            bridge.set_range("10.244.3.0/24".parse().unwrap()).await.unwrap();
            let mut addresses = Vec::new();
            for (n, path) in paths.iter().enumerate() {
                addresses.push(bridge.attach(&format!("pod-{n}"), path, &[]).await.unwrap());
            }
            addresses
        });
        for (pod, address) in pods.iter().zip(&addresses) {
            serve(pod, *address, 80);
        }
        Self { machine, neighbour, pods, addresses, rules: Rules::new(settings), _directory: directory }
    }

    pub fn backends(&self, which: impl IntoIterator<Item = usize>) -> Vec<SocketAddrV4> {
        which.into_iter().map(|n| SocketAddrV4::new(self.addresses[n], 80)).collect()
    }
}

/// Answers with its own address and that of the client: to every TCP connection at once and to each line, and to
/// datagrams.
pub fn serve(place: &Netns, own: Ipv4Addr, port: u16) {
    place.run(move || {
        let listener = TcpListener::bind((own, port)).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                std::thread::spawn(move || {
                    let Ok(peer) = stream.peer_addr() else { return };
                    let answer = format!("{own} {}\n", peer.ip());
                    let mut line = [0; 100];
                    while stream.write_all(answer.as_bytes()).is_ok() {
                        if !matches!(stream.read(&mut line), Ok(1..)) {
                            return;
                        }
                    }
                });
            }
        });
        let socket = UdpSocket::bind((own, port)).unwrap();
        std::thread::spawn(move || {
            let mut datagram = [0; 100];
            while let Ok((_, peer)) = socket.recv_from(&mut datagram) {
                let _ = socket.send_to(format!("{own} {}\n", peer.ip()).as_bytes(), peer);
            }
        });
    });
}

/// What an echo server answers: its own address, and the client's address as it sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EchoReply {
    pub by: Ipv4Addr,
    pub to: Ipv4Addr,
}

fn answer(text: &str) -> io::Result<EchoReply> {
    let parsed =
        text.trim().split_once(' ').and_then(|(by, to)| Some(EchoReply { by: by.parse().ok()?, to: to.parse().ok()? }));
    parsed.ok_or_else(|| io::Error::other(format!("answered {text:?}")))
}

pub fn read(stream: &mut TcpStream) -> io::Result<EchoReply> {
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(b"\n") {
        stream.read_exact(&mut byte)?;
        text.extend(byte);
    }
    answer(&String::from_utf8_lossy(&text))
}

pub fn connect(to: SocketAddrV4, patience: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to.into(), patience)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    Ok(stream)
}

impl Netns {
    /// Asks over a TCP connection of its own.
    pub fn ask_tcp(&self, address: Ipv4Addr, port: u16) -> io::Result<EchoReply> {
        self.run(move || read(&mut connect(SocketAddrV4::new(address, port), Duration::from_secs(10))?))
    }

    /// As before, with little patience.
    pub fn try_tcp(&self, address: Ipv4Addr, port: u16) -> io::Result<EchoReply> {
        self.run(move || read(&mut connect(SocketAddrV4::new(address, port), SILENCE)?))
    }

    /// Asks with a datagram from a port of its own.
    pub fn ask_udp(&self, address: Ipv4Addr, port: u16) -> io::Result<EchoReply> {
        self.run(move || {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.connect((address, port))?;
            exchange(&socket)
        })
    }
}

pub fn exchange(socket: &UdpSocket) -> io::Result<EchoReply> {
    socket.set_read_timeout(Some(SILENCE))?;
    socket.send(b"who are you?")?;
    let mut text = [0; 100];
    let length = socket.recv(&mut text)?;
    answer(&String::from_utf8_lossy(&text[..length]))
}

/// A program of the machine, or `nft` as `tools/test-deps` fetches it.
fn program(name: &str) -> std::process::Command {
    if name != "nft" {
        return std::process::Command::new(name);
    }
    let mut program = std::process::Command::new(tool("nftables/usr/sbin/nft"));
    program.env("LD_LIBRARY_PATH", tool("nftables/libraries"));
    program
}

/// Runs a program in a namespace. What it printed.
pub fn command(place: &Netns, line: &str) -> String {
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    place.run(move || {
        let output = program(&words[0]).args(&words[1..]).output();
        let output = output.unwrap_or_else(|error| panic!("these tests need {}: {error}", words[0]));
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    })
}
