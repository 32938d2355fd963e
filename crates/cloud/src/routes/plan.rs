//! Decides which routes a router gets and loses for the nodes of one cluster. Pure.
//!
//! A route on the router is one of these, and only stale ones are ever removed:
//!
//! * *wanted*: it leads to the pod range of a Node by that Node's address;
//! * *stale*: the ledger says that this cluster made it, and no Node wants it; or it lies in the cluster's range and leads to a Node that
//!   has another range; or it is an orphan ([`super::orphans`]), if the servers of the project are known;
//! * *foreign*: everything else. It stays, whatever it does, and its range is not handed out.
//!
//! Stale routes are removed before others are created, so that a full router has room for what is needed. What does not fit is said of the
//! Nodes concerned; routes that are there are never given up for others. Which limit a router has is learned from its refusals: Neutron tells it nowhere else.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use jiff::Timestamp;

use super::{
    nudge::decide_nudge,
    orphans::is_orphan,
    range_routes,
    view::{PortView, ReportedCondition, Route, RoutedNode},
};

/// Everything that a decision about one router's routes depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteWorld {
    /// The range that all pod ranges are parts of.
    pub cluster: IpNet,
    /// What the router has.
    pub routes: Vec<Route>,
    /// In the order in which they get routes, if there are too few.
    pub nodes: Vec<RoutedNode>,
    /// Routes that this cluster made, by the ledger.
    pub recorded: BTreeSet<Route>,
    /// Ranges that this cluster let ports use, by the ledger.
    pub recorded_pairs: BTreeSet<RecordedPair>,
    /// Addresses of all servers of the project; nothing if they are not known.
    pub server_addresses: Option<BTreeSet<IpAddr>>,
    /// How many routes the router takes, once that was learned.
    pub limit: Option<usize>,
    /// What the ConfigMap of ranges with routes lists; nothing if there is none.
    pub listed: Option<BTreeMap<String, String>>,
    pub last_nudge: Option<Timestamp>,
}

/// A pod range that a port may use, by the ledger.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordedPair {
    pub port: String,
    pub range: String,
}

#[derive(Clone, Debug, PartialEq)]
pub enum RouteAction {
    /// Writes the ConfigMap of ranges with routes.
    ListRanges { data: BTreeMap<String, String> },
    /// Takes routes off the router, in one call.
    Remove { routes: Vec<StaleRoute> },
    /// Strikes entries off the ledger whose routes are neither there nor wanted.
    Forget { routes: Vec<Route> },
    /// Takes a range off the addresses that a port may use.
    Disallow { pair: RecordedPair },
    /// Adds routes, then lets each node's port use its range; a route whose port refuses is taken back.
    Create { routes: Vec<NodeRoute> },
    /// Adds a route that means nothing, and takes it away.
    Nudge { route: Route },
}

#[derive(Clone, Debug, PartialEq)]
pub struct StaleRoute {
    pub route: Route,
    pub why: StaleReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StaleReason {
    /// The ledger names it, and no Node has this range at this address.
    NodeGone,
    /// It leads to a Node that has another range.
    OtherRange,
    /// No server has its next hop.
    Orphan,
}

/// A route to create, and the port that is to use its range.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeRoute {
    pub node: String,
    pub uid: String,
    pub route: Route,
    pub port: PortView,
    /// The router has it already, and only the port is behind.
    pub on_router: bool,
}

/// What is said of a Node's route.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeRouteReport {
    pub node: String,
    pub uid: String,
    pub current: Option<ReportedCondition>,
    pub state: NodeRouteState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeRouteState {
    Created,
    /// An action of this plan creates it; its outcome says the rest.
    Creating,
    Failed(String),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoutePlan {
    pub actions: Vec<RouteAction>,
    pub nodes: Vec<NodeRouteReport>,
    /// Routes of others that lie in the cluster's range.
    pub foreign: Vec<Route>,
}

/// What a route on the router is to this cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteVerdict {
    Wanted,
    Stale(StaleReason),
    Foreign,
}

impl RouteWorld {
    pub fn judge(&self, route: &Route) -> RouteVerdict {
        self.judge_with(route, &self.wanted_routes(), &self.node_addresses())
    }

    fn judge_with(&self, route: &Route, wanted: &BTreeSet<Route>, nodes: &BTreeSet<IpAddr>) -> RouteVerdict {
        let leads_to_node = || route.next_hop().is_some_and(|next_hop| nodes.contains(&next_hop));
        let is_orphan = || self.server_addresses.as_ref().is_some_and(|all| is_orphan(route, &self.cluster, all));
        if wanted.contains(route) {
            RouteVerdict::Wanted
        } else if self.recorded.contains(route) {
            RouteVerdict::Stale(StaleReason::NodeGone)
        } else if route.is_within(&self.cluster) && leads_to_node() {
            RouteVerdict::Stale(StaleReason::OtherRange)
        } else if is_orphan() {
            RouteVerdict::Stale(StaleReason::Orphan)
        } else {
            RouteVerdict::Foreign
        }
    }

    /// Whether the servers of the project have to be listed to tell orphans from routes of others.
    pub fn needs_server_addresses(&self) -> bool {
        let (wanted, nodes) = (self.wanted_routes(), self.node_addresses());
        let in_range = self.routes.iter().filter(|route| route.is_within(&self.cluster));
        in_range.into_iter().any(|route| self.judge_with(route, &wanted, &nodes) == RouteVerdict::Foreign)
    }

    fn wanted_routes(&self) -> BTreeSet<Route> {
        self.nodes.iter().filter_map(RoutedNode::wanted_route).filter(|route| route.is_within(&self.cluster)).collect()
    }

    fn node_addresses(&self) -> BTreeSet<IpAddr> {
        self.nodes.iter().filter_map(|node| node.address).collect()
    }
}

pub fn plan(world: &RouteWorld, now: Timestamp) -> RoutePlan {
    let (wanted, addresses) = (world.wanted_routes(), world.node_addresses());
    let (mut stale, mut kept, mut foreign) = (Vec::new(), BTreeSet::new(), Vec::new());
    for route in &world.routes {
        match world.judge_with(route, &wanted, &addresses) {
            RouteVerdict::Wanted => _ = kept.insert(route.clone()),
            RouteVerdict::Stale(why) => stale.push(StaleRoute { route: route.clone(), why }),
            RouteVerdict::Foreign if route.overlaps(&world.cluster) => foreign.push(route.clone()),
            RouteVerdict::Foreign => {}
        }
    }
    let mut room = world.limit.map(|limit| limit.saturating_sub(world.routes.len() - stale.len()));
    let is_full = room == Some(0);
    let (mut create, mut reports) = (Vec::new(), Vec::new());
    for node in &world.nodes {
        let Some((state, route)) = judge_node(world, node, &kept, &mut room) else { continue };
        create.extend(route);
        let (name, uid) = (node.name.clone(), node.uid.clone());
        reports.push(NodeRouteReport { node: name, uid, current: node.network_unavailable.clone(), state });
    }
    let disallow = stale_pairs(world);
    let is_there = |route: &Route| world.routes.contains(route);
    let forget: Vec<Route> =
        world.recorded.iter().filter(|route| !is_there(route) && !wanted.contains(*route)).cloned().collect();
    let is_settled = stale.is_empty() && create.is_empty() && disallow.is_empty();
    let broken = world.nodes.iter().filter(|node| node.route_broken).filter_map(RoutedNode::wanted_route);
    let broken: Vec<Route> = broken.filter(|route| kept.contains(route)).collect();
    let nudge = if is_settled { decide_nudge(&broken, world.last_nudge, !is_full, now) } else { None };

    let gone: BTreeSet<&Route> = stale.iter().map(|stale| &stale.route).collect();
    let after = world.routes.iter().filter(|route| !gone.contains(route));
    let after = after.chain(create.iter().map(|create: &NodeRoute| &create.route));
    let (before, after) = (
        range_routes::data(world.routes.iter().chain(create.iter().map(|create| &create.route)), &world.cluster),
        range_routes::data(after, &world.cluster),
    );
    let is_listed = |data: &BTreeMap<String, String>| match &world.listed {
        Some(listed) => listed == data,
        None => data.is_empty(),
    };
    let mut actions = Vec::new();
    if !is_listed(&before) {
        actions.push(RouteAction::ListRanges { data: before.clone() });
    }
    if !stale.is_empty() {
        actions.push(RouteAction::Remove { routes: stale });
    }
    if !forget.is_empty() {
        actions.push(RouteAction::Forget { routes: forget });
    }
    actions.extend(disallow.into_iter().map(|pair| RouteAction::Disallow { pair }));
    if !create.is_empty() {
        actions.push(RouteAction::Create { routes: create });
    }
    if before != after {
        actions.push(RouteAction::ListRanges { data: after });
    }
    actions.extend(nudge.map(|route| RouteAction::Nudge { route }));
    RoutePlan { actions, nodes: reports, foreign }
}

/// What is said of a Node, and the route to create for it; nothing of a Node that needs none or is not in this cloud.
fn judge_node(
    world: &RouteWorld,
    node: &RoutedNode,
    kept: &BTreeSet<Route>,
    room: &mut Option<usize>,
) -> Option<(NodeRouteState, Option<NodeRoute>)> {
    let route = node.wanted_route()?;
    let failed = |why: String| Some((NodeRouteState::Failed(why), None));
    let Some(port) = &node.port else {
        return match node.in_cloud {
            true => failed(format!("no port with address {} on a network of the router", route.next_hop)),
            false => None,
        };
    };
    if !route.is_within(&world.cluster) {
        return failed(format!("{} is not in the cluster's range {}", route.destination, world.cluster));
    }
    let on_router = kept.contains(&route);
    if on_router && port.allows(&route.destination) {
        return Some((NodeRouteState::Created, None));
    }
    if !on_router {
        match room {
            Some(0) => {
                let limit = world.limit.unwrap_or_default();
                return failed(format!("the router has the {limit} routes that it takes at most"));
            }
            Some(room) => *room -= 1,
            None => {}
        }
    }
    let (name, uid) = (node.name.clone(), node.uid.clone());
    Some((NodeRouteState::Creating, Some(NodeRoute { node: name, uid, route, port: port.clone(), on_router })))
}

/// Ranges that ports may still use although no Node has them there.
fn stale_pairs(world: &RouteWorld) -> Vec<RecordedPair> {
    let wanted = world.nodes.iter().filter_map(|node| {
        let (port, range) = (node.port.as_ref()?.id.clone(), node.wanted_route()?.destination);
        Some(RecordedPair { port, range })
    });
    let wanted: BTreeSet<RecordedPair> = wanted.collect();
    // While a Node's port is not known, a pair of its range may be the one it needs.
    let unknown: BTreeSet<String> = world
        .nodes
        .iter()
        .filter(|node| node.port.is_none())
        .filter_map(|node| node.wanted_route())
        .map(|route| route.destination)
        .collect();
    let stale = world.recorded_pairs.difference(&wanted).filter(|pair| !unknown.contains(&pair.range));
    stale.cloned().collect()
}

#[cfg(test)]
mod tests;
