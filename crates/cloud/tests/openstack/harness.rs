//! The OpenStack that all tests share, and a project for each of them.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};
use mainstay_api::cloud::cloud_resource::CloudResource;
use mainstay_cloud::{
    context::{Clouds, ClusterNetwork, Pace},
    kluster_parts::KlusterParts,
    klusters::{KlusterMetrics, KlusterSettings},
    manager::{self, ControllerSelection},
    metrics::CloudMetrics,
    openstack::{CallCounter, CloudConfig, CloudsFile, SecretText, Session, identity::NewUser, session::Deadlines},
};
use mainstay_controllers::{ControllerMetrics, runtime::Clock};
use mainstay_testing::TestApi;
use serde_json::json;
use tokio_util::sync::CancellationToken;

/// Generous: the machine may be busy.
pub const DEADLINES: Deadlines = Deadlines { attempt: Duration::from_secs(20), call: Duration::from_secs(60) };
pub const PACE: Pace = Pace { poll: SignedDuration::from_millis(100), resync: SignedDuration::from_secs(3) };

pub fn directory() -> PathBuf {
    std::env::var_os("OPENSTACK_DIR").map_or_else(|| std::env::temp_dir().join("mainstay-openstack"), PathBuf::from)
}

/// Starts OpenStack unless it runs, and returns its clouds.
pub fn openstack() -> CloudsFile {
    let up = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/openstack/up");
    let offset = std::env::var("OPENSTACK_PORT_OFFSET").unwrap_or_else(|_| "17000".to_owned());
    let output = Command::new(&up)
        .env("OPENSTACK_DIR", directory())
        .env("OPENSTACK_PORT_OFFSET", offset)
        .env("OPENSTACK_OCTAVIA", "1")
        .env("OPENSTACK_TIMEOUT", "280")
        .output()
        .unwrap_or_else(|error| panic!("run {}: {error}", up.display()));
    assert!(output.status.success(), "tools/openstack/up: {}", String::from_utf8_lossy(&output.stderr));
    CloudsFile::read(Some(&directory().join("clouds.yaml"))).expect("the clouds of tools/openstack/up")
}

/// A project with a user, a network, a subnet and a router to the outside.
#[derive(Clone)]
pub struct TestProject {
    pub session: Session,
    pub calls: Arc<CallCounter>,
    pub yaml: String,
    pub subnet: String,
    pub network: String,
    pub router: String,
    pub id: String,
}

impl TestProject {
    pub async fn create(test: &str) -> Self {
        let admin = Session::new(openstack().cloud(Some("admin")).unwrap()).unwrap();
        let identity = admin.identity();
        let name = format!("{test}-{:08x}", fastrand_u32());
        let project = identity.create_project(&name, "default").await.expect("create a project");
        let user = NewUser {
            name: name.clone(),
            domain: "default".into(),
            password: SecretText::new("secret"),
            description: String::new(),
            default_project: None,
        };
        let user = identity.create_user(&user).await.expect("create a user");
        let roles = identity.list_roles().await.expect("list roles");
        let member = roles.iter().find(|role| role.name == "member").expect("the role member");
        identity.assign_role(&project.id, &user.id, &member.id).await.expect("assign a role");
        let yaml = format!(
            "clouds:\n  test:\n    region_name: RegionOne\n    auth:\n      auth_url: {}\n      username: {name}\n      \
             password: secret\n      project_name: {name}\n",
            admin.auth_url()
        );
        let calls = Arc::<CallCounter>::default();
        let session = Session::with(config(&yaml), DEADLINES, calls.clone()).unwrap();
        let client = session.network();
        let network = client.create_network("nodes", "").await.expect("create a network").id;
        let subnet = client.create_subnet(&network, "nodes", "10.180.0.0/16").await.expect("create a subnet").id;
        let networks = client.list_networks().await.expect("list networks");
        let public = networks.iter().find(|network| network.external).map(|network| network.id.clone());
        let router = client.create_router("router", public.as_deref()).await.expect("create a router").id;
        client.add_router_interface(&router, &subnet).await.expect("add the subnet to the router");
        Self { session, calls, yaml, subnet, network, router, id: project.id }
    }

    /// The same project, reached through a proxy.
    pub fn yaml_through(&self, keystone: &str) -> String {
        self.yaml.replace(self.session.auth_url(), keystone)
    }
}

pub fn config(yaml: &str) -> CloudConfig {
    CloudsFile::parse("test", yaml).unwrap().cloud(None).unwrap()
}

fn fastrand_u32() -> u32 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish() as u32
}

/// The controllers of the cloud in a runtime of their own, so that they can be ended between any two instructions.
pub struct Manager {
    runtime: Option<tokio::runtime::Runtime>,
    stop: CancellationToken,
}

impl Manager {
    pub fn start(client: Client, yaml: &str) -> Self {
        Self::start_with(client, yaml, DEADLINES)
    }

    pub fn start_with(client: Client, yaml: &str, deadlines: Deadlines) -> Self {
        Self::start_for(client, yaml, None, deadlines, ControllerSelection::default(), KlusterSettings::default())
    }

    /// These controllers alone.
    pub fn start_only(client: Client, yaml: &str, names: &[&str]) -> Self {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let only = ControllerSelection::parse(&names).unwrap();
        Self::start_for(client, yaml, None, DEADLINES, only, KlusterSettings::default())
    }

    /// The controller of Klusters and these others, with a cloud of a file that has several.
    pub fn start_klusters(client: Client, yaml: &str, cloud: &str, klusters: KlusterSettings, others: &[&str]) -> Self {
        let names: Vec<String> = ["klusters"].iter().chain(others).map(|name| (*name).to_owned()).collect();
        let only = ControllerSelection::parse(&names).unwrap();
        Self::start_for(client, yaml, Some(cloud), DEADLINES, only, klusters)
    }

    fn start_for(
        client: Client,
        yaml: &str,
        cloud: Option<&str>,
        deadlines: Deadlines,
        controllers: ControllerSelection,
        klusters: KlusterSettings,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let stop = CancellationToken::new();
        let file = CloudsFile::parse("test", yaml).unwrap();
        let clouds = Clouds::new(file, cloud, deadlines, Arc::new(())).unwrap();
        let settings = manager::Settings {
            clouds,
            network: ClusterNetwork::default(),
            has_default_storage: false,
            klusters,
            kluster_metrics: KlusterMetrics::default(),
            kluster_parts: KlusterParts::default(),
            controllers,
            pace: PACE,
            clock: Clock::default(),
            metrics: CloudMetrics::default(),
        };
        let task = manager::run(client, settings, ControllerMetrics::default(), stop.clone());
        runtime.spawn(async move { task.await.expect("the manager starts") });
        Self { runtime: Some(runtime), stop }
    }

    /// Ends all tasks where they are, as a crash does.
    pub fn kill(mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// An API with `kube-system`, a node in the project's subnet, and the controllers that bind claims.
pub async fn cluster() -> TestApi {
    let api = TestApi::start(&["kube-system", "default"]).await;
    let nodes: Api<Node> = Api::all(api.client("test"));
    let node = json!({
        "metadata": {"name": "node-1"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}],
                   "addresses": [{"type": "InternalIP", "address": "10.180.0.10"}]},
    });
    let node: Node = serde_json::from_value(node).unwrap();
    nodes.create(&PostParams::default(), &node).await.expect("create a node");
    nodes
        .replace_status("node-1", &PostParams::default(), &{
            let mut written = nodes.get("node-1").await.unwrap();
            written.status = node.status.clone();
            written
        })
        .await
        .expect("write the node's status");
    api.with_roles().await
}

/// A client with the rights that the controllers of the cloud have in a server, and no others.
pub fn cloud_client(api: &TestApi) -> Client {
    api.controller_clients()("cloud-controller")
}

/// The ledger.
pub async fn entries(client: &Client) -> Vec<CloudResource> {
    Api::all(client.clone()).list(&ListParams::default()).await.expect("list the ledger").items
}

/// What the project has of the kinds that these tests create, by id.
pub async fn resources(session: &Session) -> Vec<String> {
    let mut found = Vec::new();
    for volume in session.block_storage().list_volumes().await.expect("list volumes") {
        found.push(format!("volume {} {}", volume.id, volume.status));
    }
    for balancer in session.load_balancer().list_load_balancers().await.expect("list load balancers") {
        found.push(format!("load balancer {} {}", balancer.id, balancer.provisioning_status));
    }
    for address in session.network().list_floating_ips(None).await.expect("list floating IPs") {
        found.push(format!("floating IP {} {}", address.id, address.status));
    }
    found
}
