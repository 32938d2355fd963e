//! Pods that follow the pod they are tied to.

use k8s_openapi::api::{
    apps::v1::ReplicaSet,
    core::v1::{Node, Pod},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use crate::cluster::{Cluster, until};

/// A set of one pod on node `a` that is tied to the leader.
async fn start_set(cluster: &Cluster, name: &str, follows: bool) -> Pod {
    let term = json!({ "topologyKey": "rack", "labelSelector": { "matchLabels": { "app": "leader" } } });
    let mut template = json!({
        "metadata": { "labels": { "app": name } },
        "spec": {
            "nodeName": "a", "containers": [{ "name": "c", "image": "i" }],
            "affinity": { "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [term] } },
        },
    });
    if follows {
        template["metadata"]["annotations"] = json!({ "mainstay.dev/follow": "true" });
    }
    let spec = json!({ "replicas": 1, "selector": { "matchLabels": { "app": name } }, "template": template });
    let set = serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap();
    let sets: Api<ReplicaSet> = Api::namespaced(cluster.client.clone(), "default");
    sets.create(&PostParams::default(), &set).await.expect("create a set");
    let params = ListParams::default().labels(&format!("app={name}"));
    until("the set has its pod", async || !cluster.pods().list(&params).await.unwrap().items.is_empty()).await;
    let pod = cluster.pods().list(&params).await.unwrap().items.remove(0);
    cluster.run_pod(&pod.name_any()).await;
    pod
}

async fn start_leader(cluster: &Cluster, node: &str) {
    cluster.pod_on(node, "leader", json!({})).await;
    let labels = Patch::Merge(json!({ "metadata": { "labels": { "app": "leader" } } }));
    cluster.pods().patch("leader", &PatchParams::default(), &labels).await.expect("label the leader");
}

#[tokio::test]
pub async fn a_follower_moves_when_its_leader_has_moved_and_only_if_it_says_so() {
    let cluster = Cluster::start().await;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    for name in ["a", "b"] {
        cluster.node(name, "4").await;
        let labels = Patch::Merge(json!({ "metadata": { "labels": { "rack": format!("rack-{name}") } } }));
        nodes.patch(name, &PatchParams::default(), &labels).await.expect("label a node");
    }
    start_leader(&cluster, "a").await;
    cluster.run_pod("leader").await;
    let follower = start_set(&cluster, "follower", true).await.name_any();
    let other = start_set(&cluster, "other", false).await.name_any();
    cluster.pods().delete("leader", &DeleteParams::default().grace_period(0)).await.expect("delete the leader");
    cluster.settled().await;
    let is_leaving = async |name: &str| {
        let pod = cluster.pods().get_opt(name).await.expect("get a pod");
        pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some())
    };
    assert!(!is_leaving(&follower).await, "while the leader is nowhere, there is nothing to follow");
    start_leader(&cluster, "b").await;
    cluster.run_pod("leader").await;
    until("the follower goes", async || is_leaving(&follower).await).await;
    until("it says why", async || cluster.has_event_about(&follower, "FollowsLeader").await).await;
    assert!(!is_leaving(&other).await, "others stay");
    cluster.stop().await;
}
