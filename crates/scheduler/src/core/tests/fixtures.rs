//! Clusters and pods in few words.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::core::{
    Cluster, schedule,
    verdict::{PendingPod, ScoringStrategy, Verdict},
    view::{NodeView, OfferView, PodView, PortRanges},
};

/// A node with 4 cpus, 8Gi and 10 pods, with `more` merged in.
pub fn node(name: &str, more: Value) -> NodeView {
    let mut node = json!({
        "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } },
        "spec": {},
        "status": {
            "allocatable": { "cpu": "4", "memory": "8Gi", "pods": "10" },
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    });
    merge(&mut node, more);
    serde_json::from_value(node).unwrap()
}

pub fn offer(node: &NodeView) -> OfferView {
    OfferView {
        uid: String::new(),
        free: node.allocatable.clone(),
        automatic_ports: PortRanges::parse_valid(["31000-32000"]),
        explicit_ports: PortRanges::parse_valid(["1-65535"]),
        pools: vec![],
        seen: 0,
    }
}

pub fn cluster(nodes: impl IntoIterator<Item = NodeView>) -> Cluster {
    let mut cluster = Cluster::new();
    for node in nodes {
        let (name, offer) = (node.name.clone(), offer(&node));
        cluster.update_node(node);
        cluster.update_offer(&name, offer);
    }
    cluster
}

/// A pod of namespace `ns` that asks for nothing, with `more` merged in.
pub fn pod(name: &str, more: Value) -> PodView {
    let mut pod = json!({
        "metadata": { "name": name, "namespace": "ns", "uid": format!("{name}-uid"), "resourceVersion": "1" },
        "spec": { "containers": [{ "name": "c" }] },
    });
    merge(&mut pod, more);
    serde_json::from_value(pod).unwrap()
}

pub fn asking(name: &str, cpu: &str) -> PodView {
    pod(name, json!({ "spec": { "containers": [requests(json!({ "cpu": cpu }))] } }))
}

pub fn requests(amounts: Value) -> Value {
    json!({ "name": "c", "resources": { "requests": amounts } })
}

/// As if bound there long ago, known to the offer or not as its `seen` says.
pub fn on(node: &str, mut pod: PodView) -> Arc<PodView> {
    pod.node = Some(node.to_owned());
    Arc::new(pod)
}

pub fn verdict(cluster: &mut Cluster, pod: PodView) -> Verdict {
    schedule(cluster, &[PendingPod::new(Arc::new(pod))], ScoringStrategy::default()).remove(0)
}

/// Where it was placed, or else why not.
pub fn placed(cluster: &mut Cluster, pod: PodView) -> String {
    match verdict(cluster, pod) {
        Verdict::Place { node, .. } => node.to_string(),
        Verdict::Preempt { node, victims, .. } => {
            let names: Vec<String> = victims.iter().map(|victim| victim.key.name.clone()).collect();
            format!("{node} without {}", names.join(" "))
        }
        Verdict::Unschedulable(why) => why.to_string(),
    }
}

fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more,
    }
}
