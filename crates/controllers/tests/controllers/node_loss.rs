//! Nodes are lost: pods are evicted by taints, replaced, or left alone.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Event, Pod},
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use mainstay_api::{
    node_loss::{FencePromise, Timing},
    wellknown::namespace::NODE_LEASES,
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::cluster::{Cluster, until};

/// More often than the timings ask for, so that a busy machine makes no gaps.
const BEAT: Duration = Duration::from_millis(200);

fn fast() -> Timing {
    let seconds = Duration::from_secs;
    Timing { heartbeat: seconds(1), unknown_after: seconds(4), toleration: seconds(1), fence_after: seconds(3) }
}

impl Cluster {
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    pub async fn pod_on(&self, node: &str, name: &str, spec: Value) {
        let mut pod = json!({ "metadata": { "name": name }, "spec": {
            "nodeName": node, "containers": [{ "name": "c", "image": "i" }],
        } });
        pod["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let pod = serde_json::from_value(pod).unwrap();
        self.pods().create(&PostParams::default(), &pod).await.expect("create a pod");
    }

    async fn taint(&self, node: &str, taints: Value) {
        let patch = json!({ "spec": { "taints": taints } });
        self.nodes().patch(node, &PatchParams::default(), &Patch::Merge(patch)).await.expect("taint a node");
    }

    async fn pod(&self, name: &str) -> Option<Pod> {
        self.pods().get_opt(name).await.expect("get a pod")
    }

    pub async fn run_pod(&self, name: &str) {
        let status = json!({ "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] } });
        let patched = self.pods().patch_status(name, &PatchParams::default(), &Patch::Strategic(status)).await;
        patched.expect("patch a pod's status");
    }

    pub async fn has_event_about(&self, about: &str, reason: &str) -> bool {
        let events: Api<Event> = Api::all(self.client.clone());
        let events = events.list(&ListParams::default()).await.expect("list events");
        let matches = |event: &Event| {
            event.involved_object.name.as_deref() == Some(about) && event.reason.as_deref() == Some(reason)
        };
        events.iter().any(matches)
    }
}

fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<(&'a str, &'a str)> {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let condition = conditions.find(|condition| condition.type_ == kind)?;
    Some((&condition.status, condition.reason.as_deref().unwrap_or_default()))
}

/// Nodes that renew their Leases until they are cut off.
struct Nodes {
    beating: Arc<Mutex<Vec<String>>>,
    /// When each sent its last renewal: what a node promises counts from there, not from when it was cut off.
    sent: Arc<Mutex<BTreeMap<String, Instant>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Nodes {
    async fn start(cluster: &Cluster, names: &[&str], promise: impl Fn(&str) -> Value) -> Self {
        cluster.namespace(NODE_LEASES).await;
        let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), NODE_LEASES);
        for name in names {
            cluster.node(name, "4").await;
            let lease = json!({ "metadata": { "name": name, "annotations": promise(name) }, "spec": {} });
            leases.create(&PostParams::default(), &serde_json::from_value(lease).unwrap()).await.expect("a lease");
        }
        let beating = Arc::new(Mutex::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>()));
        let sent = Arc::new(Mutex::new(BTreeMap::new()));
        let task = tokio::spawn({
            let (beating, sent) = (beating.clone(), sent.clone());
            async move {
                loop {
                    let names = beating.lock().clone();
                    for name in names {
                        sent.lock().insert(name.clone(), Instant::now());
                        let now = jiff::Timestamp::now().to_string();
                        let patch = Patch::Merge(json!({ "spec": { "renewTime": now } }));
                        leases.patch(&name, &PatchParams::default(), &patch).await.expect("renew a lease");
                    }
                    tokio::time::sleep(BEAT).await;
                }
            }
        });
        Self { beating, sent, task }
    }

    /// How long ago a node sent its last renewal.
    fn silent_for(&self, name: &str) -> Duration {
        self.sent.lock().get(name).map_or(Duration::ZERO, Instant::elapsed)
    }

    /// Cuts a node off as late after a renewal as can be: shortly before it would send the next.
    async fn cut_before_next_renewal(&self, name: &str) {
        while self.silent_for(name) < BEAT * 3 / 4 {
            tokio::time::sleep(BEAT / 20).await;
        }
        self.cut(name);
    }

    fn cut(&self, name: &str) {
        self.beating.lock().retain(|beating| beating != name);
    }

    fn restore(&self, name: &str) {
        self.beating.lock().push(name.to_owned());
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test]
pub async fn pods_are_evicted_by_taints_that_they_do_not_tolerate() {
    let cluster = Cluster::start().await;
    cluster.node("a", "4").await;
    let tolerates = |seconds: Value| {
        let toleration =
            json!({ "key": "fire", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds });
        json!({ "tolerations": [toleration] })
    };
    cluster.pod_on("a", "leaves", json!({})).await;
    cluster.pod_on("a", "leaves-later", tolerates(json!(2))).await;
    cluster.pod_on("a", "stays", tolerates(Value::Null)).await;
    cluster.pod_on("a", "reprieved", tolerates(json!(600))).await;
    let stock = cluster.pod("leaves").await.unwrap().spec.unwrap().tolerations.unwrap();
    assert_eq!(stock.iter().map(|toleration| toleration.toleration_seconds).collect::<Vec<_>>(), [Some(5), Some(5)]);
    let began = std::time::Instant::now();
    cluster.taint("a", json!([{ "key": "fire", "effect": "NoExecute" }])).await;
    let is_leaving =
        async |name: &str| cluster.pod(name).await.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some());
    until("it is evicted", async || is_leaving("leaves").await).await;
    let leaving = cluster.pod("leaves").await.expect("it has its grace");
    assert_eq!(condition(&leaving, "DisruptionTarget"), Some(("True", "DeletionByTaintManager")));
    until("an event says so", async || cluster.has_event_about("leaves", "TaintManagerEviction").await).await;
    until("it is evicted after its time", async || is_leaving("leaves-later").await).await;
    assert!(began.elapsed() >= Duration::from_secs(2));
    cluster.taint("a", json!([])).await;
    cluster.taint("a", json!([{ "key": "water", "effect": "NoSchedule" }])).await;
    cluster.settled().await;
    assert!(!is_leaving("stays").await && !is_leaving("reprieved").await);
    cluster.stop().await;
}

#[tokio::test]
pub async fn pods_of_a_lost_node_are_replaced_and_unique_ones_only_when_it_has_stopped_them() {
    let cluster = Cluster::start_with(fast()).await;
    let promise = |within: Duration| {
        move |name: &str| {
            let witnesses =
                ["a", "b", "c"].iter().filter(|other| **other != name).map(|other| (*other).to_owned()).collect();
            let annotations = FencePromise { stops_within: within, witnesses }.to_annotations();
            serde_json::to_value(std::collections::BTreeMap::from(annotations)).unwrap()
        }
    };
    let stops_within = Duration::from_secs(6);
    let nodes = Nodes::start(&cluster, &["a", "b", "c"], promise(stops_within)).await;
    let soon = ["not-ready", "unreachable"].map(|key| json!({
        "key": format!("node.kubernetes.io/{key}"), "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1,
    }));
    let spec = json!({ "nodeName": "a", "tolerations": soon, "containers": [{ "name": "c", "image": "i" }] });
    let set = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": { "name": "web" },
        "spec": { "replicas": 1, "selector": { "matchLabels": { "app": "web" } },
                  "template": { "metadata": { "labels": { "app": "web" } }, "spec": spec } },
    });
    let sets: Api<k8s_openapi::api::apps::v1::ReplicaSet> = Api::namespaced(cluster.client.clone(), "default");
    sets.create(&PostParams::default(), &serde_json::from_value(set).unwrap()).await.expect("a set");
    let of_set = async || {
        let pods = cluster.pods().list(&ListParams::default().labels("app=web")).await.expect("list pods");
        pods.items.into_iter().next().and_then(|pod| pod.metadata.name)
    };
    until("the set has a pod", async || of_set().await.is_some()).await;
    let first = of_set().await.unwrap();
    cluster.pod_on("a", "bare", json!({ "tolerations": soon })).await;
    cluster.pod_on("a", "unique", json!({ "tolerations": soon })).await;
    let unique = json!({ "metadata": { "annotations": { "mainstay.dev/unique": "true" } } });
    cluster.pods().patch("unique", &PatchParams::default(), &Patch::Merge(unique)).await.expect("annotate");
    for pod in [&*first, "bare", "unique"] {
        cluster.run_pod(pod).await;
    }

    nodes.cut_before_next_renewal("a").await;
    let taints = async || cluster.nodes().get("a").await.unwrap().spec.unwrap().taints.unwrap_or_default();
    until("it is lost", async || taints().await.iter().any(|taint| taint.effect == "NoExecute")).await;
    assert!(nodes.silent_for("a") >= fast().unknown_after, "{:?}", nodes.silent_for("a"));
    let phase = async |name: &str| cluster.pod(name).await.and_then(|pod| pod.status?.phase).unwrap_or_default();
    until("its pods are not ready", async || {
        let unique = cluster.pod("unique").await.unwrap();
        condition(&unique, "Ready") == Some(("False", "NodeNotReady"))
    })
    .await;
    until("the pod of the set is gone", async || cluster.pod(&first).await.is_none()).await;
    until("the bare pod failed", async || phase("bare").await == "Failed").await;
    let bare = cluster.pod("bare").await.unwrap();
    assert_eq!(bare.status.as_ref().unwrap().reason.as_deref(), Some("NodeLost"));
    assert_eq!(condition(&bare, "DisruptionTarget"), Some(("True", "DeletionByTaintManager")));
    // The node may run it for as long as it promised, counted from when it sent its last renewal; nobody may replace it before.
    until("the unique one goes when the node's time is over", async || {
        let is_failed = phase("unique").await == "Failed";
        let silent_for = nodes.silent_for("a");
        assert!(!is_failed || silent_for >= stops_within, "failed after {silent_for:?}: its node may still run it");
        is_failed
    })
    .await;

    nodes.restore("a");
    until("it is back", async || {
        // As an agent does that finds its node called unknown.
        cluster.node_status("a", "Ready", "True", "4").await;
        taints().await.is_empty()
    })
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn unique_pods_stay_while_their_node_promised_nothing_or_too_few_witnesses_are_heard() {
    let cluster = Cluster::start_with(fast()).await;
    let promise = |name: &str| match name {
        "a" => {
            let promise =
                FencePromise { stops_within: Duration::from_secs(3), witnesses: vec!["b".into(), "z".into()] };
            serde_json::to_value(std::collections::BTreeMap::from(promise.to_annotations())).unwrap()
        }
        _ => json!({}),
    };
    let nodes = Nodes::start(&cluster, &["a", "b", "c", "d", "e"], promise).await;
    for node in ["a", "b"] {
        let unique = json!({ "mainstay.dev/unique": "true" });
        let pod = json!({
            "metadata": { "name": format!("unique-{node}"), "annotations": unique },
            "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "i" }],
                      "tolerations": [{ "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0 }] },
        });
        let pod = serde_json::from_value(pod).unwrap();
        cluster.pods().create(&PostParams::default(), &pod).await.expect("create a pod");
        cluster.run_pod(&format!("unique-{node}")).await;
    }
    cluster
        .pod_on(
            "b",
            "other",
            json!({ "tolerations": [{ "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 4 }] }),
        )
        .await;
    nodes.cut("a");
    nodes.cut("b");
    // By when this one is evicted, the unique ones would have been.
    until("a pod that may run twice is failed", async || {
        cluster.pod("other").await.and_then(|pod| pod.status?.phase).as_deref() == Some("Failed")
    })
    .await;
    for name in ["unique-a", "unique-b"] {
        let pod = cluster.pod(name).await.expect("it is left alone");
        assert_eq!(pod.status.as_ref().unwrap().phase.as_deref(), Some("Running"), "{name}");
        assert_eq!(condition(&pod, "Ready"), Some(("False", "NodeNotReady")), "{name}");
    }
    cluster.stop().await;
}

#[tokio::test]
async fn if_most_nodes_vanish_at_once_nothing_is_evicted_until_they_are_back() {
    let cluster = Cluster::start_with(fast()).await;
    let nodes = Nodes::start(&cluster, &["a", "b", "c", "d"], |_| json!({})).await;
    cluster
        .pod_on(
            "a",
            "stays",
            json!({ "tolerations": [{ "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0 }] }),
        )
        .await;
    ["a", "b", "c"].iter().for_each(|name| nodes.cut(name));
    let paused = async |name: &str| {
        let node = cluster.nodes().get(name).await.unwrap();
        let mut conditions = node.status.into_iter().flat_map(|status| status.conditions.unwrap_or_default());
        conditions.find(|condition| condition.type_ == "EvictionsPaused").map(|condition| condition.status)
    };
    until("evictions are paused", async || paused("a").await.as_deref() == Some("True")).await;
    until("an event says so", async || cluster.has_event_about("a", "EvictionsPaused").await).await;
    assert_eq!(cluster.pod("stays").await.unwrap().status.unwrap().phase.as_deref(), Some("Pending"));
    nodes.restore("b");
    nodes.restore("c");
    until("they resume", async || paused("a").await.as_deref() == Some("False")).await;
    until("the one that is still silent is lost", async || {
        cluster.pod("stays").await.and_then(|pod| pod.status?.phase).as_deref() == Some("Failed")
    })
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_suspect_node_is_tainted_if_it_is_one_of_few() {
    let cluster = Cluster::start().await;
    for name in ["a", "b", "c", "d"] {
        cluster.node(name, "1").await;
    }
    let tainted = async || {
        let nodes = cluster.nodes().list(&ListParams::default()).await.expect("list nodes");
        let is_suspect = |node: &k8s_openapi::api::core::v1::Node| {
            let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
            taints.any(|taint| taint.key == "mainstay.dev/suspect" && taint.effect == "NoSchedule")
        };
        nodes.into_iter().filter(is_suspect).filter_map(|node| node.metadata.name).collect::<Vec<String>>()
    };
    cluster.node_status("b", "Suspect", "True", "1").await;
    until("it is tainted", async || tainted().await == ["b"]).await;
    cluster.node_status("a", "Suspect", "True", "1").await;
    cluster.node_status("b", "Suspect", "False", "1").await;
    until("the other takes its place", async || tainted().await == ["a"]).await;
    cluster.stop().await;
}
