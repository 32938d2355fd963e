use std::sync::Arc;

use mainstay_api::registry::Registry;
use mainstay_store::{Memory, Op, Store, Txn};
use serde_json::json;

use super::*;
use crate::settings::Settings;

/// The API over a store that holds these objects: plural, then the object.
async fn api_with(objects: Vec<(&str, Value)>) -> Api {
    let store: Arc<dyn Store> = Arc::new(Memory::default());
    let api = Api::new(Registry::builtin(), store, Settings::default());
    for (resource, object) in objects {
        let (group, plural) = resource.split_once('/').unwrap_or(("", resource));
        let d = api.registry.find(group, "v1", plural).expect("a kind");
        let meta = &object["metadata"];
        let key = keys::key(d, meta["namespace"].as_str(), meta["name"].as_str().expect("a name"));
        let value = object::Wire::encode(&object).json().clone();
        api.store.commit(Txn { compares: Vec::new(), ops: vec![Op::Put { key, value }] }).await.expect("a commit");
    }
    api
}

fn pod(name: &str, node: &str, mut spec: Value) -> (&'static str, Value) {
    spec["nodeName"] = json!(node);
    ("pods", json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name, "namespace": "shop"}, "spec": spec}))
}

async fn related(api: &Api, kind: RelationKind, namespace: &str, name: &str) -> bool {
    let relation = Relation { node: "a".into(), kind, namespace: namespace.into(), name: name.into() };
    holds(api, &relation).await.expect("an answer")
}

#[tokio::test]
async fn a_node_relates_to_what_pods_bound_to_it_refer_to() {
    let volume = |name: &str| json!({"volumes": [{"name": "v", "secret": {"secretName": name}}]});
    let api = api_with(vec![pod("here", "a", volume("mine")), pod("there", "b", volume("theirs"))]).await;
    assert!(related(&api, RelationKind::Secret, "shop", "mine").await);
    assert!(!related(&api, RelationKind::Secret, "shop", "theirs").await);
    assert!(!related(&api, RelationKind::ConfigMap, "shop", "mine").await);
    assert!(!related(&api, RelationKind::Secret, "other", "mine").await);
    assert!(related(&api, RelationKind::Pod, "shop", "here").await);
    assert!(!related(&api, RelationKind::Pod, "shop", "there").await);
    assert!(related(&api, RelationKind::Namespace, "shop", "").await);
    assert!(!related(&api, RelationKind::Namespace, "other", "").await);
}

#[tokio::test]
async fn a_mirror_pod_relates_to_nothing_but_itself() {
    let (plural, mut mirror) = pod("m", "a", json!({"imagePullSecrets": [{"name": "s"}], "serviceAccountName": "bot"}));
    mirror["metadata"]["annotations"] = json!({MIRROR_POD: "x"});
    let api = api_with(vec![(plural, mirror)]).await;
    assert!(!related(&api, RelationKind::Secret, "shop", "s").await);
    assert!(!related(&api, RelationKind::ServiceAccount, "shop", "bot").await);
    assert!(!related(&api, RelationKind::Namespace, "shop", "").await);
    assert!(related(&api, RelationKind::Pod, "shop", "m").await);
}

#[tokio::test]
async fn a_node_relates_to_copies_of_what_its_pods_refer_to_if_they_are_labelled_so() {
    let copy = |name: &str| format!("{name}-0123456789abcdef");
    let reading = |name: &str, node: &str, secret: &str, copies: Value| {
        let (plural, mut pod) = pod(name, node, json!({"volumes": [{"name": "v", "secret": {"secretName": secret}}]}));
        pod["metadata"]["annotations"] = json!({config_versions::ANNOTATION: copies.to_string()});
        (plural, pod)
    };
    let secret = |name: String, copy_of: Option<&str>| {
        let labels = copy_of.map(|original| json!({config_versions::COPY_OF_LABEL: original}));
        (
            "secrets",
            json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": name, "namespace": "shop", "labels": labels}}),
        )
    };
    let mut mirror = reading("mirror", "a", "shown", json!({"secret/shown": copy("shown")}));
    mirror.1["metadata"]["annotations"][MIRROR_POD] = json!("x");
    let api = api_with(vec![
        reading("here", "a", "key", json!({"secret/key": copy("key")})),
        reading("there", "b", "theirs", json!({"secret/theirs": copy("theirs")})),
        reading("unlabelled", "a", "plain", json!({"secret/plain": copy("plain")})),
        reading("mislabelled", "a", "web", json!({"secret/web": copy("web")})),
        reading("unmounted", "a", "key", json!({"secret/admin": copy("admin")})),
        reading("gone", "a", "gone", json!({"secret/gone": copy("gone")})),
        mirror,
        secret(copy("key"), Some("key")),
        secret(copy("theirs"), Some("theirs")),
        secret(copy("plain"), None),
        secret(copy("web"), Some("other")),
        secret(copy("admin"), Some("admin")),
        secret(copy("shown"), Some("shown")),
    ])
    .await;
    assert!(related(&api, RelationKind::Secret, "shop", &copy("key")).await);
    assert!(related(&api, RelationKind::Secret, "shop", "key").await, "the original as well");
    assert!(!related(&api, RelationKind::ConfigMap, "shop", &copy("key")).await);
    assert!(!related(&api, RelationKind::Secret, "other", &copy("key")).await);
    for name in ["theirs", "plain", "web", "admin", "shown", "gone"] {
        assert!(!related(&api, RelationKind::Secret, "shop", &copy(name)).await, "{name}");
    }
}

#[tokio::test]
async fn a_node_relates_to_the_secrets_of_volumes_that_its_pods_claim() {
    let claim = |name: &str| json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": name}}]});
    let volume = |name: &str, claim: &str, csi: Value| {
        let claim = json!({"namespace": "shop", "name": claim});
        ("persistentvolumes", json!({"metadata": {"name": name}, "spec": {"claimRef": claim, "csi": csi}}))
    };
    let api = api_with(vec![
        pod("here", "a", claim("data")),
        pod("there", "b", claim("theirs")),
        volume("v1", "data", json!({"nodeStageSecretRef": {"name": "stage", "namespace": "storage"}})),
        volume("v2", "data", json!({"nodePublishSecretRef": {"name": "publish"}})),
        volume("v3", "data", json!({"controllerPublishSecretRef": {"name": "controller"}})),
        volume("v4", "theirs", json!({"nodePublishSecretRef": {"name": "foreign"}})),
    ])
    .await;
    assert!(related(&api, RelationKind::Volume, "", "v1").await);
    assert!(!related(&api, RelationKind::Volume, "", "v4").await);
    assert!(related(&api, RelationKind::Secret, "storage", "stage").await);
    assert!(related(&api, RelationKind::Secret, "shop", "publish").await);
    for (namespace, name) in [("shop", "stage"), ("shop", "controller"), ("shop", "foreign"), ("storage", "publish")] {
        assert!(!related(&api, RelationKind::Secret, namespace, name).await, "{namespace}/{name}");
    }
}

#[tokio::test]
async fn a_node_relates_to_the_workloads_that_control_its_pods() {
    let owner = |kind: &str, name: &str| json!([{"kind": kind, "name": name, "uid": "u1", "controller": true}]);
    let (plural, mut here) = pod("here", "a", json!({}));
    here["metadata"]["ownerReferences"] = owner("ReplicaSet", "web-1");
    let replica_set = |name: &str, deployment: &str| {
        let meta = json!({"name": name, "namespace": "shop", "ownerReferences": owner("Deployment", deployment)});
        ("apps/replicasets", json!({"metadata": meta}))
    };
    let api = api_with(vec![(plural, here), replica_set("web-1", "web"), replica_set("db-1", "db")]).await;
    assert!(related(&api, RelationKind::Workload("ReplicaSet"), "shop", "web-1").await);
    assert!(related(&api, RelationKind::Workload("Deployment"), "shop", "web").await);
    assert!(!related(&api, RelationKind::Workload("ReplicaSet"), "shop", "db-1").await);
    assert!(!related(&api, RelationKind::Workload("Deployment"), "shop", "db").await);
    assert!(!related(&api, RelationKind::Workload("StatefulSet"), "shop", "web-1").await);
    assert!(related(&api, RelationKind::Controller, "shop", "u1").await);
    assert!(!related(&api, RelationKind::Controller, "shop", "u2").await);
    assert!(!related(&api, RelationKind::Controller, "other", "u1").await);
}

#[test]
fn a_volume_on_one_node_is_that_nodes() {
    let on = |terms: Value| {
        let volume = json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}});
        is_only_on(&volume, "a")
    };
    let named = |names: Value| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": names}]});
    assert!(on(json!([named(json!(["a"]))])));
    assert!(!on(json!([named(json!(["b"]))])));
    assert!(!on(json!([named(json!(["a", "b"]))])));
    assert!(!on(json!([named(json!(["a"])), named(json!(["b"]))])));
    assert!(!on(json!([])) && !on(Value::Null));
}

#[tokio::test]
async fn a_node_relates_to_the_certificate_requests_of_its_pods() {
    let request = |name: &str, node: &str| {
        let request = json!({
            "kind": "PodCertificateRequest", "apiVersion": "certificates.k8s.io/v1",
            "metadata": {"name": name, "namespace": "shop"}, "spec": {"nodeName": node},
        });
        ("certificates.k8s.io/podcertificaterequests", request)
    };
    let api = api_with(vec![request("mine", "a"), request("theirs", "b")]).await;
    assert!(related(&api, RelationKind::PodCertificateRequest, "shop", "mine").await);
    assert!(!related(&api, RelationKind::PodCertificateRequest, "shop", "theirs").await);
    assert!(!related(&api, RelationKind::PodCertificateRequest, "other", "mine").await);
}

#[tokio::test]
async fn a_node_relates_to_the_devices_it_has() {
    let slice = |name: &str, node: &str| {
        let slice = json!({
            "kind": "ResourceSlice", "apiVersion": "resource.k8s.io/v1", "metadata": {"name": name}, "spec": {"nodeName": node},
        });
        ("resource.k8s.io/resourceslices", slice)
    };
    let api = api_with(vec![slice("mine", "a"), slice("theirs", "b")]).await;
    assert!(related(&api, RelationKind::ResourceSlice, "", "mine").await);
    assert!(!related(&api, RelationKind::ResourceSlice, "", "theirs").await);
    assert!(!related(&api, RelationKind::ResourceSlice, "", "nobodys").await);
}

#[tokio::test]
async fn a_node_relates_to_its_machine_files_and_to_the_copies_that_they_name() {
    let file = |name: &str, node: &str, template: &str, secret: &str| {
        let meta = json!({"name": name, "namespace": "shop"});
        let content = json!({"secret": {"name": secret, "key": "k"}});
        let spec =
            json!({"nodeName": node, "template": template, "version": "0123456789", "path": "/x", "content": content});
        let object = json!({"kind": "MachineFile", "apiVersion": "mainstay.dev/v1", "metadata": meta, "spec": spec});
        ("mainstay.dev/machinefiles", object)
    };
    let secret = |name: &str, template: Option<&str>| {
        let labels = template.map(|template| json!({TEMPLATE_LABEL: template}));
        let meta = json!({"name": name, "namespace": "shop", "labels": labels});
        ("secrets", json!({"kind": "Secret", "apiVersion": "v1", "metadata": meta}))
    };
    let api = api_with(vec![
        file("zones.a", "a", "zones", "zones-1"),
        file("zones.b", "b", "zones", "zones-2"),
        file("other.a", "a", "other", "password"),
        file("third.a", "a", "third", "zones-3"),
        secret("zones-1", Some("zones")),
        secret("zones-2", Some("zones")),
        secret("zones-3", Some("zones")),
        secret("password", None),
    ])
    .await;
    assert!(related(&api, RelationKind::MachineFile, "shop", "zones.a").await);
    assert!(!related(&api, RelationKind::MachineFile, "shop", "zones.b").await);
    assert!(related(&api, RelationKind::Secret, "shop", "zones-1").await);
    assert!(!related(&api, RelationKind::ConfigMap, "shop", "zones-1").await, "another kind");
    assert!(!related(&api, RelationKind::Secret, "shop", "zones-2").await, "another node's");
    assert!(!related(&api, RelationKind::Secret, "shop", "password").await, "not a copy of what the template rendered");
    assert!(!related(&api, RelationKind::Secret, "shop", "zones-3").await, "another template's");
    assert!(!related(&api, RelationKind::Secret, "other", "zones-1").await);
}
