//! `mainstay needs`: which workloads need which, and which of the needs are not met; as text, or as a graph for Graphviz.

mod graph;
pub mod message;

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::Context;
use clap::{Args, ValueEnum};
use k8s_openapi::api::{
    apps::v1::ReplicaSet,
    core::v1::{Pod, Service},
};
use kube::{
    Api, Client, Resource,
    api::{ListParams, ObjectMeta},
};
use serde::de::DeserializeOwned;

use self::graph::{NeedsGraph, WorkloadName};
use crate::{cli::DataDir, exit::Exit, why};

#[derive(Debug, Args)]
pub struct NeedsOptions {
    /// Only of this namespace [default: all]
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    /// How to show it
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,

    /// How to reach the API [default: admin.kubeconfig in the data directory]
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    #[command(flatten)]
    data: DataDir,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Text,
    /// The language of Graphviz
    Dot,
}

pub fn run(options: &NeedsOptions) -> Result<(), Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start")?;
    runtime.block_on(async {
        let client = why::connect(options.kubeconfig.as_deref(), &options.data).await?;
        let namespace = options.namespace.as_deref();
        let pods: Vec<Pod> = list(&client, namespace).await.context("list pods")?;
        let sets: Vec<ReplicaSet> = list(&client, namespace).await.context("list ReplicaSets")?;
        let services: Vec<Service> = list(&client, namespace).await.context("list Services")?;
        let deployments: BTreeMap<String, WorkloadName> =
            sets.iter().filter_map(|set| Some((set.metadata.uid.clone()?, controller(&set.metadata)?))).collect();
        let graph = NeedsGraph::new(&pods, &services, |pod| {
            let owner = pod.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
            let above = owner.and_then(|owner| deployments.get(&owner.uid).cloned());
            above.or_else(|| controller(&pod.metadata)).unwrap_or_else(|| WorkloadName::from_meta("pod", &pod.metadata))
        });
        match options.output {
            Format::Text => print!("{}", graph.text()),
            Format::Dot => print!("{}", graph.dot()),
        }
        Ok(())
    })
}

async fn list<K>(client: &Client, namespace: Option<&str>) -> Result<Vec<K>, kube::Error>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    let api: Api<K> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    Ok(api.list(&ListParams::default()).await?.items)
}

fn controller(meta: &ObjectMeta) -> Option<WorkloadName> {
    let owner = meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
    let namespace = meta.namespace.clone().unwrap_or_default();
    Some(WorkloadName { namespace, kind: owner.kind.to_lowercase(), name: owner.name.clone() })
}
