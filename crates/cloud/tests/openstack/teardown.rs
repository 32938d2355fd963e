//! Klusters with the real OpenStack: their pools, their deorbit and their receipt.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Secret};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use mainstay_api::cloud::{
    cloud_resource::ResourceType,
    kluster::{DEORBIT_FINALIZER, GROUND_FINALIZER, Kluster, LAUNCH_FINALIZER},
    node_pool::NodePool,
    teardown_receipt::TeardownReceipt,
};
use mainstay_cloud::{
    context::{CloudContext, Clouds, ClusterNetwork},
    deorbit::{self, metrics::DeorbitMetrics, receipt},
    kluster_access::{KlusterAccess, KlusterClient},
    kluster_parts::KlusterParts,
    openstack::{
        CloudsFile, Session,
        block_storage::NewVolume,
        compute::ServerFilter,
        network::{NewPort, PortFilter},
        session::Deadlines,
    },
    pools::{self, metrics::PoolMetrics},
    routes::{
        plan::RecordedPair,
        records::RouteRecords,
        router::{RouterClient, routes_of},
        view::Route,
    },
};
use mainstay_controllers::{
    ControllerMetrics,
    runtime::{Clock, EventRecorder},
};
use mainstay_testing::{TestApi, until};
use serde_json::json;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    harness::{DEADLINES, Manager, PACE, TestProject, cloud_client, cluster, entries, openstack, resources},
    volumes::{claim, create_class, is_bound, start_binder},
};

/// The controllers of Klusters, for which the cluster itself is the API of every Kluster.
pub struct KlusterControllers {
    stop: CancellationToken,
    tasks: TaskTracker,
    deorbit: DeorbitMetrics,
    pools: PoolMetrics,
}

impl KlusterControllers {
    async fn start(api: &TestApi, project: &TestProject, clock: Clock) -> Self {
        Self::start_with(api.client("klusters"), &project.yaml, DEADLINES, clock).await
    }

    pub async fn start_with(client: Client, yaml: &str, deadlines: Deadlines, clock: Clock) -> Self {
        let file = CloudsFile::parse("test", yaml).unwrap();
        let clouds = Clouds::new(file, None, deadlines, Arc::new(())).unwrap();
        let (events, writer) = EventRecorder::new();
        let metrics = ControllerMetrics::default();
        let context =
            CloudContext::new(client.clone(), clouds, ClusterNetwork::default(), PACE, events, metrics, clock);
        let context = context.await.expect("the API says which cluster it is");
        let server = "https://kate.example:6443".to_owned();
        let kluster = KlusterClient { client: client.clone(), server, authority: b"authority".to_vec().into() };
        let parts = KlusterParts::with_access(KlusterAccess::fixed(kluster));
        let context = context.with_kluster_parts(parts.clone());
        let controllers = [deorbit::controller(&context), pools::controller(&context)];
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        context.caches.run(&client, &tasks, &stop);
        tasks.spawn(writer.run(client, stop.clone()));
        context.caches.synced().await;
        for controller in controllers {
            tasks.spawn(controller.run(stop.clone()));
        }
        Self { stop, tasks, deorbit: parts.deorbit, pools: parts.pools }
    }

    async fn end(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// A Kluster that runs, with a pool of this size; `groundctl` keeps the object, as the controller of phases would.
pub async fn create_kluster(client: &Client, project: &TestProject, pool: serde_json::Value) -> Api<Kluster> {
    let klusters: Api<Kluster> = Api::namespaced(client.clone(), "default");
    let kluster = json!({
        "metadata": { "name": "kate", "finalizers": [GROUND_FINALIZER] },
        "spec": {
            "name": "kate", "nodePools": [pool],
            "openstack": { "networkID": project.network, "routerID": project.router, "projectID": project.id, "securityGroupName": "default" },
        },
    });
    let kluster: Kluster = serde_json::from_value(kluster).unwrap();
    klusters.create(&PostParams::default(), &kluster).await.expect("create a kluster");
    let running = Patch::Merge(json!({ "status": { "phase": "Running", "apiserverVersion": "1.36.0" } }));
    klusters.patch_status("kate", &PatchParams::default(), &running).await.expect("let it run");
    klusters
}

pub fn pool(name: &str, size: i32, flavor: &str) -> serde_json::Value {
    json!({ "name": name, "size": size, "flavor": flavor, "image": "tiny", "labels": { "team": "a" } })
}

pub async fn server_names(project: &TestProject) -> Vec<String> {
    let servers = project.session.compute().list_servers(&ServerFilter::default()).await.expect("list servers");
    let mut names: Vec<String> = servers.into_iter().map(|server| server.name).collect();
    names.sort();
    names
}

fn finalizers(kluster: &Kluster) -> Vec<String> {
    kluster.metadata.finalizers.clone().unwrap_or_default()
}

async fn event_reasons(client: &Client) -> Vec<String> {
    let events: Api<k8s_openapi::api::core::v1::Event> = Api::namespaced(client.clone(), "default");
    let mut events = events.list(&ListParams::default()).await.expect("list events").items;
    events.sort_by_key(|event| event.metadata.resource_version.clone().and_then(|version| version.parse::<u64>().ok()));
    events.into_iter().filter_map(|event| event.reason).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_grow_shrink_and_leave_nothing_when_the_kluster_goes() {
    let (project, api) = (TestProject::create("pools").await, cluster().await);
    let client = api.client("test");
    let klusters = create_kluster(&client, &project, pool("small", 2, "m1.tiny")).await;
    let node_pools: Api<NodePool> = Api::namespaced(client.clone(), "default");
    let mut object = NodePool::new("other", Default::default());
    object.spec.kluster = "kate".to_owned();
    object.spec.pool = serde_json::from_value(pool("other", 1, "m1.tiny")).unwrap();
    node_pools.create(&PostParams::default(), &object).await.expect("create a pool");
    let controllers = KlusterControllers::start(&api, &project, Clock::default()).await;
    until("three servers", async || server_names(&project).await.len() == 3).await;
    until("a status of both pools", async || {
        let kluster = klusters.get("kate").await.unwrap().status.unwrap();
        let other = node_pools.get("other").await.unwrap().status.unwrap_or_default();
        kluster.node_pools.first().is_some_and(|pool| pool.running == 2) && other.running == 1
    })
    .await;
    let names = server_names(&project).await;
    assert_eq!(names.iter().filter(|name| name.starts_with("kks-kate-small-")).count(), 2, "{names:?}");

    // Each has a token of its own, tags, metadata, user data and an entry in the ledger with its id.
    let secrets = Api::<Secret>::namespaced(client.clone(), "kube-system").list(&ListParams::default()).await.unwrap();
    let tokens = secrets.iter().filter(|secret| secret.type_.as_deref() == Some("bootstrap.kubernetes.io/token"));
    assert_eq!(tokens.count(), 3);
    let ledger = entries(&client).await;
    assert_eq!(ledger.len(), 3);
    assert!(ledger.iter().all(|entry| entry.status.as_ref().is_some_and(|status| !status.id.is_empty())));
    let servers = project.session.compute().list_servers(&ServerFilter::default()).await.unwrap();
    for server in &servers {
        assert_eq!(server.metadata["kubernikus:kluster"], "kate");
        assert!(server.tags.iter().any(|tag| tag == "kubernikus:kluster=kate"), "{:?}", server.tags);
    }

    // A cordoned machine goes first.
    let nodes: Api<Node> = Api::all(client.clone());
    let small: Vec<&String> = names.iter().filter(|name| name.starts_with("kks-kate-small-")).collect();
    for (name, cordoned) in [(small[0], false), (small[1], true)] {
        let node: Node =
            serde_json::from_value(json!({ "metadata": { "name": name }, "spec": { "unschedulable": cordoned } }))
                .unwrap();
        nodes.create(&PostParams::default(), &node).await.expect("create a node");
    }
    until("Nodes that launch knows", async || {
        let status = klusters.get("kate").await.unwrap().status.unwrap();
        status.node_pools.first().is_some_and(|pool| pool.schedulable == 1)
    })
    .await;
    let smaller = Patch::Merge(json!({ "spec": { "nodePools": [pool("small", 1, "m1.tiny")] } }));
    klusters.patch("kate", &PatchParams::default(), &smaller).await.expect("shrink the pool");
    until("two servers", async || server_names(&project).await.len() == 2).await;
    assert!(server_names(&project).await.contains(small[0]), "the one that takes pods stays");
    until("two entries", async || entries(&client).await.len() == 2).await;

    klusters.delete("kate", &DeleteParams::default()).await.expect("delete the kluster");
    until("no finalizer but the last", async || finalizers(&klusters.get("kate").await.unwrap()) == [GROUND_FINALIZER])
        .await;
    assert_eq!(server_names(&project).await, [] as [&str; 0]);
    assert_eq!(entries(&client).await.len(), 0, "nothing is unknown");
    let receipts =
        Api::<TeardownReceipt>::namespaced(client.clone(), "default").list(&ListParams::default()).await.unwrap();
    let status = receipts.items[0].status.clone().unwrap();
    let servers: Vec<_> = status.items.iter().filter(|item| item.resource == ResourceType::Server).collect();
    assert_eq!(servers.len(), 2);
    assert!(servers.iter().all(|item| item.gone.is_some()), "{servers:?}");
    assert_eq!(status.result, "Complete");
    let (created, _, failed) = controllers.pools.counts("CreateNode");
    assert_eq!((created, failed), (3, 0));
    controllers.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_pool_names_wrongly_is_named_and_nothing_half_made_stays() {
    let (project, api) = (TestProject::create("wrong").await, cluster().await);
    let client = api.client("test");
    let mut pools = [
        pool("flavor", 1, "m1.none"),
        pool("image", 1, "m1.tiny"),
        pool("zone", 1, "m1.tiny"),
        pool("long", 1, "m1.tiny"),
        pool("full", 0, "m1.tiny"),
    ];
    pools[1]["image"] = json!("no-such-image");
    pools[2]["availabilityZone"] = json!("mars");
    for number in 0..600 {
        pools[3]["labels"][format!("example.com/{}-{number}", "a".repeat(50))] = json!("b".repeat(60));
    }
    let klusters = create_kluster(&client, &project, pools[0].clone()).await;
    let all = async |pools: &[serde_json::Value]| {
        let patch = Patch::Merge(json!({ "spec": { "nodePools": pools } }));
        klusters.patch("kate", &PatchParams::default(), &patch).await.expect("change the pools");
    };
    all(&pools).await;
    let controllers = KlusterControllers::start(&api, &project, Clock::default()).await;
    let message = async || {
        let conditions = klusters.get("kate").await.unwrap().status.unwrap_or_default().conditions;
        let condition = conditions.into_iter().find(|condition| condition.type_ == "PoolsReady");
        condition.filter(|condition| condition.status == "False").map(|condition| condition.message).unwrap_or_default()
    };
    for expected in [
        "nodePools[flavor].flavor: the cloud has no flavor \"m1.none\"",
        "nodePools[image].image: the cloud has no active image \"no-such-image\"",
        "nodePools[zone].availabilityZone: the cloud has no availability zone \"mars\"",
        "nodePools[long].labels: user data has ",
    ] {
        until(expected, async || message().await.contains(expected)).await;
    }
    // A quota that is used up, and which one it is.
    let admin = Session::new(openstack().cloud(Some("admin")).unwrap()).unwrap();
    admin.compute().set_quota(&project.id, &json!({ "instances": 0 })).await.expect("set a quota");
    pools[4]["size"] = json!(2);
    all(&pools).await;
    let expected = "nodePools[full].size: quota instances: 2 missing (0 of 0 in use)";
    until(expected, async || message().await.contains(expected)).await;
    // Two security groups of the name.
    admin.compute().set_quota(&project.id, &json!({ "instances": 10 })).await.expect("set a quota");
    for _ in 0..2 {
        project.session.network().create_security_group("twice", "").await.expect("create a group");
    }
    let twice = Patch::Merge(json!({ "spec": { "openstack": { "securityGroupName": "twice" } } }));
    klusters.patch("kate", &PatchParams::default(), &twice).await.expect("name the group");
    let expected = "openstack.securityGroupName: the project has 2 security groups \"twice\"";
    until(expected, async || message().await.contains(expected)).await;
    for reason in [
        "FlavorNotFound",
        "ImageNotFound",
        "ZoneNotFound",
        "UserDataTooLong",
        "QuotaExceeded",
        "SecurityGroupAmbiguous",
    ] {
        until(reason, async || event_reasons(&client).await.contains(&reason.to_owned())).await;
    }
    assert_eq!(server_names(&project).await, [] as [&str; 0]);
    assert_eq!(entries(&client).await.len(), 0);
    let secrets = Api::<Secret>::namespaced(client.clone(), "kube-system").list(&ListParams::default()).await.unwrap();
    assert_eq!(
        secrets.iter().filter(|secret| secret.type_.as_deref() == Some("bootstrap.kubernetes.io/token")).count(),
        0
    );
    controllers.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_are_made_in_the_project_of_their_kluster_whoever_logs_in() {
    let (project, api) = (TestProject::create("elsewhere").await, cluster().await);
    let client = api.client("test");
    let admin = Session::new(openstack().cloud(Some("admin")).unwrap()).unwrap();
    let identity = admin.identity();
    let roles = identity.list_roles().await.unwrap();
    let member = roles.iter().find(|role| role.name == "member").expect("the role member");
    identity.assign_role(&project.id, &admin.user_id().await.unwrap(), &member.id).await.expect("assign a role");
    // The operator's login is of another project.
    let yaml = format!(
        "clouds:\n  operator:\n    region_name: RegionOne\n    auth:\n      auth_url: {}\n      username: admin\n      \
         password: secret\n      project_name: admin\n",
        admin.auth_url()
    );
    let klusters = create_kluster(&client, &project, pool("small", 1, "m1.tiny")).await;
    let controllers = KlusterControllers::start_with(api.client("klusters"), &yaml, DEADLINES, Clock::default()).await;
    until("a server in the Kluster's project", async || server_names(&project).await.len() == 1).await;
    klusters.delete("kate", &DeleteParams::default()).await.expect("delete the kluster");
    until("no finalizer but the last", async || finalizers(&klusters.get("kate").await.unwrap()) == [GROUND_FINALIZER])
        .await;
    assert_eq!(server_names(&project).await, [] as [&str; 0]);
    controllers.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_of_a_kluster_go_with_it_and_those_of_others_stay() {
    let (project, api) = (TestProject::create("last-routes").await, cluster().await);
    let client = api.client("test");
    let klusters = create_kluster(&client, &project, pool("small", 1, "m1.tiny")).await;
    let controllers = KlusterControllers::start(&api, &project, Clock::default()).await;
    let servers = async || project.session.compute().list_servers(&ServerFilter::default()).await.unwrap();
    until("a server with an address", async || {
        servers().await.iter().any(|server| server.all_addresses().count() == 1)
    })
    .await;
    let address = servers().await[0].all_addresses().next().unwrap().to_owned();
    let network = project.session.network();
    let filter = PortFilter { fixed_ip: Some(address.clone()), ..PortFilter::default() };
    let port = network.list_ports(&filter).await.unwrap().remove(0);
    // A port that outlives its server, as one that somebody else made would.
    let kept = NewPort { network_id: project.network.clone(), name: "kept".to_owned(), ..NewPort::default() };
    let kept = network.create_port(&kept).await.unwrap();
    // What the controller of routes did: one of a server that is there, one of a server that is gone, one that never came to be.
    let owner = receipt::kluster_owner(&klusters.get("kate").await.unwrap());
    let router = project.router.clone();
    let records = RouteRecords { client: client.clone(), cloud: "test".to_owned(), router: router.clone(), owner };
    let routes = [("100.100.1.0/24", address.as_str()), ("100.100.2.0/24", "10.180.200.2")];
    let routes = routes.map(|(range, hop)| Route::new(range, hop));
    let never = Route::new("100.100.3.0/24", "10.180.200.3");
    let routers = RouterClient::new(&project.session, &router);
    for (route, port) in [(&routes[0], &port.id), (&routes[1], &kept.id), (&never, &kept.id)] {
        records.intend_route(route).await.unwrap();
        records.intend_pair(&RecordedPair { port: port.clone(), range: route.destination.clone() }).await.unwrap();
    }
    routers.add(&routes).await.expect("add routes");
    routers.allow(&port.id, &routes[0].destination).await.unwrap();
    routers.allow(&kept.id, &routes[1].destination).await.unwrap();
    let foreign = [Route::new("100.100.9.0/24", "10.180.200.9"), Route::new("192.168.7.0/24", "10.180.200.9")];
    routers.add(&foreign).await.expect("add routes of others");
    klusters.delete("kate", &DeleteParams::default()).await.expect("delete the kluster");
    until("no finalizer but the last", async || finalizers(&klusters.get("kate").await.unwrap()) == [GROUND_FINALIZER])
        .await;
    let mut left = routes_of(&routers.show().await.unwrap().unwrap());
    left.sort();
    assert_eq!(left, foreign);
    assert_eq!(network.show_port(&kept.id).await.unwrap().unwrap().allowed_address_pairs, []);
    assert_eq!(entries(&client).await.len(), 0, "the ledger has nothing of it");
    let receipts =
        Api::<TeardownReceipt>::namespaced(client.clone(), "default").list(&ListParams::default()).await.unwrap();
    let items = receipts.items[0].status.clone().unwrap().items;
    let routes = items.iter().filter(|item| item.resource == ResourceType::Route);
    assert_eq!(routes.clone().count(), 2);
    assert!(routes.clone().all(|item| item.gone.is_some()), "{items:?}");
    network.delete_port(&kept.id).await.unwrap();
    controllers.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kluster_gives_back_its_volumes_before_it_goes() {
    let (project, api) = (TestProject::create("deorbit").await, cluster().await);
    let (client, binder) = (api.client("test"), start_binder(&api));
    create_class(&client).await;
    let manager = Manager::start_only(cloud_client(&api), &project.yaml, &["volumes"]);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), "default");
    claims.create(&PostParams::default(), &claim("1Gi")).await.unwrap();
    until("a bound claim", async || is_bound(&claims.get("data").await.unwrap())).await;
    let volume = project.session.block_storage().list_volumes().await.unwrap().remove(0);
    let klusters = create_kluster(&client, &project, pool("small", 0, "m1.tiny")).await;
    let controllers = KlusterControllers::start(&api, &project, Clock::default()).await;
    until("finalizers", async || {
        let finalizers = finalizers(&klusters.get("kate").await.unwrap());
        [DEORBIT_FINALIZER, LAUNCH_FINALIZER].iter().all(|wanted| finalizers.iter().any(|name| name == wanted))
    })
    .await;
    klusters.delete("kate", &DeleteParams::default()).await.expect("delete the kluster");
    until("no finalizer but the last", async || finalizers(&klusters.get("kate").await.unwrap()) == [GROUND_FINALIZER])
        .await;
    assert_eq!(resources(&project.session).await, [] as [&str; 0], "the cloud has nothing of it");
    let receipts =
        Api::<TeardownReceipt>::namespaced(client.clone(), "default").list(&ListParams::default()).await.unwrap();
    let status = receipts.items[0].status.clone().unwrap();
    assert_eq!(status.result, "Complete");
    let item = status.items.iter().find(|item| item.id == volume.id).expect("the volume is in the receipt");
    assert!(item.gone.is_some() && item.action == "DeletedByOwner", "{item:?}");
    let reasons = event_reasons(&client).await;
    for reason in
        ["SuccessfulDeorbitPVC", "WaitingForDeorbitSnapshots", "SuccessfulDeorbitPVs", "SuccessfulDeorbitLoadBalancers"]
    {
        assert!(reasons.iter().any(|known| known == reason), "{reason} is not in {reasons:?}");
    }
    assert_eq!(controllers.deorbit.counts("DeletePersistentVolumeClaims"), (1, 1, 0));
    controllers.end().await;
    drop(manager);
    binder.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deorbit_that_hangs_is_given_up_after_a_day_and_names_what_remains() {
    let (project, api) = (TestProject::create("hanging").await, cluster().await);
    let client = api.client("test");
    // Nobody removes the volume of this claim: its cluster's controllers are gone.
    let wanted = NewVolume { name: "pv".to_owned(), size: 1, ..NewVolume::default() };
    let volume = project.session.block_storage().create_volume(&wanted).await.expect("create a volume");
    let volumes: Api<k8s_openapi::api::core::v1::PersistentVolume> = Api::all(client.clone());
    let object = serde_json::from_value(json!({
        "metadata": { "name": "pv", "finalizers": ["test/held"] },
        "spec": { "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "x",
                  "persistentVolumeReclaimPolicy": "Delete", "csi": { "driver": "d", "volumeHandle": volume.id } },
    }));
    volumes.create(&PostParams::default(), &object.unwrap()).await.expect("create a volume");
    let bound = Patch::Merge(json!({ "status": { "phase": "Released" } }));
    volumes.patch_status("pv", &PatchParams::default(), &bound).await.unwrap();
    let klusters = create_kluster(&client, &project, pool("small", 0, "m1.tiny")).await;
    // A clock that can be set forward.
    let ahead = Arc::new(std::sync::atomic::AtomicI64::new(0));
    let clock = Clock::new({
        let ahead = ahead.clone();
        move || Timestamp::now() + jiff::SignedDuration::from_secs(ahead.load(std::sync::atomic::Ordering::SeqCst))
    });
    let controllers = KlusterControllers::start(&api, &project, clock).await;
    until("the finalizer", async || finalizers(&klusters.get("kate").await.unwrap()).len() == 3).await;
    klusters.delete("kate", &DeleteParams::default()).await.expect("delete the kluster");
    let receipts: Api<TeardownReceipt> = Api::namespaced(client.clone(), "default");
    until("a receipt that waits for the volume", async || {
        let list = receipts.list(&ListParams::default()).await.unwrap();
        let status = list.items.first().and_then(|receipt| receipt.status.clone()).unwrap_or_default();
        status.stage == "WaitingForVolumes"
    })
    .await;
    assert!(finalizers(&klusters.get("kate").await.unwrap()).iter().any(|name| name == DEORBIT_FINALIZER));
    ahead.store(24 * 3600 + 60, std::sync::atomic::Ordering::SeqCst);
    // Any change of the Kluster has it looked at.
    let nudge = Patch::Merge(json!({ "metadata": { "annotations": { "test": "x" } } }));
    klusters.patch("kate", &PatchParams::default(), &nudge).await.unwrap();
    until("no finalizer but the last", async || finalizers(&klusters.get("kate").await.unwrap()) == [GROUND_FINALIZER])
        .await;
    let status = receipts.list(&ListParams::default()).await.unwrap().items[0].status.clone().unwrap();
    assert_eq!(status.result, "DeorbitHanging");
    let item = status.items.iter().find(|item| item.id == volume.id).expect("the volume is in the receipt");
    assert!(item.gone.is_none() && item.message.contains("available"), "{item:?}");
    until("an event", async || event_reasons(&client).await.contains(&"SuccessfulDeorbitSelfDestruct".to_owned()))
        .await;
    assert!(
        project.session.block_storage().show_volume(&volume.id).await.unwrap().is_some(),
        "giving up deletes nothing"
    );
    controllers.end().await;
}
