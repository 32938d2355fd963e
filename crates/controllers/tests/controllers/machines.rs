//! Machines get ranges and taints, and pods get machines.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::cluster::{Cluster, until};

impl Cluster {
    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn node(&self, name: &str, cpu: &str) -> Node {
        let node = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
        self.nodes().create(&PostParams::default(), &node).await.expect("create a node");
        self.node_status(name, "Ready", "True", cpu).await
    }

    async fn node_status(&self, name: &str, condition: &str, status: &str, cpu: &str) -> Node {
        let patch = json!({ "status": {
            "allocatable": { "cpu": cpu, "memory": "8Gi", "pods": "110" },
            "capacity": { "cpu": cpu, "memory": "8Gi", "pods": "110" },
            "conditions": [{ "type": condition, "status": status }],
        } });
        let patched = self.nodes().patch_status(name, &PatchParams::default(), &Patch::Strategic(patch)).await;
        patched.expect("patch a node's status")
    }

    async fn pod(&self, name: &str, spec: Value) {
        let mut object = json!({
            "metadata": { "name": name },
            "spec": { "containers": [{ "name": "c", "image": "i", "resources": { "requests": { "cpu": "100m" } } }] },
        });
        object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let object = serde_json::from_value(object).unwrap();
        self.pods().create(&PostParams::default(), &object).await.expect("create a pod");
    }

    async fn where_is(&self, name: &str) -> Option<String> {
        self.pods().get(name).await.unwrap().spec.unwrap().node_name
    }

    async fn placed(&self, name: &str) -> String {
        until(&format!("{name} is placed"), async || self.where_is(name).await.is_some()).await;
        self.where_is(name).await.unwrap()
    }

    async fn complaint(&self, name: &str) -> Option<(String, String)> {
        let pod = self.pods().get(name).await.unwrap();
        let conditions = pod.status?.conditions?;
        let condition = conditions.into_iter().find(|c| c.type_ == "PodScheduled" && c.status == "False")?;
        Some((condition.reason?, condition.message?))
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
async fn taints_follow_what_a_node_tells() {
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

#[tokio::test]
async fn pods_are_spread_over_machines_and_told_to_them() {
    let cluster = Cluster::start().await;
    cluster.node("a", "8").await;
    cluster.node("b", "8").await;
    let start = Instant::now();
    cluster.pod("first", json!({})).await;
    cluster.placed("first").await;
    let one = start.elapsed();
    let start = Instant::now();
    futures::future::join_all((0..100).map(|n| {
        let cluster = &cluster;
        async move { cluster.pod(&format!("p{n}"), json!({})).await }
    }))
    .await;
    let all = || async { cluster.pods().list(&ListParams::default()).await.unwrap().items };
    until("all are placed", async || all().await.iter().all(|pod| pod.spec.as_ref().unwrap().node_name.is_some()))
        .await;
    println!("one pod in {one:?}, a hundred in {:?}", start.elapsed());
    let mut spread: BTreeMap<String, usize> = BTreeMap::new();
    for pod in all().await {
        *spread.entry(pod.spec.unwrap().node_name.unwrap()).or_default() += 1;
    }
    assert!(spread.values().all(|count| (40..=61).contains(count)), "{spread:?}");
    let events = Api::<Event>::namespaced(cluster.client.clone(), "default");
    until("it is told", async || {
        let events = events.list(&ListParams::default()).await.unwrap().items;
        events.iter().any(|event| {
            event.message.as_deref().is_some_and(|m| m.starts_with("Successfully assigned default/first to "))
        })
    })
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_pod_that_fits_nowhere_says_why_and_goes_as_soon_as_there_is_room() {
    let cluster = Cluster::start().await;
    let big = json!({ "containers": [{ "name": "c", "image": "i", "resources": { "requests": { "cpu": "900m" } } }] });
    cluster.pod("early", big.clone()).await;
    let no_nodes = ("Unschedulable".to_owned(), "no nodes available to schedule pods".to_owned());
    until("there are no nodes", async || cluster.complaint("early").await.as_ref() == Some(&no_nodes)).await;
    cluster.node("a", "1").await;
    assert_eq!(cluster.placed("early").await, "a");
    cluster.pod("late", big).await;
    let full = "0/1 nodes are available: 1 Insufficient cpu.".to_owned();
    until("there is no room", async || cluster.complaint("late").await.is_some_and(|(_, why)| why == full)).await;
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    cluster.pods().delete("early", &now).await.unwrap();
    assert_eq!(cluster.placed("late").await, "a");
    assert_eq!(cluster.complaint("late").await, None);
    cluster.stop().await;
}

#[tokio::test]
async fn room_is_never_given_twice() {
    let cluster = Cluster::start().await;
    cluster.node("a", "1").await;
    let half = json!({ "containers": [{ "name": "c", "image": "i", "resources": { "requests": { "cpu": "400m" } } }] });
    let many = (0..10).map(|n| {
        let (cluster, half) = (&cluster, half.clone());
        async move { cluster.pod(&format!("p{n}"), half).await }
    });
    futures::future::join_all(many).await;
    until("everybody has an answer", async || {
        let mut answered = 0;
        for n in 0..10 {
            let name = format!("p{n}");
            let placed = cluster.where_is(&name).await.is_some();
            answered += usize::from(placed || cluster.complaint(&name).await.is_some());
        }
        answered == 10
    })
    .await;
    let api = cluster.pods();
    cluster.stop().await; // whatever was still being decided is decided
    let pods = api.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(pods.iter().filter(|pod| pod.spec.as_ref().unwrap().node_name.is_some()).count(), 2);
}
