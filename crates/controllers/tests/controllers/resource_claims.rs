//! ResourceClaims: made of templates, deallocated and deleted when nobody uses them.

use k8s_openapi::api::{
    core::v1::{Event, Pod},
    resource::v1::{DeviceTaintRule, ResourceClaim, ResourceClaimTemplate},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::cluster::{Cluster, until};

struct Stage {
    cluster: Cluster,
}

impl Stage {
    async fn set() -> Self {
        Self { cluster: Cluster::start().await }
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.cluster.client.clone(), "default")
    }

    fn claims(&self) -> Api<ResourceClaim> {
        Api::namespaced(self.cluster.client.clone(), "default")
    }

    async fn template(&self, name: &str) {
        let spec = json!({ "metadata": { "labels": { "a": "b" } }, "spec": devices() });
        let template = serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap();
        let templates: Api<ResourceClaimTemplate> = Api::namespaced(self.cluster.client.clone(), "default");
        templates.create(&PostParams::default(), &template).await.expect("create a template");
    }

    async fn pod(&self, name: &str, claim: Value, node: &str) -> Pod {
        let mut spec = json!({ "containers": [{ "name": "c", "image": "i" }], "resourceClaims": [claim] });
        if !node.is_empty() {
            spec["nodeName"] = json!(node);
        }
        let pod = serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap();
        self.pods().create(&PostParams::default(), &pod).await.expect("create a pod")
    }

    /// As the scheduler does.
    async fn allocate(&self, claim: &str, pods: &[&Pod]) {
        self.allocate_tolerating(claim, pods, json!([])).await;
    }

    async fn allocate_tolerating(&self, claim: &str, pods: &[&Pod], tolerations: Value) {
        let finalizers = json!({ "metadata": { "finalizers": ["resource.kubernetes.io/delete-protection"] } });
        self.claims().patch(claim, &PatchParams::default(), &Patch::Merge(finalizers)).await.expect("protect");
        let users: Vec<Value> = pods
            .iter()
            .map(|pod| json!({ "resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid }))
            .collect();
        let mut result = json!({ "request": "gpu", "driver": "d.example.com", "pool": "n1", "device": "gpu-0" });
        if tolerations != json!([]) {
            result["tolerations"] = tolerations;
        }
        let status = json!({ "status": {
            "allocation": { "devices": { "results": [result] } }, "reservedFor": users,
        } });
        self.claims().patch_status(claim, &PatchParams::default(), &Patch::Merge(status)).await.expect("allocate");
    }

    async fn made_for(&self, pod: &str) -> Option<String> {
        let pod = self.pods().get(pod).await.expect("the pod");
        pod.status?.resource_claim_statuses?.into_iter().next()?.resource_claim_name
    }

    async fn users(&self, claim: &str) -> Vec<String> {
        let status = self.claims().get(claim).await.expect("the claim").status.unwrap_or_default();
        status.reserved_for.into_iter().flatten().map(|user| user.name).collect()
    }
}

fn devices() -> Value {
    json!({ "devices": { "requests": [{ "name": "gpu", "exactly": { "deviceClassName": "gpu.example.com" } }] } })
}

#[tokio::test]
pub async fn a_claim_of_a_template_comes_and_goes_with_its_pod() {
    let stage = Stage::set().await;
    let pod = stage.pod("web", json!({ "name": "gpu", "resourceClaimTemplateName": "one" }), "").await;
    let events: Api<Event> = Api::namespaced(stage.cluster.client.clone(), "default");
    until("the missing template is named", async || {
        let all = events.list(&ListParams::default()).await.unwrap();
        all.iter().any(|event| event.reason.as_deref() == Some("FailedResourceClaimCreation"))
    })
    .await;
    stage.template("one").await;
    until("the pod names its claim", async || stage.made_for("web").await.is_some()).await;
    let name = stage.made_for("web").await.unwrap();
    let claim = stage.claims().get(&name).await.expect("the claim");
    let owner = &claim.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((Some(&owner.uid), owner.controller), (pod.metadata.uid.as_ref(), Some(true)));
    let annotations = claim.metadata.annotations.as_ref().unwrap();
    assert_eq!(annotations["resource.kubernetes.io/pod-claim-name"], "gpu");
    assert_eq!(claim.metadata.labels.as_ref().unwrap()["a"], "b");

    stage.allocate(&name, &[&pod]).await;
    stage.cluster.settled().await;
    assert_eq!(stage.users(&name).await, ["web"], "a pod that may run keeps its claim");
    let done = json!({ "status": { "phase": "Succeeded" } });
    stage.pods().patch_status("web", &PatchParams::default(), &Patch::Merge(done)).await.unwrap();
    until("the claim goes with the end of its pod", async || stage.claims().get_opt(&name).await.unwrap().is_none())
        .await;
    assert!(stage.pods().get_opt("web").await.unwrap().is_some());
    stage.cluster.stop().await;
}

#[tokio::test]
pub async fn a_shared_claim_is_deallocated_when_its_last_pod_is_gone() {
    let stage = Stage::set().await;
    let claim = serde_json::from_value(json!({ "metadata": { "name": "shared" }, "spec": devices() })).unwrap();
    stage.claims().create(&PostParams::default(), &claim).await.expect("create a claim");
    let named = json!({ "name": "gpu", "resourceClaimName": "shared" });
    let a = stage.pod("a", named.clone(), "").await;
    stage.allocate("shared", &[&a]).await;
    stage.pod("b", named, "here").await;
    until("a pod that was bound by hand is reserved", async || stage.users("shared").await == ["a", "b"]).await;
    stage.claims().delete("shared", &DeleteParams::default()).await.expect("delete the claim");
    let at_once = DeleteParams::default().grace_period(0);
    stage.pods().delete("a", &at_once).await.unwrap();
    until("a's reservation ends", async || stage.users("shared").await == ["b"]).await;
    assert!(stage.claims().get("shared").await.unwrap().status.unwrap().allocation.is_some());
    stage.pods().delete("b", &at_once).await.unwrap();
    until("the claim is gone", async || stage.claims().get_opt("shared").await.unwrap().is_none()).await;

    let claim = serde_json::from_value(json!({ "metadata": { "name": "kept" }, "spec": devices() })).unwrap();
    stage.claims().create(&PostParams::default(), &claim).await.expect("create a claim");
    let c = stage.pod("c", json!({ "name": "gpu", "resourceClaimName": "kept" }), "").await;
    stage.allocate("kept", &[&c]).await;
    stage.pods().delete("c", &at_once).await.unwrap();
    until("it is free again", async || {
        let claim = stage.claims().get("kept").await.unwrap();
        let status = claim.status.unwrap_or_default();
        status.allocation.is_none() && claim.metadata.finalizers.unwrap_or_default().is_empty()
    })
    .await;
    stage.cluster.stop().await;
}

#[tokio::test]
pub async fn pods_are_evicted_when_their_device_is_tainted_and_they_do_not_tolerate_it() {
    let stage = Stage::set().await;
    for (name, tolerations) in [("strict", json!([])), ("lenient", json!([{ "operator": "Exists" }]))] {
        let claim = serde_json::from_value(json!({ "metadata": { "name": name }, "spec": devices() })).unwrap();
        stage.claims().create(&PostParams::default(), &claim).await.expect("create a claim");
        let pod = stage.pod(name, json!({ "name": "gpu", "resourceClaimName": name }), "here").await;
        stage.allocate_tolerating(name, &[&pod], tolerations).await;
    }
    let rule = |device: &str| {
        let spec = json!({
            "deviceSelector": { "driver": "d.example.com", "device": device },
            "taint": { "key": "example.com/broken", "effect": "NoExecute" },
        });
        serde_json::from_value(json!({ "metadata": { "name": device }, "spec": spec })).unwrap()
    };
    let rules: Api<DeviceTaintRule> = Api::all(stage.cluster.client.clone());
    rules.create(&PostParams::default(), &rule("gpu-1")).await.expect("create a rule");
    stage.cluster.settled().await;
    assert!(stage.pods().get("strict").await.unwrap().metadata.deletion_timestamp.is_none(), "another device");
    rules.create(&PostParams::default(), &rule("gpu-0")).await.expect("create a rule");
    until("the pod is evicted", async || {
        stage.pods().get("strict").await.unwrap().metadata.deletion_timestamp.is_some()
    })
    .await;
    let conditions = stage.pods().get("strict").await.unwrap().status.unwrap().conditions.unwrap();
    let target = conditions.iter().find(|condition| condition.type_ == "DisruptionTarget").expect("it is marked");
    assert_eq!(target.reason.as_deref(), Some("DeletionByDeviceTaintManager"));
    assert!(stage.pods().get("lenient").await.unwrap().metadata.deletion_timestamp.is_none());
    let told = async |rule: &str| {
        let status = rules.get(rule).await.expect("the rule").status.unwrap_or_default();
        let mut conditions = status.conditions.into_iter().flatten().filter(|own| own.type_ == "EvictionInProgress");
        conditions.next().map(|own| format!("{} {}: {}", own.status, own.reason, own.message)).unwrap_or_default()
    };
    until("the rule says that it is done", async || {
        told("gpu-0").await == "False Completed: 1 pod evicted since starting the controller."
    })
    .await;
    assert_eq!(told("gpu-1").await, "False NotStarted: ");
    let preview = json!({ "metadata": { "name": "preview" }, "spec": {
        "deviceSelector": {}, "taint": { "key": "example.com/broken", "effect": "None" },
    } });
    rules.create(&PostParams::default(), &serde_json::from_value(preview).unwrap()).await.expect("create a rule");
    until("the rule says what it would do", async || told("preview").await.starts_with("False NoEffect: ")).await;
    stage.cluster.stop().await;
}
