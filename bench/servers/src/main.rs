//! Measures leader loss to next decision: two servers on one etcd, of which the one that leads stops or is killed, over and over.
//!
//! At that moment a Deployment is created at the other server; the next decision is its ReplicaSet, which only controllers
//! that lead make. `--spawn target/release/mainstay` names the binary, `--tools` where `tools/test-deps` has put etcd.

mod process;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Parser;
use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    coordination::v1::Lease,
};
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use nix::sys::signal::Signal;
use process::{Etcd, Server};
use serde_json::json;

/// How long a candidate has watched the Lease at least when its leader is lost.
const WATCHES: Duration = Duration::from_secs(3);
/// How often leaders renew it.
const RENEWAL: Duration = Duration::from_secs(1);

#[derive(Parser)]
struct Options {
    /// The mainstay binary to measure
    #[arg(long, value_name = "BINARY")]
    spawn: PathBuf,
    /// Where `tools/test-deps` has put etcd
    #[arg(long, env = "MAINSTAY_TOOLS", value_name = "DIR", default_value = ".tools")]
    tools: PathBuf,
    /// How often the leader is lost, each way
    #[arg(long, default_value_t = 20)]
    rounds: usize,
}

/// How the server that leads goes.
#[derive(Clone, Copy)]
enum Loss {
    Stopped,
    Killed,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let _ = rustls::crypto::ring::default_provider().install_default();
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(run(&options))
}

async fn run(options: &Options) -> anyhow::Result<()> {
    let binary = options.spawn.canonicalize().with_context(|| format!("--spawn {}", options.spawn.display()))?;
    let dir = tempfile::Builder::new().prefix("bench-servers-").tempdir_in(".").context("make a directory")?;
    let dir = dir.path().canonicalize()?;
    let etcd = Etcd::start(&options.tools.join("bin/etcd-3.5"), &dir.join("etcd"))?;
    let mut servers =
        [Server::start(&binary, &dir, "one", &etcd).await?, Server::start(&binary, &dir, "two", &etcd).await?];
    println!("| what | limit | p50 | p99 | worst |\n|---|---|---|---|---|");
    for (loss, name, limit) in [
        (Loss::Stopped, "leader stops in order: Lease at another", "1.0 s"),
        (Loss::Killed, "leader killed: next decision", "6.0 s"),
    ] {
        let mut times = Vec::new();
        for round in 0..options.rounds {
            times.push(lose_leader(&mut servers, loss, round).await?);
        }
        times.sort_unstable();
        let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize].as_secs_f64();
        println!("| {name} | {limit} | {:.2} s | {:.2} s | {:.2} s |", at(0.5), at(0.99), at(1.0));
    }
    for server in &mut servers {
        server.end(Signal::SIGTERM).await?;
    }
    etcd.end().await
}

/// One loss, from the signal to the next leader (or to its next decision). The lost server is started again.
async fn lose_leader(servers: &mut [Server; 2], loss: Loss, round: usize) -> anyhow::Result<Duration> {
    let leader = loop {
        match holder(&servers[0])
            .await?
            .and_then(|holder| servers.iter().position(|server| server.has_identity(&holder)))
        {
            Some(leader) => break leader,
            None => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    let begun = Instant::now();
    let took = match loss {
        Loss::Stopped => {
            servers[leader].signal(Signal::SIGTERM)?;
            let next = &servers[1 - leader];
            while !holder(next).await?.is_some_and(|holder| next.has_identity(&holder)) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            begun.elapsed()
        }
        Loss::Killed => {
            servers[leader].signal(Signal::SIGKILL)?;
            decide(&servers[1 - leader], &format!("lost-{round}")).await?;
            begun.elapsed()
        }
    };
    servers[leader].restart().await?;
    // A candidate counts silence from its own first look at the Lease, so one that has just been started would wait for longer than one
    // that was there before. The moment of the loss within the period of renewals differs from round to round.
    tokio::time::sleep(WATCHES + RENEWAL.mul_f64((round % 10) as f64 / 10.0)).await;
    Ok(took)
}

async fn holder(server: &Server) -> anyhow::Result<Option<String>> {
    let leases: Api<Lease> = Api::namespaced(server.client.clone(), "kube-system");
    let lease = leases.get_opt("mainstay-controllers").await?;
    Ok(lease.and_then(|lease| lease.spec?.holder_identity))
}

/// Creates a Deployment and waits for what only the leader makes of it.
async fn decide(server: &Server, name: &str) -> anyhow::Result<()> {
    let pod = json!({"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "host"}]}});
    let spec = json!({"selector": {"matchLabels": {"app": name}}, "template": pod});
    let deployment: Deployment = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec}))?;
    Api::default_namespaced(server.client.clone()).create(&PostParams::default(), &deployment).await?;
    let sets: Api<ReplicaSet> = Api::default_namespaced(server.client.clone());
    let own = ListParams::default().labels(&format!("app={name}"));
    while sets.list(&own).await?.items.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}
