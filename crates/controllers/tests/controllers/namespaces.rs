//! Namespaces are deleted, and get their defaults, as clients expect.

use crate::cluster::{Cluster, ROOT_CA, until};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Service, ServiceAccount};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

async fn delete(cluster: &Cluster, name: &str) {
    cluster.namespaces().delete(name, &DeleteParams::default()).await.expect("delete a namespace");
}

async fn gone(cluster: &Cluster, name: &str) {
    until(&format!("namespace {name} is gone"), async || {
        cluster.namespaces().get_opt(name).await.expect("get a namespace").is_none()
    })
    .await;
}

fn condition(namespace: &Namespace, kind: &str) -> Option<(String, String, String)> {
    let found = namespace.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == kind)?;
    Some((found.status.clone(), found.reason.clone()?, found.message.clone()?))
}

fn map(name: &str, finalizers: &[&str]) -> ConfigMap {
    let object: Value = json!({ "metadata": { "name": name, "finalizers": finalizers } });
    serde_json::from_value(object).unwrap()
}

#[tokio::test]
pub async fn a_deleted_namespace_is_emptied_and_gone() {
    let cluster = Cluster::start().await;
    cluster.namespace("shop").await;
    for i in 0..20 {
        cluster.maps("shop").create(&PostParams::default(), &map(&format!("m{i}"), &[])).await.unwrap();
    }
    until("the namespace has its defaults", async || {
        cluster.maps("shop").get_opt("kube-root-ca.crt").await.unwrap().is_some()
    })
    .await;
    delete(&cluster, "shop").await;
    gone(&cluster, "shop").await;
    assert_eq!(cluster.maps("shop").list(&Default::default()).await.unwrap().items.len(), 0);
    cluster.stop().await;
}

#[tokio::test]
pub async fn a_finalizer_blocks_a_namespace_which_says_so_until_it_is_removed() {
    let cluster = Cluster::start().await;
    cluster.namespace("shop").await;
    cluster.maps("shop").create(&PostParams::default(), &map("held", &["x.example.com/y"])).await.unwrap();
    cluster.maps("shop").create(&PostParams::default(), &map("free", &[])).await.unwrap();
    delete(&cluster, "shop").await;
    until("the conditions name what blocks", async || {
        let namespace = cluster.namespaces().get("shop").await.unwrap();
        condition(&namespace, "NamespaceFinalizersRemaining").is_some_and(|c| c.0 == "True")
    })
    .await;
    let namespace = cluster.namespaces().get("shop").await.unwrap();
    let expected = |status: &str, reason: &str, message: &str| Some((status.into(), reason.into(), message.into()));
    assert_eq!(
        condition(&namespace, "NamespaceContentRemaining"),
        expected("True", "SomeResourcesRemain", "Some resources are remaining: configmaps. has 1 resource instances")
    );
    assert_eq!(
        condition(&namespace, "NamespaceFinalizersRemaining"),
        expected(
            "True",
            "SomeFinalizersRemain",
            "Some content in the namespace has finalizers remaining: x.example.com/y in 1 resource instances"
        )
    );
    assert_eq!(
        condition(&namespace, "NamespaceDeletionContentFailure"),
        expected("False", "ContentDeleted", "All content successfully deleted, may be waiting on finalization")
    );
    assert!(cluster.maps("shop").get_opt("free").await.unwrap().is_none());
    let patch = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    cluster.maps("shop").patch("held", &PatchParams::default(), &patch).await.unwrap();
    gone(&cluster, "shop").await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_running_pod_gets_its_grace_before_its_namespace_goes() {
    let cluster = Cluster::start().await;
    cluster.namespace("shop").await;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "shop");
    let pod = json!({
        "metadata": { "name": "p" },
        "spec": { "nodeName": "n", "containers": [{ "name": "c", "image": "i" }], "terminationGracePeriodSeconds": 20 },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    delete(&cluster, "shop").await;
    until("the pod ends", async || pods.get("p").await.unwrap().metadata.deletion_timestamp.is_some()).await;
    assert_eq!(pods.get("p").await.unwrap().metadata.deletion_grace_period_seconds, Some(20));
    until("the conditions name pods", async || {
        let namespace = cluster.namespaces().get("shop").await.unwrap();
        condition(&namespace, "NamespaceContentRemaining")
            .is_some_and(|c| c.2.contains("pods. has 1 resource instances"))
    })
    .await;
    pods.delete("p", &DeleteParams::default().grace_period(0)).await.unwrap(); // its node has stopped it
    gone(&cluster, "shop").await;
    cluster.stop().await;
}

#[tokio::test]
pub async fn a_namespace_gets_its_defaults_again_when_they_are_deleted() {
    let cluster = Cluster::start().await;
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client.clone(), "default");
    let maps = cluster.maps("default");
    until("there is a service account", async || accounts.get_opt("default").await.unwrap().is_some()).await;
    let first = accounts.get("default").await.unwrap().metadata.uid;
    accounts.delete("default", &DeleteParams::default()).await.unwrap();
    until("there is another service account", async || {
        accounts.get_opt("default").await.unwrap().is_some_and(|account| account.metadata.uid != first)
    })
    .await;

    let published = async || {
        let map = maps.get_opt("kube-root-ca.crt").await.unwrap();
        map.is_some_and(|map| map.data.is_some_and(|data| data["ca.crt"] == ROOT_CA && data.len() == 1))
    };
    until("the certificate is published", published).await;
    let forged = Patch::Merge(json!({ "data": { "ca.crt": "forged", "more": "x" } }));
    maps.patch("kube-root-ca.crt", &PatchParams::default(), &forged).await.unwrap();
    until("the certificate is corrected", published).await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_service_that_a_finalizer_held_gives_its_address_back() {
    let cluster = Cluster::start().await;
    let services: Api<Service> = Api::namespaced(cluster.client.clone(), "default");
    let service = |name: &str| -> Service {
        let metadata = json!({ "name": name, "finalizers": ["x.example.com/y"] });
        let spec = json!({ "clusterIP": "10.96.7.7", "ports": [{ "port": 80 }] });
        serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
    };
    services.create(&PostParams::default(), &service("first")).await.unwrap();
    services.delete("first", &DeleteParams::default()).await.unwrap();
    assert!(services.create(&PostParams::default(), &service("second")).await.is_err(), "it is taken");
    let released = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    services.patch("first", &PatchParams::default(), &released).await.unwrap();
    assert!(services.get_opt("first").await.unwrap().is_none());
    services.create(&PostParams::default(), &service("second")).await.expect("the address is free");
    cluster.stop().await;
}

#[tokio::test]
async fn pods_are_gone_before_anything_else_of_a_namespace_is_deleted() {
    let cluster = Cluster::start().await;
    cluster.namespace("shop").await;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "shop");
    let pod = json!({
        "metadata": { "name": "web", "finalizers": ["x.example.com/y"] },
        "spec": { "containers": [{ "name": "c", "image": "i" }] },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.expect("create a pod");
    cluster.maps("shop").create(&PostParams::default(), &map("settings", &[])).await.unwrap();
    delete(&cluster, "shop").await;
    until("the conditions name the pods alone", async || {
        let namespace = cluster.namespaces().get("shop").await.unwrap();
        let remaining = condition(&namespace, "NamespaceContentRemaining");
        remaining
            .is_some_and(|(_, _, message)| message == "Some resources are remaining: pods. has 1 resource instances")
    })
    .await;
    let settings = cluster.maps("shop").get("settings").await.expect("what pods use is still there");
    assert!(settings.metadata.deletion_timestamp.is_none());
    let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    pods.patch("web", &PatchParams::default(), &free).await.expect("remove the finalizer");
    gone(&cluster, "shop").await;
    cluster.stop().await;
}
