//! The kernel data path: what a connection through a Service costs beside one that goes straight to the pod, and what
//! it costs to load and change very many Services.
//!
//! A machine and two pods are network namespaces on a bridge. Both paths are measured in turns, from the same client
//! to the same backend, with all Services loaded.

mod load;
mod netns;

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddrV4},
    time::{Duration, Instant},
};

use anyhow::Context;
use mainstay_network::{
    Bridge, Protocol, Range, Settings,
    services::{
        KernelProxy, KernelSettings,
        frontend::{BackendPool, Frontend, WithoutBackends},
    },
};
use netns::Netns;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// How many Services there are
    #[arg(long, default_value_t = 10_000)]
    services: u32,
    /// How many backends each of them has
    #[arg(long, default_value_t = 10)]
    backends: u32,
    /// How many changes are timed
    #[arg(long, default_value_t = 1_000)]
    changes: u32,
    /// How often each path is measured
    #[arg(long, default_value_t = 8)]
    rounds: usize,
    /// How long each measurement takes
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Clients at a time
    #[arg(long, default_value_t = 4)]
    clients: usize,
}

const SERVICES: &str = "10.96.0.0/14";
const MEASURED: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);

pub fn run(options: Options) -> anyhow::Result<()> {
    let (machine, client, server) = (Netns::new()?, Netns::new()?, Netns::new()?);
    let backend = connect(&machine, &client, &server)?;
    let (answers, flood) = server.run(load::serve)?;
    let frontends = [answers, flood].map(|port| (frontend(MEASURED, port), pool([SocketAddrV4::new(backend, port)])));
    machine.run({
        let (services, backends, changes) = (options.services, options.backends, options.changes);
        move || change(services, backends, changes, frontends)
    })?;
    let turn = Duration::from_secs_f64(options.seconds);
    let figures: [(&str, &str, f64, u16, Load); 2] =
        [("connections", "k/s", 1e3, answers, load::connections), ("bytes", "GB/s", 1e9, flood, load::bytes)];
    for (name, unit, scale, port, load) in figures {
        let ways = [SocketAddrV4::new(backend, port), SocketAddrV4::new(MEASURED, port)];
        let mut rates = [Vec::new(), Vec::new()];
        for round in 0..options.rounds {
            // Neither is always the first.
            for way in [round % 2, 1 - round % 2] {
                let (to, clients) = (ways[way], options.clients);
                let start = Instant::now();
                let done = client.run(move || load(to, clients, turn))?;
                rates[way].push(done as f64 / start.elapsed().as_secs_f64() / scale);
            }
        }
        let [direct, service] = rates.map(|mut rates| median(&mut rates));
        let share = service / direct * 100.0;
        println!("{name:<12} direct {direct:8.2} {unit:<5} through a Service {service:8.2} {unit:<5} {share:6.1} %");
    }
    Ok(())
}

type Load = fn(SocketAddrV4, usize, Duration) -> anyhow::Result<u64>;

/// Attaches both pods to a bridge of the machine. Returns the address of the server.
fn connect(machine: &Netns, client: &Netns, server: &Netns) -> anyhow::Result<Ipv4Addr> {
    let paths = [client.path().to_owned(), server.path().to_owned()];
    machine.run(move || {
        let directory = tempfile::tempdir()?;
        let cluster: Range = "10.244.0.0/16".parse()?;
        // So that entries of finished connections do not fill the kernel's memory of them, whichever way they went.
        for state in ["close", "time_wait"] {
            let path = format!("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_{state}");
            std::fs::write(&path, "1").with_context(|| format!("set {path}"))?;
        }
        runtime()?.block_on(async {
            let own = directory.path().to_owned();
            let bridge = Bridge::new(Settings { instance: "mainstay".into(), directory: own, cluster })?;
            bridge.set_range("10.244.3.0/24".parse()?).await?;
            bridge.attach("client", &paths[0], &[]).await?;
            Ok(bridge.attach("server", &paths[1], &[]).await?)
        })
    })
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

fn frontend(address: Ipv4Addr, port: u16) -> Frontend {
    Frontend { address: Some(address), protocol: Protocol::Tcp, port }
}

fn pool(backends: impl IntoIterator<Item = SocketAddrV4>) -> BackendPool {
    BackendPool {
        backends: backends.into_iter().collect(),
        terminating: Vec::new(),
        affinity: None,
        masquerade: false,
        through_user_space: false,
        without_backends: WithoutBackends::Hold(Duration::from_secs(10)),
        internal: None,
    }
}

/// Loads very many Services, and takes one backend from one of them, or gives it back, again and again.
fn change(services: u32, count: u32, changes: u32, more: [(Frontend, BackendPool); 2]) -> anyhow::Result<()> {
    let (services_range, pods) = (SERVICES.parse()?, "10.244.0.0/16".parse()?);
    let settings = KernelSettings { instance: "mainstay".into(), services: services_range, pods, proxy_port: 9 };
    let address = |service: u32| Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 96, 1, 0)) + service);
    let backends = |service: u32, count: u32| {
        let first = u32::from(Ipv4Addr::new(10, 128, 0, 0)) + service * count.next_power_of_two().max(16);
        (0..count).map(move |n| SocketAddrV4::new(Ipv4Addr::from(first + n), 8080))
    };
    let all = (0..services).map(|service| (frontend(address(service), 80), pool(backends(service, count))));
    let frontends: BTreeMap<Frontend, BackendPool> = all.chain(more).collect();
    runtime()?.block_on(async {
        let (before, start) = (resident()?, Instant::now());
        let mut kernel = KernelProxy::new(settings);
        kernel.replace(frontends).await?;
        let (loaded, after) = (start.elapsed(), resident()?);
        println!("load         {services} Services with {count} backends each in {:.0} ms", ms(loaded));
        println!("memory       {:.1} MB, of which {:.1} MB before", after as f64 / 1e3, before as f64 / 1e3);
        let mut times = Vec::new();
        for n in 0..changes {
            let service = (n / 2).wrapping_mul(7919) % services;
            let left = count - (n + 1) % 2;
            let change = BTreeMap::from([(frontend(address(service), 80), Some(pool(backends(service, left))))]);
            let start = Instant::now();
            kernel.apply(change).await?;
            times.push(ms(start.elapsed()));
        }
        let (median, worst) = (median(&mut times), times[times.len() * 99 / 100]);
        println!("one change   p50 {median:.2} ms, p99 {worst:.2} ms, of {changes}");
        let start = Instant::now();
        kernel.reconcile().await?;
        println!("reconcile    {:.2} ms if nobody changed any rule", ms(start.elapsed()));
        let other =
            KernelSettings { instance: "other".into(), services: "10.200.0.0/16".parse()?, pods, proxy_port: 9 };
        let mut fresh = KernelProxy::new(other);
        fresh.replace(BTreeMap::new()).await?;
        let start = Instant::now();
        let drift = kernel.reconcile().await?;
        println!(
            "reconcile    {:.0} ms if somebody did, found {} wrong",
            ms(start.elapsed()),
            drift.missing + drift.surplus
        );
        Ok(())
    })
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Sorts on the way.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// What this process has in memory, in kB.
fn resident() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
