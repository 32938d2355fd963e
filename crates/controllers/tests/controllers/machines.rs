//! Machines get ranges and taints.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use crate::cluster::{Cluster, until};

impl Cluster {
    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    pub async fn node(&self, name: &str, cpu: &str) -> Node {
        let node = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
        self.nodes().create(&PostParams::default(), &node).await.expect("create a node");
        self.node_status(name, "Ready", "True", cpu).await
    }

    pub async fn node_status(&self, name: &str, condition: &str, status: &str, cpu: &str) -> Node {
        let patch = json!({ "status": {
            "allocatable": { "cpu": cpu, "memory": "8Gi", "pods": "110" },
            "capacity": { "cpu": cpu, "memory": "8Gi", "pods": "110" },
            "conditions": [{ "type": condition, "status": status }],
        } });
        let patched = self.nodes().patch_status(name, &PatchParams::default(), &Patch::Strategic(patch)).await;
        patched.expect("patch a node's status")
    }
}

fn range(node: &Node) -> String {
    let spec = node.spec.as_ref().unwrap();
    assert_eq!(spec.pod_cidrs.as_ref().unwrap()[0], spec.pod_cidr.clone().unwrap());
    spec.pod_cidr.clone().unwrap()
}

#[tokio::test]
async fn every_node_gets_a_range_of_its_own_and_a_freed_one_is_used_last() {
    let cluster = Cluster::start().await;
    assert_eq!(range(&cluster.node("a", "1").await), "10.244.0.0/24");
    assert_eq!(range(&cluster.node("b", "1").await), "10.244.1.0/24");
    cluster.nodes().delete("a", &DeleteParams::default()).await.unwrap();
    assert_eq!(range(&cluster.node("c", "1").await), "10.244.2.0/24");
    let own = |cidr: &str| {
        serde_json::from_value(json!({ "metadata": { "name": "d" }, "spec": { "podCIDR": cidr } })).unwrap()
    };
    let taken = cluster.nodes().create(&PostParams::default(), &own("10.244.2.0/24")).await.unwrap_err();
    assert!(taken.to_string().contains("spec.podCIDR"), "{taken}");
    let given = cluster.nodes().create(&PostParams::default(), &own("10.244.0.0/24")).await.unwrap();
    assert_eq!(range(&given), "10.244.0.0/24");
    let at_once = (0..20).map(|n| {
        let nodes = cluster.nodes();
        async move {
            let node = serde_json::from_value(json!({ "metadata": { "name": format!("many-{n}") } })).unwrap();
            loop {
                if let Ok(node) = nodes.create(&PostParams::default(), &node).await {
                    return range(&node);
                }
            }
        }
    });
    let ranges: BTreeSet<String> = futures::future::join_all(at_once).await.into_iter().collect();
    assert_eq!(ranges.len(), 20);
    assert!(ranges.contains("10.244.22.0/24") && ranges.contains("10.244.3.0/24"), "the lowest: {ranges:?}");
    cluster.stop().await;
}

#[tokio::test]
pub async fn taints_follow_what_a_node_reports() {
    let cluster = Cluster::start().await;
    cluster.node("a", "1").await;
    let taints = || async {
        let node = cluster.nodes().get("a").await.unwrap();
        let taints = node.spec.unwrap().taints.unwrap_or_default();
        taints.into_iter().map(|taint| format!("{}:{}", taint.key, taint.effect)).collect::<Vec<_>>()
    };
    cluster.node_status("a", "MemoryPressure", "True", "1").await;
    let expected = ["node.kubernetes.io/memory-pressure:NoSchedule"];
    until("the pressure is a taint", async || taints().await == expected).await;
    cluster.node_status("a", "MemoryPressure", "False", "1").await;
    until("no more", async || taints().await.is_empty()).await;
    cluster.node_status("a", "Ready", "False", "1").await;
    let expected = ["node.kubernetes.io/not-ready:NoSchedule", "node.kubernetes.io/not-ready:NoExecute"];
    until("not ready is a taint", async || taints().await == expected).await;
    cluster.stop().await;
}
