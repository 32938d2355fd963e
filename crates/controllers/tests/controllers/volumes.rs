//! Claims are bound, and volumes come and go with them.

use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::{StorageClass, VolumeAttributesClass},
};
use kube::{
    Api, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::cluster::{Cluster, until};

async fn make<K>(api: Api<K>, object: Value) -> K
where
    K: Resource + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let object = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.expect("create an object")
}

struct Stage {
    cluster: Cluster,
}

impl Stage {
    async fn set() -> Self {
        let cluster = Cluster::start().await;
        let client = cluster.client.clone();
        let class = json!({
            "metadata": {"name": "local-path", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
            "provisioner": "mainstay.dev/local-path", "volumeBindingMode": "WaitForFirstConsumer",
        });
        make::<StorageClass>(Api::all(client.clone()), class).await;
        let node = json!({"metadata": {"name": "here", "labels": {"kubernetes.io/hostname": "here"},
                                       "annotations": {"mainstay.dev/volumes": "/data/volumes"}}});
        make::<Node>(Api::all(client), node).await;
        Self { cluster }
    }

    fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.cluster.client.clone(), "default")
    }

    fn volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.cluster.client.clone())
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.cluster.client.clone(), "default")
    }

    async fn claim(&self, name: &str) -> PersistentVolumeClaim {
        let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        make(self.claims(), json!({"metadata": {"name": name}, "spec": spec})).await
    }

    async fn pod(&self, name: &str, volume: Value) {
        let spec = json!({"nodeName": "here", "containers": [{"name": "c", "image": "i"}], "volumes": [volume]});
        make(self.pods(), json!({"metadata": {"name": name}, "spec": spec})).await;
    }

    async fn phase(&self, claim: &str) -> Option<String> {
        self.claims().get_opt(claim).await.unwrap()?.status?.phase
    }
}

#[tokio::test]
pub async fn a_claim_gets_a_volume_with_its_first_pod_and_takes_it_along() {
    let stage = Stage::set().await;
    let claim = stage.claim("data").await;
    let name = format!("pvc-{}", claim.metadata.uid.unwrap());
    until("it has a class", async || {
        stage.claims().get("data").await.unwrap().spec.unwrap().storage_class_name.as_deref() == Some("local-path")
    })
    .await;
    assert_eq!(stage.phase("data").await.as_deref(), Some("Pending"));
    assert!(stage.volumes().get_opt(&name).await.unwrap().is_none());

    stage.pod("web", json!({"name": "v", "persistentVolumeClaim": {"claimName": "data"}})).await;
    until("it is bound", async || stage.phase("data").await.as_deref() == Some("Bound")).await;
    let bound = stage.claims().get("data").await.unwrap();
    assert_eq!(bound.spec.unwrap().volume_name.as_deref(), Some(name.as_str()));
    assert_eq!(bound.status.unwrap().capacity.unwrap()["storage"].0, "1Gi");
    until("so is the volume", async || {
        stage.volumes().get(&name).await.unwrap().status.unwrap().phase.as_deref() == Some("Bound")
    })
    .await;
    // As the agent does when it makes the directory.
    let on_disk = json!({"metadata": {"finalizers": ["kubernetes.io/pv-protection", "mainstay.dev/local-path"]}});
    stage.volumes().patch(&name, &PatchParams::default(), &Patch::Merge(on_disk)).await.unwrap();

    // A pod that uses it keeps it.
    stage.claims().delete("data", &DeleteParams::default()).await.unwrap();
    stage.cluster.settled().await;
    assert_eq!(stage.phase("data").await.as_deref(), Some("Bound"));
    stage.pods().delete("web", &DeleteParams::default().grace_period(0)).await.unwrap();
    until("the claim is gone", async || stage.phase("data").await.is_none()).await;
    until("the volume waits for its machine", async || {
        let volume = stage.volumes().get(&name).await.unwrap();
        volume.metadata.deletion_timestamp.is_some()
            && volume.metadata.finalizers.as_deref() == Some(&["mainstay.dev/local-path".to_owned()][..])
    })
    .await;
    let done = json!({"metadata": {"finalizers": null}});
    stage.volumes().patch(&name, &PatchParams::default(), &Patch::Merge(done)).await.unwrap();
    until("the volume is gone", async || stage.volumes().get_opt(&name).await.unwrap().is_none()).await;
    stage.cluster.stop().await;
}

#[tokio::test]
pub async fn a_volume_that_someone_made_is_bound_and_kept() {
    let stage = Stage::set().await;
    let spec = json!({
        "capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "manual",
        "hostPath": {"path": "/srv"},
    });
    make(stage.volumes(), json!({"metadata": {"name": "srv"}, "spec": spec})).await;
    let spec = json!({
        "accessModes": ["ReadWriteOnce"], "storageClassName": "manual", "resources": {"requests": {"storage": "1Gi"}},
    });
    make(stage.claims(), json!({"metadata": {"name": "c"}, "spec": spec})).await;
    until("it is bound", async || stage.phase("c").await.as_deref() == Some("Bound")).await;
    stage.claims().delete("c", &DeleteParams::default()).await.unwrap();
    until("the volume is released", async || {
        stage.volumes().get("srv").await.unwrap().status.unwrap().phase.as_deref() == Some("Released")
    })
    .await;
    stage.cluster.settled().await;
    assert!(stage.volumes().get("srv").await.unwrap().metadata.deletion_timestamp.is_none());
    stage.cluster.stop().await;
}

#[tokio::test]
pub async fn a_claim_within_a_pod_is_made_with_it_and_goes_with_it() {
    let stage = Stage::set().await;
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    stage.pod("web", json!({"name": "tmp", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}})).await;
    until("its claim is bound", async || stage.phase("web-tmp").await.as_deref() == Some("Bound")).await;
    stage.pods().delete("web", &DeleteParams::default().grace_period(0)).await.unwrap();
    until("its claim is gone", async || stage.phase("web-tmp").await.is_none()).await;
    stage.cluster.stop().await;
}

#[tokio::test]
pub async fn a_class_of_attributes_is_matched_and_stays_while_a_volume_names_it() {
    let stage = Stage::set().await;
    let classes: Api<VolumeAttributesClass> = Api::all(stage.cluster.client.clone());
    for name in ["gold", "silver"] {
        let class = json!({"metadata": {"name": name}, "driverName": "disks.example", "parameters": {"iops": "1"}});
        make(classes.clone(), class).await;
    }
    let spec = json!({
        "capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "manual",
        "csi": {"driver": "disks.example", "volumeHandle": "v1"}, "volumeAttributesClassName": "gold",
    });
    make(stage.volumes(), json!({"metadata": {"name": "disk"}, "spec": spec})).await;
    // Silver first: it would take the volume.
    for name in ["silver", "gold"] {
        let spec = json!({
            "accessModes": ["ReadWriteOnce"], "storageClassName": "manual", "volumeAttributesClassName": name,
            "resources": {"requests": {"storage": "1Gi"}},
        });
        make(stage.claims(), json!({"metadata": {"name": format!("a-{name}")}, "spec": spec})).await;
    }
    until("gold is bound", async || stage.phase("a-gold").await.as_deref() == Some("Bound")).await;
    let bound = stage.claims().get("a-gold").await.unwrap();
    assert_eq!(bound.status.unwrap().current_volume_attributes_class_name.as_deref(), Some("gold"));
    assert_eq!(stage.phase("a-silver").await.as_deref(), Some("Pending"));

    until("gold is protected", async || {
        classes.get("gold").await.unwrap().metadata.finalizers.as_deref()
            == Some(&["kubernetes.io/vac-protection".to_owned()][..])
    })
    .await;
    classes.delete("gold", &DeleteParams::default()).await.unwrap();
    stage.cluster.settled().await;
    assert!(classes.get("gold").await.unwrap().metadata.deletion_timestamp.is_some());
    stage.claims().delete("a-gold", &DeleteParams::default()).await.unwrap();
    until("the claim is gone", async || stage.phase("a-gold").await.is_none()).await;
    stage.cluster.settled().await;
    assert!(classes.get_opt("gold").await.unwrap().is_some(), "its volume is there");
    stage.volumes().delete("disk", &DeleteParams::default()).await.unwrap();
    until("the class is gone", async || classes.get_opt("gold").await.unwrap().is_none()).await;
    stage.cluster.stop().await;
}
