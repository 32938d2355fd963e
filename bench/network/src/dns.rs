//! DNS: queries per second for names that exist and names that do not, against a bare UDP echo of the same answers'
//! size and against Unbound with the same names. `dnsperf` asks all of them, in turns, so that a noisy moment of the
//! machine meets everybody.

use std::{
    fmt::Write as _,
    net::{SocketAddr, SocketAddrV4, TcpListener, UdpSocket},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use clap::Args;
use mainstay_network::{
    Protocol,
    catalogue::{Catalogue, HOLD, Key, Service, ServiceKind, ServicePort},
    dns::{Dns, DnsSettings},
};
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

#[derive(Debug, Args)]
pub struct Options {
    /// Where tools/test-deps put dnsperf and Unbound
    #[arg(long, env = "MAINSTAY_TOOLS", value_name = "DIR", default_value = ".tools")]
    tools: PathBuf,
    /// Number of Services
    #[arg(long, default_value_t = 10_000)]
    services: usize,
    /// How often each server is measured
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long each time
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Queries in flight
    #[arg(long, default_value_t = 200)]
    outstanding: usize,
}

/// A server, and its results per round.
struct Peer {
    name: &'static str,
    address: SocketAddr,
    hits: Vec<f64>,
    misses: Vec<f64>,
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let questions = |file: &str, prefix: &str| {
        let path = directory.path().join(file);
        let text: String = (0..options.services).map(|number| format!("{} A\n", name(prefix, number))).collect();
        std::fs::write(&path, text).map(|()| path)
    };
    let (hits, misses) = (questions("hits", "service")?, questions("misses", "nothing")?);

    let runtime = tokio::runtime::Runtime::new()?;
    let stop = CancellationToken::new();
    let ours = runtime.block_on(start_ours(options.services, &stop))?;
    let unbound = Unbound::start(options, &directory)?;
    let (echo_hit, echo_miss) = (echo(answer_size(ours, "service")?)?, echo(answer_size(ours, "nothing")?)?);

    let peer = |name, address| Peer { name, address, hits: Vec::new(), misses: Vec::new() };
    let mut peers = [peer("mainstay", ours), peer("bare echo", echo_hit), peer("unbound", unbound.address)];
    for _ in 0..options.rounds {
        for peer in &mut peers {
            peer.hits.push(dnsperf(options, peer.address, &hits)?);
            let address = if peer.name == "bare echo" { echo_miss } else { peer.address };
            peer.misses.push(dnsperf(options, address, &misses)?);
        }
    }
    report(options, &mut peers);
    stop.cancel();
    Ok(())
}

fn report(options: &Options, peers: &mut [Peer; 3]) {
    println!(
        "DNS, {} Services, dnsperf with {} outstanding, median of {} rounds of {} s (least to most), questions/s:",
        options.services, options.outstanding, options.rounds, options.seconds
    );
    let medians = peers.each_mut().map(|peer| {
        let (hits, misses) = (Spread::from_rates(&mut peer.hits), Spread::from_rates(&mut peer.misses));
        println!("  {:<10} hits {hits}   misses {misses}", peer.name);
        (hits.median, misses.median)
    });
    let [ours, echo, unbound] = medians;
    let percent = |part: f64, whole: f64| 100.0 * part / whole;
    println!("  of the echo:   hits {:.0} %, misses {:.0} %", percent(ours.0, echo.0), percent(ours.1, echo.1));
    println!("  of unbound:    hits {:.0} %, misses {:.0} %", percent(ours.0, unbound.0), percent(ours.1, unbound.1));
    println!("  misses of hits: {:.0} %", percent(ours.1, ours.0));
}

struct Spread {
    least: f64,
    median: f64,
    most: f64,
}

impl Spread {
    fn from_rates(rates: &mut [f64]) -> Self {
        rates.sort_by(f64::total_cmp);
        Self { least: rates[0], median: rates[rates.len() / 2], most: rates[rates.len() - 1] }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:>7.0} ({:.0} to {:.0})", self.median, self.least, self.most)
    }
}

fn name(prefix: &str, number: usize) -> String {
    format!("{prefix}-{number}.namespace-{}.svc.cluster.local", number % 100)
}

fn service_address(number: usize) -> std::net::Ipv4Addr {
    std::net::Ipv4Addr::from_bits(0x0a60_0000 + number as u32 + 1)
}

async fn start_ours(services: usize, stop: &CancellationToken) -> anyhow::Result<SocketAddr> {
    let catalogue = Arc::new(Catalogue::default());
    for number in 0..services {
        let service = Service {
            kind: ServiceKind::ClusterIp(service_address(number)),
            ports: vec![ServicePort { name: "http".into(), protocol: Protocol::Tcp, port: 80, node_port: None }],
            external_ips: Vec::new(),
            affinity: None,
            internal_local: false,
            external_local: false,
            hold: HOLD,
            through_user_space: false,
            publish_not_ready: false,
            has_other_proxy: false,
            tags: Vec::new(),
        };
        let key = Key::new(&format!("namespace-{}", number % 100), &format!("service-{number}"));
        catalogue.set_service(key, Some(service));
    }
    let settings = DnsSettings {
        address: [127, 0, 0, 1].into(),
        port: 0,
        domain: "cluster.local".into(),
        alias_domain: "consul".into(),
        datacentre: "dc1".into(),
        upstreams: Vec::new(),
    };
    let dns = Dns::bind(settings, catalogue).await?;
    let address = dns.address();
    tokio::spawn(dns.run(stop.clone()));
    Ok(address)
}

/// Size of the response to such a query of dnsperf.
fn answer_size(server: SocketAddr, prefix: &str) -> anyhow::Result<usize> {
    let mut packet = vec![0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name(prefix, 7).split('.') {
        packet.push(label.len() as u8);
        packet.extend_from_slice(label.as_bytes());
    }
    packet.extend([0, 0, 1, 0, 1]);
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    socket.connect(server)?;
    socket.send(&packet)?;
    Ok(socket.recv(&mut [0; 1500])? - packet.len())
}

/// A thread per core that echoes each packet with the QR flag, `longer` than it came.
fn echo(longer: usize) -> anyhow::Result<SocketAddr> {
    let mut address: SocketAddrV4 = "127.0.0.1:0".parse()?;
    for _ in 0..std::thread::available_parallelism()?.get() {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
        socket.set_reuse_port(true)?;
        socket.bind(&address.into())?;
        let socket: UdpSocket = socket.into();
        if let SocketAddr::V4(bound) = socket.local_addr()? {
            address = bound;
        }
        std::thread::spawn(move || {
            let mut buffer = [0; 1500];
            while let Ok((length, client)) = socket.recv_from(&mut buffer) {
                buffer[2] |= 0x80;
                let _ = socket.send_to(&buffer[..length + longer], client);
            }
        });
    }
    Ok(address.into())
}

struct Unbound {
    address: SocketAddr,
    process: Child,
}

impl Unbound {
    fn start(options: &Options, directory: &TempDir) -> anyhow::Result<Self> {
        let free = free_port()?;
        let threads = std::thread::available_parallelism()?;
        let mut text = format!(
            "server:\n interface: 127.0.0.1@{}\n num-threads: {threads}\n so-reuseport: yes\n do-daemonize: no\n use-syslog: no\n \
             logfile: \"\"\n verbosity: 0\n username: \"\"\n chroot: \"\"\n directory: \"{}\"\n pidfile: \"\"\n \
             module-config: \"iterator\"\n local-zone: \"cluster.local.\" static\n \
             local-data: \"cluster.local. 5 IN SOA ns.dns.cluster.local. hostmaster.cluster.local. 1 7200 1800 86400 5\"\n",
            free.port(),
            directory.path().display(),
        );
        for number in 0..options.services {
            writeln!(text, " local-data: \"{}. 5 IN A {}\"", name("service", number), service_address(number))?;
        }
        text.push_str("remote-control:\n control-enable: no\n");
        let config = directory.path().join("unbound.conf");
        std::fs::write(&config, text)?;
        let process = tool(&options.tools, "unbound", "usr/sbin/unbound")?.arg("-c").arg(&config).spawn()?;
        let unbound = Self { address: free, process };
        let begin = Instant::now();
        while answer_size(unbound.address, "service").is_err() {
            ensure!(begin.elapsed() < Duration::from_secs(30), "unbound does not answer at {}", unbound.address);
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(unbound)
    }
}

impl Drop for Unbound {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// For UDP and TCP.
fn free_port() -> anyhow::Result<SocketAddr> {
    for _ in 0..100 {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        if UdpSocket::bind(address).is_ok() {
            return Ok(address);
        }
    }
    bail!("no port is free for both UDP and TCP")
}

/// Responses per second.
fn dnsperf(options: &Options, server: SocketAddr, questions: &Path) -> anyhow::Result<f64> {
    let output = tool(&options.tools, "dns-load", "usr/bin/dnsperf")?
        .args(["-s", &server.ip().to_string(), "-p", &server.port().to_string(), "-c", "16", "-T", "1"])
        .args(["-q", &options.outstanding.to_string(), "-l", &options.seconds.to_string()])
        .arg("-d")
        .arg(questions)
        .stderr(Stdio::inherit())
        .output()?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let figure = |label: &str| {
        let line = printed.lines().map(str::trim).find_map(|line| line.strip_prefix(label));
        let word = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
        word.with_context(|| format!("dnsperf said no {label:?}:\n{printed}"))
    };
    let lost = figure("Queries lost:")?;
    ensure!(lost <= 100.0, "{lost} questions were lost at {server}:\n{printed}");
    figure("Queries per second:")
}

fn tool(tools: &Path, suite: &str, program: &str) -> anyhow::Result<Command> {
    let path = tools.join(suite).join(program);
    ensure!(path.exists(), "needs {}: run tools/test-deps", path.display());
    let mut command = Command::new(path);
    command.env("LD_LIBRARY_PATH", tools.join(suite).join("libraries"));
    Ok(command)
}
