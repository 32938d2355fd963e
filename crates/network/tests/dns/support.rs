//! A running server, and ways to ask it.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use hickory_proto::op::Message;
use mainstay_network::{
    Protocol,
    catalogue::{Catalogue, Endpoint, HOLD, Key, Service, ServiceKind, ServicePort, Slice, SlicePort},
    dns::{Dns, DnsSettings, Upstreams},
};
use tokio::{net::UdpSocket, process::Command, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

pub const PATIENCE: Duration = Duration::from_secs(10);

pub struct Running {
    pub address: SocketAddr,
    pub catalogue: Arc<Catalogue>,
    pub upstreams: Upstreams,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// A loopback address that no other test run beside this one uses: a port that is free for TCP may be somebody's for
/// UDP.
pub fn own_address() -> Ipv4Addr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 128 | high, middle, low.max(1))
}

pub fn settings(upstreams: Vec<SocketAddr>) -> DnsSettings {
    DnsSettings {
        address: own_address(),
        port: 0,
        domain: "cluster.local".into(),
        alias_domain: "consul".into(),
        datacentre: "dc1".into(),
        upstreams,
    }
}

impl Running {
    pub async fn start(upstreams: Vec<SocketAddr>) -> Self {
        let catalogue = Arc::new(Catalogue::default());
        let dns = Dns::bind(settings(upstreams), catalogue.clone()).await.expect("bind");
        let (address, upstreams, stop) = (dns.address(), dns.upstreams(), CancellationToken::new());
        let task = tokio::spawn(dns.run(stop.clone()));
        Self { address, catalogue, upstreams, stop, task }
    }

    /// Stops it, which it must do without delay.
    pub async fn stop(self) {
        self.stop.cancel();
        timeout(Duration::from_secs(2), self.task).await.expect("stops when asked to").expect("did not panic");
    }

    pub fn add(&self, name: &str, kind: ServiceKind, backends: impl IntoIterator<Item = [u8; 4]>) {
        let (key, port) = (Key::new("default", name), 80);
        let service = Service {
            kind,
            ports: vec![ServicePort { name: "http".into(), protocol: Protocol::Tcp, port, node_port: None }],
            external_ips: Vec::new(),
            affinity: None,
            internal_local: false,
            external_local: false,
            hold: HOLD,
            through_user_space: false,
            publish_not_ready: false,
            has_other_proxy: false,
            tags: vec!["blue".into()],
        };
        let endpoint = |address: [u8; 4]| Endpoint {
            address: address.into(),
            ready: true,
            serving: true,
            terminating: false,
            node: None,
            hostname: None,
            hints: None,
        };
        let slice = Slice {
            service: name.into(),
            ports: vec![SlicePort { name: "http".into(), protocol: Protocol::Tcp, port: 8080 }],
            endpoints: backends.into_iter().map(endpoint).collect(),
            host: None,
        };
        self.catalogue.set_service(key, Some(service));
        self.catalogue.set_slice(Key::new("default", &format!("{name}-1")), Some(slice));
    }

    /// What `dig` prints, with one blank between words.
    pub async fn dig(&self, arguments: &str) -> String {
        let tools = std::env::var_os("MAINSTAY_TOOLS")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../.tools"), PathBuf::from);
        let dig = tools.join("dns-client/usr/bin/dig");
        assert!(dig.exists(), "no {}: run tools/test-deps first (or set MAINSTAY_TOOLS)", dig.display());
        let output = Command::new(dig)
            .env("LD_LIBRARY_PATH", tools.join("dns-client/libraries"))
            .args([format!("@{}", self.address.ip()), "-p".into(), self.address.port().to_string()])
            .args(["+tries=1", "+time=8", "+nocookie"])
            .args(arguments.split_whitespace())
            .output();
        let text = String::from_utf8(output.await.expect("run dig").stdout).expect("text");
        let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        lines.collect::<Vec<_>>().join("\n")
    }

    /// The lines of `dig +short`, sorted.
    pub async fn short(&self, arguments: &str) -> Vec<String> {
        let text = self.dig(&format!("+short {arguments}")).await;
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }

    /// Sends a packet by UDP; nothing if it gets no answer.
    pub async fn send(&self, packet: &[u8], patience: Duration) -> Option<Message> {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(self.address).await.unwrap();
        socket.send(packet).await.unwrap();
        let mut buffer = [0; 65_535];
        let length = timeout(patience, socket.recv(&mut buffer)).await.ok()?.unwrap();
        Some(Message::from_vec(&buffer[..length]).expect("an answer can be read"))
    }
}

/// A question for addresses.
pub fn question(id: u16, name: &str) -> Vec<u8> {
    let mut packet = id.to_be_bytes().to_vec();
    packet.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        packet.push(label.len() as u8);
        packet.extend_from_slice(label.as_bytes());
    }
    packet.extend([0, 0, 1, 0, 1]);
    packet
}
