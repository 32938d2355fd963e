//! Quotas are counted, and what is given back can be used again.

use crate::cluster::{Cluster, until};
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

fn quotas(cluster: &Cluster) -> Api<ResourceQuota> {
    Api::namespaced(cluster.client.clone(), "shop")
}

fn pods(cluster: &Cluster) -> Api<Pod> {
    Api::namespaced(cluster.client.clone(), "shop")
}

async fn create_quota(cluster: &Cluster, hard: Value) {
    let quota = json!({ "metadata": { "name": "q" }, "spec": { "hard": hard } });
    quotas(cluster).create(&PostParams::default(), &serde_json::from_value(quota).unwrap()).await.unwrap();
}

async fn is_used(cluster: &Cluster, expected: Value) {
    until(&format!("{expected} is used"), async || {
        let status = quotas(cluster).get_status("q").await.unwrap().status.unwrap_or_default();
        json!(status.used.unwrap_or_default()) == expected
    })
    .await;
}

async fn create_pod(cluster: &Cluster, name: &str) -> Result<Pod, kube::Error> {
    let pod = json!({
        "metadata": { "name": name },
        "spec": { "containers": [{ "name": "c", "image": "i", "resources": { "requests": { "cpu": "100m" } } }] },
    });
    pods(cluster).create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await
}

#[tokio::test]
pub async fn what_was_there_counts_and_what_is_deleted_or_ends_is_given_back() {
    let cluster = Cluster::start().await;
    cluster.namespace("shop").await;
    create_pod(&cluster, "before").await.unwrap();
    create_quota(&cluster, json!({ "pods": "2", "count/pods": "3", "requests.cpu": "1" })).await;
    is_used(&cluster, json!({ "count/pods": "1", "pods": "1", "requests.cpu": "100m" })).await;
    create_pod(&cluster, "a").await.unwrap();
    let refused = create_pod(&cluster, "b").await.unwrap_err().to_string();
    assert!(refused.contains("exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2"), "{refused}");

    let ended = Patch::Merge(json!({ "status": { "phase": "Succeeded" } }));
    pods(&cluster).patch_status("a", &PatchParams::default(), &ended).await.unwrap();
    is_used(&cluster, json!({ "count/pods": "2", "pods": "1", "requests.cpu": "100m" })).await;
    create_pod(&cluster, "b").await.unwrap();
    is_used(&cluster, json!({ "count/pods": "3", "pods": "2", "requests.cpu": "200m" })).await;
    pods(&cluster).delete("before", &DeleteParams::default()).await.unwrap();
    is_used(&cluster, json!({ "count/pods": "2", "pods": "1", "requests.cpu": "100m" })).await;
    create_pod(&cluster, "c").await.unwrap();
    cluster.stop().await;
}

#[tokio::test]
async fn limits_that_change_are_counted_anew() {
    let cluster = Cluster::start().await;
    cluster.namespace("shop").await;
    create_quota(&cluster, json!({ "pods": "2" })).await;
    is_used(&cluster, json!({ "pods": "0" })).await;
    create_pod(&cluster, "a").await.unwrap();
    let change =
        Patch::Merge(json!({ "spec": { "hard": { "pods": null, "count/resourcequotas": "1", "requests.cpu": "1" } } }));
    quotas(&cluster).patch("q", &PatchParams::default(), &change).await.unwrap();
    is_used(&cluster, json!({ "count/resourcequotas": "1", "requests.cpu": "100m" })).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_fresh_quota_holds_exactly_while_a_hundred_clients_create() {
    let cluster = Cluster::start().await;
    cluster.namespace("shop").await;
    let creates: Vec<_> = (0..100)
        .map(|n| {
            let pods = pods(&cluster);
            tokio::spawn(async move {
                let mut admitted = 0;
                for m in 0..5 {
                    let pod = json!({
                        "metadata": { "name": format!("p{n}-{m}") },
                        "spec": { "containers": [{ "name": "c", "image": "i" }] },
                    });
                    let made = pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await;
                    admitted += usize::from(made.is_ok());
                }
                admitted
            })
        })
        .collect();
    // In the midst of them.
    until("some pods are there", async || !pods(&cluster).list(&Default::default()).await.unwrap().items.is_empty())
        .await;
    create_quota(&cluster, json!({ "count/pods": "400" })).await;
    let mut admitted = 0;
    for create in creates {
        admitted += create.await.unwrap();
    }
    let there = pods(&cluster).list(&Default::default()).await.unwrap().items.len();
    assert_eq!(there, admitted);
    is_used(&cluster, json!({ "count/pods": there.to_string() })).await;
    assert!(there <= 400, "{there}");
    cluster.stop().await;
}
