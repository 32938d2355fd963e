//! The route controller: keeps a route to the pod range of every Node on the cluster's router.
//!
//! Each look reads the router, the ports, the ledger and the list of ranges with routes; the servers only where a route is nobody's that is known
//! here. [`plan`](super::plan) decides; what follows has no choices but one: routes that are refused together are tried one by one, so that one that is
//! wrong does not keep the others away.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::Arc,
};

use futures::{StreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Node, NodeCondition, ObjectReference};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use mainstay_api::{
    pod_range_routes::{CONFIG_MAP, LAST_NUDGE, route_broken},
    wellknown::namespace::SYSTEM,
};
use mainstay_controllers::runtime::{ApiError, Controller, Outcomes, Plan, error};
use mainstay_errors::error_chain;
use mainstay_events::EventNote;
use parking_lot::Mutex;
use serde_json::json;

use super::{
    cluster::{ClusterDirectory, ClusterKey, RoutedCluster},
    condition::{self, ConditionWrite, decide_condition},
    metrics::{RouteMetrics, RouteOperation},
    plan::{self, NodeRoute, NodeRouteReport, NodeRouteState, RecordedPair, RouteAction, RouteWorld},
    router::{AddError, RouterClient, routes_of},
    view::{PortView, ReportedCondition, Route, RoutedNode},
};
use crate::openstack::network::{Port, Router};

/// How often a router is looked at although nothing changed; up to half as much again.
pub const PERIOD: SignedDuration = SignedDuration::from_mins(5);
/// After so long a limit that was learned is forgotten: it may have been raised.
const FORGET_LIMIT: SignedDuration = SignedDuration::from_mins(10);
/// Ports of so many nodes are changed at once.
const CONCURRENT_PORTS: usize = 16;
const COMPONENT: &str = "route_controller";

pub struct RouteController<D> {
    pub directory: Arc<D>,
    pub metrics: RouteMetrics,
    limits: Mutex<HashMap<String, (usize, Timestamp)>>,
    clock: mainstay_controllers::runtime::Clock,
}

/// What became of a route that was to be created.
#[derive(Debug)]
pub struct CreatedRoute {
    node: String,
    result: Result<(), RouteFailure>,
}

#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct RouteFailure {
    message: String,
    /// Trying again soon changes nothing.
    is_full: bool,
}

#[derive(Debug, thiserror::Error)]
enum ObserveError {
    #[error("the project has no router {0:?}")]
    NoRouter(String),
}

impl<D: ClusterDirectory> RouteController<D> {
    pub fn new(directory: Arc<D>, metrics: RouteMetrics, clock: mainstay_controllers::runtime::Clock) -> Self {
        Self { directory, metrics, limits: Mutex::default(), clock }
    }

    fn learned_limit(&self, router: &str) -> Option<usize> {
        let limits = self.limits.lock();
        let (limit, learned) = limits.get(router)?;
        (self.clock.now().duration_since(*learned) < FORGET_LIMIT).then_some(*limit)
    }

    fn learn_limit(&self, router: &str, limit: usize) {
        self.limits.lock().insert(router.to_owned(), (limit, self.clock.now()));
    }
}

pub struct ObservedRouter {
    world: RouteWorld,
    until_next: SignedDuration,
}

impl<D: ClusterDirectory> Controller for RouteController<D> {
    const NAME: &'static str = "route";
    type Key = ClusterKey;
    type World = ObservedRouter;
    type Action = RouteAction;
    type Outcome = Vec<CreatedRoute>;
    type Status = Vec<NodeRouteReport>;

    async fn observe(&self, key: &ClusterKey) -> Result<Option<ObservedRouter>, ApiError> {
        let Some(cluster) = self.directory.find(key).await? else { return Ok(None) };
        let client = RouterClient::new(&cluster.session, &cluster.router);
        let failed = |doing: &str| {
            let doing = format!("{doing} of router {}", cluster.router);
            move |error| ApiError::other(doing, error)
        };
        let Some(router) = client.show().await.map_err(failed("read the routes"))? else {
            return Err(ApiError::other("read the routes", ObserveError::NoRouter(cluster.router.clone())));
        };
        let ports = client.list_ports(&router.project_id).await.map_err(failed("list the ports"))?;
        let recorded = cluster.records.list().await?;
        let listing = read_config_map(&cluster).await?;
        let mut world = RouteWorld {
            cluster: cluster.range,
            routes: routes_of(&router),
            nodes: view_nodes(&cluster, &router, &ports),
            recorded: recorded.routes,
            recorded_pairs: recorded.pairs,
            server_addresses: None,
            limit: self.learned_limit(&cluster.router),
            listed: listing.as_ref().map(|map| map.data.clone().unwrap_or_default()),
            last_nudge: listing.as_ref().and_then(last_nudge),
        };
        if world.needs_server_addresses() {
            match client.server_addresses().await {
                Ok(addresses) => world.server_addresses = Some(addresses),
                Err(error) => {
                    let error = error_chain(&error);
                    tracing::warn!(?key, error, "cannot list servers; no route is taken for an orphan");
                }
            }
        }
        let until_next = PERIOD + SignedDuration::from_millis(fastrand::i64(0..=PERIOD.as_millis() as i64 / 2));
        Ok(Some(ObservedRouter { world, until_next }))
    }

    fn plan(observed: &ObservedRouter, now: Timestamp) -> Plan<RouteAction, Vec<NodeRouteReport>> {
        let planned = plan::plan(&observed.world, now);
        for route in &planned.foreign {
            tracing::debug!(%route, "a route of others lies in the cluster's range; it stays, and its range is not handed out");
        }
        Plan { actions: planned.actions, status: Some(planned.nodes), requeue_at: Some(now + observed.until_next) }
    }

    async fn apply(&self, key: &ClusterKey, action: RouteAction) -> Result<Vec<CreatedRoute>, ApiError> {
        let Some(cluster) = self.directory.find(key).await? else { return Ok(Vec::new()) };
        let client = RouterClient::new(&cluster.session, &cluster.router);
        match action {
            RouteAction::ListRanges { data } => write_config_map(&cluster, Some(data), None).await?,
            RouteAction::Remove { routes } => {
                let stale: Vec<Route> = routes.iter().map(|stale| stale.route.clone()).collect();
                client.remove(&stale).await.map_err(|error| {
                    self.metrics.count_failure(RouteOperation::Remove);
                    ApiError::other("remove stale routes", error)
                })?;
                tracing::info!(?key, ?routes, "removed stale routes");
                self.metrics.count(RouteOperation::Remove, stale.len());
                for route in &stale {
                    cluster.records.route_gone(route).await?;
                }
            }
            RouteAction::Forget { routes } => {
                for route in &routes {
                    cluster.records.route_gone(route).await?;
                }
            }
            RouteAction::Disallow { pair } => {
                let removed = client.disallow(&pair.port, &pair.range).await;
                removed
                    .map_err(|error| ApiError::other(format!("take {} off port {}", pair.range, pair.port), error))?;
                cluster.records.pair_gone(&pair).await?;
            }
            RouteAction::Create { routes } => return self.create(&cluster, &client, routes).await,
            RouteAction::Nudge { route } => self.nudge(&cluster, &client, &route).await?,
        }
        Ok(Vec::new())
    }

    async fn report(
        &self,
        key: &ClusterKey,
        reports: Vec<NodeRouteReport>,
        outcomes: &Outcomes<Vec<CreatedRoute>>,
    ) -> Result<(), ApiError> {
        let Some(cluster) = self.directory.find(key).await? else { return Ok(()) };
        let created: HashMap<&str, &Result<(), RouteFailure>> =
            outcomes.iter().flatten().flatten().map(|created| (created.node.as_str(), &created.result)).collect();
        let mut retry = None;
        for report in &reports {
            let result = match &report.state {
                NodeRouteState::Created => Ok(()),
                NodeRouteState::Failed(why) => Err(why.as_str()),
                NodeRouteState::Creating => match created.get(report.node.as_str()) {
                    Some(Ok(())) => Ok(()),
                    Some(Err(failure)) => {
                        if !failure.is_full {
                            retry = Some((*failure).clone());
                        }
                        Err(failure.message.as_str())
                    }
                    None => continue, // an earlier action failed, and this one was not tried
                },
            };
            let write = decide_condition(report.current.as_ref(), result);
            if let Err(why) = result
                && (write.is_some() || matches!(report.state, NodeRouteState::Creating))
            {
                let message = format!("Could not create route for node {}: {why}", report.node);
                let note = EventNote::warning("FailedToCreateRoute", message);
                cluster.events.record_as(COMPONENT, node_reference(report), note);
            }
            if let Some(write) = write {
                write_condition(&cluster, report, &write, self.clock.now()).await?;
            }
        }
        match retry {
            Some(failure) => Err(ApiError::other("create routes", failure)),
            None => Ok(()),
        }
    }
}

impl<D: ClusterDirectory> RouteController<D> {
    /// Adds routes, then lets ports use the ranges; takes back what is half done.
    async fn create(
        &self,
        cluster: &RoutedCluster,
        client: &RouterClient,
        routes: Vec<NodeRoute>,
    ) -> Result<Vec<CreatedRoute>, ApiError> {
        let missing: Vec<Route> =
            routes.iter().filter(|create| !create.on_router).map(|create| create.route.clone()).collect();
        for create in &routes {
            cluster.records.intend_route(&create.route).await?;
            cluster.records.intend_pair(&wanted_pair(create)).await?;
        }
        let mut refused = self.add(cluster, client, &missing).await;
        let created = stream::iter(routes).map(|create| {
            let failure = refused.remove(&create.route);
            async move {
                let result = match failure {
                    Some(failure) => Err(failure),
                    None => self.complete(cluster, client, &create).await,
                };
                if result.is_err() && !create.on_router {
                    let forgotten = cluster.records.route_gone(&create.route).await;
                    if let Err(error) = forgotten {
                        tracing::warn!(error = error.chain(), "an entry of the ledger stays until the next look");
                    }
                }
                CreatedRoute { node: create.node, result }
            }
        });
        Ok(created.buffer_unordered(CONCURRENT_PORTS).collect().await)
    }

    /// Lets the node's port use the range; if it cannot, the route is taken off the router.
    async fn complete(
        &self,
        cluster: &RoutedCluster,
        client: &RouterClient,
        create: &NodeRoute,
    ) -> Result<(), RouteFailure> {
        let range = &create.route.destination;
        let Err(error) = client.allow(&create.port.id, range).await else {
            if !create.on_router {
                self.metrics.count(RouteOperation::Create, 1);
            }
            return Ok(());
        };
        self.metrics.count_failure(RouteOperation::Create);
        let mut message = format!("let port {} use {range}: {}", create.port.id, error.message());
        if !create.on_router {
            self.metrics.count(RouteOperation::RollBack, 1);
            if let Err(error) = client.remove(std::slice::from_ref(&create.route)).await {
                self.metrics.count_failure(RouteOperation::RollBack);
                let error = error_chain(&error);
                tracing::warn!(node = create.node, route = %create.route, error, "a route cannot be taken back");
                message.push_str("; the route stays on the router until the next look");
            }
        }
        tracing::warn!(router = cluster.router, node = create.node, message, "cannot complete a route");
        Err(RouteFailure { message, is_full: false })
    }

    /// Adds all routes at once, or one by one where that is refused; says which were not added.
    async fn add(
        &self,
        cluster: &RoutedCluster,
        client: &RouterClient,
        routes: &[Route],
    ) -> BTreeMap<Route, RouteFailure> {
        let mut failures = BTreeMap::new();
        if routes.is_empty() {
            return failures;
        }
        let first = client.add(routes).await;
        match first {
            Ok(()) => return failures,
            Err(AddError::Other(_)) => {}
            Err(AddError::Exhausted { .. } | AddError::Refused(_)) if routes.len() > 1 => {
                let mut full: Option<RouteFailure> = None;
                for route in routes {
                    let failure = match &full {
                        Some(failure) => Some(failure.clone()),
                        None => {
                            let added = client.add(std::slice::from_ref(route)).await;
                            added.err().map(|error| self.judge_add_error(cluster, &error))
                        }
                    };
                    full = full.or_else(|| failure.clone().filter(|failure| failure.is_full));
                    failures.extend(failure.map(|failure| (route.clone(), failure)));
                }
                return failures;
            }
            Err(_) => {}
        }
        if let Err(error) = first {
            let failure = self.judge_add_error(cluster, &error);
            failures.extend(routes.iter().map(|route| (route.clone(), failure.clone())));
        }
        failures
    }

    fn judge_add_error(&self, cluster: &RoutedCluster, error: &AddError) -> RouteFailure {
        self.metrics.count_failure(RouteOperation::Create);
        match error {
            AddError::Exhausted { limit, source } => {
                if let Some(limit) = limit {
                    self.learn_limit(&cluster.router, *limit);
                }
                RouteFailure { message: source.message(), is_full: true }
            }
            AddError::Refused(source) | AddError::Other(source) => {
                RouteFailure { message: source.message(), is_full: false }
            }
        }
    }

    async fn nudge(&self, cluster: &RoutedCluster, client: &RouterClient, route: &Route) -> Result<(), ApiError> {
        // Written before, so that a crash in between makes nudges rarer and not more frequent.
        write_config_map(cluster, None, Some(self.clock.now())).await?;
        cluster.records.intend_route(route).await?;
        let failed = |error| {
            self.metrics.count_failure(RouteOperation::Nudge);
            ApiError::other("nudge the router", error)
        };
        let added = client.add(std::slice::from_ref(route)).await;
        client.remove(std::slice::from_ref(route)).await.map_err(failed)?;
        cluster.records.route_gone(route).await?;
        added.map_err(|error| {
            self.metrics.count_failure(RouteOperation::Nudge);
            ApiError::other("nudge the router", error)
        })?;
        tracing::info!(router = cluster.router, "nudged the router: nodes say that it lost their routes");
        self.metrics.count(RouteOperation::Nudge, 1);
        Ok(())
    }
}

fn wanted_pair(create: &NodeRoute) -> RecordedPair {
    RecordedPair { port: create.port.id.clone(), range: create.route.destination.clone() }
}

/// The cluster's Nodes with their ports, the oldest first.
fn view_nodes(cluster: &RoutedCluster, router: &Router, ports: &[Port]) -> Vec<RoutedNode> {
    let networks: Vec<&str> =
        ports.iter().filter(|port| port.device_id == router.id).map(|port| port.network_id.as_str()).collect();
    let reachable = ports.iter().filter(|port| port.device_id != router.id);
    let reachable: Vec<&Port> = reachable.filter(|port| networks.contains(&port.network_id.as_str())).collect();
    let mut nodes = cluster.nodes.all();
    nodes
        .sort_by_key(|node| (node.metadata.creation_timestamp.as_ref().map(|time| time.0), node.metadata.name.clone()));
    nodes.iter().map(|node| view_node(node, &reachable, cluster.all_in_cloud)).collect()
}

fn view_node(node: &Node, ports: &[&Port], all_in_cloud: bool) -> RoutedNode {
    let (spec, status) = (node.spec.clone().unwrap_or_default(), node.status.clone().unwrap_or_default());
    let mut addresses = status.addresses.iter().flatten().filter(|address| address.type_ == "InternalIP");
    let address: Option<IpAddr> = addresses.find_map(|address| address.address.parse().ok());
    let text = address.map(|address| address.to_string());
    let port = ports.iter().find(|port| port.fixed_ips.iter().any(|ip| Some(&ip.ip_address) == text.as_ref()));
    let condition = |kind: &str| status.conditions.iter().flatten().find(|condition| condition.type_ == kind);
    let says_broken = |condition: &NodeCondition| {
        condition.status == "True" && condition.reason.as_deref() == Some(route_broken::REDIRECT_FAILED)
    };
    RoutedNode {
        name: node.metadata.name.clone().unwrap_or_default(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        range: spec.pod_cidr.and_then(|range| range.parse().ok()),
        address,
        port: port.map(|port| PortView {
            id: port.id.clone(),
            allowed: port.allowed_address_pairs.iter().map(|pair| pair.ip_address.clone()).collect(),
        }),
        in_cloud: all_in_cloud || spec.provider_id.is_some_and(|id| id.starts_with("openstack://")),
        network_unavailable: condition(condition::TYPE).map(|condition| ReportedCondition {
            holds: condition.status == "True",
            message: condition.message.clone().unwrap_or_default(),
        }),
        route_broken: condition(route_broken::TYPE).is_some_and(says_broken),
    }
}

fn node_reference(report: &NodeRouteReport) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(report.node.clone()),
        uid: Some(report.uid.clone()),
        ..ObjectReference::default()
    }
}

async fn write_condition(
    cluster: &RoutedCluster,
    report: &NodeRouteReport,
    write: &ConditionWrite,
    now: Timestamp,
) -> Result<(), ApiError> {
    let now = now.round(jiff::Unit::Second).unwrap_or(now);
    let mut content = json!({
        "type": condition::TYPE,
        "status": if write.holds { "True" } else { "False" },
        "reason": write.reason,
        "message": write.message,
        "lastHeartbeatTime": now,
    });
    if report.current.as_ref().is_none_or(|current| current.holds != write.holds) {
        content["lastTransitionTime"] = json!(now);
    }
    let patch = Patch::Strategic(json!({"metadata": {"uid": report.uid}, "status": {"conditions": [content]}}));
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    match nodes.patch_status(&report.node, &PatchParams::default(), &patch).await {
        Ok(node) => cluster.nodes.wrote(node),
        Err(error) if error::is_not_found(&error, &report.node) => {}
        Err(error) => return Err(ApiError::new(format!("write the condition of node {}", report.node), error)),
    }
    Ok(())
}

async fn read_config_map(cluster: &RoutedCluster) -> Result<Option<ConfigMap>, ApiError> {
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), SYSTEM);
    maps.get_opt(CONFIG_MAP).await.map_err(ApiError::when("read the list of ranges with routes"))
}

fn last_nudge(map: &ConfigMap) -> Option<Timestamp> {
    map.metadata.annotations.as_ref()?.get(LAST_NUDGE)?.parse().ok()
}

/// Writes data, the time of a nudge, or both; refused if somebody else wrote in between.
async fn write_config_map(
    cluster: &RoutedCluster,
    data: Option<BTreeMap<String, String>>,
    nudged: Option<Timestamp>,
) -> Result<(), ApiError> {
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), SYSTEM);
    let current = read_config_map(cluster).await?;
    let exists = current.is_some();
    let mut map = current.unwrap_or_default();
    map.metadata.name = Some(CONFIG_MAP.to_owned());
    if let Some(data) = data {
        map.data = Some(data);
    }
    if let Some(nudged) = nudged {
        map.metadata.annotations.get_or_insert_default().insert(LAST_NUDGE.to_owned(), nudged.to_string());
    }
    let written = match exists {
        true => maps.replace(CONFIG_MAP, &PostParams::default(), &map).await,
        false => maps.create(&PostParams::default(), &map).await,
    };
    written.map(drop).map_err(ApiError::when("write the list of ranges with routes"))
}
