//! ReplicaSets and ReplicationControllers keep as many pods as they say.

use std::time::Instant;

use k8s_openapi::api::{
    apps::v1::ReplicaSet,
    core::v1::{Event, Pod, ReplicationController},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, PropagationPolicy},
};
use serde_json::{Value, json};

use crate::cluster::{Cluster, until};

impl Cluster {
    pub fn replica_sets(&self) -> Api<ReplicaSet> {
        Api::namespaced(self.client.clone(), "default")
    }

    pub fn all_pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn replica_set(&self, name: &str, replicas: i32) -> ReplicaSet {
        let set = json!({
            "metadata": { "name": name },
            "spec": {
                "replicas": replicas, "selector": { "matchLabels": { "app": name } },
                "template": {
                    "metadata": { "labels": { "app": name }, "annotations": { "note": "kept" } },
                    "spec": { "containers": [{ "name": "c", "image": "i" }] },
                },
            },
        });
        let set = serde_json::from_value(set).unwrap();
        self.replica_sets().create(&PostParams::default(), &set).await.expect("create a replica set")
    }

    pub async fn patch_set(&self, name: &str, change: Value) {
        let patched = self.replica_sets().patch(name, &PatchParams::default(), &Patch::Merge(change)).await;
        patched.expect("change a replica set");
    }

    /// Pods with a label `app`, without those that are being deleted.
    pub async fn pods_of(&self, app: &str) -> Vec<Pod> {
        let pods = self.all_pods().list(&ListParams::default().labels(&format!("app={app}"))).await.unwrap().items;
        pods.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect()
    }

    /// As the machine's agent would say.
    pub async fn is_ready(&self, pod: &Pod, ready: bool) {
        let status = json!({ "status": {
            "phase": "Running",
            "conditions": [{
                "type": "Ready", "status": if ready { "True" } else { "False" },
                "lastTransitionTime": jiff::Timestamp::now().to_string(),
            }],
        } });
        let name = pod.metadata.name.as_deref().unwrap();
        let patched = self.all_pods().patch_status(name, &PatchParams::default(), &Patch::Strategic(status)).await;
        patched.expect("report a pod's status");
    }

    async fn set_status(&self, name: &str) -> (i32, i32, i32, i64) {
        let status = self.replica_sets().get(name).await.unwrap().status.unwrap_or_default();
        let count = |count: Option<i32>| count.unwrap_or(0);
        let generation = status.observed_generation.unwrap_or(0);
        (status.replicas, count(status.ready_replicas), count(status.available_replicas), generation)
    }

    pub async fn events_about(&self, kind: &str, name: &str) -> Vec<(String, String)> {
        let events = Api::<Event>::namespaced(self.client.clone(), "default");
        let events = events.list(&ListParams::default()).await.unwrap().items.into_iter();
        let about = events.filter(|event| {
            let object = &event.involved_object;
            object.kind.as_deref() == Some(kind) && object.name.as_deref() == Some(name)
        });
        about.map(|event| (event.reason.unwrap_or_default(), event.message.unwrap_or_default())).collect()
    }
}

fn name_of(pod: &Pod) -> String {
    pod.metadata.name.clone().unwrap()
}

fn owner_of(pod: &Pod) -> Option<String> {
    pod.metadata.owner_references.iter().flatten().next().map(|owner| owner.uid.clone())
}

#[tokio::test]
async fn a_replica_set_makes_its_pods_replaces_them_and_keeps_the_best() {
    let cluster = Cluster::start().await;
    let set = cluster.replica_set("web", 3).await;
    until("three are counted", async || cluster.set_status("web").await == (3, 0, 0, 1)).await;
    let pods = cluster.pods_of("web").await;
    assert_eq!(pods.len(), 3);
    for pod in &pods {
        assert_eq!(owner_of(pod), set.metadata.uid);
        assert_eq!(pod.metadata.annotations.as_ref().unwrap()["note"], "kept");
        assert!(name_of(pod).starts_with("web-") && name_of(pod).len() == 9, "{}", name_of(pod));
        cluster.is_ready(pod, true).await;
    }
    until("all are ready", async || cluster.set_status("web").await == (3, 3, 3, 1)).await;
    let lost = &pods[0];
    cluster.all_pods().delete(&name_of(lost), &DeleteParams::default().grace_period(0)).await.unwrap();
    until("it was replaced", async || {
        let pods = cluster.pods_of("web").await;
        pods.len() == 3 && pods.iter().all(|pod| pod.metadata.uid != lost.metadata.uid)
    })
    .await;
    until("two are ready", async || cluster.set_status("web").await == (3, 2, 2, 1)).await;
    cluster.patch_set("web", json!({ "spec": { "replicas": 2 } })).await;
    until("one less", async || cluster.set_status("web").await == (2, 2, 2, 2)).await;
    until("events tell", async || {
        let events = cluster.events_about("ReplicaSet", "web").await;
        let count = |reason: &str, start: &str| {
            events.iter().filter(|(why, what)| why == reason && what.starts_with(start)).count()
        };
        count("SuccessfulCreate", "Created pod: web-") >= 3 && count("SuccessfulDelete", "Deleted pod: web-") == 1
    })
    .await;
    cluster.stop().await;
}

#[tokio::test]
pub async fn pods_are_adopted_and_released_by_their_labels_and_others_are_left_alone() {
    let cluster = Cluster::start().await;
    let bare = |name: &str, owners: Value| {
        let pod = json!({
            "metadata": { "name": name, "labels": { "app": "web" }, "ownerReferences": owners },
            "spec": { "containers": [{ "name": "c", "image": "i" }] },
        });
        serde_json::from_value::<Pod>(pod).unwrap()
    };
    let boss = cluster.map("boss", &[], json!({})).await;
    let owned = json!([{ "apiVersion": "v1", "kind": "ConfigMap", "name": "boss", "uid": boss.metadata.uid, "controller": true }]);
    cluster.all_pods().create(&PostParams::default(), &bare("orphan", Value::Null)).await.unwrap();
    cluster.all_pods().create(&PostParams::default(), &bare("owned", owned)).await.unwrap();
    let set = cluster.replica_set("web", 2).await;
    until("it has two", async || cluster.set_status("web").await.0 == 2).await;
    let uid = set.metadata.uid.clone();
    let owner = async |name: &str| owner_of(&cluster.all_pods().get(name).await.unwrap());
    assert_eq!(owner("orphan").await, uid);
    assert_eq!(owner("owned").await, boss.metadata.uid);
    assert_eq!(cluster.pods_of("web").await.len(), 3, "one was made, one adopted, one is another's");

    let change = Patch::Merge(json!({ "metadata": { "labels": { "app": "debug" } } }));
    cluster.all_pods().patch("orphan", &PatchParams::default(), &change).await.unwrap();
    until("it is released", async || owner("orphan").await.is_none()).await;
    until("and replaced", async || cluster.pods_of("web").await.len() == 3).await;

    let orphan = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
    cluster.replica_sets().delete("web", &orphan).await.unwrap();
    until("the set is gone", async || cluster.replica_sets().get_opt("web").await.unwrap().is_none()).await;
    let left: Vec<_> = cluster.pods_of("web").await.iter().filter(|pod| owner_of(pod).is_none()).map(name_of).collect();
    assert_eq!(left.len(), 2);
    let heir = cluster.replica_set("web", 2).await;
    until("the heir has them", async || cluster.set_status("web").await.0 == 2).await;
    for name in &left {
        assert_eq!(owner(name).await, heir.metadata.uid);
    }
    assert_eq!(cluster.pods_of("web").await.len(), 3);
    cluster.stop().await;
}

#[tokio::test]
async fn what_is_refused_is_reported_and_tried_again() {
    let cluster = Cluster::start().await;
    let set = json!({
        "metadata": { "name": "web" },
        "spec": {
            "replicas": 5, "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "serviceAccountName": "robot", "containers": [{ "name": "c", "image": "i" }] },
            },
        },
    });
    let set = serde_json::from_value(set).unwrap();
    cluster.replica_sets().create(&PostParams::default(), &set).await.unwrap();
    let failure = async || {
        let status = cluster.replica_sets().get("web").await.unwrap().status?;
        status.conditions?.into_iter().find(|condition| condition.type_.as_deref() == Some("ReplicaFailure"))
    };
    until("it says so", async || failure().await.is_some()).await;
    let condition = failure().await.unwrap();
    assert_eq!((condition.status.as_deref(), condition.reason.as_deref()), (Some("True"), Some("FailedCreate")));
    assert!(condition.message.as_deref().unwrap().contains("robot"), "{condition:?}");
    until("an event too", async || {
        let events = cluster.events_about("ReplicaSet", "web").await;
        events.iter().any(|(reason, message)| reason == "FailedCreate" && message.starts_with("Error creating: "))
    })
    .await;
    let account = serde_json::from_value(json!({ "metadata": { "name": "robot" } })).unwrap();
    let accounts = Api::<k8s_openapi::api::core::v1::ServiceAccount>::namespaced(cluster.client.clone(), "default");
    accounts.create(&PostParams::default(), &account).await.unwrap();
    until("all are there", async || cluster.set_status("web").await.0 == 5).await;
    until("no failure any more", async || failure().await.is_none()).await;
    cluster.stop().await;
}

#[tokio::test]
pub async fn a_replication_controller_does_the_same() {
    let cluster = Cluster::start().await;
    let controllers = Api::<ReplicationController>::namespaced(cluster.client.clone(), "default");
    let controller = json!({
        "metadata": { "name": "old" },
        "spec": {
            "replicas": 2, "selector": { "app": "old" },
            "template": {
                "metadata": { "labels": { "app": "old" } }, "spec": { "containers": [{ "name": "c", "image": "i" }] },
            },
        },
    });
    let controller = serde_json::from_value(controller).unwrap();
    controllers.create(&PostParams::default(), &controller).await.unwrap();
    until("two are counted", async || {
        controllers.get("old").await.unwrap().status.is_some_and(|status| status.replicas == 2)
    })
    .await;
    let pods = cluster.pods_of("old").await;
    assert_eq!(pods[0].metadata.owner_references.as_ref().unwrap()[0].kind, "ReplicationController");
    controllers.delete("old", &DeleteParams::background()).await.unwrap();
    until("its pods go with it", async || cluster.pods_of("old").await.is_empty()).await;
    cluster.stop().await;
}

#[tokio::test]
async fn hundreds_are_created_and_reported_in_a_few_events() {
    let cluster = Cluster::start().await;
    let start = Instant::now();
    cluster.replica_set("web", 300).await;
    until("all are counted", async || cluster.set_status("web").await.0 == 300).await;
    println!("three hundred pods in {:?}", start.elapsed());
    assert_eq!(cluster.pods_of("web").await.len(), 300);
    let events = cluster.events_about("ReplicaSet", "web").await;
    assert!(events.len() <= 11, "{} events", events.len());
    cluster.patch_set("web", json!({ "spec": { "replicas": 0 } })).await;
    until("none is left", async || cluster.pods_of("web").await.is_empty()).await;
    cluster.stop().await;
}

#[tokio::test]
async fn an_owner_deleted_half_way_leaves_nothing_behind() {
    let cluster = Cluster::start().await;
    for (name, policy) in [("back", PropagationPolicy::Background), ("fore", PropagationPolicy::Foreground)] {
        cluster.replica_set(name, 200).await;
        until("some are there", async || cluster.pods_of(name).await.len() > 10).await;
        let params = DeleteParams { propagation_policy: Some(policy), ..DeleteParams::default() };
        cluster.replica_sets().delete(name, &params).await.unwrap();
        until("all are gone", async || {
            let set = cluster.replica_sets().get_opt(name).await.unwrap();
            set.is_none() && cluster.pods_of(name).await.is_empty()
        })
        .await;
    }
    let pods = cluster.all_pods();
    cluster.settled().await;
    cluster.stop().await; // whatever was still being made is made
    assert!(pods.list(&ListParams::default()).await.unwrap().items.is_empty());
}

#[tokio::test]
async fn a_replacement_never_has_the_name_of_a_pod_that_was_deleted() {
    let cluster = Cluster::start().await;
    cluster.replica_set("web", 2).await;
    let mut ever = std::collections::BTreeSet::new();
    for round in 0..5 {
        until("there are two pods", async || cluster.pods_of("web").await.len() == 2).await;
        for pod in cluster.pods_of("web").await {
            let name = pod.metadata.name.unwrap();
            assert!(ever.insert(name.clone()), "{name} was given again in round {round}");
            cluster.all_pods().delete(&name, &DeleteParams::default().grace_period(0)).await.expect("delete a pod");
        }
    }
    cluster.stop().await;
}
