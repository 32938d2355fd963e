//! `mainstay drain NODE`: cordons a node, evicts its pods through the eviction API and waits until they are gone.
//!
//! Budgets and graces are honoured; a pod that its budget keeps is reported with the budget's name and evicted as soon as
//! it may be. Pods of DaemonSets and static pods stay. A pod that would be lost, or whose data would, stops the drain before
//! anything is evicted, as with kubectl. `--undo` makes the node schedulable again.
//!
//! Ends with 0 when the node is drained, 1 if it is not (refused, or not within `--timeout`), 2 if the API cannot be asked.

mod evict;
pub mod on_stop;
mod plan;
pub mod shutdown_inhibitor;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, anyhow};
use clap::Args;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use mainstay_api::wellknown::mainstay::REPLACE_FIRST;
use serde_json::json;
use tokio::time::Instant;

use self::{
    evict::{Evictor, Progress, Remaining},
    plan::{Consent, Disposition, judge},
};
use crate::{
    cli::{DataDir, duration},
    exit::Exit,
    terminal::printable,
    why,
};

#[derive(Debug, Args)]
pub struct DrainOptions {
    /// The node to drain
    #[arg(value_name = "NODE")]
    node: String,

    /// Make it schedulable again; its pods do not come back by themselves
    #[arg(long, conflicts_with_all = ["force", "delete_emptydir_data", "timeout", "grace_period"])]
    undo: bool,

    /// Also evict pods that nobody replaces: they are lost
    #[arg(long)]
    force: bool,

    /// Also evict pods with emptyDir volumes: their data is lost
    #[arg(long)]
    delete_emptydir_data: bool,

    /// How long the whole drain may take; 0s for as long as it takes
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration)]
    timeout: Duration,

    /// How many seconds pods get to stop, instead of their own grace
    #[arg(long, value_name = "SECONDS")]
    grace_period: Option<u32>,

    /// How to reach the API [default: admin.kubeconfig in the data directory]
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    #[command(flatten)]
    data: DataDir,
}

pub fn run(options: &DrainOptions) -> Result<(), Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start")?;
    runtime.block_on(async {
        let client = why::connect(options.kubeconfig.as_deref(), &options.data).await?;
        if options.undo { undo(&client, &options.node).await } else { drain(&client, options).await }
    })
}

async fn undo(client: &Client, node: &str) -> Result<(), Exit> {
    for pod in pods_of(client, node).await? {
        if pod.annotations().contains_key(REPLACE_FIRST) {
            let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
            let unmark = json!({ "metadata": { "uid": pod.uid(), "annotations": { REPLACE_FIRST: null } } });
            // It may have gone meanwhile.
            let _ = pods.patch(&pod.name_any(), &PatchParams::default(), &Patch::Merge(unmark)).await;
        }
    }
    cordon(client, node, false).await
}

/// Says whether the node may get pods, as `kubectl cordon` and `uncordon` do.
async fn cordon(client: &Client, node: &str, cordoned: bool) -> Result<(), Exit> {
    let nodes: Api<Node> = Api::all(client.clone());
    let found = nodes.get_opt(node).await.context("read the node")?;
    let found = found.ok_or_else(|| Exit::Refused(anyhow!("there is no node {node:?}")))?;
    let already = found.spec.and_then(|spec| spec.unschedulable).unwrap_or(false) == cordoned;
    if !already {
        let patch = json!({ "spec": { "unschedulable": cordoned.then_some(true) } });
        nodes.patch(node, &PatchParams::default(), &Patch::Merge(patch)).await.context("change the node")?;
    }
    let (word, already) = (if cordoned { "cordoned" } else { "uncordoned" }, if already { "already " } else { "" });
    println!("node/{node} {already}{word}");
    Ok(())
}

async fn pods_of(client: &Client, node: &str) -> Result<Vec<Pod>, Exit> {
    let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    Ok(Api::<Pod>::all(client.clone()).list(&of_node).await.context("list the node's pods")?.items)
}

async fn drain(client: &Client, options: &DrainOptions) -> Result<(), Exit> {
    let deadline = Some(options.timeout).filter(|timeout| !timeout.is_zero());
    let deadline = deadline.and_then(|timeout| Instant::now().checked_add(timeout));
    cordon(client, &options.node, true).await?;
    let consent = Consent { bare_pods: options.force, empty_dir_data: options.delete_emptydir_data };
    let (mut evicted, mut refused) = (Vec::new(), Vec::new());
    for pod in pods_of(client, &options.node).await? {
        let name = full_name(&pod);
        match judge(&pod, consent) {
            Disposition::Evict => evicted.push(pod),
            Disposition::Leave(why) => println!("pod {name} stays: {}", why.text()),
            Disposition::Refuse(why) => refused.push(format!("{name}: {}", why.text())),
        }
    }
    if !refused.is_empty() {
        return Err(Exit::Refused(anyhow!(
            "node {} is cordoned, but not drained; nothing was evicted:\n  {}",
            options.node,
            refused.join("\n  ")
        )));
    }
    let count = evicted.len();
    let evictor = Evictor {
        client: client.clone(),
        grace_seconds: options.grace_period,
        deadline,
        is_own_node: false,
        report: &|pod, progress| println!("pod {} {}", full_name(pod), printable(&describe(&progress))),
    };
    let remaining = evictor.evict_all(evicted).await;
    if remaining.is_empty() {
        println!("node/{} drained: {count} pods evicted", options.node);
        return Ok(());
    }
    let left: Vec<String> =
        remaining.iter().map(|Remaining { namespace, name, why }| format!("{namespace}/{name}: {why}")).collect();
    Err(Exit::Refused(anyhow!(
        "node {} is not drained, {} of {count} pods are left:\n  {}",
        options.node,
        left.len(),
        left.join("\n  ")
    )))
}

fn full_name(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
}

fn describe(progress: &Progress) -> String {
    match progress {
        Progress::Replacing => "waits for its replacement".to_owned(),
        Progress::Blocked(why) => format!("may not go yet: {why}"),
        Progress::Evicting => "evicted".to_owned(),
        Progress::Gone { after } => format!("is gone after {:.1} s", after.as_secs_f64()),
    }
}
