//! The decision alone: pods and nodes that are already parsed in, placements out, on one core.
//!
//! The workloads are those of upstream's `scheduler_perf` at 5,000 nodes, its templates included, so that the same can
//! be asked of a kube-scheduler: nodes of 4 cpus, 32Gi and 110 pods in three zones; pods of 100m and 500Mi, some
//! there before and many to be placed.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use mainstay_scheduler::core::{
    Cluster, schedule,
    verdict::{PendingPod, ScoringStrategy, Verdict},
    view::{NodeView, OfferView, PodView},
};
use serde_json::{Value, json};

const HOST: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";

#[derive(clap::Args)]
pub struct Options {
    /// Nodes in the cluster
    #[arg(long, default_value_t = 5_000)]
    nodes: usize,
    /// Pods decided at once
    #[arg(long, default_value_t = 1_000)]
    batch: usize,
    /// Times each is measured; the median is printed
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Measure only what contains this word
    #[arg(long, default_value = "")]
    only: String,
}

struct Workload {
    name: &'static str,
    upstream: &'static str,
    /// Placements per second to be reached.
    goal: f64,
    before: usize,
    measured: usize,
    /// Labels and spec of the pods.
    pod: fn() -> (Value, Value),
}

const WORKLOADS: [Workload; 5] = [
    Workload {
        name: "plain pods",
        upstream: "SchedulingBasic",
        goal: 100_000.0,
        before: 1_000,
        measured: 100_000,
        pod: || (json!({}), json!({})),
    },
    Workload {
        name: "node affinity",
        upstream: "SchedulingNodeAffinity",
        goal: 10_000.0,
        before: 5_000,
        measured: 20_000,
        pod: node_affinity,
    },
    Workload {
        name: "anti-affinity per host",
        upstream: "SchedulingPodAntiAffinity",
        goal: 10_000.0,
        before: 1_000,
        measured: 4_000,
        pod: anti_affinity,
    },
    Workload {
        name: "zone spread",
        upstream: "TopologySpreading",
        goal: 10_000.0,
        before: 5_000,
        measured: 20_000,
        pod: zone_spread,
    },
    Workload {
        name: "preferred affinity to other pods",
        upstream: "PreferredPodAffinity",
        goal: 10_000.0,
        before: 5_000,
        measured: 20_000,
        pod: preferred_affinity,
    },
];

fn node_affinity() -> (Value, Value) {
    let term = json!({ "matchExpressions": [{ "key": ZONE, "operator": "In", "values": ["moon-1", "moon-2"] }] });
    let required = json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [term] } });
    (json!({}), json!({ "affinity": { "nodeAffinity": required } }))
}

fn anti_affinity() -> (Value, Value) {
    let labels = json!({ "color": "green", "name": "test" });
    let term = json!({ "labelSelector": { "matchLabels": { "color": "green" } }, "topologyKey": HOST });
    let required = json!({ "requiredDuringSchedulingIgnoredDuringExecution": [term] });
    (labels, json!({ "affinity": { "podAntiAffinity": required } }))
}

fn zone_spread() -> (Value, Value) {
    let labels = json!({ "color": "blue" });
    let rule = json!({ "maxSkew": 5, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": { "matchLabels": { "color": "blue" } } });
    (labels, json!({ "topologySpreadConstraints": [rule] }))
}

fn preferred_affinity() -> (Value, Value) {
    let labels = json!({ "color": "red" });
    let term = json!({ "labelSelector": { "matchLabels": { "color": "red" } }, "topologyKey": HOST });
    let preferred =
        json!({ "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 1, "podAffinityTerm": term }] });
    (labels, json!({ "affinity": { "podAffinity": preferred } }))
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    println!("{} machines, batches of {}, median of {} rounds", options.nodes, options.batch, options.rounds);
    println!(
        "{:<34} {:<27} {:>8} {:>14} {:>14} {:>12}",
        "what", "upstream's name", "pods", "placements/s", "/s of CPU", "goal"
    );
    let wanted = WORKLOADS.iter().filter(|workload| workload.name.contains(&options.only));
    for workload in wanted {
        let mut rates = Vec::with_capacity(options.rounds);
        for _ in 0..options.rounds.max(1) {
            let took = round(workload, options).with_context(|| workload.name)?;
            rates.push(took.map(|took| workload.measured as f64 / took.as_secs_f64()));
        }
        let [rate, busy] = [0, 1].map(|which| median(rates.iter().map(|rate| rate[which])));
        let met = if rate >= workload.goal { "met" } else { "MISSED" };
        let Workload { name, upstream, goal, measured, .. } = workload;
        println!("{name:<34} {upstream:<27} {measured:>8} {rate:>14.0} {busy:>14.0} {goal:>12.0} {met}");
    }
    Ok(())
}

fn median(all: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = all.collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// How long this thread was on a CPU, so that a busy node does not blur what is measured.
fn on_cpu() -> anyhow::Result<Duration> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").context("read the time on the CPU")?;
    let nanoseconds = stat.split(' ').next().and_then(|text| text.parse().ok());
    Ok(Duration::from_nanos(nanoseconds.context("understand the time on the CPU")?))
}

/// How long the decisions took, by the clock and on the CPU. Every pod has to be placed.
fn round(workload: &Workload, options: &Options) -> anyhow::Result<[Duration; 2]> {
    let mut cluster = Cluster::new();
    for at in 0..options.nodes {
        let node = node(at)?;
        let free = node.allocatable.clone();
        let name = node.name.clone();
        cluster.update_node(node);
        cluster.update_offer(&name, OfferView { free, ..OfferView::default() });
    }
    let pods: Vec<PendingPod> = (0..workload.before + workload.measured)
        .map(|at| pod(at, workload.pod).map(|pod| PendingPod::new(Arc::new(pod))))
        .collect::<Result<_, _>>()?;
    let (before, measured) = pods.split_at(workload.before);
    let scoring = ScoringStrategy::default();
    schedule(&mut cluster, before, scoring);
    let (started, busy, mut placed) = (Instant::now(), on_cpu()?, 0);
    for batch in measured.chunks(options.batch.max(1)) {
        let verdicts = schedule(&mut cluster, batch, scoring);
        placed += verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Place { .. })).count();
    }
    let took = [started.elapsed(), on_cpu()?.saturating_sub(busy)];
    ensure!(placed == measured.len(), "only {placed} of {} pods were placed", measured.len());
    Ok(took)
}

fn node(at: usize) -> anyhow::Result<NodeView> {
    let name = format!("scheduler-perf-{at:05}");
    let labels = json!({ HOST: name, ZONE: format!("moon-{}", at % 3 + 1) });
    let status = json!({
        "allocatable": { "cpu": "4", "memory": "32Gi", "pods": "110" },
        "conditions": [{ "type": "Ready", "status": "True" }],
    });
    Ok(serde_json::from_value(json!({ "metadata": { "name": name, "labels": labels }, "status": status }))?)
}

fn pod(at: usize, template: fn() -> (Value, Value)) -> anyhow::Result<PodView> {
    let (labels, mut spec) = template();
    spec["containers"] = json!([{
        "image": "registry.k8s.io/pause:3.9",
        "name": "pause",
        "ports": [{ "containerPort": 80 }],
        "resources": { "requests": { "cpu": "100m", "memory": "500Mi" }, "limits": { "cpu": "100m", "memory": "500Mi" } },
    }]);
    let metadata =
        json!({ "name": format!("pod-{at}"), "namespace": "sched-1", "uid": format!("uid-{at}"), "labels": labels });
    Ok(serde_json::from_str(&json!({ "metadata": metadata, "spec": spec }).to_string())?)
}
