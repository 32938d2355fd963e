//! ResourceClaims are allocated, reserved and only then are their pods bound.

use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::cluster::{Cluster, until};

async fn devices(cluster: &Cluster, node: &str, names: &[&str]) {
    let devices: Vec<Value> = names.iter().map(|name| json!({ "name": name })).collect();
    let slice = json!({
        "metadata": { "name": format!("{node}-gpu") },
        "spec": { "driver": "gpu.example.com", "nodeName": node, "devices": devices,
                  "pool": { "name": node, "generation": 1, "resourceSliceCount": 1 } },
    });
    let slices: Api<ResourceSlice> = Api::all(cluster.client.clone());
    slices.create(&PostParams::default(), &serde_json::from_value(slice).unwrap()).await.expect("create a slice");
}

async fn class(cluster: &Cluster) {
    let class = json!({
        "metadata": { "name": "gpu" },
        "spec": { "selectors": [{ "cel": { "expression": "device.driver == 'gpu.example.com'" } }] },
    });
    let classes: Api<DeviceClass> = Api::all(cluster.client.clone());
    classes.create(&PostParams::default(), &serde_json::from_value(class).unwrap()).await.expect("create a class");
}

fn claims(cluster: &Cluster) -> Api<ResourceClaim> {
    Api::namespaced(cluster.client.clone(), "default")
}

async fn claim(cluster: &Cluster, name: &str) {
    let devices = json!({ "requests": [{ "name": "gpu", "exactly": { "deviceClassName": "gpu" } }] });
    let claim = json!({ "metadata": { "name": name }, "spec": { "devices": devices } });
    let claim = serde_json::from_value(claim).unwrap();
    claims(cluster).create(&PostParams::default(), &claim).await.expect("create a claim");
}

fn using(claim: &str) -> Value {
    json!({ "resourceClaims": [{ "name": "gpu", "resourceClaimName": claim }] })
}

/// Device and users of a claim.
async fn state(cluster: &Cluster, claim: &str) -> (Option<String>, Vec<String>) {
    let status = claims(cluster).get(claim).await.expect("the claim").status.unwrap_or_default();
    let devices = status.allocation.and_then(|allocation| allocation.devices?.results);
    let mut users: Vec<String> = status.reserved_for.into_iter().flatten().map(|user| user.name).collect();
    users.sort();
    (devices.into_iter().flatten().next().map(|result| result.device), users)
}

#[tokio::test]
pub async fn a_claim_is_allocated_and_reserved_before_its_pods_are_bound() {
    let cluster = Cluster::start().await;
    class(&cluster).await;
    cluster.node("n1", "4").await;
    cluster.node("n2", "4").await;
    devices(&cluster, "n2", &["gpu-0"]).await;
    claim(&cluster, "shared").await;
    for pod in ["a", "b", "c"] {
        cluster.pod(pod, using("shared")).await;
    }
    for pod in ["a", "b", "c"] {
        assert_eq!(cluster.placed(pod).await, "n2");
    }
    let users = ["a", "b", "c"].map(str::to_owned).to_vec();
    assert_eq!(state(&cluster, "shared").await, (Some("gpu-0".to_owned()), users));
    let finalizers = claims(&cluster).get("shared").await.unwrap().metadata.finalizers.unwrap();
    assert_eq!(finalizers, ["resource.kubernetes.io/delete-protection"]);
    cluster.stop().await;
}

#[tokio::test]
pub async fn two_pods_compete_for_one_device_and_the_second_gets_it_when_it_is_free() {
    let cluster = Cluster::start().await;
    class(&cluster).await;
    cluster.node("n1", "4").await;
    claim(&cluster, "x").await;
    claim(&cluster, "y").await;
    cluster.pod("a", using("x")).await;
    let why = cluster.wait_until_unschedulable("a", "cannot allocate all claims").await;
    assert!(why.contains("0 selected"), "{why}");
    devices(&cluster, "n1", &["gpu-0"]).await;
    assert_eq!(cluster.placed("a").await, "n1");
    cluster.pod("b", using("y")).await;
    cluster.wait_until_unschedulable("b", "cannot allocate all claims").await;
    until("an event says so", async || {
        let events = cluster.events("FailedScheduling").await;
        events.iter().any(|event| {
            let about_b = event.involved_object.name.as_deref() == Some("b");
            about_b && event.message.as_deref().is_some_and(|message| message.contains("cannot allocate all claims"))
        })
    })
    .await;
    assert_eq!(state(&cluster, "y").await, (None, vec![]));
    // As the controller does when a is gone.
    let free = json!({ "status": { "allocation": null, "reservedFor": null } });
    claims(&cluster).patch_status("x", &PatchParams::default(), &Patch::Merge(free)).await.expect("deallocate");
    assert_eq!(cluster.placed("b").await, "n1");
    assert_eq!(state(&cluster, "y").await, (Some("gpu-0".to_owned()), vec!["b".to_owned()]));
    cluster.stop().await;
}

#[tokio::test]
pub async fn a_pod_waits_for_its_claim_and_a_claim_on_a_lost_node_is_given_up() {
    let cluster = Cluster::start().await;
    class(&cluster).await;
    cluster.node("n1", "4").await;
    devices(&cluster, "n1", &["gpu-0"]).await;
    cluster.pod("a", using("late")).await;
    cluster.wait_until_unschedulable("a", r#""late" not found"#).await;
    let devices = json!({ "requests": [{ "name": "gpu", "exactly": { "deviceClassName": "gpu" } }] });
    let late = json!({
        "metadata": { "name": "late", "finalizers": ["resource.kubernetes.io/delete-protection"] },
        "spec": { "devices": devices },
    });
    let mut late: ResourceClaim = serde_json::from_value(late).unwrap();
    // Allocated at once, for nobody, on a node that is not there.
    cluster.nodes().get("n1").await.expect("the node");
    late = claims(&cluster).create(&PostParams::default(), &late).await.expect("create a claim");
    let field = json!({ "key": "metadata.name", "operator": "In", "values": ["lost"] });
    late.status = serde_json::from_value(json!({ "allocation": {
        "devices": { "results": [{ "request": "gpu", "driver": "gpu.example.com", "pool": "lost", "device": "gpu-9" }] },
        "nodeSelector": { "nodeSelectorTerms": [{ "matchFields": [field] }] },
    } }))
    .unwrap();
    match claims(&cluster).replace_status("late", &PostParams::default(), &late).await {
        Ok(_) => {
            until("the claim is allocated anew", async || state(&cluster, "late").await.0.as_deref() == Some("gpu-0"))
                .await;
        }
        // The scheduler was faster.
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        Err(error) => panic!("{error}"),
    }
    assert_eq!(cluster.placed("a").await, "n1");
    cluster.stop().await;
}

#[tokio::test]
pub async fn a_claim_that_is_being_deleted_is_not_given_to_new_pods() {
    let cluster = Cluster::start().await;
    class(&cluster).await;
    cluster.node("n1", "4").await;
    devices(&cluster, "n1", &["gpu-0"]).await;
    claim(&cluster, "x").await;
    cluster.pod("a", using("x")).await;
    cluster.placed("a").await;
    claims(&cluster).delete("x", &DeleteParams::default()).await.expect("delete the claim");
    cluster.pod("b", using("x")).await;
    cluster.wait_until_unschedulable("b", r#"resourceclaim "x" is being deleted"#).await;
    cluster.stop().await;
}

#[tokio::test]
pub async fn a_pod_is_bound_when_the_driver_says_that_its_device_is_attached() {
    let cluster = Cluster::start().await;
    class(&cluster).await;
    cluster.node("n1", "4").await;
    let device = json!({ "name": "far", "bindsToNode": true, "bindingConditions": ["Attached"],
                         "bindingFailureConditions": ["Broken"] });
    let slice = json!({
        "metadata": { "name": "fabric" },
        "spec": { "driver": "gpu.example.com", "allNodes": true, "devices": [device],
                  "pool": { "name": "fabric", "generation": 1, "resourceSliceCount": 1 } },
    });
    let slices: Api<ResourceSlice> = Api::all(cluster.client.clone());
    slices.create(&PostParams::default(), &serde_json::from_value(slice).unwrap()).await.expect("create a slice");
    claim(&cluster, "x").await;
    cluster.pod("a", using("x")).await;
    until("an event says that it waits", async || !cluster.events("BindingConditionsPending").await.is_empty()).await;
    assert_eq!(state(&cluster, "x").await, (Some("far".to_owned()), vec!["a".to_owned()]));
    let report = async |kind: &str| {
        let condition = json!({ "type": kind, "status": "True", "reason": "Fabric", "message": "",
                                "lastTransitionTime": "2026-01-01T00:00:00Z" });
        let device =
            json!({ "driver": "gpu.example.com", "pool": "fabric", "device": "far", "conditions": [condition] });
        let status = json!({ "status": { "devices": [device] } });
        claims(&cluster).patch_status("x", &PatchParams::default(), &Patch::Merge(status)).await.expect("report");
    };
    // It fails: the claim is given back, allocated anew and waited for anew.
    let first = claims(&cluster).get("x").await.unwrap().status.unwrap().allocation.unwrap().allocation_timestamp;
    assert!(first.is_some(), "since when it is allocated");
    // Giving it back takes away what the driver reported.
    report("Broken").await;
    until("the claim is allocated anew", async || {
        let status = claims(&cluster).get("x").await.unwrap().status.unwrap_or_default();
        status.devices.is_none() && status.allocation.is_some_and(|own| own.allocation_timestamp >= first)
    })
    .await;
    report("Attached").await;
    assert_eq!(cluster.placed("a").await, "n1");
    cluster.stop().await;
}

#[tokio::test]
pub async fn an_extended_resource_of_a_class_is_claimed_for_the_pod() {
    let cluster = Cluster::start().await;
    let class = json!({ "metadata": { "name": "gpu" }, "spec": { "extendedResourceName": "example.com/gpu" } });
    let classes: Api<DeviceClass> = Api::all(cluster.client.clone());
    classes.create(&PostParams::default(), &serde_json::from_value(class).unwrap()).await.expect("create a class");
    cluster.node("n1", "4").await;
    devices(&cluster, "n1", &["gpu-0", "gpu-1"]).await;
    let limits = |count: u32| json!({ "containers": [{ "name": "c", "image": "i", "resources": { "limits": { "example.com/gpu": count.to_string() } } }] });
    cluster.pod("a", limits(2)).await;
    assert_eq!(cluster.placed("a").await, "n1");
    let pod = cluster.pods().get("a").await.unwrap();
    let named = pod.status.and_then(|status| status.extended_resource_claim_status).expect("named in the status");
    assert_eq!(named.request_mappings[0].container_name, "c");
    assert_eq!(named.request_mappings[0].resource_name, "example.com/gpu");
    assert_eq!(named.request_mappings[0].request_name, "container-0-request-0");
    let claim = claims(&cluster).get(&named.resource_claim_name).await.expect("the claim");
    assert_eq!(claim.metadata.owner_references.unwrap()[0].uid, pod.metadata.uid.unwrap());
    let status = claim.status.unwrap();
    assert_eq!(status.allocation.unwrap().devices.unwrap().results.unwrap().len(), 2);
    cluster.pod("b", limits(1)).await;
    cluster.wait_until_unschedulable("b", "cannot allocate all claims").await;
    cluster.stop().await;
}
