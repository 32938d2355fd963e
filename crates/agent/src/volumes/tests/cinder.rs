//! Cinder volumes with a real API, with the rights of a node alone, and a real disk; the controllers of the cloud are played.

use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, ServiceAccount},
    storage::v1::VolumeAttachment,
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use mainstay_api::cinder::{attachment_name, unique_volume_name};
use mainstay_testing::TestApi;

use super::*;
use crate::volumes::{
    PrepareError,
    cinder::disk::tests::{HANDLE, LoopDisk, can_grow_mounted},
};

struct CloudBench {
    api: TestApi,
    admin: Client,
    pod: Pod,
    disk: LoopDisk,
    settings: Settings,
    directory: TempDir,
}

impl Drop for CloudBench {
    fn drop(&mut self) {
        let directory = self.directory.path().canonicalize().unwrap();
        _ = table::unmount_below(&directory);
    }
}

async fn create<K>(api: Api<K>, object: Value) -> K
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap()
}

impl CloudBench {
    /// A node, and a pod there whose claim is bound to a volume that is attached nowhere.
    async fn new() -> Self {
        let api = TestApi::start(&["ns", "kube-system"]).await.with_roles().await;
        let admin = api.client("test");
        create::<Node>(Api::all(admin.clone()), json!({"metadata": {"name": "here"}})).await;
        let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), "ns");
        create(accounts, json!({"metadata": {"name": "default"}})).await;
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(admin.clone(), "ns");
        let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "volumeName": "pv",
            "storageClassName": "cinder", "resources": {"requests": {"storage": "64Mi"}}}});
        let claim = create(claims.clone(), claim).await;
        let bound = json!({"status": {"phase": "Bound", "capacity": {"storage": "64Mi"}}});
        claims.patch_status("data", &PatchParams::default(), &Patch::Merge(bound)).await.unwrap();
        let reference = json!({"namespace": "ns", "name": "data", "uid": claim.metadata.uid});
        let volume = json!({"metadata": {"name": "pv"}, "spec": {"capacity": {"storage": "64Mi"},
            "accessModes": ["ReadWriteOnce"], "claimRef": reference, "storageClassName": "cinder",
            "csi": {"driver": "cinder.csi.openstack.org", "volumeHandle": HANDLE, "fsType": "ext4"}}});
        create::<PersistentVolume>(Api::all(admin.clone()), volume).await;
        let pod = json!({"metadata": {"name": "web"}, "spec": {"nodeName": "here",
            "automountServiceAccountToken": false, "containers": [{"name": "main", "image": "i"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}});
        let pod = create(Api::namespaced(admin.clone(), "ns"), pod).await;
        let directory = tempfile::tempdir().unwrap();
        let disk = LoopDisk::attach(64 << 20);
        let settings = Settings { disks_by_id: disk.by_id(), ..settings(directory.path().join("agent")) };
        Self { api, admin, pod, disk, settings, directory }
    }

    /// An agent that was just started.
    fn volumes(&self) -> Volumes {
        let objects = Objects::new(self.api.node_client("here"), Wake::default()).for_node("here");
        Volumes::new(&self.settings, Arc::new(objects))
    }

    fn attachments(&self) -> Api<VolumeAttachment> {
        Api::all(self.admin.clone())
    }

    async fn request_attachment(&self) {
        let spec = json!({"attacher": "cinder.csi.openstack.org", "nodeName": "here", "source": {"persistentVolumeName": "pv"}});
        let metadata = json!({"name": attachment_name(HANDLE, "here"), "finalizers": ["external-attacher/cinder-csi-openstack-org"]});
        create(self.attachments(), json!({"metadata": metadata, "spec": spec})).await;
    }

    async fn attach(&self) {
        let status = Patch::Merge(json!({"status": {"attached": true}}));
        self.attachments()
            .patch_status(&attachment_name(HANDLE, "here"), &PatchParams::default(), &status)
            .await
            .unwrap();
    }

    async fn volumes_in_use(&self) -> Vec<String> {
        let node: Node = Api::all(self.admin.clone()).get("here").await.unwrap();
        node.status.and_then(|status| status.volumes_in_use).unwrap_or_default()
    }

    fn uid(&self) -> PodUid {
        PodUid(self.pod.metadata.uid.clone().unwrap())
    }

    fn mount_point(&self) -> PathBuf {
        self.settings.directory.join("attached").join(HANDLE).join("mount")
    }

    /// Prepares until the volumes are no longer waited for.
    async fn prepare(&self, volumes: &Volumes) {
        crate::testing::until("volumes that are ready", async || match volumes.prepare(&self.pod).await {
            Ok(()) => true,
            Err(PrepareError::Pending { .. }) => false,
            Err(error) => panic!("{error}"),
        })
        .await;
    }
}

#[tokio::test]
async fn a_pod_waits_for_the_attachment_of_its_volume_and_gives_it_back() {
    let bench = CloudBench::new().await;
    let volumes = bench.volumes();
    let waiting = volumes.prepare(&bench.pod).await.unwrap_err();
    assert!(matches!(waiting, PrepareError::Pending { .. }), "{waiting}");
    assert!(waiting.to_string().contains(r#"volume "pv" is not attached to node "here" yet"#), "{waiting}");
    assert_eq!(bench.volumes_in_use().await, [] as [&str; 0]);
    bench.request_attachment().await;
    bench.attach().await;
    bench.prepare(&volumes).await;
    assert_eq!(bench.volumes_in_use().await, [unique_volume_name(HANDLE)]);
    let source = volumes.source(&bench.pod, "data").unwrap();
    assert_eq!(source.path, bench.mount_point());
    fs::write(source.path.join("file"), "kept").unwrap();

    // A new agent finds what the one before it mounted, also while the attachment ends.
    let name = attachment_name(HANDLE, "here");
    bench.attachments().delete(&name, &DeleteParams::default()).await.unwrap();
    let restarted = bench.volumes();
    bench.prepare(&restarted).await;
    assert_eq!(fs::read_to_string(bench.mount_point().join("file")).unwrap(), "kept");
    assert!(restarted.pods_on_disk().contains(&bench.uid()));
    restarted.release(&bench.uid()).await.unwrap();
    assert!(!bench.mount_point().exists());
    restarted.volumes_in_use().write_now().await.unwrap();
    assert_eq!(bench.volumes_in_use().await, [] as [&str; 0]);

    // Nothing is mounted for an attachment that ends.
    let waiting = restarted.prepare(&bench.pod).await.unwrap_err();
    assert!(waiting.to_string().contains("is being detached"), "{waiting}");
    assert!(!bench.mount_point().exists() && bench.volumes_in_use().await.is_empty());
}

#[tokio::test]
async fn the_filesystem_grows_and_the_claim_says_so() {
    let bench = CloudBench::new().await;
    let volumes = bench.volumes();
    bench.request_attachment().await;
    bench.attach().await;
    bench.prepare(&volumes).await;
    let larger = Patch::Merge(json!({"spec": {"capacity": {"storage": "128Mi"}}}));
    let all: Api<PersistentVolume> = Api::all(bench.admin.clone());
    all.patch("pv", &PatchParams::default(), &larger).await.unwrap();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(bench.admin.clone(), "ns");
    let pending = json!({"status": {"conditions": [{"type": "FileSystemResizePending", "status": "True"}]}});
    claims.patch_status("data", &PatchParams::default(), &Patch::Strategic(pending)).await.unwrap();
    crate::testing::until("a disk that is too small", async || volumes.prepare(&bench.pod).await.is_err()).await;
    bench.disk.grow(128 << 20);
    if !can_grow_mounted() {
        // It grows with the next mount.
        volumes.release(&bench.uid()).await.unwrap();
    }
    crate::testing::until("a claim that has grown", async || {
        volumes.prepare(&bench.pod).await.unwrap();
        let status = claims.get("data").await.unwrap().status.unwrap();
        status.capacity.unwrap()["storage"].0 == "128Mi" && status.conditions.unwrap_or_default().is_empty()
    })
    .await;
    let stat = nix::sys::statvfs::statvfs(&bench.mount_point()).unwrap();
    assert!(stat.blocks() * stat.fragment_size() > 96 << 20);
    volumes.release(&bench.uid()).await.unwrap();
}
