//! Claims with the real Cinder.

use k8s_openapi::api::{
    core::v1::{Event, PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use mainstay_testing::{TestApi, until};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    fault_proxy::{Effect, Fault, FaultProxy},
    harness::{Manager, TestProject, cloud_client, cluster, entries, resources},
};

pub async fn create_class(client: &Client) {
    let class: StorageClass = serde_json::from_value(json!({
        "metadata": {"name": "cinder-default"},
        "provisioner": "cinder.csi.openstack.org", "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate", "allowVolumeExpansion": true,
    }))
    .unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &class).await.expect("create a class");
}

pub fn claim(size: &str) -> PersistentVolumeClaim {
    serde_json::from_value(json!({
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "cinder-default",
                 "resources": {"requests": {"storage": size}}},
    }))
    .unwrap()
}

/// The controllers that bind claims.
pub fn start_binder(api: &TestApi) -> CancellationToken {
    let stop = CancellationToken::new();
    let client = api.client("controllers");
    tokio::spawn(mainstay_controllers::run(client, mainstay_controllers::Settings::default(), stop.clone()));
    stop
}

pub fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_gets_a_volume_that_grows_and_goes_with_it() {
    let (project, api) = (TestProject::create("claims").await, cluster().await);
    let (client, binder) = (api.client("test"), start_binder(&api));
    create_class(&client).await;
    let manager = Manager::start(cloud_client(&api), &project.yaml);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), "default");
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    claims.create(&PostParams::default(), &claim("1Gi")).await.unwrap();
    until("a bound claim", async || is_bound(&claims.get("data").await.unwrap())).await;
    let name = claims.get("data").await.unwrap().spec.unwrap().volume_name.unwrap();
    let handle = volumes.get(&name).await.unwrap().spec.unwrap().csi.unwrap().volume_handle;
    let cinder = project.session.block_storage();
    assert_eq!(cinder.show_volume(&handle).await.unwrap().unwrap().size, 1);

    let larger = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    claims.patch("data", &PatchParams::default(), &Patch::Merge(larger)).await.unwrap();
    until("a larger PersistentVolume", async || {
        let capacity = volumes.get(&name).await.unwrap().spec.unwrap().capacity.unwrap();
        capacity["storage"].0 == "2Gi"
    })
    .await;
    assert_eq!(cinder.show_volume(&handle).await.unwrap().unwrap().size, 2);

    claims.delete("data", &DeleteParams::default()).await.unwrap();
    until("a PersistentVolume that is gone", async || volumes.get_opt(&name).await.unwrap().is_none()).await;
    assert_eq!(resources(&project.session).await, [] as [&str; 0]);
    assert_eq!(entries(&client).await.len(), 0);
    drop(manager);
    binder.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_persistent_volume_stays_while_cinder_deletes() {
    let (project, api) = (TestProject::create("hangs").await, cluster().await);
    let (client, binder) = (api.client("test"), start_binder(&api));
    create_class(&client).await;
    let proxy = FaultProxy::start().await;
    let yaml = project.yaml_through(&proxy.keystone(project.session.auth_url()));
    let manager = Manager::start(cloud_client(&api), &yaml);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), "default");
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    claims.create(&PostParams::default(), &claim("1Gi")).await.unwrap();
    until("a bound claim", async || is_bound(&claims.get("data").await.unwrap())).await;
    let name = claims.get("data").await.unwrap().spec.unwrap().volume_name.unwrap();
    // Cinder says `deleting`, whatever happens, and the delete itself is not done.
    let deleting = Effect::Change(|body| {
        if body["volume"].is_object() {
            body["volume"]["status"] = json!("deleting");
        }
    });
    proxy.inject(Fault::new("GET /v3/", 8, deleting));
    let looks =
        || proxy.calls().iter().filter(|line| line.starts_with("GET /v3/") && line.contains("/volumes/")).count();
    let before = looks();
    claims.delete("data", &DeleteParams::default()).await.unwrap();
    until("looks at the volume", async || looks() > before + 5).await;
    assert!(volumes.get_opt(&name).await.unwrap().is_some(), "visible while Cinder says deleting");
    until("a PersistentVolume that is gone", async || volumes.get_opt(&name).await.unwrap().is_none()).await;
    assert_eq!(resources(&project.session).await, [] as [&str; 0]);
    drop(manager);
    binder.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_of_a_claim_gets_a_clone_that_is_not_smaller() {
    let (project, api) = (TestProject::create("clones").await, cluster().await);
    let (client, binder) = (api.client("test"), start_binder(&api));
    create_class(&client).await;
    let manager = Manager::start(cloud_client(&api), &project.yaml);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), "default");
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let events: Api<Event> = Api::namespaced(client.clone(), "default");
    claims.create(&PostParams::default(), &claim("2Gi")).await.unwrap();
    until("a bound claim", async || is_bound(&claims.get("data").await.unwrap())).await;
    let handle = async |claim: &str| {
        let name = claims.get(claim).await.unwrap().spec.unwrap().volume_name.unwrap();
        volumes.get(&name).await.unwrap().spec.unwrap().csi.unwrap().volume_handle
    };
    let clone = |name: &str, size: &str| {
        let mut clone = claim(size);
        clone.metadata.name = Some(name.to_owned());
        let source = json!({"kind": "PersistentVolumeClaim", "name": "data"});
        clone.spec.as_mut().unwrap().data_source = serde_json::from_value(source).unwrap();
        clone
    };
    claims.create(&PostParams::default(), &clone("copy", "3Gi")).await.unwrap();
    claims.create(&PostParams::default(), &clone("small", "1Gi")).await.unwrap();
    until("a bound clone", async || is_bound(&claims.get("copy").await.unwrap())).await;
    let copy = project.session.block_storage().show_volume(&handle("copy").await).await.unwrap().unwrap();
    assert_eq!((copy.source_volume.as_str(), copy.size), (handle("data").await.as_str(), 3));
    until("an event that names the field", async || {
        let all = events.list(&ListParams::default()).await.unwrap().items;
        all.iter().any(|event| {
            let message = event.message.as_deref().unwrap_or_default();
            event.involved_object.name.as_deref() == Some("small")
                && message.starts_with("spec.resources.requests.storage: 1 GiB are less than the 2 GiB")
        })
    })
    .await;
    assert_eq!(resources(&project.session).await.len(), 2, "nothing was made for the one that is too small");

    for name in ["small", "copy", "data"] {
        claims.delete(name, &DeleteParams::default()).await.unwrap();
    }
    until("no PersistentVolume", async || volumes.list(&ListParams::default()).await.unwrap().items.is_empty()).await;
    assert_eq!(resources(&project.session).await, [] as [&str; 0]);
    assert_eq!(entries(&client).await.len(), 0);
    drop(manager);
    binder.cancel();
}
