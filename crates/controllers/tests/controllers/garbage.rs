//! What becomes of dependents when owners go.

use crate::cluster::{Cluster, reference, until};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams, PropagationPolicy},
};
use serde_json::json;

fn owner_uids(map: &ConfigMap) -> Vec<String> {
    map.metadata.owner_references.iter().flatten().map(|r| r.uid.clone()).collect()
}

#[tokio::test]
async fn dependents_follow_their_owner_down_the_generations() {
    let cluster = Cluster::start().await;
    let owner = cluster.map("owner", &[], json!({})).await;
    let child = cluster.map("child", &[&reference(&owner, true)], json!({})).await;
    cluster.map("grandchild", &[&reference(&child, true)], json!({})).await;
    cluster.map("stranger", &[], json!({})).await;
    cluster.delete_map("owner", PropagationPolicy::Background).await;
    cluster.map_gone("child").await;
    cluster.map_gone("grandchild").await;
    cluster.settled().await;
    assert!(cluster.get("stranger").await.is_some());
    cluster.stop().await;
}

#[tokio::test]
async fn an_object_of_two_owners_outlives_one_and_not_both() {
    let cluster = Cluster::start().await;
    let first = cluster.map("first", &[], json!({})).await;
    let second = cluster.map("second", &[], json!({})).await;
    cluster.map("shared", &[&reference(&first, false), &reference(&second, false)], json!({})).await;
    cluster.delete_map("first", PropagationPolicy::Background).await;
    until("the dangling reference is dropped", async || {
        owner_uids(&cluster.get("shared").await.expect("it stays")) == [second.metadata.uid.clone().unwrap()]
    })
    .await;
    cluster.delete_map("second", PropagationPolicy::Background).await;
    cluster.map_gone("shared").await;
    cluster.stop().await;
}

#[tokio::test]
pub async fn a_foreground_deletion_waits_for_dependents_that_block() {
    let cluster = Cluster::start().await;
    let owner = cluster.map("owner", &[], json!({})).await;
    let held = json!({ "finalizers": ["x.example.com/y"] });
    cluster.map("blocking", &[&reference(&owner, true)], held.clone()).await;
    cluster.map("other", &[&reference(&owner, false)], held).await;
    cluster.map("free", &[&reference(&owner, true)], json!({})).await;
    cluster.delete_map("owner", PropagationPolicy::Foreground).await;
    cluster.map_gone("free").await;
    for name in ["blocking", "other"] {
        until(&format!("{name} is being deleted"), async || {
            cluster.get(name).await.is_some_and(|map| map.metadata.deletion_timestamp.is_some())
        })
        .await;
    }
    cluster.settled().await;
    assert!(cluster.get("owner").await.is_some(), "it waits");
    let released = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    cluster.maps("default").patch("blocking", &PatchParams::default(), &released).await.unwrap();
    cluster.map_gone("owner").await;
    assert!(cluster.get("other").await.is_some(), "nobody waits for it");
    cluster.stop().await;
}

#[tokio::test]
async fn a_foreground_deletion_goes_down_the_generations() {
    let cluster = Cluster::start().await;
    let owner = cluster.map("owner", &[], json!({})).await;
    let child = cluster.map("child", &[&reference(&owner, true)], json!({})).await;
    cluster.map("grandchild", &[&reference(&child, true)], json!({})).await;
    cluster.delete_map("owner", PropagationPolicy::Foreground).await;
    cluster.map_gone("owner").await;
    assert!(cluster.get("child").await.is_none() && cluster.get("grandchild").await.is_none());
    cluster.stop().await;
}

#[tokio::test]
pub async fn orphans_lose_their_owner_and_stay() {
    let cluster = Cluster::start().await;
    let owner = cluster.map("owner", &[], json!({})).await;
    let other = cluster.map("other", &[], json!({})).await;
    for i in 0..30 {
        cluster.map(&format!("orphan{i}"), &[&reference(&owner, true), &reference(&other, true)], json!({})).await;
    }
    // At once: the watch may not have delivered the last of them.
    cluster.delete_map("owner", PropagationPolicy::Orphan).await;
    cluster.map_gone("owner").await;
    cluster.settled().await;
    for i in 0..30 {
        let orphan = cluster.get(&format!("orphan{i}")).await.expect("an orphan stays");
        assert_eq!(owner_uids(&orphan), [other.metadata.uid.clone().unwrap()]);
    }
    cluster.stop().await;
}

#[tokio::test]
async fn an_owner_that_never_was_is_gone_and_a_kind_that_is_not_served_is_not() {
    let cluster = Cluster::start().await;
    let real = cluster.map("real", &[], json!({})).await;
    let mut impostor = reference(&real, false);
    impostor["uid"] = json!("00000000-0000-4000-8000-000000000000");
    let mut unknown = impostor.clone();
    (unknown["kind"], unknown["apiVersion"]) = (json!("Widget"), json!("example.com/v1"));
    cluster.map("doubtful", &[&unknown], json!({})).await;
    cluster.map("both", &[&unknown, &impostor], json!({})).await;
    cluster.map("impostors", &[&impostor], json!({})).await;
    cluster.map_gone("impostors").await;
    cluster.settled().await;
    assert!(cluster.get("doubtful").await.is_some() && cluster.get("both").await.is_some());
    cluster.stop().await;
}

#[tokio::test]
async fn owners_in_another_namespace_are_no_owners() {
    let cluster = Cluster::start().await;
    cluster.namespace("elsewhere").await;
    let map: ConfigMap = serde_json::from_value(json!({ "metadata": { "name": "far" } })).unwrap();
    let far = cluster.maps("elsewhere").create(&PostParams::default(), &map).await.unwrap();
    cluster.map("dependent", &[&reference(&far, false)], json!({})).await;
    cluster.map_gone("dependent").await;

    // A cluster-scoped object that names one cannot be judged: it stays, and an event says why.
    let volumes: Api<PersistentVolume> = Api::all(cluster.client.clone());
    let volume = json!({
        "metadata": { "name": "volume", "ownerReferences": [reference(&far, false)] },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
            "hostPath": { "path": "/data" }, "persistentVolumeReclaimPolicy": "Retain",
        },
    });
    volumes.create(&PostParams::default(), &serde_json::from_value(volume).unwrap()).await.unwrap();
    cluster.maps("elsewhere").delete("far", &DeleteParams::default()).await.unwrap();
    let events: Api<k8s_openapi::api::events::v1::Event> = Api::namespaced(cluster.client.clone(), "default");
    until("an event names the volume", async || {
        let events = events.list(&Default::default()).await.unwrap();
        events.items.iter().any(|event| {
            event.reason.as_deref() == Some("OwnerRefInvalidNamespace")
                && event.regarding.as_ref().and_then(|r| r.kind.as_deref()) == Some("PersistentVolume")
        })
    })
    .await;
    cluster.settled().await;
    assert!(volumes.get_opt("volume").await.unwrap().is_some());
    cluster.stop().await;
}
