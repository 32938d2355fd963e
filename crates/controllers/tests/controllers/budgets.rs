//! Budgets count, evictions take from them, and pods that nobody else removes are removed.

use std::time::Instant;

use k8s_openapi::api::{
    core::v1::{Node, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api,
    api::{DeleteParams, EvictParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, until},
    sets::is_ready,
};

impl Cluster {
    fn budgets(&self) -> Api<PodDisruptionBudget> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn budget(&self, name: &str, spec: Value) {
        let mut budget =
            json!({ "metadata": { "name": name }, "spec": { "selector": { "matchLabels": { "app": name } } } });
        budget["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let budget = serde_json::from_value(budget).unwrap();
        self.budgets().create(&PostParams::default(), &budget).await.expect("create a budget");
    }

    /// Allowed, healthy, desired, expected; and why.
    async fn allowance(&self, name: &str) -> (i32, i32, i32, i32, String) {
        let status = self.budgets().get(name).await.unwrap().status.unwrap_or_default();
        let reason = status.conditions.iter().flatten().next().map(|condition| condition.reason.clone());
        let counts = (status.disruptions_allowed, status.current_healthy, status.desired_healthy);
        let [allowed, healthy, desired, expected] =
            [counts.0, counts.1, counts.2, status.expected_pods].map(Option::unwrap_or_default);
        (allowed, healthy, desired, expected, reason.unwrap_or_default())
    }

    async fn bare_pod(&self, name: &str, node: Option<&str>) -> Pod {
        let pod = json!({
            "metadata": { "name": name, "labels": { "app": name } },
            "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "a" }] },
        });
        let pod = serde_json::from_value(pod).unwrap();
        self.all_pods().create(&PostParams::default(), &pod).await.expect("create a pod")
    }
}

#[tokio::test]
pub async fn a_budget_lets_one_pod_go_at_a_time() {
    let cluster = Cluster::start().await;
    cluster.stateful_set("db", 3, json!({ "podManagementPolicy": "Parallel" })).await;
    cluster.budget("db", json!({ "maxUnavailable": 1 })).await;
    let work = cluster.machines_work();
    let sufficient = (1, 3, 2, 3, "SufficientPods".to_owned());
    until("one may go", async || cluster.allowance("db").await == sufficient).await;
    drop(work); // nothing is replaced or made ready any more
    cluster.all_pods().evict("db-0", &EvictParams::default()).await.expect("the first may go");
    let refused = cluster.all_pods().evict("db-1", &EvictParams::default()).await.unwrap_err();
    assert!(
        refused.to_string().contains("Cannot evict pod as it would violate the pod's disruption budget"),
        "{refused}"
    );
    let insufficient = (0, 2, 2, 3, "InsufficientPods".to_owned());
    until("none may go", async || cluster.allowance("db").await == insufficient).await;
    let left = cluster.budgets().get("db").await.unwrap().status.unwrap().disrupted_pods;
    assert_eq!(left, None, "the evicted pod was seen to go");
    let work = cluster.machines_work();
    until("its successor serves", async || cluster.allowance("db").await == sufficient).await;
    cluster.all_pods().evict("db-1", &EvictParams::default()).await.expect("the next may go");
    // Whoever waits for the budget gets all pods, one after the other.
    for name in ["db-0", "db-1", "db-2"] {
        until("it may go", async || cluster.all_pods().evict(name, &EvictParams::default()).await.is_ok()).await;
        let ready = async |name| cluster.all_pods().get_opt(name).await.unwrap().is_some_and(|pod| is_ready(&pod));
        let serving = futures::future::join_all(["db-0", "db-1", "db-2"].map(ready)).await;
        assert!(serving.iter().filter(|ready| **ready).count() >= 2, "{serving:?}");
    }
    drop(work);
    cluster.stop().await;
}

#[tokio::test]
pub async fn shares_follow_the_owners_scale_and_bare_pods_are_distinguished() {
    let cluster = Cluster::start().await;
    cluster.stateful_set("db", 4, json!({ "podManagementPolicy": "Parallel" })).await;
    cluster.budget("db", json!({ "minAvailable": "50%" })).await;
    let work = cluster.machines_work();
    until("half may go", async || cluster.allowance("db").await == (2, 4, 2, 4, "SufficientPods".to_owned())).await;
    cluster.budget("alone", json!({ "minAvailable": 1 })).await;
    cluster.bare_pod("alone", None).await;
    let none = (0, 1, 1, 1, "InsufficientPods".to_owned());
    until("the only one stays", async || cluster.allowance("alone").await == none).await;
    let change = Patch::Merge(json!({ "spec": { "minAvailable": 0 } }));
    cluster.budgets().patch("alone", &PatchParams::default(), &change).await.unwrap();
    until("or may go", async || cluster.allowance("alone").await.0 == 1).await;
    let version = cluster.budgets().get("db").await.unwrap().metadata.resource_version;
    cluster.settled().await;
    assert_eq!(cluster.budgets().get("db").await.unwrap().metadata.resource_version, version, "it rests");
    drop(work);
    cluster.stop().await;
}

#[tokio::test]
pub async fn pods_on_machines_that_are_gone_vanish() {
    let cluster = Cluster::start().await;
    let start = Instant::now();
    cluster.machine("gone", json!({})).await;
    cluster.bare_pod("lost", Some("gone")).await;
    Api::<Node>::all(cluster.client.clone()).delete("gone", &DeleteParams::default()).await.unwrap();
    cluster.all_pods().delete("lost", &DeleteParams::default()).await.unwrap();
    cluster.bare_pod("pending", None).await;
    cluster.all_pods().delete("pending", &DeleteParams::default()).await.unwrap();
    until("both are gone", async || {
        let gone = async |name| cluster.all_pods().get_opt(name).await.unwrap().is_none();
        gone("lost").await && gone("pending").await
    })
    .await;
    println!("gone within {:?}", start.elapsed());
    cluster.stop().await;
}
