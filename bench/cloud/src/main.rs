//! What many Klusters ask of a real OpenStack while nothing happens, how long the teardown of all of them at once takes, and how much memory the controllers need.
//!
//! `cargo run -p bench-cloud -- --clouds DIR/clouds.yaml --klusters 10 --machines 3 --steady 300`, with the clouds of `tools/openstack/up`.
//!
//! The controllers of Klusters run in a process of their own (this program anew, `controllers`), so that its memory is theirs. The API in which the Klusters are, and an
//! API for each Kluster, are in this process. Nova has a fake hypervisor: this program creates a Node for every server, as the agent there would.

mod apis;
mod controllers;
mod project;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use mainstay_api::cloud::{kluster::Kluster, teardown_receipt::TeardownReceipt};
use mainstay_cloud::openstack::{Session, compute::ServerFilter};
use serde_json::json;

use crate::{apis::LocalApi, controllers::ControllerProcess, project::BenchProject};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const NAMESPACE: &str = "default";
/// Before it is looked again whether something has come about.
const POLL: Duration = Duration::from_millis(500);

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    bench: BenchArguments,
}

#[derive(Subcommand)]
enum Command {
    /// Run the controllers alone, and show counts of calls for every line that is read
    Controllers(controllers::ControllerArguments),
}

#[derive(Args)]
struct BenchArguments {
    /// A clouds.yaml with an administrator, as tools/openstack/up writes it
    #[arg(long)]
    clouds: Option<PathBuf>,
    /// The administrator in it
    #[arg(long, default_value = "admin")]
    cloud: String,
    #[arg(long, default_value_t = 100)]
    klusters: usize,
    /// Machines of each
    #[arg(long, default_value_t = 10)]
    machines: usize,
    /// Seconds without any change that calls are counted for
    #[arg(long, default_value_t = 600)]
    steady: u64,
    /// Seconds that are waited for machines, and for the teardown
    #[arg(long, default_value_t = 3600)]
    patience: u64,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    rustls::crypto::ring::default_provider().install_default().ok();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match arguments.command {
        Some(Command::Controllers(arguments)) => runtime.block_on(controllers::run(arguments)),
        None => runtime.block_on(run(arguments.bench)),
    }
}

fn kluster_name(number: usize) -> String {
    format!("bench-{number}")
}

async fn run(arguments: BenchArguments) -> anyhow::Result<()> {
    let clouds = arguments.clouds.as_deref().context("--clouds is missing")?;
    let patience = Duration::from_secs(arguments.patience);
    let (count, size) = (arguments.klusters, arguments.machines);
    let project = BenchProject::create(clouds, &arguments.cloud).await?;
    let directory = tempfile::tempdir()?;
    let parent = LocalApi::start(&directory.path().join("parent")).await?;
    let client = parent.client().await?;
    // They serve until they are dropped.
    let (mut apis, mut klusters) = (Vec::new(), Vec::new());
    for number in 0..count {
        let api = LocalApi::start(&directory.path().join(kluster_name(number))).await?;
        klusters.push(api.client().await?);
        create_kluster(&client, &project, &api, number, size).await?;
        apis.push(api);
    }
    let began = Instant::now();
    let mut process = ControllerProcess::start(&parent.kubeconfig_file, &project.clouds_file(directory.path())?)?;
    wait(patience, async || {
        join_servers(&project.session, &klusters).await?;
        let running = running_machines(&client).await?;
        eprint!("\r{running} of {} machines run after {:.0?} ", count * size, began.elapsed());
        Ok(running == count * size)
    })
    .await
    .context("wait for the machines")?;
    eprintln!();
    println!("{count} klusters of {size} machines: all run after {:.1?}", began.elapsed());
    println!("calls: {}", per_kluster(&process.counts()?, count));

    // The pools' last looks are over after this.
    tokio::time::sleep(Duration::from_secs(20)).await;
    let before = process.counts()?;
    let began = Instant::now();
    tokio::time::sleep(Duration::from_secs(arguments.steady)).await;
    let (after, minutes) = (process.counts()?, began.elapsed().as_secs_f64() / 60.0);
    println!("steady state, {minutes:.1} minutes, calls per kluster and minute:");
    let mut total = 0.0;
    for (operation, calls) in &after {
        let rate = (calls - before.get(operation).copied().unwrap_or(0)) as f64 / count as f64 / minutes;
        total += rate;
        if rate > 0.0 {
            println!("  {operation:<40} {rate:.3}");
        }
    }
    println!("  {:<40} {total:.3}", "all");
    println!("memory of the controllers: {}", process.memory()?);

    tear_down(&client, &project, count, size, patience).await?;
    println!("calls: {}", per_kluster(&process.counts()?, count));
    println!("memory of the controllers: {}", process.memory()?);
    let rate = project.measure_deletes((count * size).min(20)).await?;
    println!("Nova alone, asked by 10 at once, is rid of {rate:.2} servers per second");
    process.stop()?;
    project.remove().await
}

async fn tear_down(
    client: &Client,
    project: &BenchProject,
    count: usize,
    size: usize,
    patience: Duration,
) -> anyhow::Result<()> {
    let klusters: Api<Kluster> = Api::namespaced(client.clone(), NAMESPACE);
    let began = Instant::now();
    for number in 0..count {
        klusters.delete(&kluster_name(number), &DeleteParams::default()).await?;
    }
    wait(patience, async || {
        let left = klusters.list(&ListParams::default()).await?.items.len();
        eprint!("\r{left} klusters are left after {:.0?} ", began.elapsed());
        Ok(left == 0)
    })
    .await
    .context("wait for the teardown")?;
    eprintln!();
    let took = began.elapsed();
    let servers = project.session.compute().list_servers(&ServerFilter::default()).await?.len();
    let receipts = Api::<TeardownReceipt>::namespaced(client.clone(), NAMESPACE).list(&ListParams::default()).await?;
    let complete = receipts.items.iter().filter_map(|receipt| receipt.status.as_ref());
    let complete = complete.filter(|status| status.result == "Complete").count();
    let rate = (count * size) as f64 / took.as_secs_f64();
    println!(
        "teardown of all at once: {took:.1?}, {rate:.2} servers per second; {servers} servers left, {complete} complete receipts"
    );
    if servers > 0 || complete != count {
        bail!("the teardown left something behind");
    }
    Ok(())
}

/// A Kluster that runs, as the controller of phases would leave it; its API is one of this process.
async fn create_kluster(
    client: &Client,
    project: &BenchProject,
    api: &LocalApi,
    number: usize,
    size: usize,
) -> anyhow::Result<()> {
    let name = kluster_name(number);
    let secret: Secret = serde_json::from_value(json!({
        "metadata": {"name": format!("{name}-kubeconfig")}, "stringData": {"kubeconfig": api.kubeconfig},
    }))?;
    Api::<Secret>::namespaced(client.clone(), NAMESPACE).create(&PostParams::default(), &secret).await?;
    let pool = json!({"name": "small", "size": size, "flavor": "m1.tiny", "image": "tiny"});
    let kluster: Kluster = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "name": name, "nodePools": [pool], "clusterCIDR": format!("100.{}.0.0/16", 64 + number),
            "openstack": {"networkID": project.network, "routerID": project.router, "projectID": project.id,
                          "securityGroupName": "default"},
        },
    }))?;
    let klusters: Api<Kluster> = Api::namespaced(client.clone(), NAMESPACE);
    klusters.create(&PostParams::default(), &kluster).await?;
    let running = Patch::Merge(json!({"status": {"phase": "Running", "apiserverVersion": "1.37.0"}}));
    klusters.patch_status(&name, &PatchParams::default(), &running).await?;
    Ok(())
}

async fn running_machines(client: &Client) -> anyhow::Result<usize> {
    let klusters = Api::<Kluster>::namespaced(client.clone(), NAMESPACE).list(&ListParams::default()).await?;
    let pools = klusters.items.iter().filter_map(|kluster| kluster.status.as_ref()).flat_map(|own| &own.node_pools);
    Ok(pools.map(|pool| usize::try_from(pool.running).unwrap_or_default()).sum())
}

/// Creates a Node for every server that runs and has none, as its agent would.
async fn join_servers(session: &Session, klusters: &[Client]) -> anyhow::Result<()> {
    let servers = session.compute().list_servers(&ServerFilter::default()).await?;
    let joins = servers.iter().filter(|server| server.status == "ACTIVE").filter_map(|server| {
        // kks-bench-NUMBER-small-xxxxx
        let number: usize = server.name.split('-').nth(2)?.parse().ok()?;
        Some(join_server(klusters.get(number)?, &server.name))
    });
    try_join_all(joins).await.map(drop)
}

async fn join_server(client: &Client, name: &str) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    if nodes.get_opt(name).await?.is_some() {
        return Ok(());
    }
    let ready = json!({"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1.37.0",
        "machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "", "osImage": "", "architecture": "amd64",
        "containerRuntimeVersion": "", "kubeProxyVersion": "", "operatingSystem": "linux"}});
    let node: Node = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    nodes.create(&PostParams::default(), &node).await?;
    nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(json!({ "status": ready }))).await?;
    Ok(())
}

fn per_kluster(counts: &BTreeMap<String, u64>, klusters: usize) -> String {
    let total: u64 = counts.values().sum();
    format!("{total}, {:.1} per kluster", total as f64 / klusters as f64)
}

/// Looks until something has come about, or for so long.
async fn wait(patience: Duration, mut look: impl AsyncFnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let deadline = Instant::now() + patience;
    while !look().await? {
        if Instant::now() > deadline {
            bail!("not within {patience:?}");
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}
