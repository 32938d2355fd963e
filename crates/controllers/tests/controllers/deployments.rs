//! Deployments, with pods that become ready by themselves unless their image is bad.

use std::collections::BTreeMap;

use futures::TryStreamExt;
use k8s_openapi::api::{
    apps::v1::{Deployment, DeploymentStatus, ReplicaSet},
    core::v1::Pod,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, PropagationPolicy},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::cluster::{Cluster, until};

const REVISION: &str = "deployment.kubernetes.io/revision";

impl Cluster {
    fn deployments(&self) -> Api<Deployment> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn deployment(&self, replicas: i32, extra: Value) -> Deployment {
        let mut deployment = json!({
            "metadata": { "name": "web" },
            "spec": {
                "replicas": replicas, "selector": { "matchLabels": { "app": "web" } },
                "template": {
                    "metadata": { "labels": { "app": "web" } },
                    "spec": { "containers": [{ "name": "c", "image": "one" }] },
                },
            },
        });
        deployment["spec"].as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let deployment = serde_json::from_value(deployment).unwrap();
        self.deployments().create(&PostParams::default(), &deployment).await.expect("create a deployment")
    }

    async fn change_deployment(&self, spec: Value) {
        let change = Patch::Strategic(json!({ "spec": spec }));
        self.deployments().patch("web", &PatchParams::default(), &change).await.expect("change the deployment");
    }

    async fn set_image(&self, image: &str) {
        self.change_deployment(json!({ "template": { "spec": { "containers": [{ "name": "c", "image": image }] } } }))
            .await;
    }

    async fn deployment_status(&self) -> DeploymentStatus {
        self.deployments().get("web").await.unwrap().status.unwrap_or_default()
    }

    async fn deployment_condition(&self, type_: &str) -> (String, String) {
        let conditions = self.deployment_status().await.conditions.unwrap_or_default();
        let condition = conditions.into_iter().find(|condition| condition.type_.as_deref() == Some(type_));
        condition.map(|c| (c.status.unwrap_or_default(), c.reason.unwrap_or_default())).unwrap_or_default()
    }

    /// By what `kubectl rollout status` waits for.
    async fn rolled_out(&self, replicas: i32) {
        until("it is rolled out", async || {
            let deployment = self.deployments().get("web").await.unwrap();
            let status = deployment.status.unwrap_or_default();
            let counts = [status.replicas, status.updated_replicas, status.available_replicas];
            status.observed_generation == deployment.metadata.generation
                && counts.iter().all(|count| count.unwrap_or(0) == replicas)
        })
        .await;
        let done = ("True".to_owned(), "NewReplicaSetAvailable".to_owned());
        until("it says so", async || self.deployment_condition("Progressing").await == done).await;
    }

    /// Image and size of each ReplicaSet, by revision.
    async fn sets_by_revision(&self) -> BTreeMap<String, (String, i32)> {
        let sets = self.replica_sets().list(&ListParams::default()).await.unwrap().items;
        let revision = |set: ReplicaSet| {
            let spec = set.spec;
            let image = spec.template.unwrap().spec.unwrap().containers[0].image.clone().unwrap();
            (set.metadata.annotations.unwrap()[REVISION].clone(), (image, spec.replicas.unwrap()))
        };
        sets.into_iter().map(revision).collect()
    }

    /// Makes every pod ready as soon as it is there, as machines would, unless its image is bad.
    fn machines(&self) -> JoinHandle<()> {
        let pods = self.all_pods();
        let ready = json!({ "status": {
            "phase": "Running",
            "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" }],
        } });
        tokio::spawn(async move {
            let start = async |pod: Pod| {
                let bad = pod.spec.as_ref().unwrap().containers[0].image.as_deref() == Some("bad");
                let phase = pod.status.and_then(|status| status.phase);
                if !bad && phase.as_deref() != Some("Running") {
                    let name = pod.metadata.name.unwrap();
                    let _ = pods.patch_status(&name, &PatchParams::default(), &Patch::Strategic(&ready)).await;
                }
                Ok(())
            };
            let events = watcher(pods.clone(), watcher::Config::default()).default_backoff().applied_objects();
            let _ = events.try_for_each(start).await;
        })
    }
}

fn pairs(all: &[(&str, &str, i32)]) -> BTreeMap<String, (String, i32)> {
    all.iter().map(|(revision, image, size)| ((*revision).to_owned(), ((*image).to_owned(), *size))).collect()
}

#[tokio::test]
pub async fn a_deployment_rolls_out_and_back_and_remembers() {
    let cluster = Cluster::start().await;
    let machines = cluster.machines();
    cluster.deployment(3, json!({ "revisionHistoryLimit": 1 })).await;
    cluster.rolled_out(3).await;
    let available = ("True".to_owned(), "MinimumReplicasAvailable".to_owned());
    assert_eq!(cluster.deployment_condition("Available").await, available);
    assert_eq!(cluster.sets_by_revision().await, pairs(&[("1", "one", 3)]));
    let set = cluster.replica_sets().list(&ListParams::default()).await.unwrap().items.remove(0);
    let hash = set.metadata.labels.as_ref().unwrap()["pod-template-hash"].clone();
    assert_eq!(set.metadata.name.unwrap(), format!("web-{hash}"));
    assert_eq!(set.metadata.annotations.as_ref().unwrap()["deployment.kubernetes.io/max-replicas"], "4");
    assert_eq!(cluster.pods_of("web").await[0].metadata.labels.as_ref().unwrap()["pod-template-hash"], hash);

    cluster.set_image("two").await;
    cluster.rolled_out(3).await;
    assert_eq!(cluster.sets_by_revision().await, pairs(&[("1", "one", 0), ("2", "two", 3)]));
    cluster.set_image("one").await;
    cluster.rolled_out(3).await;
    assert_eq!(cluster.sets_by_revision().await, pairs(&[("2", "two", 0), ("3", "one", 3)]));
    let annotations = cluster.deployments().get("web").await.unwrap().metadata.annotations.unwrap();
    assert_eq!(annotations[REVISION], "3");
    cluster.set_image("three").await;
    cluster.rolled_out(3).await;
    until("the oldest is forgotten", async || {
        cluster.sets_by_revision().await == pairs(&[("3", "one", 0), ("4", "three", 3)])
    })
    .await;

    cluster.change_deployment(json!({ "replicas": 5 })).await;
    cluster.rolled_out(5).await;
    cluster.change_deployment(json!({ "paused": true })).await;
    cluster.set_image("four").await;
    let paused = ("Unknown".to_owned(), "DeploymentPaused".to_owned());
    until("it is paused", async || cluster.deployment_condition("Progressing").await == paused).await;
    cluster.change_deployment(json!({ "replicas": 2 })).await;
    until("it is scaled nevertheless", async || cluster.sets_by_revision().await["4"].1 == 2).await;
    assert!(!cluster.sets_by_revision().await.contains_key("5"));
    cluster.change_deployment(json!({ "paused": null })).await;
    cluster.rolled_out(2).await;
    assert_eq!(cluster.sets_by_revision().await["5"], ("four".to_owned(), 2));
    until("events tell", async || {
        let events = cluster.events_about("Deployment", "web").await;
        let mut scaled = events.iter().filter(|(reason, _)| reason == "ScalingReplicaSet");
        scaled.any(|(_, message)| *message == format!("Scaled up replica set web-{hash} from 0 to 3"))
    })
    .await;
    machines.abort();
    cluster.stop().await;
}

#[tokio::test]
async fn a_bad_update_stops_and_leaves_the_old_pods_serving() {
    let cluster = Cluster::start().await;
    let machines = cluster.machines();
    cluster.deployment(4, json!({ "progressDeadlineSeconds": 2, "minReadySeconds": 0 })).await;
    cluster.rolled_out(4).await;
    cluster.set_image("bad").await;
    let stuck = ("False".to_owned(), "ProgressDeadlineExceeded".to_owned());
    let counts = async || {
        let status = cluster.deployment_status().await;
        (status.available_replicas, status.updated_replicas, status.replicas)
    };
    let partly = (Some(3), Some(2), Some(5));
    until("it gives up waiting", async || {
        cluster.deployment_condition("Progressing").await == stuck && counts().await == partly
    })
    .await;
    assert_eq!(cluster.sets_by_revision().await, pairs(&[("1", "one", 3), ("2", "bad", 2)]));
    cluster.set_image("good").await;
    cluster.rolled_out(4).await;
    let sizes: Vec<i32> = cluster.sets_by_revision().await.values().map(|(_, size)| *size).collect();
    assert_eq!(sizes, [0, 0, 4]);
    machines.abort();
    cluster.stop().await;
}

#[tokio::test]
pub async fn sets_left_behind_are_adopted_by_the_next_deployment_and_go_with_it() {
    let cluster = Cluster::start().await;
    let machines = cluster.machines();
    cluster.deployment(2, json!({ "strategy": { "type": "Recreate" } })).await;
    cluster.rolled_out(2).await;
    let before: Vec<_> = cluster.pods_of("web").await.into_iter().map(|pod| pod.metadata.uid).collect();
    let orphan = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
    cluster.deployments().delete("web", &orphan).await.unwrap();
    until("it is gone", async || cluster.deployments().get_opt("web").await.unwrap().is_none()).await;
    let set = cluster.replica_sets().list(&ListParams::default()).await.unwrap().items.remove(0);
    assert!(set.metadata.owner_references.is_none());
    cluster.deployment(2, json!({ "strategy": { "type": "Recreate" } })).await;
    cluster.rolled_out(2).await;
    let after: Vec<_> = cluster.pods_of("web").await.into_iter().map(|pod| pod.metadata.uid).collect();
    assert_eq!(before, after, "the same pods");
    cluster.set_image("two").await;
    cluster.rolled_out(2).await;
    assert_eq!(cluster.sets_by_revision().await, pairs(&[("1", "one", 0), ("2", "two", 2)]));
    cluster.deployments().delete("web", &DeleteParams::background()).await.unwrap();
    until("everything goes with it", async || {
        let sets = cluster.replica_sets().list(&ListParams::default()).await.unwrap().items;
        sets.is_empty() && cluster.pods_of("web").await.is_empty()
    })
    .await;
    machines.abort();
    cluster.stop().await;
}
