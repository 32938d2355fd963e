//! Routes of nodes and their collection, on a real router.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use mainstay_api::cloud::cloud_resource::{CloudResource, ResourceOwner};
use mainstay_cloud::{
    openstack::{
        Session,
        compute::{NewServer, ServerFilter, ServerNetwork},
        network::{FixedIp, NewPort, RouterRoute},
    },
    routes::{
        cluster::{ClusterDirectory, ClusterKey, RoutedCluster},
        collection::RouteCollector,
        metrics::{RouteMetrics, RouteOperation},
        node_routes::RouteController,
        nudge,
        records::RouteRecords,
    },
};
use mainstay_controllers::runtime::{ApiError, Cache, Clock, EventRecorder, reconcile};
use mainstay_testing::{TestApi, until};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    fault_proxy::{Effect, Fault, FaultProxy},
    harness::{TestProject, config},
};

pub struct OneCluster(RoutedCluster);

impl ClusterDirectory for OneCluster {
    async fn find(&self, _: &ClusterKey) -> Result<Option<RoutedCluster>, ApiError> {
        Ok(Some(self.0.clone()))
    }
}

pub struct Fixture {
    api: TestApi,
    project: TestProject,
    controller: RouteController<OneCluster>,
    collector: RouteCollector<OneCluster>,
    metrics: RouteMetrics,
    stop: CancellationToken,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Fixture {
    async fn new(test: &str) -> Self {
        let project = TestProject::create(test).await;
        let session = project.session.clone();
        Self::over(project, session).await
    }

    /// With calls through a proxy.
    async fn through(test: &str, proxy: &FaultProxy) -> Self {
        let project = TestProject::create(test).await;
        let yaml = project.yaml_through(&proxy.keystone(project.session.auth_url()));
        let session = Session::new(config(&yaml)).unwrap();
        Self::over(project, session).await
    }

    pub async fn over(project: TestProject, session: Session) -> Self {
        let api = TestApi::start(&["kube-system", "default"]).await;
        let (client, stop) = (api.client("test"), CancellationToken::new());
        let nodes = Arc::new(Cache::<Node>::new());
        tokio::spawn(nodes.clone().run(client.clone(), stop.clone()));
        let (events, writer) = EventRecorder::new();
        tokio::spawn(writer.run(client.clone(), stop.clone()));
        nodes.synced().await;
        let owner = ResourceOwner {
            api_version: "v1".into(),
            kind: "Namespace".into(),
            name: "kube-system".into(),
            ..ResourceOwner::default()
        };
        let router = project.router.clone();
        let records = RouteRecords { client: client.clone(), cloud: "test".into(), router: router.clone(), owner };
        let range = "10.244.0.0/16".parse().unwrap();
        let cluster = RoutedCluster {
            session,
            router,
            range,
            client,
            nodes,
            events,
            records,
            all_in_cloud: true,
            collects_orphans: true,
        };
        let (directory, metrics) = (Arc::new(OneCluster(cluster)), RouteMetrics::default());
        let controller = RouteController::new(directory.clone(), metrics.clone(), Clock::default());
        let collector = RouteCollector { directory, metrics: metrics.clone() };
        Self { api, project, controller, collector, metrics, stop }
    }

    fn client(&self) -> Client {
        self.api.client("test")
    }

    pub async fn sync(&self) -> Result<(), ApiError> {
        reconcile(&self.controller, &ClusterKey::Own, Timestamp::now(), &self.stop).await.map(drop)
    }

    /// Another controller, which knows nothing of what the one before did.
    pub fn restart(&mut self) {
        let directory = self.controller.directory.clone();
        self.controller = RouteController::new(directory, self.metrics.clone(), Clock::default());
    }

    async fn collect(&self) -> Result<(), ApiError> {
        reconcile(&self.collector, &ClusterKey::Own, Timestamp::now(), &self.stop).await.map(drop)
    }

    /// A Node with a port at `10.180.1.n`; returns its pod range and the port's id.
    pub async fn add_node(&self, n: u8) -> (String, String) {
        let address = format!("10.180.1.{n}");
        let port = NewPort {
            network_id: self.project.network.clone(),
            name: format!("node-{n}"),
            fixed_ips: vec![FixedIp { ip_address: address.clone(), ..FixedIp::default() }],
            ..NewPort::default()
        };
        let port = self.project.session.network().create_port(&port).await.expect("create a port");
        let nodes: Api<Node> = Api::all(self.client());
        let name = format!("node-{n}");
        let node: Node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        let node = nodes.create(&PostParams::default(), &node).await.expect("create a node");
        let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": address}]}});
        let written = nodes.patch_status(&name, &PatchParams::default(), &Patch::Strategic(status)).await;
        self.controller.directory.0.nodes.wrote(written.expect("write the node's address"));
        (node.spec.unwrap().pod_cidr.expect("a range"), port.id)
    }

    pub async fn delete_node(&self, n: u8) {
        let nodes: Api<Node> = Api::all(self.client());
        nodes.delete(&format!("node-{n}"), &DeleteParams::default()).await.expect("delete the node");
        let cache = self.controller.directory.0.nodes.clone();
        until("the node is gone from the cache", async || {
            cache.all().iter().all(|node| node.metadata.name.as_deref() != Some(&format!("node-{n}")))
        })
        .await;
    }

    pub async fn routes(&self) -> Vec<(String, String)> {
        let router = self.project.session.network().show_router(&self.project.router).await.unwrap().unwrap();
        let mut routes: Vec<_> = router.routes.into_iter().map(|route| (route.destination, route.nexthop)).collect();
        routes.sort();
        routes
    }

    async fn add_route(&self, destination: &str, hop: &str) {
        let route = RouterRoute { destination: destination.to_owned(), nexthop: hop.to_owned() };
        self.project.session.network().add_routes(&self.project.router, &[route]).await.expect("add a route");
    }

    pub async fn allowed(&self, port: &str) -> Vec<String> {
        let port = self.project.session.network().show_port(port).await.unwrap().unwrap();
        port.allowed_address_pairs.into_iter().map(|pair| pair.ip_address).collect()
    }

    /// Status, reason and message of `NetworkUnavailable`.
    async fn condition(&self, n: u8) -> Option<(String, String, String)> {
        let node = Api::<Node>::all(self.client()).get(&format!("node-{n}")).await.unwrap();
        let conditions = node.status.unwrap_or_default().conditions.unwrap_or_default();
        let found = conditions.into_iter().find(|condition| condition.type_ == "NetworkUnavailable")?;
        Some((found.status, found.reason.unwrap_or_default(), found.message.unwrap_or_default()))
    }

    pub async fn entries(&self) -> usize {
        let entries: Api<CloudResource> = Api::all(self.client());
        entries.list(&ListParams::default()).await.unwrap().items.len()
    }
}

pub fn pair(destination: &str, hop: &str) -> (String, String) {
    (destination.to_owned(), hop.to_owned())
}

#[tokio::test]
async fn routes_come_and_go_with_nodes_and_others_stay() {
    let fixture = Fixture::new("routes").await;
    fixture.add_route("192.168.55.0/24", "10.180.1.77").await;
    let (range, port) = fixture.add_node(1).await;
    let (other_range, _) = fixture.add_node(2).await;
    fixture.sync().await.unwrap();
    let mut expected =
        vec![pair(&range, "10.180.1.1"), pair(&other_range, "10.180.1.2"), pair("192.168.55.0/24", "10.180.1.77")];
    expected.sort();
    assert_eq!(fixture.routes().await, expected);
    assert_eq!(fixture.allowed(&port).await, [range.as_str()]);
    let (status, reason, message) = fixture.condition(1).await.unwrap();
    assert_eq!((status.as_str(), reason.as_str()), ("False", "RouteCreated"), "{message}");
    assert_eq!(fixture.entries().await, 4, "two routes and two pairs");

    let before = fixture.metrics.operations(RouteOperation::Create);
    fixture.sync().await.unwrap();
    assert_eq!(fixture.metrics.operations(RouteOperation::Create), before, "the second look changes nothing");

    fixture.delete_node(1).await;
    fixture.sync().await.unwrap();
    assert_eq!(fixture.routes().await, [pair(&other_range, "10.180.1.2"), pair("192.168.55.0/24", "10.180.1.77")]);
    assert_eq!(fixture.allowed(&port).await, [""; 0], "the port is there, and may use the range no more");
    assert_eq!(fixture.entries().await, 2);
}

#[tokio::test]
async fn a_route_whose_port_refuses_is_taken_back() {
    let proxy = FaultProxy::start().await;
    let fixture = Fixture::through("rollback", &proxy).await;
    let (range, port) = fixture.add_node(1).await;
    proxy.inject(Fault::new("PUT /v2.0/ports/", 100, Effect::Status { code: 400, retry_after: None }));
    fixture.sync().await.unwrap_err();
    assert_eq!(fixture.routes().await, []);
    let (status, reason, message) = fixture.condition(1).await.unwrap();
    assert_eq!((status.as_str(), reason.as_str()), ("True", "NoRouteCreated"), "{message}");
    assert_eq!(fixture.metrics.operations(RouteOperation::RollBack), 1);
    proxy.clear();
    fixture.sync().await.unwrap();
    assert_eq!(fixture.routes().await, [pair(&range, "10.180.1.1")]);
    assert_eq!(fixture.allowed(&port).await, [range]);
    assert_eq!(fixture.condition(1).await.unwrap().0, "False");
    let events: Api<k8s_openapi::api::core::v1::Event> = Api::all(fixture.client());
    until("an event FailedToCreateRoute", async || {
        let all = events.list(&ListParams::default()).await.unwrap().items;
        all.iter().any(|event| event.reason.as_deref() == Some("FailedToCreateRoute"))
    })
    .await;
}

#[tokio::test]
async fn a_stale_revision_and_lost_answers_are_overcome() {
    let proxy = FaultProxy::start().await;
    let fixture = Fixture::through("conflict", &proxy).await;
    let (range, port) = fixture.add_node(1).await;
    proxy.inject(Fault::new("PUT /v2.0/ports/", 2, Effect::Status { code: 412, retry_after: None }));
    proxy.inject(Fault::new("add_extraroutes", 1, Effect::CloseAfterWork));
    fixture.sync().await.unwrap();
    assert_eq!(fixture.routes().await, [pair(&range, "10.180.1.1")]);
    assert_eq!(fixture.allowed(&port).await, [range]);
}

#[tokio::test]
async fn a_cloud_without_atomic_calls_gets_whole_lists_fenced_by_revisions() {
    let proxy = FaultProxy::start().await;
    let fixture = Fixture::through("plain", &proxy).await;
    fixture.add_route("192.168.55.0/24", "10.180.1.77").await;
    let (range, _) = fixture.add_node(1).await;
    proxy.inject(Fault::new("extraroutes", 100, Effect::Status { code: 404, retry_after: None }));
    fixture.sync().await.unwrap();
    assert_eq!(fixture.routes().await, [pair(&range, "10.180.1.1"), pair("192.168.55.0/24", "10.180.1.77")]);
    fixture.delete_node(1).await;
    fixture.sync().await.unwrap();
    assert_eq!(fixture.routes().await, [pair("192.168.55.0/24", "10.180.1.77")]);
}

#[tokio::test]
async fn a_full_router_loses_stale_routes_first_and_then_says_so() {
    let fixture = Fixture::new("limit").await;
    let network = fixture.project.session.network();
    let foreign: Vec<RouterRoute> = (0..28)
        .map(|n| RouterRoute { destination: format!("192.168.{n}.0/24"), nexthop: "10.180.1.77".into() })
        .collect();
    network.add_routes(&fixture.project.router, &foreign).await.unwrap();
    fixture.add_route("10.244.200.0/24", "10.180.1.99").await; // nobody has it
    for n in 1..=3 {
        fixture.add_node(n).await;
    }
    fixture.sync().await.unwrap();
    let routes = fixture.routes().await;
    assert_eq!(routes.len(), 30);
    assert!(!routes.contains(&pair("10.244.200.0/24", "10.180.1.99")), "{routes:?}");
    assert_eq!(routes.iter().filter(|(destination, _)| destination.starts_with("192.168.")).count(), 28);
    let (status, reason, message) = fixture.condition(3).await.unwrap();
    assert_eq!((status.as_str(), reason.as_str()), ("True", "NoRouteCreated"));
    assert!(message.contains("maximum 30"), "{message}");
    for n in 1..=2 {
        assert_eq!(fixture.condition(n).await.unwrap().0, "False", "node {n}");
    }
    // By now the limit is known, and nothing is tried in vain.
    fixture.sync().await.unwrap();
    let (.., message) = fixture.condition(3).await.unwrap();
    assert!(message.contains("the 30 routes that it takes at most"), "{message}");
    // A node that goes makes room.
    fixture.delete_node(1).await;
    fixture.sync().await.unwrap();
    assert_eq!(fixture.condition(3).await.unwrap().0, "False");
}

#[tokio::test]
async fn a_range_with_a_route_of_others_is_not_handed_out() {
    let fixture = Fixture::new("recycled").await;
    // The first range of the cluster leads to a server of somebody.
    let server = server_at(&fixture, "somebody", "10.180.2.9").await;
    fixture.add_route("10.244.0.0/24", "10.180.2.9").await;
    fixture.sync().await.unwrap();
    let (range, _) = fixture.add_node(1).await;
    assert_eq!(range, "10.244.1.0/24");
    fixture.sync().await.unwrap();
    assert_eq!(fixture.routes().await, [pair("10.244.0.0/24", "10.180.2.9"), pair("10.244.1.0/24", "10.180.1.1")]);
    // Its server goes: the route is an orphan, and its range is free once it was seen gone.
    fixture.project.session.compute().delete_server(&server).await.unwrap();
    wait_for_servers(&fixture, 0).await;
    fixture.sync().await.unwrap();
    assert_eq!(fixture.routes().await, [pair("10.244.1.0/24", "10.180.1.1")]);
    let maps: Api<ConfigMap> = Api::namespaced(fixture.client(), "kube-system");
    let listed = maps.get("pod-range-routes").await.unwrap().data.unwrap_or_default();
    assert_eq!(listed.keys().collect::<Vec<_>>(), ["10.244.1.0_24"]);
    assert_eq!(fixture.add_node(2).await.0, "10.244.0.0/24");
}

async fn server_at(fixture: &Fixture, name: &str, address: &str) -> String {
    let session = &fixture.project.session;
    let flavors = session.compute().list_flavors().await.unwrap();
    let images = session.image().list_images(None).await.unwrap();
    let network = ServerNetwork {
        network: Some(fixture.project.network.clone()),
        fixed_ip: Some(address.to_owned()),
        ..ServerNetwork::default()
    };
    let server = NewServer {
        name: name.to_owned(),
        flavor: flavors.iter().find(|flavor| flavor.name == "m1.tiny").expect("a flavor").id.clone(),
        image: images.first().map(|image| image.id.clone()),
        networks: vec![network],
        ..NewServer::default()
    };
    let id = session.compute().create_server(&server).await.expect("create a server");
    until("the server has its address", async || {
        let server = session.compute().show_server(&id).await.unwrap();
        server.is_some_and(|server| server.all_addresses().any(|own| own == address))
    })
    .await;
    id
}

async fn wait_for_servers(fixture: &Fixture, count: usize) {
    let compute = fixture.project.session.compute();
    until("the servers are gone", async || {
        compute.list_servers(&ServerFilter::default()).await.unwrap().len() == count
    })
    .await;
}

#[tokio::test]
async fn collection_removes_orphans_and_nothing_else() {
    let proxy = FaultProxy::start().await;
    let fixture = Fixture::through("routegc", &proxy).await;
    server_at(&fixture, "alive", "10.180.2.5").await;
    for (destination, hop) in [
        ("10.244.10.0/24", "10.180.2.99"),
        ("10.244.11.0/24", "10.180.2.5"),
        ("172.16.0.0/24", "10.180.2.99"),
        ("10.240.0.0/12", "10.180.2.99"),
    ] {
        fixture.add_route(destination, hop).await;
    }
    // What is not seen is not gone.
    proxy.inject(Fault::new("GET /v2.1/servers/detail", 100, Effect::Status { code: 500, retry_after: None }));
    fixture.collect().await.unwrap_err();
    assert!(!proxy.calls().iter().any(|call| call.starts_with("PUT ")), "{:?}", proxy.calls());
    assert_eq!(fixture.metrics.collection_failures(), 1);
    assert_eq!(fixture.routes().await.len(), 4);
    proxy.clear();
    fixture.collect().await.unwrap();
    let left = fixture.routes().await;
    let expected = [
        pair("10.240.0.0/12", "10.180.2.99"),
        pair("10.244.11.0/24", "10.180.2.5"),
        pair("172.16.0.0/24", "10.180.2.99"),
    ];
    assert_eq!(left, expected);
    assert_eq!(fixture.metrics.orphans(), 1);
    let writes = || proxy.calls().iter().filter(|call| call.starts_with("PUT ")).count();
    assert_eq!(writes(), 1, "one write");
    fixture.collect().await.unwrap();
    assert_eq!(writes(), 1, "and none when there is nothing to do");
}

#[tokio::test]
async fn a_router_without_routes_costs_one_call() {
    let proxy = FaultProxy::start().await;
    let fixture = Fixture::through("empty", &proxy).await;
    fixture.collect().await.unwrap();
    let calls: Vec<String> = proxy.calls().into_iter().filter(|call| !call.contains("/auth/tokens")).collect();
    assert_eq!(calls.len(), 1, "{calls:?}");
    assert!(calls[0].starts_with("GET /v2.0/routers/"), "{calls:?}");
}

#[tokio::test]
async fn a_broken_route_is_nudged_once() {
    let proxy = FaultProxy::start().await;
    let fixture = Fixture::through("nudge", &proxy).await;
    let (range, _) = fixture.add_node(1).await;
    fixture.sync().await.unwrap();
    let nodes: Api<Node> = Api::all(fixture.client());
    let broken =
        json!({"status": {"conditions": [{"type": "RouteBroken", "status": "True", "reason": "RedirectFailed"}]}});
    let written = nodes.patch_status("node-1", &PatchParams::default(), &Patch::Strategic(broken)).await.unwrap();
    fixture.controller.directory.0.nodes.wrote(written);
    fixture.sync().await.unwrap();
    assert_eq!(fixture.metrics.operations(RouteOperation::Nudge), 1);
    fixture.sync().await.unwrap();
    assert_eq!(fixture.metrics.operations(RouteOperation::Nudge), 1, "not again so soon");
    assert_eq!(fixture.routes().await, [pair(&range, "10.180.1.1")], "nothing of it is left");
    let maps: Api<ConfigMap> = Api::namespaced(fixture.client(), "kube-system");
    let stamp = maps.get("pod-range-routes").await.unwrap().metadata.annotations.unwrap_or_default();
    let nudged: Timestamp = stamp["mainstay.dev/last-route-nudge"].parse().unwrap();
    assert!(Timestamp::now().duration_since(nudged) < SignedDuration::from_mins(5));
    let extra = |call: &&String| call.contains("extraroutes");
    assert_eq!(proxy.calls().iter().filter(extra).count(), 3, "one for the node, two for {}", nudge::DESTINATION);
}
