//! An agent that knows very many Services.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use clap::Args;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use mainstay_api::service_table::ServiceTable;
use serde_json::{Value, json};

use crate::cluster::Cluster;

/// The goals, in bytes and milliseconds.
const MOST_MEMORY: u64 = 150 << 20;
const ABREAST: usize = 64;
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug, Args)]
pub struct Options {
    #[arg(long, default_value_t = 10_000)]
    services: usize,

    /// Of each Service
    #[arg(long, default_value_t = 10)]
    endpoints: usize,

    /// Changes that are timed
    #[arg(long, default_value_t = 100)]
    changes: usize,
}

pub async fn run(binary: &Path, options: &Options) -> anyhow::Result<()> {
    let mut cluster = Cluster::server(binary).await?;
    let measured = measure(&mut cluster, options).await;
    cluster.end()?;
    measured
}

async fn measure(cluster: &mut Cluster, options: &Options) -> anyhow::Result<()> {
    cluster.join()?;
    let tables: Api<ServiceTable> = Api::all(cluster.client.clone());
    in_force(&tables, 0).await?;
    let empty = cluster.agent_memory()?;
    let services: Api<Service> = Api::default_namespaced(cluster.client.clone());
    let slices: Api<EndpointSlice> = Api::default_namespaced(cluster.client.clone());
    let began = Instant::now();
    stream::iter(0..options.services)
        .map(|number| {
            let (services, slices) = (services.clone(), slices.clone());
            async move {
                services.create(&PostParams::default(), &service(number)?).await?;
                slices.create(&PostParams::default(), &slice(number, options.endpoints)?).await?;
                anyhow::Ok(())
            }
        })
        .buffer_unordered(ABREAST)
        .try_for_each(|()| async { Ok(()) })
        .await?;
    println!("{} Services made in {:.1} s", options.services, began.elapsed().as_secs_f64());
    let mut times = Vec::new();
    for number in 0..options.changes {
        let name = format!("bench-{}", number % options.services);
        // Taking a backend away is what machines acknowledge.
        let fewer = json!({ "endpoints": endpoints(number % options.services, options.endpoints - 1) });
        let asked = Instant::now();
        let changed = slices.patch(&name, &PatchParams::default(), &Patch::Merge(fewer)).await?;
        let version = changed.metadata.resource_version.as_deref().and_then(|version| version.parse().ok());
        in_force(&tables, version.context("a version")?).await?;
        times.push(asked.elapsed());
    }
    times.sort();
    let memory = cluster.agent_memory()?;
    let millis = |time: &Duration| time.as_secs_f64() * 1e3;
    println!("an agent that knows none: {} MB", empty >> 20);
    println!(
        "an agent that knows {} Services with {} endpoints: {} MB (limit {} MB)",
        options.services,
        options.services * options.endpoints,
        memory >> 20,
        MOST_MEMORY >> 20
    );
    println!(
        "asking for a change to it being in force and acknowledged: p50 {:.1} ms, p99 {:.1} ms",
        millis(&times[times.len() / 2]),
        millis(&times[times.len() * 99 / 100])
    );
    Ok(())
}

/// Waits until the machine says that it has come so far.
async fn in_force(tables: &Api<ServiceTable>, version: u64) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        let table = tables.get_opt("bench").await?;
        let output = table.and_then(|table| table.spec.endpoints.parse::<u64>().ok());
        if output.is_some_and(|output| output >= version) {
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            bail!("the machine is not so far after {PATIENCE:?}");
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn service(number: usize) -> anyhow::Result<Service> {
    let ports = json!([{ "name": "web", "port": 80, "targetPort": 8080 }]);
    Ok(serde_json::from_value(
        json!({ "metadata": { "name": format!("bench-{number}") }, "spec": { "ports": ports } }),
    )?)
}

fn slice(number: usize, count: usize) -> anyhow::Result<EndpointSlice> {
    let name = format!("bench-{number}");
    Ok(serde_json::from_value(json!({
        "metadata": { "name": name, "labels": { "kubernetes.io/service-name": name } },
        "addressType": "IPv4",
        "endpoints": endpoints(number, count),
        "ports": [{ "name": "web", "protocol": "TCP", "port": 8080 }],
    }))?)
}

/// As many machines as a cluster of this size would have, and an address of its own for each.
fn endpoints(number: usize, count: usize) -> Vec<Value> {
    let one = |index: usize| {
        let id = number * count + index;
        let address = format!("10.{}.{}.{}", 16 + (id >> 16), (id >> 8) & 255, id & 255);
        json!({ "addresses": [address], "conditions": { "ready": true }, "nodeName": format!("machine-{}", id % 1000) })
    };
    (0..count).map(one).collect()
}
