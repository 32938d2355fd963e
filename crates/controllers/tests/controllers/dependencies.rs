//! Needs of objects, which the controllers judge for nodes, and cycles.

use k8s_openapi::api::core::v1::{Event, Pod, PodCondition, Service};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use mainstay_api::needs;
use serde_json::json;

use crate::cluster::{Cluster, until};

async fn create_pod(cluster: &Cluster, name: &str, text: &str) {
    let pod = json!({
        "metadata": { "name": name, "labels": { "app": name }, "annotations": { needs::ANNOTATION: text } },
        "spec": { "nodeName": "n1", "containers": [{ "name": "c", "image": "i" }] },
    });
    pods(cluster).create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.expect("create a pod");
}

fn pods(cluster: &Cluster) -> Api<Pod> {
    Api::namespaced(cluster.client.clone(), "default")
}

async fn condition(cluster: &Cluster, pod: &str, kind: &str) -> Option<PodCondition> {
    let pod = pods(cluster).get(pod).await.expect("the pod");
    pod.status?.conditions?.into_iter().find(|condition| condition.type_ == kind)
}

async fn object_needs(cluster: &Cluster, pod: &str) -> (String, String) {
    let found = condition(cluster, pod, needs::OBJECTS_CONDITION).await;
    found.map(|condition| (condition.status, condition.message.unwrap_or_default())).unwrap_or_default()
}

#[tokio::test]
pub async fn a_pod_learns_whether_the_objects_that_it_needs_are_there() {
    let cluster = Cluster::start().await;
    create_pod(&cluster, "web", "configmap/zones, job/migrate, db").await;
    let missing = |text: &str| ("False".to_owned(), text.to_owned());
    until("both are named", async || {
        object_needs(&cluster, "web").await == missing("configmap/zones: does not exist\njob/migrate: does not exist")
    })
    .await;
    cluster.map("zones", &[], json!({})).await;
    until("one is there", async || object_needs(&cluster, "web").await == missing("job/migrate: does not exist")).await;
    let others = [("met", "configmap/zones"), ("independent", "db")];
    for (name, text) in others {
        create_pod(&cluster, name, text).await;
    }
    until("all are", async || object_needs(&cluster, "met").await.0 == "True").await;
    assert_eq!(condition(&cluster, "independent", needs::OBJECTS_CONDITION).await, None, "nodes judge Services");
    cluster.delete_map("zones", kube::api::PropagationPolicy::Background).await;
    until("it is gone again", async || {
        object_needs(&cluster, "met").await == missing("configmap/zones: does not exist")
    })
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn pods_that_wait_for_each_other_to_be_ready_name_the_cycle_until_it_is_broken() {
    let cluster = Cluster::start().await;
    let services: Api<Service> = Api::namespaced(cluster.client.clone(), "default");
    for (name, other) in [("web", "api"), ("api", "web")] {
        let spec = json!({ "selector": { "app": name }, "ports": [{ "port": 80 }] });
        let service = serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap();
        services.create(&PostParams::default(), &service).await.expect("create a Service");
        create_pod(&cluster, name, other).await;
        let waits = json!({ "status": { "conditions": [{ "type": needs::CONDITION, "status": "False" }] } });
        let patch = Patch::Strategic(waits);
        pods(&cluster).patch_status(name, &PatchParams::default(), &patch).await.expect("report as a node");
    }
    let cycle = async |pod: &str| {
        let found = condition(&cluster, pod, needs::CYCLE_CONDITION).await;
        found.map(|condition| (condition.status, condition.message.unwrap_or_default()))
    };
    until("both name it", async || {
        cycle("web").await == Some(("True".to_owned(), "web → api → web".to_owned()))
            && cycle("api").await == Some(("True".to_owned(), "api → web → api".to_owned()))
    })
    .await;
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), "default");
    until("an event does, too", async || {
        let all = events.list(&ListParams::default()).await.unwrap();
        all.iter().any(|event| event.reason.as_deref() == Some(needs::CYCLE))
    })
    .await;
    let met = json!({ "status": { "conditions": [{ "type": needs::CONDITION, "status": "True" }] } });
    pods(&cluster)
        .patch_status("api", &PatchParams::default(), &Patch::Strategic(met))
        .await
        .expect("report as a node");
    until("it is broken", async || cycle("web").await.is_some_and(|(status, _)| status == "False")).await;
    cluster.stop().await;
}
