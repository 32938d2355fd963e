//! Pods replaced again and again behind a Service, under constant load of new connections.

use std::{
    io::{Read, Write},
    net::{SocketAddrV4, TcpStream},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use clap::Args;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Service};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

use crate::cluster::Cluster;

const NAME: &str = "bench-web";
const PORT: u16 = 8080;
const PATIENCE: Duration = Duration::from_secs(120);
const ANSWER: Duration = Duration::from_secs(15);

#[derive(Debug, Args)]
pub struct Options {
    /// Pods that are replaced, all in all
    #[arg(long, default_value_t = 1_000)]
    restarts: u32,

    /// Pods at a time
    #[arg(long, default_value_t = 10)]
    replicas: u32,

    /// Clients that ask without a pause, each time on a new connection
    #[arg(long, default_value_t = 2)]
    clients: usize,
}

#[derive(Default)]
struct Counted {
    answered: AtomicU64,
    failed: AtomicU64,
    slowest_micros: AtomicU64,
    over: AtomicBool,
}

pub async fn run(binary: &Path, options: &Options) -> anyhow::Result<()> {
    let cluster = Cluster::up(binary).await?;
    let measured = measure(&cluster, binary, options).await;
    cluster.end()?;
    measured
}

async fn measure(cluster: &Cluster, binary: &Path, options: &Options) -> anyhow::Result<()> {
    let deployments: Api<Deployment> = Api::default_namespaced(cluster.client.clone());
    let services: Api<Service> = Api::default_namespaced(cluster.client.clone());
    let service = services.create(&PostParams::default(), &service()?).await?;
    let address = service.spec.and_then(|spec| spec.cluster_ip).context("an address")?.parse()?;
    deployments.create(&PostParams::default(), &deployment(binary, options.replicas)?).await?;
    rolled_out(&deployments, options.replicas).await?;

    let counted = Arc::new(Counted::default());
    let clients: Vec<_> = (0..options.clients)
        .map(|_| {
            let counted = counted.clone();
            thread::spawn(move || ask(SocketAddrV4::new(address, 80), &counted))
        })
        .collect();
    let began = Instant::now();
    let rounds = options.restarts.div_ceil(options.replicas);
    for round in 0..rounds {
        let annotations = json!({ "bench/round": round.to_string() });
        let again = json!({ "spec": { "template": { "metadata": { "annotations": annotations } } } });
        deployments.patch(NAME, &PatchParams::default(), &Patch::Merge(again)).await?;
        rolled_out(&deployments, options.replicas).await?;
    }
    let took = began.elapsed();
    counted.over.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().map_err(|_| anyhow::anyhow!("a client ended badly"))?;
    }
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "{} pods replaced in {:.0} s: {} requests answered, {} failed; the slowest took {:.0} ms",
        rounds * options.replicas,
        took.as_secs_f64(),
        of(&counted.answered),
        of(&counted.failed),
        of(&counted.slowest_micros) as f64 / 1e3
    );
    anyhow::ensure!(of(&counted.failed) == 0, "requests failed");
    Ok(())
}

fn ask(service: SocketAddrV4, counted: &Counted) {
    while !counted.over.load(Ordering::Relaxed) {
        let began = Instant::now();
        match ask_once(service) {
            Ok(()) => {
                counted.answered.fetch_add(1, Ordering::Relaxed);
                counted.slowest_micros.fetch_max(began.elapsed().as_micros() as u64, Ordering::Relaxed);
            }
            Err(error) => {
                counted.failed.fetch_add(1, Ordering::Relaxed);
                println!("after {:.1} ms: {error}", began.elapsed().as_secs_f64() * 1e3);
            }
        }
    }
}

fn ask_once(service: SocketAddrV4) -> std::io::Result<()> {
    let mut connection = TcpStream::connect_timeout(&service.into(), ANSWER)?;
    connection.set_read_timeout(Some(ANSWER))?;
    connection.write_all(b"GET / HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer)?;
    if answer.starts_with(b"HTTP/1.1 200") { Ok(()) } else { Err(std::io::Error::other("an answer cut short")) }
}

async fn rolled_out(deployments: &Api<Deployment>, replicas: u32) -> anyhow::Result<()> {
    let began = Instant::now();
    let wanted = i32::try_from(replicas)?;
    loop {
        let deployment = deployments.get_status(NAME).await?;
        let status = deployment.status.unwrap_or_default();
        let counts = [status.replicas, status.updated_replicas, status.available_replicas];
        if status.observed_generation == deployment.metadata.generation && counts == [Some(wanted); 3] {
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            bail!("the rollout takes longer than {PATIENCE:?}: {status:?}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn service() -> anyhow::Result<Service> {
    let ports = json!([{ "port": 80, "targetPort": PORT }]);
    Ok(serde_json::from_value(
        json!({ "metadata": { "name": NAME }, "spec": { "selector": { "app": NAME }, "ports": ports } }),
    )?)
}

/// The web server of the demo: this very program, from where it lies.
fn deployment(binary: &Path, replicas: u32) -> anyhow::Result<Deployment> {
    let program = binary.canonicalize()?;
    let command = ["/mainstay", "demo-web", "--port", &PORT.to_string()].map(str::to_owned);
    Ok(serde_json::from_value(json!({
        "metadata": { "name": NAME },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": NAME } },
            "strategy": { "rollingUpdate": { "maxSurge": "50%", "maxUnavailable": 0 } },
            "template": {
                "metadata": { "labels": { "app": NAME } },
                "spec": {
                    "automountServiceAccountToken": false,
                    "containers": [{
                        "name": "web", "image": "host", "imagePullPolicy": "Never", "command": command,
                        "readinessProbe": { "httpGet": { "port": PORT }, "periodSeconds": 1 },
                        "volumeMounts": [{ "name": "program", "mountPath": "/mainstay", "readOnly": true }],
                    }],
                    "volumes": [{ "name": "program", "hostPath": { "path": program, "type": "File" } }],
                },
            },
        },
    }))?)
}
