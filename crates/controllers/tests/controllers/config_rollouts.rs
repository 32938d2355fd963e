//! Rollouts of configuration, with pods that become ready by themselves unless they read a version that is bad.

use futures::TryStreamExt;
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet},
    core::v1::{ConfigMap, Event, Pod, Secret},
};
use kube::{
    Api, Resource,
    api::{ListParams, Patch, PatchParams, PostParams},
    core::NamespaceResourceScope,
    runtime::{WatchStreamExt, watcher},
};
use mainstay_api::config_versions::{self, ANNOTATION, ConfigKind, ConfigVersions, copy_config_map};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::cluster::{Cluster, until};

/// What pods read that never become ready.
const BAD: &str = "bad";

fn config_map(content: &str) -> ConfigMap {
    let object = json!({ "metadata": { "name": "zones", "namespace": "default" }, "data": { "zone": content } });
    serde_json::from_value(object).unwrap()
}

/// The name of the copy of `zones` with this content.
fn copy(content: &str) -> String {
    copy_config_map(&config_map(content)).metadata.name.unwrap()
}

fn workload(name: &str, extra: Value) -> Value {
    let mut workload = json!({
        "metadata": { "name": name, "annotations": { "mainstay.dev/rollout": "budgeted" } },
        "spec": {
            "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": {
                    "containers": [{ "name": "c", "image": "i", "envFrom": [{ "secretRef": { "name": "key" } }] }],
                    "volumes": [{ "name": "zones", "configMap": { "name": "zones" } }],
                },
            },
        },
    });
    workload["spec"].as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    workload
}

impl Cluster {
    fn in_default<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn create<K>(&self, object: Value)
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + serde::Serialize
            + DeserializeOwned,
    {
        let object: K = serde_json::from_value(object).unwrap();
        self.in_default::<K>().create(&PostParams::default(), &object).await.expect("create an object");
    }

    async fn zones_and_key(&self) {
        self.create::<ConfigMap>(json!({ "metadata": { "name": "zones" }, "data": { "zone": "1" } })).await;
        self.create::<Secret>(json!({ "metadata": { "name": "key" }, "stringData": { "KEY": "one" } })).await;
    }

    async fn set_zone(&self, content: &str) {
        let change = Patch::Merge(json!({ "data": { "zone": content } }));
        let maps = self.in_default::<ConfigMap>();
        maps.patch("zones", &PatchParams::default(), &change).await.expect("change the ConfigMap");
    }

    /// Makes every pod ready as soon as it is there, unless it reads what is bad.
    fn machines_that_read(&self) -> JoinHandle<()> {
        let pods = self.in_default::<Pod>();
        let ready = json!({ "status": {
            "phase": "Running",
            "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" }],
        } });
        tokio::spawn(async move {
            let start = async |pod: Pod| {
                let versions = ConfigVersions::from_annotations(&pod.metadata.annotations);
                let is_bad = versions.resolve(ConfigKind::ConfigMap, "zones") == copy(BAD);
                let phase = pod.status.and_then(|status| status.phase);
                if !is_bad && phase.as_deref() != Some("Running") {
                    let name = pod.metadata.name.unwrap();
                    let _ = pods.patch_status(&name, &PatchParams::default(), &Patch::Strategic(&ready)).await;
                }
                Ok(())
            };
            let events = watcher(pods.clone(), watcher::Config::default()).default_backoff().applied_objects();
            let _ = events.try_for_each(start).await;
        })
    }

    /// All pods of the Deployment read this, are available, and there are no others.
    async fn reads(&self, deployment: &str, content: &str) {
        until(&format!("{deployment} reads {content}"), async || {
            let found = self.in_default::<Deployment>().get(deployment).await.unwrap();
            let (wanted, status) = (found.spec.replicas, found.status.unwrap_or_default());
            let counts = [status.replicas, status.updated_replicas, status.available_replicas];
            status.observed_generation == found.metadata.generation
                && counts.iter().all(|count| *count == wanted)
                && self.versions_of_pods(deployment).await.iter().all(|version| *version == copy(content))
        })
        .await;
    }

    /// Of `zones`, one for each pod.
    async fn versions_of_pods(&self, app: &str) -> Vec<String> {
        let pods = self.in_default::<Pod>().list(&ListParams::default().labels(&format!("app={app}"))).await.unwrap();
        let live = pods.items.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        let version = |pod: Pod| {
            let versions = ConfigVersions::from_annotations(&pod.metadata.annotations);
            versions.resolve(ConfigKind::ConfigMap, "zones").to_owned()
        };
        live.map(version).collect()
    }

    async fn template_version<K>(&self, name: &str) -> Option<String>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + serde::Serialize
            + DeserializeOwned,
    {
        let found = serde_json::to_value(self.in_default::<K>().get(name).await.unwrap()).unwrap();
        let annotation = found["spec"]["template"]["metadata"]["annotations"][ANNOTATION].as_str()?;
        let versions: ConfigVersions = annotation.parse().unwrap();
        Some(versions.resolve(ConfigKind::ConfigMap, "zones").to_owned())
    }

    async fn sets_of(&self, deployment: &str) -> Vec<ReplicaSet> {
        let sets = self.in_default::<ReplicaSet>();
        sets.list(&ListParams::default().labels(&format!("app={deployment}"))).await.unwrap().items
    }

    async fn events_with(&self, reason: &str) -> Vec<String> {
        let events = self.in_default::<Event>().list(&ListParams::default()).await.unwrap().items;
        let wanted = events.into_iter().filter(|event| event.reason.as_deref() == Some(reason));
        wanted.filter_map(|event| event.message).collect()
    }

    /// What `kubectl rollout undo` does: template and annotations of the ReplicaSet take the place of the Deployment's.
    async fn undo_to(&self, deployment: &str, version: &str) {
        let names = |set: &ReplicaSet| serde_json::to_string(&set.spec.template).unwrap().contains(version);
        let set = self.sets_of(deployment).await.into_iter().find(names).expect("a retained ReplicaSet");
        let mut annotations = set.metadata.annotations.unwrap_or_default();
        annotations.retain(|key, _| !key.starts_with("deployment.kubernetes.io/"));
        let deployments = self.in_default::<Deployment>();
        let mut changed = deployments.get(deployment).await.unwrap();
        changed.metadata.annotations = Some(annotations);
        changed.metadata.resource_version = None;
        let spec = &mut changed.spec;
        spec.template = set.spec.template.unwrap();
        spec.template.metadata.as_mut().unwrap().labels.as_mut().unwrap().remove("pod-template-hash");
        deployments.replace(deployment, &PostParams::default(), &changed).await.expect("undo");
    }
}

#[tokio::test]
pub async fn a_changed_config_map_rolls_out_as_a_version_and_can_be_undone() {
    let cluster = Cluster::start().await;
    let machines = cluster.machines_that_read();
    cluster.zones_and_key().await;
    for name in ["web", "api"] {
        cluster.create::<Deployment>(workload(name, json!({ "replicas": 2, "revisionHistoryLimit": 1 }))).await;
        cluster.reads(name, "1").await;
        assert_eq!(cluster.sets_of(name).await.len(), 1, "the first pods have versions already");
    }
    let first = cluster.in_default::<ConfigMap>().get(&copy("1")).await.unwrap();
    assert_eq!(first.immutable, Some(true));
    until("both own it", async || {
        let copy = cluster.in_default::<ConfigMap>().get(&copy("1")).await.unwrap();
        copy.metadata.owner_references.is_some_and(|owners| owners.len() == 2)
    })
    .await;

    cluster.set_zone("2").await;
    cluster.reads("web", "2").await;
    cluster.reads("api", "2").await;
    until("it is recorded as good", async || {
        let web = cluster.in_default::<Deployment>().get("web").await.unwrap();
        let good = web.metadata.annotations.unwrap().remove(config_versions::LAST_GOOD_ANNOTATION);
        good.is_some_and(|good| good.contains(&copy("2")))
    })
    .await;

    cluster.undo_to("web", &copy("1")).await;
    cluster.reads("web", "1").await;
    until("it says so", async || !cluster.events_with("ConfigRolloutUndone").await.is_empty()).await;
    cluster.settled().await;
    assert_eq!(cluster.template_version::<Deployment>("web").await, Some(copy("1")), "it stays there");
    cluster.reads("api", "2").await;

    // What changes next is rolled out, and what no revision names any more goes, of ConfigMaps and Secrets.
    let of_secret = async || {
        let secrets = cluster.in_default::<Secret>().list(&ListParams::default()).await.unwrap().items;
        let copies = secrets.into_iter().filter_map(|secret| secret.metadata.name);
        copies.filter(|name| name.starts_with("key-")).collect::<Vec<_>>()
    };
    let first_key = of_secret().await;
    let change = Patch::Merge(json!({ "stringData": { "KEY": "two" } }));
    cluster.in_default::<Secret>().patch("key", &PatchParams::default(), &change).await.unwrap();
    for content in ["3", "4", "5"] {
        cluster.set_zone(content).await;
        cluster.reads("web", content).await;
        cluster.reads("api", content).await;
    }
    until("the first copies are gone", async || {
        cluster.get(&copy("1")).await.is_none() && of_secret().await.iter().all(|name| !first_key.contains(name))
    })
    .await;
    assert!(cluster.get(&copy("5")).await.is_some());

    // Without the annotation, pods read the originals again.
    let change = Patch::Merge(json!({ "metadata": { "annotations": { "mainstay.dev/rollout": null } } }));
    cluster.in_default::<Deployment>().patch("web", &PatchParams::default(), &change).await.unwrap();
    until("no version is left", async || cluster.template_version::<Deployment>("web").await.is_none()).await;
    machines.abort();
    cluster.stop().await;
}

#[tokio::test]
pub async fn stateful_sets_and_daemon_sets_name_versions_as_well() {
    let cluster = Cluster::start().await;
    cluster.zones_and_key().await;
    cluster.create::<StatefulSet>(workload("db", json!({ "serviceName": "db" }))).await;
    cluster.create::<DaemonSet>(workload("log", json!({}))).await;
    for content in ["1", "2"] {
        cluster.set_zone(content).await;
        until(&format!("both name {content}"), async || {
            cluster.template_version::<StatefulSet>("db").await == Some(copy(content))
                && cluster.template_version::<DaemonSet>("log").await == Some(copy(content))
        })
        .await;
    }
    until("a pod reads it", async || {
        cluster.versions_of_pods("db").await.first().is_some_and(|version| version.starts_with("zones-"))
    })
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_bad_value_reaches_as_many_pods_as_may_be_unavailable_and_is_taken_back() {
    let cluster = Cluster::start().await;
    let machines = cluster.machines_that_read();
    cluster.zones_and_key().await;
    let spec = json!({
        "replicas": 4, "progressDeadlineSeconds": 2,
        "strategy": { "rollingUpdate": { "maxUnavailable": 1, "maxSurge": 0 } },
    });
    cluster.create::<Deployment>(workload("web", spec)).await;
    cluster.reads("web", "1").await;
    cluster.set_zone(BAD).await;
    let mut most_bad = 0;
    until("it is taken back", async || {
        let bad = cluster.versions_of_pods("web").await.iter().filter(|version| **version == copy(BAD)).count();
        most_bad = most_bad.max(bad);
        !cluster.events_with("ConfigRolloutFailed").await.is_empty()
    })
    .await;
    assert_eq!(most_bad, 1, "only so many pods as may be unavailable read it");
    cluster.reads("web", "1").await;
    let message = cluster.events_with("ConfigRolloutFailed").await.remove(0);
    assert!(message.contains(&format!("configmap/zones from {} to {}", copy(BAD), copy("1"))), "{message}");
    cluster.set_zone("2").await;
    cluster.reads("web", "2").await;
    machines.abort();
    cluster.stop().await;
}

#[tokio::test]
pub async fn a_stateful_set_that_a_bad_value_stops_goes_back_by_itself() {
    let cluster = Cluster::start().await;
    let machines = cluster.machines_that_read();
    cluster.zones_and_key().await;
    let mut set = workload("db", json!({ "serviceName": "db", "replicas": 2 }));
    set["metadata"]["annotations"][config_versions::PROGRESS_DEADLINE_ANNOTATION] = json!("2");
    cluster.create::<StatefulSet>(set).await;
    let reads = async |content: &str| {
        until(&format!("both pods read {content}"), async || {
            let found = cluster.in_default::<StatefulSet>().get("db").await.unwrap();
            let good = found.metadata.annotations.unwrap_or_default().remove(config_versions::LAST_GOOD_ANNOTATION);
            good.is_some_and(|good| good.contains(&copy(content)))
                && found.status.is_some_and(|status| status.available_replicas == Some(2))
                && cluster.versions_of_pods("db").await == [copy(content), copy(content)]
        })
        .await;
    };
    reads("1").await;
    cluster.set_zone(BAD).await;
    until("it is taken back", async || !cluster.events_with("ConfigRolloutFailed").await.is_empty()).await;
    // The pod that read it would be waited for, for ever.
    reads("1").await;
    assert_eq!(cluster.template_version::<StatefulSet>("db").await, Some(copy("1")));
    cluster.set_zone("2").await;
    reads("2").await;
    machines.abort();
    cluster.stop().await;
}

#[tokio::test]
async fn what_does_not_exist_is_waited_for_as_ever() {
    let cluster = Cluster::start().await;
    cluster.create::<Deployment>(workload("web", json!({ "replicas": 1 }))).await;
    until("its pod is made", async || cluster.versions_of_pods("web").await == ["zones"]).await;
    let machines = cluster.machines_that_read();
    cluster.zones_and_key().await;
    cluster.reads("web", "1").await;
    machines.abort();
    cluster.stop().await;
}
