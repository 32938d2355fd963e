//! Flight control, on real servers, groups and roles.

use std::{collections::BTreeMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Event, Node};
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};
use mainstay_api::cloud::kluster::{Kluster, KlusterSpec, OpenStackSpec};
use mainstay_cloud::{
    flight::{
        controller::{FlightController, FlightDirectory, FlightTarget, ServiceUser},
        metrics::{FlightMetrics, RepairKind, RepairResult},
        plan::{PoolView, REBOOTED_AT, member_metadata, member_tags},
    },
    openstack::{
        SecretText, Session,
        compute::{NewServer, Server, ServerFilter, ServerNetwork},
        identity::NewUser,
    },
};
use mainstay_controllers::runtime::{ApiError, Cache, Clock, EventRecorder, ObjectKey, reconcile};
use mainstay_testing::{TestApi, until};
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    fault_proxy::{Effect, Fault, FaultProxy},
    harness::{TestProject, config, openstack},
};

struct OneKluster(FlightTarget);

impl FlightDirectory for OneKluster {
    async fn find(&self, _: &ObjectKey) -> Result<Option<FlightTarget>, ApiError> {
        Ok(Some(self.0.clone()))
    }
}

struct Fixture {
    api: TestApi,
    project: TestProject,
    controller: FlightController<OneKluster>,
    metrics: FlightMetrics,
    /// How far the clock is ahead.
    ahead: Arc<Mutex<SignedDuration>>,
    stop: CancellationToken,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Fixture {
    async fn new(test: &str, proxy: Option<&FaultProxy>, service_user: Option<ServiceUser>) -> Self {
        let project = TestProject::create(test).await;
        let session = match proxy {
            Some(proxy) => {
                let yaml = project.yaml_through(&proxy.keystone(project.session.auth_url()));
                Session::new(config(&yaml)).unwrap()
            }
            None => project.session.clone(),
        };
        let api = TestApi::start(&["kube-system", "default"]).await;
        let (client, stop) = (api.client("test"), CancellationToken::new());
        let nodes = Arc::new(Cache::<Node>::new());
        tokio::spawn(nodes.clone().run(client.clone(), stop.clone()));
        let (events, writer) = EventRecorder::new();
        tokio::spawn(writer.run(client.clone(), stop.clone()));
        nodes.synced().await;
        let openstack = OpenStackSpec {
            network_id: project.network.clone(),
            router_id: project.router.clone(),
            security_group_name: "kate".into(),
            ..OpenStackSpec::default()
        };
        let mut kluster = Kluster::new(
            "kate-project",
            KlusterSpec {
                name: "kate".into(),
                cluster_cidr: Some("100.100.0.0/16".into()),
                openstack,
                ..KlusterSpec::default()
            },
        );
        kluster.metadata.namespace = Some("default".into());
        let target = FlightTarget {
            kluster: Arc::new(kluster),
            session,
            pools: vec![PoolView { name: "small".into(), size: 3, allow_reboot: true }],
            nodes: Some(nodes),
            service_user,
            client,
            events,
        };
        let ahead = Arc::<Mutex<SignedDuration>>::default();
        let clock = Clock::new({
            let ahead = ahead.clone();
            move || Timestamp::now() + *ahead.lock()
        });
        let metrics = FlightMetrics::default();
        let controller = FlightController { directory: Arc::new(OneKluster(target)), metrics: metrics.clone(), clock };
        Self { api, project, controller, metrics, ahead, stop }
    }

    fn client(&self) -> Client {
        self.api.client("test")
    }

    async fn round(&self) {
        let key = ObjectKey::new("default", "kate-project");
        let now = self.controller.clock.now();
        reconcile(&self.controller, &key, now, &self.stop).await.expect("a round never fails as a whole");
    }

    fn repaired(&self, kind: RepairKind) -> u64 {
        self.metrics.repairs(kind, RepairResult::Success)
    }

    async fn add_server(&self, name: &str, security_group: bool) -> String {
        let session = &self.project.session;
        let flavors = session.compute().list_flavors().await.unwrap();
        let images = session.image().list_images(None).await.unwrap();
        let network = Some(self.project.network.clone());
        let server = NewServer {
            name: name.to_owned(),
            flavor: flavors.iter().find(|flavor| flavor.name == "m1.tiny").expect("a flavor").id.clone(),
            image: images.first().map(|image| image.id.clone()),
            networks: vec![ServerNetwork { network, ..ServerNetwork::default() }],
            security_groups: match security_group {
                true => vec![mainstay_cloud::openstack::compute::GroupName { name: "kate".into() }],
                false => vec![],
            },
            tags: member_tags("kate", "small").into(),
            metadata: member_metadata("kate", "small"),
            ..NewServer::default()
        };
        let id = session.compute().create_server(&server).await.expect("create a server");
        until("the server is active", async || {
            let server = session.compute().show_server(&id).await.unwrap();
            server.is_some_and(|server| server.status == "ACTIVE")
        })
        .await;
        id
    }

    async fn server(&self, id: &str) -> Option<Server> {
        let servers = self.project.session.compute().list_servers(&ServerFilter::default()).await.unwrap();
        servers.into_iter().find(|server| server.id == id)
    }

    async fn add_node(&self, name: &str) {
        let nodes: Api<Node> = Api::all(self.client());
        let node: Node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        let node = nodes.create(&PostParams::default(), &node).await.unwrap();
        self.controller.directory.0.nodes.as_ref().unwrap().wrote(node);
    }

    async fn expect_event(&self, reason: &str) {
        let events: Api<Event> = Api::all(self.client());
        until(&format!("an event {reason}"), async || {
            let all = events.list(&ListParams::default()).await.unwrap().items;
            all.iter().any(|event| event.reason.as_deref() == Some(reason))
        })
        .await;
    }
}

#[tokio::test]
async fn rules_and_assignments_of_the_security_group_are_repaired_once() {
    let fixture = Fixture::new("group", None, None).await;
    fixture.project.session.network().create_security_group("kate", "").await.unwrap();
    let server = fixture.add_server("kks-kate-small-abcde", false).await;
    fixture.add_node("kks-kate-small-abcde").await;
    let foreign = fixture.add_server("kks-kate-small-abcdef", false).await;
    fixture.round().await;
    assert_eq!(fixture.repaired(RepairKind::SecurityGroupRule), 3);
    assert_eq!(fixture.repaired(RepairKind::SecurityGroupAssignment), 1);
    let has_group = |server: Server| server.security_groups.iter().any(|group| group.name == "kate");
    assert!(has_group(fixture.server(&server).await.unwrap()));
    assert!(!has_group(fixture.server(&foreign).await.unwrap()), "a server of somebody else");
    fixture.round().await;
    assert_eq!(fixture.repaired(RepairKind::SecurityGroupRule), 3, "the second round changes nothing");
    assert_eq!(fixture.repaired(RepairKind::SecurityGroupAssignment), 1);
    fixture.expect_event("SecurityGroupRuleCreated").await;
    fixture.expect_event("SecurityGroupAssigned").await;
    // Two of the name: nothing is created, and that is said.
    fixture.project.session.network().create_security_group("kate", "").await.unwrap();
    fixture.round().await;
    fixture.expect_event("SecurityGroupAmbiguous").await;
    assert_eq!(fixture.repaired(RepairKind::SecurityGroupRule), 3);
}

#[tokio::test]
async fn a_server_that_never_joins_is_rebooted_and_then_replaced() {
    let fixture = Fixture::new("unjoined", None, None).await;
    fixture.project.session.network().create_security_group("kate", "").await.unwrap();
    let joined = fixture.add_server("kks-kate-small-aaaaa", true).await;
    fixture.add_node("kks-kate-small-aaaaa").await;
    let silent = fixture.add_server("kks-kate-small-bbbbb", true).await;
    fixture.round().await;
    assert_eq!(fixture.repaired(RepairKind::SoftReboot), 0, "it is young");
    *fixture.ahead.lock() = SignedDuration::from_mins(26);
    fixture.round().await;
    assert_eq!(fixture.repaired(RepairKind::SoftReboot), 1);
    assert!(fixture.server(&silent).await.unwrap().metadata.contains_key(REBOOTED_AT));
    *fixture.ahead.lock() = SignedDuration::from_mins(40);
    fixture.round().await;
    assert_eq!(fixture.repaired(RepairKind::SoftReboot), 1, "once");
    *fixture.ahead.lock() = SignedDuration::from_mins(47);
    fixture.round().await;
    assert_eq!(fixture.repaired(RepairKind::ReplaceUnjoined), 1);
    until("the silent server is gone", async || fixture.server(&silent).await.is_none()).await;
    assert!(fixture.server(&joined).await.is_some(), "a Node of any age stays");
    fixture.expect_event("UnjoinedServerRebooted").await;
    fixture.expect_event("UnjoinedServerDeleted").await;
}

#[tokio::test]
async fn errored_servers_go_and_tags_come_back_whatever_else_fails() {
    let proxy = FaultProxy::start().await;
    let fixture = Fixture::new("errored", Some(&proxy), None).await;
    let tagged = fixture.add_server("kks-kate-small-aaaaa", false).await;
    let errored = fixture.add_server("kks-kate-small-bbbbb", false).await;
    fixture.add_node("kks-kate-small-aaaaa").await;
    fixture.add_node("kks-kate-small-bbbbb").await;
    let admin = Session::new(openstack().cloud(Some("admin")).unwrap()).unwrap();
    admin.compute().reset_server_state(&errored, "error").await.unwrap();
    let lost = BTreeMap::from([("provisioner".to_owned(), "somebody".to_owned())]);
    fixture.project.session.compute().update_server_metadata(&tagged, &lost).await.unwrap();
    // Security groups cannot be listed, and cannot be assigned; that is nobody else's trouble.
    proxy.inject(Fault::new("GET /v2.0/security-groups", 100, Effect::Status { code: 500, retry_after: None }));
    fixture.round().await;
    assert!(fixture.metrics.repairs(RepairKind::SecurityGroupAssignment, RepairResult::Failure) >= 1);
    assert_eq!(fixture.repaired(RepairKind::DeleteErrored), 1);
    assert_eq!(fixture.repaired(RepairKind::Tags), 1);
    until("the errored server is gone", async || fixture.server(&errored).await.is_none()).await;
    let metadata = fixture.server(&tagged).await.unwrap().metadata;
    assert_eq!(metadata["provisioner"], "kubernikus");
    fixture.expect_event("ErroredServerDeleted").await;
    fixture.expect_event("ServerTagsRestored").await;
    fixture.expect_event("FlightRepairFailed").await;
}

#[tokio::test]
async fn roles_of_the_service_user_are_restored() {
    let admin = Session::new(openstack().cloud(Some("admin")).unwrap()).unwrap();
    let identity = admin.identity();
    for role in ["network_admin", "member"] {
        if !identity.list_roles().await.unwrap().iter().any(|known| known.name == role) {
            let _ = identity.create_role(role).await; // another test may be faster
        }
    }
    let name = format!("kubernikus-{}", Timestamp::now().as_nanosecond());
    let user = NewUser {
        name: name.clone(),
        domain: "default".into(),
        password: SecretText::new("secret"),
        description: String::new(),
        default_project: None,
    };
    let user = identity.create_user(&user).await.unwrap().id;
    let project = identity.create_project(&name, "default").await.unwrap().id;
    let roles = vec!["network_admin".to_owned(), "member".to_owned()];
    let service_user = ServiceUser { admin: admin.clone(), user: user.clone(), project: project.clone(), roles };
    let fixture = Fixture::new("roles", None, Some(service_user)).await;
    fixture.round().await;
    assert_eq!(fixture.repaired(RepairKind::Role), 2);
    let held = identity.list_user_roles(&project, &user).await.unwrap();
    let mut held: Vec<&str> = held.iter().map(|role| role.name.as_str()).collect();
    held.sort();
    assert_eq!(held, ["member", "network_admin"]);
    fixture.round().await;
    assert_eq!(fixture.repaired(RepairKind::Role), 2);
    fixture.expect_event("ServiceUserRoleAssigned").await;
}
