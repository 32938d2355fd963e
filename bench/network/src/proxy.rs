//! Our proxy beside Debian's HAProxy: the same backend, the same clients, the same number of threads, in turns.
//!
//! Each of them is a process of its own; clients and backend are threads of this one. With more to do than cores,
//! what a proxy takes for itself is missing elsewhere, so the time it spent is printed as well: it says the same when
//! others share the machine. Ratios are medians of those within a round. HAProxy is measured twice, because moving
//! bulk through pipes has to be asked of it.

mod load;

use std::{
    io::{BufRead, BufReader},
    net::{Ipv4Addr, SocketAddrV4, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use mainstay_network::{
    Protocol,
    proxy::{Proxy, local_address},
    services::frontend::{BackendPool, Frontend, WithoutBackends},
};

#[derive(Debug, clap::Args)]
pub struct Options {
    /// How often each proxy is measured
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// How long each measurement takes
    #[arg(long, default_value_t = 0.7)]
    seconds: f64,
    /// Threads of each proxy
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Connections at a time
    #[arg(long, default_value_t = 64)]
    clients: usize,
    /// Only this figure: connections, requests or bytes
    #[arg(long)]
    only: Option<String>,
    /// Be our proxy for this backend, and nothing else
    #[arg(long, hide = true)]
    carry: Option<SocketAddrV4>,
}

struct Contestant {
    name: &'static str,
    process: Child,
    port: u16,
    _directory: Option<tempfile::TempDir>,
}

impl Drop for Contestant {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Figure {
    name: &'static str,
    unit: &'static str,
    scale: f64,
    /// What the time spent is counted by.
    each: &'static str,
    eaches: f64,
    load: fn(SocketAddrV4, usize, Duration) -> anyhow::Result<u64>,
}

const FIGURES: [Figure; 3] = [
    Figure { name: "connections", unit: "k/s", scale: 1e3, each: "us each", eaches: 1e6, load: load::connections },
    Figure { name: "requests", unit: "k/s", scale: 1e3, each: "us each", eaches: 1e6, load: load::requests },
    Figure { name: "bytes", unit: "GB/s", scale: 1e9, each: "ms per GB", eaches: 1e12, load: load::bytes },
];

pub fn run(options: Options) -> anyhow::Result<()> {
    if let Some(backend) = options.carry {
        return carry(backend, options.threads);
    }
    let backends = load::Backends::start()?;
    let turn = Duration::from_secs_f64(options.seconds);
    println!(
        "{} clients at a time, {} threads of each proxy, {} rounds",
        options.clients, options.threads, options.rounds
    );
    println!("{:<12} {:<18} {:>9} {:>6} {:>9} {:>6}", "", "", "median", "ratio", "time", "ratio");
    for figure in FIGURES.iter().filter(|figure| options.only.as_ref().is_none_or(|only| only == figure.name)) {
        let backend = if figure.name == "bytes" { backends.flood } else { backends.answers };
        let contestants = [
            ours(backend, options.threads)?,
            haproxy("HAProxy", "", backend, options.threads)?,
            haproxy("HAProxy, splicing", "option splice-response", backend, options.threads)?,
        ];
        let mut speeds: [Vec<f64>; 3] = Default::default();
        let mut costs: [Vec<f64>; 3] = Default::default();
        for round in 0..=options.rounds {
            for number in (0..contestants.len()).map(|place| (place + round) % contestants.len()) {
                let contestant = &contestants[number];
                let (start, before) = (Instant::now(), spent(contestant.process.id())?);
                let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, contestant.port);
                let done = (figure.load)(address, options.clients, turn)
                    .with_context(|| format!("{} through {}", figure.name, contestant.name))?;
                let (time, cost) = (start.elapsed(), spent(contestant.process.id())? - before);
                // The first round only warms up.
                if round > 0 {
                    speeds[number].push(done as f64 / time.as_secs_f64() / figure.scale);
                    costs[number].push(cost / done as f64 * figure.eaches);
                }
            }
        }
        for (number, contestant) in contestants.iter().enumerate() {
            println!(
                "{:<12} {:<18} {:>9.2} {:>6.2} {:>9.2} {:>6.2}  {}, {}",
                figure.name,
                contestant.name,
                median(speeds[number].clone()),
                ratio(&speeds[0], &speeds[number]),
                median(costs[number].clone()),
                ratio(&costs[0], &costs[number]),
                figure.unit,
                figure.each,
            );
        }
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Ours to theirs within the same round, in which the machine was as busy for both.
fn ratio(ours: &[f64], theirs: &[f64]) -> f64 {
    median(ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect())
}

/// Seconds of processor time so far.
fn spent(process: u32) -> anyhow::Result<f64> {
    let mut total = 0.0;
    for task in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        let nanoseconds: f64 = text.split_whitespace().next().context("schedstat is empty")?.parse()?;
        total += nanoseconds / 1e9;
    }
    Ok(total)
}

fn ours(backend: SocketAddrV4, threads: usize) -> anyhow::Result<Contestant> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["proxy", "--carry", &backend.to_string(), "--threads", &threads.to_string()]);
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("start our proxy")?;
    let mut line = String::new();
    BufReader::new(process.stdout.take().context("our proxy says nothing")?).read_line(&mut line)?;
    let port = line.trim().parse().context("our proxy names no port")?;
    Ok(Contestant { name: "ours", process, port, _directory: None })
}

/// The process that `ours` starts: prints its port and relays until its parent ends.
fn carry(backend: SocketAddrV4, threads: usize) -> anyhow::Result<()> {
    let proxy = Proxy::start_with(local_address, threads)?;
    let frontend = Frontend { address: Some(Ipv4Addr::LOCALHOST), protocol: Protocol::Tcp, port: proxy.port() };
    let pool = BackendPool {
        backends: vec![backend],
        terminating: Vec::new(),
        affinity: None,
        masquerade: false,
        through_user_space: true,
        without_backends: WithoutBackends::Hold(Duration::from_secs(10)),
        internal: None,
    };
    proxy.set(frontend, Some(&pool));
    println!("{}", proxy.port());
    std::io::stdin().read_line(&mut String::new())?;
    Ok(())
}

fn haproxy(name: &'static str, option: &str, backend: SocketAddrV4, threads: usize) -> anyhow::Result<Contestant> {
    let tools = std::env::var_os("MAINSTAY_TOOLS").map_or_else(|| PathBuf::from(".tools"), PathBuf::from);
    let program = tools.join("haproxy/usr/sbin/haproxy");
    if !program.exists() {
        bail!("needs {}: run tools/test-deps", program.display());
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("haproxy.cfg");
    let text = format!(
        "global\n nbthread {threads}\n maxconn 4000\n\
         defaults\n mode tcp\n {option}\n timeout connect 5s\n timeout client 1h\n timeout server 1h\n\
         listen frontend\n bind 127.0.0.1:{port}\n server backend {backend}\n"
    );
    std::fs::write(&file, text)?;
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", tools.join("haproxy/libraries")).arg("-db").arg("-f").arg(&file);
    let process = command.spawn().context("start HAProxy")?;
    let contestant = Contestant { name, process, port, _directory: Some(directory) };
    let start = Instant::now();
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        if start.elapsed() > Duration::from_secs(10) {
            bail!("HAProxy does not listen");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(contestant)
}
