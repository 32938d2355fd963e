//! Releases that change workloads: in waves, with checks between them, and back to the old templates.

use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use mainstay_api::release::{CHANGE_DOES_NOT_APPLY, OVERLAPS, Release, SELECTS_NOTHING};
use serde_json::{Value, json};

use crate::cluster::{Cluster, until};

fn workloads(cluster: &Cluster, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", kind));
    Api::namespaced_with(cluster.client.clone(), "default", &resource)
}

fn releases(cluster: &Cluster) -> Api<Release> {
    Api::all(cluster.client.clone())
}

/// A workload of the image `a` that belongs to an app.
async fn create_workload(cluster: &Cluster, kind: &str, name: &str, app: &str) {
    let mut object = json!({
        "apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "labels": {"part-of": app}},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "a"}]},
            },
        },
    });
    if kind != "DaemonSet" {
        object["spec"]["replicas"] = json!(2);
    }
    if kind == "StatefulSet" {
        object["spec"]["serviceName"] = json!(name);
    }
    let object = serde_json::from_value(object).unwrap();
    workloads(cluster, kind).create(&PostParams::default(), &object).await.expect("create a workload");
}

async fn image(cluster: &Cluster, kind: &str, name: &str) -> String {
    let object = workloads(cluster, kind).get(name).await.unwrap();
    object.data["spec"]["template"]["spec"]["containers"][0]["image"].as_str().unwrap().to_owned()
}

async fn until_image(cluster: &Cluster, kind: &str, name: &str, wanted: &str) {
    until(&format!("{kind} {name} has the image {wanted}"), async || image(cluster, kind, name).await == wanted).await;
}

async fn create(cluster: &Cluster, name: &str, spec: Value) {
    let release = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
    releases(cluster).create(&PostParams::default(), &release).await.unwrap();
}

async fn change(cluster: &Cluster, name: &str, spec: Value) {
    let patch = Patch::Merge(json!({ "spec": spec }));
    releases(cluster).patch(name, &PatchParams::default(), &patch).await.unwrap();
}

async fn until_phase(cluster: &Cluster, name: &str, phase: &str) -> mainstay_api::release::ReleaseStatus {
    let is_at = |release: &Release| {
        let status = release.status.as_ref();
        status.is_some_and(|own| own.phase == phase && own.observed_generation == release.metadata.generation)
    };
    let look = async || releases(cluster).get_opt(name).await.unwrap().filter(is_at);
    until(&format!("release {name} is {phase}"), look).await.status.unwrap()
}

fn shop(images: &str) -> Value {
    json!([{"selector": {"matchLabels": {"part-of": "shop"}}, "images": {"c": images}}])
}

#[tokio::test]
pub async fn workloads_are_changed_in_waves_and_go_back_to_their_old_templates() {
    let cluster = Cluster::start().await;
    let _machines = cluster.machines_work();
    cluster.machine("n1", json!({})).await;
    for (kind, name) in [("Deployment", "web"), ("StatefulSet", "db"), ("DaemonSet", "log")] {
        create_workload(&cluster, kind, name, "shop").await;
    }
    let waves = json!([{"workloads": ["deployment/default/web"]}, {"upTo": "100%", "gates": [{"approval": true}]}]);
    create(
        &cluster,
        "shop",
        json!({"version": "v1", "workloads": shop("shop:$(VERSION)"), "waves": waves, "maxUnavailable": 3}),
    )
    .await;
    until_image(&cluster, "Deployment", "web", "shop:v1").await;
    let gated = until_phase(&cluster, "shop", "Gated").await;
    assert_eq!((gated.machines, gated.workloads, gated.updated), (0, 3, 1));
    assert_eq!(image(&cluster, "StatefulSet", "db").await, "a", "its wave has not begun");
    change(&cluster, "shop", json!({"approval": {"version": "v1", "wave": 1}})).await;
    until_phase(&cluster, "shop", "Complete").await;
    for (kind, name) in [("Deployment", "web"), ("StatefulSet", "db"), ("DaemonSet", "log")] {
        assert_eq!(image(&cluster, kind, name).await, "shop:v1");
    }
    let sets = cluster.replica_sets().list(&Default::default()).await.unwrap().items;
    let is_copied = |set: &k8s_openapi::api::apps::v1::ReplicaSet| {
        set.metadata.annotations.iter().flatten().any(|(key, _)| key.starts_with("mainstay.dev/release"))
    };
    assert!(!sets.iter().any(is_copied), "notes about the Deployment are its own");

    // Pods of v2 never become ready: the first wave fails, nobody else is touched, and the old template is back.
    let before = workloads(&cluster, "StatefulSet").get("db").await.unwrap().metadata.generation;
    let spec = json!({
        "version": "v2", "workloads": shop("broken"), "onStuck": "Rollback", "progressDeadlineSeconds": 3, "waves": [waves[0]],
    });
    change(&cluster, "shop", spec).await;
    until_image(&cluster, "Deployment", "web", "broken").await;
    let back = until_phase(&cluster, "shop", "RolledBack").await;
    assert_eq!(back.rollback.unwrap().to, "v1");
    assert_eq!(image(&cluster, "Deployment", "web").await, "shop:v1");
    assert_eq!(workloads(&cluster, "StatefulSet").get("db").await.unwrap().metadata.generation, before);

    // A newer version; then back by undo, which says the same about workloads as before.
    let next = json!({
        "version": "v3", "workloads": shop("three"), "waves": null, "maxUnavailable": 3, "progressDeadlineSeconds": 600,
    });
    change(&cluster, "shop", next).await;
    until_phase(&cluster, "shop", "Complete").await;
    change(&cluster, "shop", json!({"version": "v1"})).await;
    until_image(&cluster, "DaemonSet", "log", "shop:v1").await;
    until_phase(&cluster, "shop", "Complete").await;
    assert_eq!(image(&cluster, "StatefulSet", "db").await, "shop:v1");
    cluster.stop().await;
}

#[tokio::test]
pub async fn changes_that_cannot_be_made_are_refused_or_fail_with_their_reason() {
    let cluster = Cluster::start().await;
    let _machines = cluster.machines_work();
    create_workload(&cluster, "Deployment", "web", "shop").await;
    let select = |app: &str, more: Value| {
        let mut own = json!({"selector": {"matchLabels": {"part-of": app}}});
        own.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!([own])
    };
    let refused = async |name: &str, workloads: Value, reason: &str, words: &str| {
        create(&cluster, name, json!({"version": "v1", "workloads": workloads})).await;
        let status = until_phase(&cluster, name, "Refused").await;
        assert!(status.conditions.iter().any(|own| own.reason == reason), "{:?}", status.conditions);
        assert!(status.message.contains(words), "{}", status.message);
        releases(&cluster).delete(name, &Default::default()).await.unwrap();
    };
    refused("a", select("nobody", json!({"images": {"c": "b"}})), SELECTS_NOTHING, "selected by spec.workloads[0]")
        .await;
    let missing = select("shop", json!({"images": {"db": "b"}}));
    refused("b", missing, CHANGE_DOES_NOT_APPLY, "deployment/default/web has no container \"db\"").await;

    // What the API does not take is the workload's failure, and its pods stay as they are.
    let invalid = select("shop", json!({"patch": {"spec": {"containers": [{"name": "c", "image": ""}]}}}));
    create(&cluster, "shop", json!({"version": "v1", "workloads": invalid})).await;
    let stuck = until_phase(&cluster, "shop", "Stuck").await;
    assert_eq!(stuck.failures[0].machine, "deployment/default/web");
    assert!(stuck.failures[0].message.contains("image"), "{:?}", stuck.failures);
    assert_eq!(image(&cluster, "Deployment", "web").await, "a");

    // The same version, corrected: it goes on.
    let valid = select("shop", json!({"patch": {"metadata": {"labels": {"release": "$(VERSION)"}}}}));
    change(&cluster, "shop", json!({"workloads": valid})).await;
    until_phase(&cluster, "shop", "Complete").await;
    let web = workloads(&cluster, "Deployment").get("web").await.unwrap();
    assert_eq!(web.data["spec"]["template"]["metadata"]["labels"]["release"], "v1");

    // Another Release may not have the same workload.
    let same = select("shop", json!({"images": {"c": "z"}, "namespaces": ["default"]}));
    // Of two that were created within a second, the first by name has it.
    refused("web", same, OVERLAPS, "deployment/default/web is selected by the Release \"shop\" too").await;

    // A command in a pod that nobody runs keeps the wave back and says so.
    let exec = json!({"namespace": "default", "pod": "idle", "command": ["true"], "timeoutSeconds": 5});
    let idle = json!({"metadata": {"name": "idle"}, "spec": {"containers": [{"name": "c", "image": "broken"}]}});
    cluster.all_pods().create(&PostParams::default(), &serde_json::from_value(idle).unwrap()).await.unwrap();
    let next = json!({
        "version": "v2", "workloads": select("shop", json!({"images": {"c": "z"}})),
        "waves": [{"upTo": "100%", "gates": [{"exec": exec}]}],
    });
    change(&cluster, "shop", next).await;
    until("the gate says why it is closed", async || {
        let status = releases(&cluster).get("shop").await.unwrap().status.unwrap_or_default();
        status.phase == "Gated" && status.message.contains("pod default/idle: ")
    })
    .await;
    assert_eq!(image(&cluster, "Deployment", "web").await, "a");
    cluster.stop().await;
}
