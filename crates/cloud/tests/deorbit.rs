//! Deorbit of a cluster by a command, with a real API and a cloud in memory that takes its time.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Service};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use mainstay_api::cloud::{
    cloud_resource::ResourceType,
    teardown_receipt::{DELETED_BY_OWNER, LEFT, ReceiptStatus},
};
use mainstay_cloud::{
    deorbit::{
        cloud::DeorbitCloud,
        inventory::{BalancerItem, CloudInventory, CloudItem},
        laptop::{LaptopDeorbit, LookError, Progress},
        plan::{Action, DeorbitEnd},
    },
    openstack::CloudError,
};
use mainstay_controllers::runtime::Clock;
use mainstay_testing::TestApi;
use parking_lot::Mutex;
use serde_json::{Value, json};

/// A second of the clock that deorbit goes by is so many times shorter.
const HASTE: u32 = 60;

/// A cloud whose controllers live in the test: what has no object any more goes after a few looks.
#[derive(Clone)]
struct SlowCloud {
    client: Client,
    state: Arc<Mutex<CloudInventory>>,
    /// Looks that something without an object still takes.
    patience: Arc<Mutex<u32>>,
    removed: Arc<Mutex<Vec<String>>>,
}

impl DeorbitCloud for SlowCloud {
    async fn inventory(&self) -> Result<CloudInventory, CloudError> {
        let everything = ListParams::default();
        let claims = Api::<PersistentVolumeClaim>::all(self.client.clone()).list(&everything).await.unwrap();
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let services = Api::<Service>::all(self.client.clone()).list(&everything).await.unwrap();
        let bound: BTreeSet<String> =
            claims.iter().filter_map(|claim| claim.spec.as_ref()?.volume_name.clone()).collect();
        let is_balanced =
            services.iter().any(|service| service.spec.as_ref().unwrap().type_.as_deref() == Some("LoadBalancer"));
        let mut gone = Vec::new();
        {
            let mut patience = self.patience.lock();
            *patience = patience.saturating_sub(1);
            let mut state = self.state.lock();
            if *patience == 0 {
                for volume in volumes_of(&state).difference(&bound) {
                    gone.push(volume.clone());
                }
                state.volumes.retain(|volume| bound.contains(&volume.name) || volume.name == "pv-kept");
            }
            if !is_balanced {
                state.load_balancers.clear();
                state.ports.clear();
            }
        }
        for volume in gone.iter().filter(|volume| *volume != "pv-kept") {
            let finalizers = json!({ "metadata": { "finalizers": null } });
            let _ = volumes.patch(volume, &PatchParams::default(), &Patch::Merge(finalizers)).await;
            let _ = volumes.delete(volume, &Default::default()).await;
        }
        Ok(self.state.lock().clone())
    }

    async fn remove(&self, resource: ResourceType, id: &str) -> Result<(), CloudError> {
        self.removed.lock().push(format!("{resource:?} {id}"));
        Ok(())
    }
}

fn volumes_of(state: &CloudInventory) -> BTreeSet<String> {
    state.volumes.iter().map(|volume| volume.name.clone()).collect()
}

async fn create<K>(api: &Api<K>, object: Value)
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + serde::Serialize + std::fmt::Debug,
{
    let object: K = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.expect("create an object");
}

/// A PersistentVolume with a claim that is bound to it.
async fn create_volume(client: &Client, name: &str, source: Value, policy: &str) {
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), "shop");
    let mut spec = json!({
        "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": policy,
        "storageClassName": "x", "claimRef": { "namespace": "shop", "name": name },
    });
    spec.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
    let volume = format!("pv-{name}");
    create(&volumes, json!({ "metadata": { "name": volume }, "spec": spec })).await;
    create(
        &claims,
        json!({
            "metadata": { "name": name },
            "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": "x", "volumeName": volume,
                      "resources": { "requests": { "storage": "1Gi" } } },
        }),
    )
    .await;
    let bound = Patch::Merge(json!({ "status": { "phase": "Bound" } }));
    claims.patch_status(name, &PatchParams::default(), &bound).await.expect("bind the claim");
    volumes.patch_status(&volume, &PatchParams::default(), &bound).await.expect("bind the volume");
    // Nobody here removes the protection of claims that no pod uses.
    let finalizers = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    claims.patch(name, &PatchParams::default(), &finalizers).await.expect("drop the finalizers");
}

async fn create_service(client: &Client, name: &str, kind: &str) {
    let services: Api<Service> = Api::namespaced(client.clone(), "shop");
    create(&services, json!({ "metadata": { "name": name }, "spec": { "type": kind, "ports": [{ "port": 80 }] } }))
        .await;
}

/// A cluster with volumes of every sort and Services of two types, and the cloud that it is in.
async fn cluster() -> (TestApi, SlowCloud) {
    let api = TestApi::start(&["kube-system", "shop"]).await;
    let client = api.client("test");
    create_volume(
        &client,
        "data",
        json!({ "csi": { "driver": "cinder.csi.openstack.org", "volumeHandle": "vol-data" } }),
        "Delete",
    )
    .await;
    create_volume(
        &client,
        "kept",
        json!({ "csi": { "driver": "cinder.csi.openstack.org", "volumeHandle": "vol-kept" } }),
        "Retain",
    )
    .await;
    create_volume(&client, "local", json!({ "hostPath": { "path": "/x" } }), "Delete").await;
    create_service(&client, "web", "LoadBalancer").await;
    create_service(&client, "inside", "ClusterIP").await;
    let volume = |name: &str| CloudItem {
        id: format!("vol-{name}"),
        name: format!("pv-{name}"),
        status: "in-use".to_owned(),
        ..CloudItem::default()
    };
    let balancer = BalancerItem {
        id: "lb".to_owned(),
        name: "kube_service_kate_shop_web".to_owned(),
        status: "ACTIVE".to_owned(),
        vip_port_id: "port".to_owned(),
        ..BalancerItem::default()
    };
    let port = CloudItem { id: "port".to_owned(), ..CloudItem::default() };
    let state = CloudInventory {
        volumes: vec![volume("data"), volume("kept"), volume("other")],
        load_balancers: vec![balancer],
        ports: vec![port],
        ..CloudInventory::default()
    };
    // The volume of a cluster elsewhere in the project: it has no object here, and stays.
    let state = Arc::new(Mutex::new(state));
    let cloud = SlowCloud { client, state, patience: Arc::new(Mutex::new(6)), removed: Arc::default() };
    (api, cloud)
}

fn laptop(api: &TestApi, cloud: SlowCloud) -> LaptopDeorbit<SlowCloud> {
    let (began, start) = (Instant::now(), Timestamp::now());
    let clock = Clock::new(move || start + SignedDuration::try_from(began.elapsed() * HASTE).unwrap());
    LaptopDeorbit { client: api.client("deorbit"), cloud, cluster_name: "kate".to_owned(), clock, haste: HASTE }
}

fn item<'a>(status: &'a ReceiptStatus, id: &str) -> &'a mainstay_api::cloud::teardown_receipt::ReceiptItem {
    status.items.iter().find(|item| item.id == id).unwrap_or_else(|| panic!("{id} is not in {:?}", status.items))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_leaves_nothing_but_what_it_was_told_to_keep() {
    let (api, cloud) = cluster().await;
    let (client, removed) = (api.client("test"), cloud.removed.clone());
    let mut deleted = Vec::new();
    let run = laptop(&api, cloud);
    let result = run.run(|progress| {
        if let Progress::Acting(action) = progress {
            deleted.push(action.clone());
        }
    });
    let (end, status) = tokio::time::timeout(Duration::from_secs(120), result).await.unwrap().unwrap();
    assert_eq!(end, DeorbitEnd::Complete);
    let name = |action: &Action| match action {
        Action::DeleteClaim(id) => format!("claim {id}"),
        Action::DeleteService(id) => format!("service {id}"),
        other => format!("{other:?}"),
    };
    let deleted: Vec<String> = deleted.iter().map(name).collect();
    assert_eq!(deleted, ["claim shop/data", "claim shop/kept", "service shop/web"]);
    assert_eq!(
        (item(&status, "vol-data").action.as_str(), item(&status, "vol-data").gone.is_some()),
        (DELETED_BY_OWNER, true)
    );
    assert_eq!((item(&status, "vol-kept").action.as_str(), item(&status, "vol-kept").gone.is_some()), (LEFT, false));
    assert!(item(&status, "lb").gone.is_some() && item(&status, "port").gone.is_some());
    assert!(!status.items.iter().any(|item| item.id == "vol-other"), "what is of others is no item");
    assert_eq!(*removed.lock(), [] as [&str; 0], "the cluster's own controllers did it");
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), "shop");
    assert!(claims.get_opt("local").await.unwrap().is_some(), "a claim with nothing in the cloud stays");
    let services: Api<Service> = Api::namespaced(client, "shop");
    assert!(services.get_opt("inside").await.unwrap().is_some() && services.get_opt("web").await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_automation_makes_anew_is_deleted_until_none_appears() {
    let (api, cloud) = cluster().await;
    let client = api.client("automation");
    let services: Api<Service> = Api::namespaced(client.clone(), "shop");
    let again = Arc::new(Mutex::new(0));
    let automation = tokio::spawn({
        let (services, again, client) = (services.clone(), again.clone(), client.clone());
        async move {
            while *again.lock() < 2 {
                tokio::time::sleep(Duration::from_millis(20)).await;
                if services.get_opt("web").await.unwrap().is_none() {
                    create_service(&client, "web", "LoadBalancer").await;
                    *again.lock() += 1;
                }
            }
        }
    });
    let run = laptop(&api, cloud);
    let (end, _) = tokio::time::timeout(Duration::from_secs(120), run.run(|_| ())).await.unwrap().unwrap();
    automation.await.unwrap();
    assert_eq!((end, *again.lock()), (DeorbitEnd::Complete, 2));
    assert!(services.get_opt("web").await.unwrap().is_none(), "none is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_names_everything_and_deletes_nothing() {
    let (api, cloud) = cluster().await;
    let client = api.client("test");
    let plan = laptop(&api, cloud).dry_run().await.unwrap();
    assert_eq!(plan.actions.len(), 3, "{:?}", plan.actions);
    assert_eq!(plan.status.items.len(), 4, "{:?}", plan.status.items);
    let claims = Api::<PersistentVolumeClaim>::all(client.clone()).list(&ListParams::default()).await.unwrap();
    let services = Api::<Service>::all(client).list(&ListParams::default()).await.unwrap();
    assert!(claims.iter().all(|claim| claim.metadata.deletion_timestamp.is_none()) && claims.items.len() == 3);
    assert!(services.iter().any(|service| service.metadata.name.as_deref() == Some("web")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_does_not_answer_is_not_deorbited() {
    let (_api, cloud) = cluster().await;
    let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let laptop = LaptopDeorbit {
        client: Client::try_from(config).unwrap(),
        cloud,
        cluster_name: String::new(),
        clock: Clock::default(),
        haste: 1,
    };
    assert!(matches!(laptop.run(|_| ()).await, Err(LookError::Cluster(_))));
}
