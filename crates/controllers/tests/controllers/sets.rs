//! StatefulSets and DaemonSets, with simulated nodes that start pods at once.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet, StatefulSet},
    core::v1::{Node, PersistentVolumeClaim, Pod},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use crate::cluster::{Cluster, until};

impl Cluster {
    fn stateful_sets(&self) -> Api<StatefulSet> {
        Api::namespaced(self.client.clone(), "default")
    }

    fn daemon_sets(&self) -> Api<DaemonSet> {
        Api::namespaced(self.client.clone(), "default")
    }

    fn volume_claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), "default")
    }

    fn revisions(&self) -> Api<ControllerRevision> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// A set of this name with more in its spec, of an image `a`.
    pub async fn stateful_set(&self, name: &str, replicas: i32, more: Value) -> StatefulSet {
        let mut set = json!({ "metadata": { "name": name }, "spec": {
            "replicas": replicas, "serviceName": name, "selector": { "matchLabels": { "app": name } },
            "template": template(name),
        } });
        set["spec"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let set = serde_json::from_value(set).unwrap();
        self.stateful_sets().create(&PostParams::default(), &set).await.expect("create a stateful set")
    }

    async fn daemon_set(&self, name: &str, more: Value) -> DaemonSet {
        let mut set = json!({ "metadata": { "name": name }, "spec": {
            "selector": { "matchLabels": { "app": name } }, "template": template(name),
        } });
        set["spec"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let set = serde_json::from_value(set).unwrap();
        self.daemon_sets().create(&PostParams::default(), &set).await.expect("create a daemon set")
    }

    async fn change_stateful(&self, name: &str, spec: Value) {
        let change = Patch::Strategic(json!({ "spec": spec }));
        self.stateful_sets().patch(name, &PatchParams::default(), &change).await.expect("change a stateful set");
    }

    async fn change_daemon(&self, name: &str, spec: Value) {
        let change = Patch::Strategic(json!({ "spec": spec }));
        self.daemon_sets().patch(name, &PatchParams::default(), &change).await.expect("change a daemon set");
    }

    /// Machines that take whatever is meant for them, and report it ready unless its image is called `broken`.
    pub fn machines_work(&self) -> AbortOnDropHandle<()> {
        let pods = self.all_pods();
        AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                let Ok(list) = pods.list(&ListParams::default()).await else { return };
                for pod in list {
                    let name = pod.metadata.name.as_deref().unwrap();
                    if pod.metadata.deletion_timestamp.is_some() {
                        let _ = pods.delete(name, &DeleteParams::default().grace_period(0)).await;
                    } else if !is_ready(&pod) && image(&pod) != "broken" {
                        let now = jiff::Timestamp::now().to_string();
                        let ready = json!({ "type": "Ready", "status": "True", "lastTransitionTime": now });
                        let status = Patch::Strategic(json!({
                            "metadata": { "uid": pod.metadata.uid },
                            "status": { "phase": "Running", "conditions": [ready] },
                        }));
                        let _ = pods.patch_status(name, &PatchParams::default(), &status).await;
                    }
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }))
    }

    pub async fn machine(&self, name: &str, labels: Value) {
        let nodes = Api::<Node>::all(self.client.clone());
        let node = json!({ "metadata": { "name": name, "labels": labels } });
        nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.expect("create a node");
    }

    async fn change_machine(&self, name: &str, change: Value) {
        let nodes = Api::<Node>::all(self.client.clone());
        nodes.patch(name, &PatchParams::default(), &Patch::Merge(change)).await.expect("change a node");
    }

    /// Names and images of an app's pods.
    async fn images_of(&self, app: &str) -> Vec<(String, String)> {
        let mut all: Vec<(String, String)> =
            self.pods_of(app).await.iter().map(|pod| (pod.metadata.name.clone().unwrap(), image(pod).into())).collect();
        all.sort();
        all
    }

    /// Whether a StatefulSet is as desired and its status says so.
    async fn is_rolled_out(&self, name: &str) -> bool {
        let set = self.stateful_sets().get(name).await.unwrap();
        let (replicas, status) = (set.spec.replicas, set.status.unwrap_or_default());
        let all = status.observed_generation == set.metadata.generation
            && [Some(status.replicas), status.ready_replicas, status.updated_replicas].iter().all(|n| *n == replicas);
        all && status.current_revision == status.update_revision
    }

    /// Machines that have a serving pod of a DaemonSet, with its image.
    async fn served(&self, app: &str) -> Vec<(String, String)> {
        let meant = |pod: &Pod| {
            let affinity = json!(pod.spec.as_ref().unwrap().affinity);
            let terms = &affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
            terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0].as_str().unwrap().to_owned()
        };
        let pods = self.pods_of(app).await;
        let mut all: Vec<(String, String)> =
            pods.iter().filter(|pod| is_ready(pod)).map(|pod| (meant(pod), image(pod).to_owned())).collect();
        all.sort();
        all
    }
}

fn template(name: &str) -> Value {
    json!({
        "metadata": { "labels": { "app": name } }, "spec": { "containers": [{ "name": "c", "image": "a" }] },
    })
}

fn of_image(image: &str) -> Value {
    json!({ "template": { "spec": { "containers": [{ "name": "c", "image": image }] } } })
}

fn image(pod: &Pod) -> &str {
    pod.spec.as_ref().unwrap().containers[0].image.as_deref().unwrap()
}

pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
}

fn claims() -> Value {
    json!([{
        "metadata": { "name": "data" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Mi" } } },
    }])
}

#[tokio::test]
async fn with_the_annotation_a_stuck_rollout_goes_on_once_the_template_is_mended() {
    let cluster = Cluster::start().await;
    cluster.stateful_set("db", 2, json!({})).await;
    let replace = Patch::Merge(json!({ "metadata": { "annotations": { "mainstay.dev/replace-unready": "true" } } }));
    cluster.stateful_sets().patch("db", &PatchParams::default(), &replace).await.expect("annotate a stateful set");
    let work = cluster.machines_work();
    until("all are up", async || cluster.is_rolled_out("db").await).await;
    cluster.change_stateful("db", of_image("broken")).await;
    let stuck = pairs(&[("db-0", "a"), ("db-1", "broken")]);
    until("it is stuck", async || cluster.images_of("db").await == stuck).await;
    cluster.change_stateful("db", of_image("c")).await;
    until("it went on", async || {
        cluster.is_rolled_out("db").await && cluster.images_of("db").await.iter().all(|(_, image)| image == "c")
    })
    .await;
    drop(work);
    cluster.stop().await;
}

#[tokio::test]
pub async fn a_stateful_set_comes_in_order_keeps_names_and_claims_and_rolls_back() {
    let cluster = Cluster::start().await;
    let set = cluster.stateful_set("db", 3, json!({ "volumeClaimTemplates": claims() })).await;
    until("the first pod is there", async || cluster.pods_of("db").await.len() == 1).await;
    let first = cluster.all_pods().get("db-0").await.unwrap();
    let labels = first.metadata.labels.clone().unwrap();
    assert_eq!(labels["statefulset.kubernetes.io/pod-name"], "db-0");
    assert_eq!(labels["apps.kubernetes.io/pod-index"], "0");
    let spec = first.spec.as_ref().unwrap();
    assert_eq!((spec.hostname.as_deref(), spec.subdomain.as_deref()), (Some("db-0"), Some("db")));
    let volume = &spec.volumes.as_ref().unwrap()[0];
    assert_eq!(volume.persistent_volume_claim.as_ref().unwrap().claim_name, "data-db-0");
    assert_eq!(first.metadata.owner_references.as_ref().unwrap()[0].uid, set.metadata.uid.unwrap());
    let work = cluster.machines_work();
    until("all are up", async || cluster.is_rolled_out("db").await).await;
    assert_eq!(cluster.images_of("db").await, pairs(&[("db-0", "a"), ("db-1", "a"), ("db-2", "a")]));
    let claims = async || cluster.volume_claims().list(&ListParams::default()).await.unwrap().items;
    assert_eq!(claims().await.len(), 3);
    let uid = claims().await[2].metadata.uid.clone();

    cluster.change_stateful("db", json!({ "replicas": 1 })).await;
    until("it is scaled down", async || cluster.pods_of("db").await.len() == 1).await;
    assert_eq!(claims().await.len(), 3, "claims stay");
    cluster.change_stateful("db", json!({ "replicas": 3 })).await;
    until("it is scaled up", async || cluster.is_rolled_out("db").await).await;
    assert_eq!(claims().await[2].metadata.uid, uid, "and are used again");

    let held_back = json!({ "updateStrategy": { "rollingUpdate": { "partition": 2 } } });
    cluster.change_stateful("db", held_back).await;
    cluster.change_stateful("db", of_image("b")).await;
    let some = pairs(&[("db-0", "a"), ("db-1", "a"), ("db-2", "b")]);
    until("the last one changed", async || cluster.images_of("db").await == some).await;
    cluster.change_stateful("db", json!({ "updateStrategy": { "rollingUpdate": { "partition": 0 } } })).await;
    until("all changed", async || cluster.is_rolled_out("db").await).await;
    assert!(cluster.images_of("db").await.iter().all(|(_, image)| image == "b"));

    // A template that cannot work stops at the first, and stays there until somebody deletes the pod.
    cluster.change_stateful("db", of_image("broken")).await;
    let stuck = pairs(&[("db-0", "b"), ("db-1", "b"), ("db-2", "broken")]);
    until("it is stuck", async || cluster.images_of("db").await == stuck).await;
    let mut revisions = cluster.revisions().list(&ListParams::default().labels("app=db")).await.unwrap().items;
    revisions.sort_by_key(|revision| revision.revision);
    assert_eq!(revisions.iter().filter_map(|revision| revision.revision).collect::<Vec<_>>(), [1, 2, 3]);
    // What `kubectl rollout undo` sends.
    let back = Patch::Strategic(revisions[0].data.0.clone());
    cluster.stateful_sets().patch("db", &PatchParams::default(), &back).await.expect("roll back");
    until("the set has seen it", async || {
        let set = cluster.stateful_sets().get("db").await.unwrap();
        set.status.and_then(|status| status.observed_generation) == set.metadata.generation
    })
    .await;
    cluster.settled().await;
    assert_eq!(cluster.images_of("db").await, stuck, "it halts at the pod that is not ready");
    cluster.all_pods().delete("db-2", &DeleteParams::default().grace_period(0)).await.expect("delete the pod");
    until("it is as it was first", async || {
        cluster.is_rolled_out("db").await && cluster.images_of("db").await.iter().all(|(_, image)| image == "a")
    })
    .await;
    let first = revisions[0].metadata.name.as_deref().unwrap();
    assert_eq!(cluster.revisions().get(first).await.unwrap().revision, Some(4), "the old revision is the newest again");
    let version = cluster.stateful_sets().get("db").await.unwrap().metadata.resource_version;
    cluster.settled().await;
    assert_eq!(cluster.stateful_sets().get("db").await.unwrap().metadata.resource_version, version, "it rests");
    let events = cluster.events_about("StatefulSet", "db").await;
    let output = |reason: &str, message: &str| events.iter().any(|(r, m)| r == reason && m.contains(message));
    assert!(output("SuccessfulCreate", "create Pod db-0 in StatefulSet db successful"), "{events:?}");
    assert!(output("SuccessfulCreate", "create Claim data-db-0 Pod db-0 in StatefulSet db success"), "{events:?}");
    drop(work);
    cluster.stop().await;
}

#[tokio::test]
pub async fn claims_go_with_the_pods_and_the_set_where_it_says_so() {
    let cluster = Cluster::start().await;
    let policy = json!({ "whenDeleted": "Delete", "whenScaled": "Delete" });
    let more = json!({
        "volumeClaimTemplates": claims(), "persistentVolumeClaimRetentionPolicy": policy,
        "podManagementPolicy": "Parallel",
    });
    cluster.stateful_set("db", 2, more).await;
    let work = cluster.machines_work();
    until("all are up", async || cluster.is_rolled_out("db").await).await;
    let claims = async || cluster.volume_claims().list(&ListParams::default()).await.unwrap().items;
    let owners = async || {
        let claims = claims().await;
        claims.iter().map(|claim| claim.metadata.owner_references.iter().flatten().count()).collect::<Vec<_>>()
    };
    until("the set owns them", async || owners().await == [1, 1]).await;
    let uid = claims().await[1].metadata.uid.clone();
    cluster.change_stateful("db", json!({ "replicas": 1 })).await;
    until("its claim is gone", async || claims().await.len() == 1).await;
    cluster.change_stateful("db", json!({ "replicas": 2 })).await;
    until("all are up again", async || cluster.is_rolled_out("db").await).await;
    assert_ne!(claims().await[1].metadata.uid, uid, "with a claim of its own");
    cluster.stateful_sets().delete("db", &DeleteParams::background()).await.unwrap();
    until("everything is gone", async || claims().await.is_empty() && cluster.pods_of("db").await.is_empty()).await;
    drop(work);
    cluster.stop().await;
}

#[tokio::test]
pub async fn pods_that_were_left_alone_are_taken_over_with_their_history() {
    let cluster = Cluster::start().await;
    cluster.stateful_set("db", 2, json!({})).await;
    let work = cluster.machines_work();
    until("all are up", async || cluster.is_rolled_out("db").await).await;
    let uids = async || cluster.pods_of("db").await.iter().map(|pod| pod.metadata.uid.clone()).collect::<Vec<_>>();
    let before = uids().await;
    cluster.stateful_sets().delete("db", &DeleteParams::orphan()).await.unwrap();
    until("the set is gone", async || cluster.stateful_sets().get_opt("db").await.unwrap().is_none()).await;
    let set = cluster.stateful_set("db", 2, json!({})).await;
    until("another took over", async || {
        let pods = cluster.pods_of("db").await;
        let mut owners = pods.iter().flat_map(|pod| pod.metadata.owner_references.iter().flatten());
        owners.clone().count() == 2 && owners.all(|owner| Some(&owner.uid) == set.metadata.uid.as_ref())
    })
    .await;
    until("all is told", async || cluster.is_rolled_out("db").await).await;
    assert_eq!(uids().await, before);
    assert_eq!(cluster.revisions().list(&ListParams::default()).await.unwrap().items.len(), 1);
    drop(work);
    cluster.stop().await;
}

#[tokio::test]
pub async fn a_daemon_set_follows_its_machines_and_rolls_back() {
    let cluster = Cluster::start().await;
    cluster.machine("m1", json!({ "disk": "ssd" })).await;
    cluster.machine("m2", json!({})).await;
    let selects = json!({
        "template": {
            "metadata": { "labels": { "app": "log" } },
            "spec": { "nodeSelector": { "disk": "ssd" }, "containers": [{ "name": "c", "image": "a" }] },
        },
    });
    cluster.daemon_set("log", selects).await;
    let work = cluster.machines_work();
    let served = async || cluster.served("log").await;
    until("the one machine that fits is served", async || served().await == pairs(&[("m1", "a")])).await;
    let start = std::time::Instant::now();
    cluster.change_machine("m2", json!({ "metadata": { "labels": { "disk": "ssd" } } })).await;
    until("the other one fits now", async || served().await == pairs(&[("m1", "a"), ("m2", "a")])).await;
    cluster.machine("m3", json!({ "disk": "ssd" })).await;
    until("a new one gets its pod", async || served().await.len() == 3).await;
    println!("a changed and a new machine were served within {:?}", start.elapsed());
    cluster.change_machine("m1", json!({ "metadata": { "labels": { "disk": null } } })).await;
    until("the first fits no more", async || served().await == pairs(&[("m2", "a"), ("m3", "a")])).await;
    let taint = json!([{ "key": "own", "effect": "NoExecute" }]);
    cluster.change_machine("m2", json!({ "spec": { "taints": taint } })).await;
    until("a taint drives it away", async || served().await == pairs(&[("m3", "a")])).await;
    cluster.change_machine("m2", json!({ "spec": { "taints": null } })).await;
    until("and it comes back", async || served().await.len() == 2).await;
    cluster.change_machine("m2", json!({ "spec": { "unschedulable": true } })).await;

    cluster.change_daemon("log", of_image("b")).await;
    until("both changed", async || served().await == pairs(&[("m2", "b"), ("m3", "b")])).await;
    let reported = async || {
        let set = cluster.daemon_sets().get("log").await.unwrap();
        let status = set.status.unwrap();
        status.observed_generation == set.metadata.generation
            && (status.desired_number_scheduled, status.number_ready, status.current_number_scheduled) == (2, 2, 2)
            && (status.updated_number_scheduled, status.number_available) == (Some(2), Some(2))
    };
    until("it is told", reported).await;
    let mut revisions = cluster.revisions().list(&ListParams::default().labels("app=log")).await.unwrap().items;
    revisions.sort_by_key(|revision| revision.revision);
    let back = Patch::Strategic(revisions[0].data.0.clone());
    cluster.daemon_sets().patch("log", &PatchParams::default(), &back).await.expect("roll back");
    until("it is as it was first", async || served().await == pairs(&[("m2", "a"), ("m3", "a")])).await;
    until("it is told", reported).await;
    let version = cluster.daemon_sets().get("log").await.unwrap().metadata.resource_version;
    cluster.settled().await;
    assert_eq!(cluster.daemon_sets().get("log").await.unwrap().metadata.resource_version, version, "it rests");
    drop(work);
    cluster.stop().await;
}

#[tokio::test]
async fn two_hundred_machines_are_served_with_one_pod_each() {
    let cluster = Arc::new(Cluster::start().await);
    let machines = (0..200).map(|n| {
        let cluster = cluster.clone();
        async move { cluster.machine(&format!("m{n}"), json!({})).await }
    });
    futures::future::join_all(machines).await;
    let start = std::time::Instant::now();
    cluster.daemon_set("log", json!({})).await;
    until("all have one", async || cluster.pods_of("log").await.len() == 200).await;
    println!("200 machines were given pods in {:?}", start.elapsed());
    cluster.settled().await;
    let pods = cluster.pods_of("log").await;
    let meant: std::collections::BTreeSet<String> = pods.iter().map(|pod| json!(pod.spec).to_string()).collect();
    assert_eq!((pods.len(), meant.len()), (200, 200));
    Arc::into_inner(cluster).unwrap().stop().await;
}
