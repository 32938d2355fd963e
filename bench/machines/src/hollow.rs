//! What heartbeats of hollow machines cost the server: CPU time, memory, and what reaches its disk.
//!
//! The server is a process of its own, so that the CPU time is its alone; the machines, in this one, take at least as much of the
//! same cores. If that leaves too little for all heartbeats, the CPU time for each still says what the wanted number would take.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use kube::{Client, Config, config::Kubeconfig};
use mainstay_sim::{
    fleet::{Access, Fleet, Settings},
    pod_times::PodTimes,
    process::Process,
};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// Room for the pods' addresses of all machines.
const POD_RANGE: &str = "10.128.0.0/10";
/// Connections that the machines share.
const CONNECTIONS: usize = 32;
const PATIENCE: Duration = Duration::from_secs(60);
/// As stock agents.
const HEARTBEATS_PER_SECOND: f64 = 0.5;
const PAGE: f64 = 4096.0;

struct Server {
    dir: TempDir,
    child: Child,
}

impl Server {
    fn start(binary: &Path) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("bench-machines-").tempdir_in(".")?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let mut command = Command::new(binary);
        command.args(["server", "--log", "error", "--pod-range", POD_RANGE]);
        command.args(["--listen", &format!("127.0.0.1:{port}"), "--data-dir"]).arg(dir.path());
        let child = command.stdout(Stdio::null()).spawn().with_context(|| format!("start {}", binary.display()))?;
        Ok(Self { dir, child })
    }

    async fn clients(&mut self) -> anyhow::Result<Vec<Client>> {
        let (file, started) = (self.dir.path().join("admin.kubeconfig"), Instant::now());
        while !fs::metadata(&file).is_ok_and(|file| file.len() > 0) {
            if let Some(status) = self.child.try_wait()? {
                bail!("the server ended early: {status}");
            }
            if started.elapsed() > PATIENCE {
                bail!("the server wrote no kubeconfig within {PATIENCE:?}");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let config = Config::from_custom_kubeconfig(Kubeconfig::read_from(&file)?, &Default::default()).await?;
        let clients = (0..CONNECTIONS).map(|_| Client::try_from(config.clone()));
        Ok(clients.collect::<Result<_, _>>()?)
    }

    fn process(&self) -> Process {
        Process { id: self.child.id() }
    }

    /// Bytes that it has had written to disk so far, in whole pages.
    fn written(&self) -> anyhow::Result<f64> {
        let io = fs::read_to_string(format!("/proc/{}/io", self.child.id())).context("read /proc/PID/io")?;
        let line = io.lines().find_map(|line| line.strip_prefix("write_bytes: ")).context("no write_bytes")?;
        Ok(line.trim().parse()?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub async fn measure(binary: &Path, machines: usize, time: Duration) -> anyhow::Result<()> {
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let mut server = Server::start(binary)?;
    let clients = server.clients().await?;
    let (admin, next) = (clients[0].clone(), AtomicUsize::new(0));
    let node_client = Arc::new(move |_: &str| clients[next.fetch_add(1, Relaxed) % clients.len()].clone());
    let (access, begun, done) = (Access { admin, node_client }, Instant::now(), AtomicUsize::new(0));
    let fleet = Fleet::register(access, Settings::new(machines), Arc::new(PodTimes::default()), &done);
    let fleet = fleet.await.context("register machines")?;
    let took = begun.elapsed().as_secs_f64();
    println!("{machines} machines registered in {took:.1} s, {:.0} a second", machines as f64 / took);
    let stop = CancellationToken::new();
    let running = tokio::spawn(fleet.clone().run(stop.clone()));
    // The first offers of all are written, and what followed from so many new machines has ended.
    let settled = Instant::now();
    while fleet.counters.offers.load(Relaxed) < machines as u64 && settled.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    tokio::time::sleep(time / 3).await;

    let process = server.process();
    let before = (process.cpu()?, server.written()?, fleet.counters.heartbeats.load(Relaxed));
    let (begun, failed) = (Instant::now(), fleet.counters.failed.load(Relaxed));
    tokio::time::sleep(time).await;
    let took = begun.elapsed().as_secs_f64();
    let cpu = process.cpu()?.saturating_sub(before.0).as_secs_f64();
    let heartbeats = (fleet.counters.heartbeats.load(Relaxed) - before.2) as f64;
    let (memory, highest) = process.memory()?;
    let wanted = machines as f64 * HEARTBEATS_PER_SECOND;
    println!("heartbeats answered: {:.0} a second of {wanted:.0}", heartbeats / took);
    println!("requests that failed: {}", fleet.counters.failed.load(Relaxed) - failed);
    println!("CPU of the server: {:.2} cores; limit 1", cpu / took);
    let each = cpu / heartbeats.max(1.0);
    println!("for each heartbeat: {:.0} us, which for all wanted would be {:.2} cores", each * 1e6, each * wanted);
    println!("memory: {memory:.0} MB, {highest:.0} MB at its highest; limit 1000");
    let pages = (server.written()? - before.1) / PAGE / took;
    println!("pages written to disk: {pages:.1} a second; limit 100");
    stop.cancel();
    running.await.context("the machines ended badly")
}
