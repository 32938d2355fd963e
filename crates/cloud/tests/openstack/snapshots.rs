//! VolumeSnapshots with the real Cinder.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, PostParams},
};
use mainstay_cloud::{context::read_cluster_id, debris::find_debris};
use mainstay_testing::until;
use serde_json::{Value, json};

use crate::{
    harness::{Manager, TestProject, cloud_client, cluster, entries, resources},
    volumes::{claim, create_class, is_bound, start_binder},
};

fn api(client: &Client, kind: &str, plural: &str) -> Api<DynamicObject> {
    let resource =
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", kind), plural);
    match kind {
        "VolumeSnapshot" => Api::namespaced_with(client.clone(), "default", &resource),
        _ => Api::all_with(client.clone(), &resource),
    }
}

fn object(kind: &str, name: &str, parts: Value) -> DynamicObject {
    let mut object = json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": kind, "metadata": {"name": name}});
    object.as_object_mut().unwrap().extend(parts.as_object().unwrap().clone());
    serde_json::from_value(object).unwrap()
}

struct SnapshotApis {
    snapshots: Api<DynamicObject>,
    contents: Api<DynamicObject>,
    classes: Api<DynamicObject>,
}

impl SnapshotApis {
    async fn new(client: &Client) -> Self {
        let apis = Self {
            snapshots: api(client, "VolumeSnapshot", "volumesnapshots"),
            contents: api(client, "VolumeSnapshotContent", "volumesnapshotcontents"),
            classes: api(client, "VolumeSnapshotClass", "volumesnapshotclasses"),
        };
        until("the kinds of snapshots", async || {
            let everything = ListParams::default();
            apis.snapshots.list(&everything).await.is_ok()
                && apis.contents.list(&everything).await.is_ok()
                && apis.classes.list(&everything).await.is_ok()
        })
        .await;
        apis
    }

    async fn create_retaining_class(&self) {
        let driver = json!({"driver": "cinder.csi.openstack.org", "deletionPolicy": "Retain"});
        let class = object("VolumeSnapshotClass", "retain", driver);
        self.classes.create(&PostParams::default(), &class).await.expect("create a class of snapshots");
    }

    /// Of the default class, or of this one.
    async fn create(&self, name: &str, source: Value, class: Option<&str>) {
        let mut snapshot = object("VolumeSnapshot", name, json!({"spec": {"source": source}}));
        if let Some(class) = class {
            snapshot.data["spec"]["volumeSnapshotClassName"] = json!(class);
        }
        self.snapshots.create(&PostParams::default(), &snapshot).await.expect("create a VolumeSnapshot");
    }

    async fn status(&self, name: &str) -> Value {
        self.snapshots.get(name).await.unwrap().data["status"].clone()
    }

    async fn until_ready(&self, name: &str) -> Value {
        until("a snapshot that is ready", async || self.status(name).await["readyToUse"] == true).await;
        self.status(name).await
    }

    async fn delete(&self, name: &str) {
        self.snapshots.delete(name, &DeleteParams::default()).await.unwrap();
        until("no snapshot", async || self.snapshots.get_opt(name).await.unwrap().is_none()).await;
    }
}

fn restored(name: &str, snapshot: &str) -> PersistentVolumeClaim {
    let mut restored = claim("2Gi");
    restored.metadata.name = Some(name.to_owned());
    let source = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": snapshot});
    restored.spec.as_mut().unwrap().data_source = serde_json::from_value(source).unwrap();
    restored
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_taken_restored_and_gone_with_its_object() {
    let (project, api) = (TestProject::create("snapshots").await, cluster().await);
    let (client, binder) = (api.client("test"), start_binder(&api));
    create_class(&client).await;
    let manager = Manager::start(cloud_client(&api), &project.yaml);
    let apis = SnapshotApis::new(&client).await;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), "default");
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    // The claim and the snapshot come after the VolumeSnapshot and the claim that are made of them.
    apis.create("monday", json!({"persistentVolumeClaimName": "data"}), None).await;
    claims.create(&PostParams::default(), &restored("copy", "monday")).await.unwrap();
    claims.create(&PostParams::default(), &claim("1Gi")).await.unwrap();
    let status = apis.until_ready("monday").await;
    assert_eq!((&status["restoreSize"], &status["error"]), (&json!("1Gi"), &Value::Null));
    assert_eq!(apis.snapshots.get("monday").await.unwrap().data["spec"]["volumeSnapshotClassName"], "cinder-default");
    let content = apis.contents.get(status["boundVolumeSnapshotContentName"].as_str().unwrap()).await.unwrap();
    let handle = content.data["status"]["snapshotHandle"].as_str().unwrap().to_owned();
    let cinder = project.session.block_storage();
    let taken = cinder.show_snapshot(&handle).await.unwrap().expect("a snapshot in Cinder");
    assert_eq!(content.data["spec"]["source"]["volumeHandle"], taken.volume_id);

    until("a bound copy", async || is_bound(&claims.get("copy").await.unwrap())).await;
    let name = claims.get("copy").await.unwrap().spec.unwrap().volume_name.unwrap();
    let copy = volumes.get(&name).await.unwrap().spec.unwrap().csi.unwrap().volume_handle;
    let copy = cinder.show_volume(&copy).await.unwrap().unwrap();
    assert_eq!((copy.snapshot_id.as_str(), copy.size), (handle.as_str(), 2));

    // Deleted before its snapshot, the source stays in Cinder until the snapshot is gone.
    for name in ["copy", "data"] {
        claims.delete(name, &DeleteParams::default()).await.unwrap();
    }
    apis.delete("monday").await;
    assert_eq!(apis.contents.list(&ListParams::default()).await.unwrap().items.len(), 0);
    assert_eq!(cinder.show_snapshot(&handle).await.unwrap(), None);
    until("no PersistentVolume", async || volumes.list(&ListParams::default()).await.unwrap().items.is_empty()).await;
    assert_eq!(resources(&project.session).await, [] as [&str; 0]);
    assert_eq!(entries(&client).await.len(), 0);
    drop(manager);
    binder.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retained_snapshot_outlives_its_object_and_is_bound_again() {
    let (project, api) = (TestProject::create("retained").await, cluster().await);
    let (client, binder) = (api.client("test"), start_binder(&api));
    create_class(&client).await;
    let manager = Manager::start(cloud_client(&api), &project.yaml);
    let apis = SnapshotApis::new(&client).await;
    apis.create_retaining_class().await;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), "default");
    claims.create(&PostParams::default(), &claim("1Gi")).await.unwrap();
    apis.create("kept", json!({"persistentVolumeClaimName": "data"}), Some("retain")).await;
    let status = apis.until_ready("kept").await;
    let content = status["boundVolumeSnapshotContentName"].as_str().unwrap().to_owned();
    let handle = apis.contents.get(&content).await.unwrap().data["status"]["snapshotHandle"].clone();
    apis.delete("kept").await;
    assert!(apis.contents.get_opt(&content).await.unwrap().is_some());

    let reference = json!({"kind": "VolumeSnapshot", "name": "again", "namespace": "default"});
    let spec = json!({
        "deletionPolicy": "Delete", "driver": "cinder.csi.openstack.org", "source": {"snapshotHandle": handle},
        "volumeSnapshotRef": reference,
    });
    let named = object("VolumeSnapshotContent", "named", json!({ "spec": spec }));
    apis.contents.create(&PostParams::default(), &named).await.unwrap();
    apis.create("again", json!({"volumeSnapshotContentName": "named"}), None).await;
    assert_eq!(apis.until_ready("again").await["boundVolumeSnapshotContentName"], "named");
    let cluster = read_cluster_id(&client).await.unwrap();
    assert_eq!(find_debris(&client, &project.session, &cluster).await.unwrap(), [], "objects name all that there is");
    // The first content is not the second VolumeSnapshot's: it stays, and what it stands for is gone with the other.
    apis.create("thief", json!({"volumeSnapshotContentName": "named"}), None).await;
    until("a refusal", async || {
        let message = apis.status("thief").await["error"]["message"].clone();
        message == "VolumeSnapshotContent named is bound to another VolumeSnapshot"
    })
    .await;
    apis.delete("thief").await;
    apis.delete("again").await;
    assert_eq!(apis.contents.get_opt("named").await.unwrap().map(|content| content.data), None);
    let cinder = project.session.block_storage();
    assert_eq!(cinder.show_snapshot(handle.as_str().unwrap()).await.unwrap(), None);
    apis.contents.delete(&content, &DeleteParams::default()).await.unwrap();
    until("no content", async || apis.contents.list(&ListParams::default()).await.unwrap().items.is_empty()).await;
    claims.delete("data", &DeleteParams::default()).await.unwrap();
    until("nothing in the cloud", async || resources(&project.session).await.is_empty()).await;
    drop(manager);
    binder.cancel();
}
