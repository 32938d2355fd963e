//! Tables of single decisions, and properties of plans on a model of a router.

use proptest::prelude::*;

use super::*;
use crate::routes::nudge;

fn node(n: u8) -> RoutedNode {
    RoutedNode {
        name: format!("node-{n}"),
        uid: format!("uid-{n}"),
        range: Some(format!("100.100.{n}.0/24").parse().unwrap()),
        address: Some(format!("10.0.0.{n}").parse().unwrap()),
        port: Some(PortView { id: format!("port-{n}"), allowed: vec![] }),
        in_cloud: true,
        network_unavailable: None,
        route_broken: false,
    }
}

/// A node whose port may use its range.
fn allowed_node(n: u8) -> RoutedNode {
    let port = PortView { id: format!("port-{n}"), allowed: vec![format!("100.100.{n}.0/24")] };
    RoutedNode { port: Some(port), ..node(n) }
}

fn route(range: u8, hop: u8) -> Route {
    Route::new(format!("100.100.{range}.0/24"), format!("10.0.0.{hop}"))
}

fn world(nodes: Vec<RoutedNode>, routes: Vec<Route>) -> RouteWorld {
    let cluster = "100.100.0.0/16".parse().unwrap();
    let listed = Some(range_routes::data(&routes, &cluster));
    RouteWorld {
        cluster,
        routes,
        nodes,
        recorded: BTreeSet::new(),
        recorded_pairs: BTreeSet::new(),
        server_addresses: None,
        limit: None,
        listed,
        last_nudge: None,
    }
}

fn now() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

fn removed(plan: &RoutePlan) -> Vec<(Route, StaleReason)> {
    let removed = plan.actions.iter().filter_map(|action| match action {
        RouteAction::Remove { routes } => Some(routes.iter().map(|stale| (stale.route.clone(), stale.why))),
        _ => None,
    });
    removed.flatten().collect()
}

fn created(plan: &RoutePlan) -> Vec<Route> {
    let created = plan.actions.iter().filter_map(|action| match action {
        RouteAction::Create { routes } => Some(routes.iter().map(|create| create.route.clone())),
        _ => None,
    });
    created.flatten().collect()
}

fn state(plan: &RoutePlan, node: &str) -> Option<NodeRouteState> {
    plan.nodes.iter().find(|report| report.node == node).map(|report| report.state.clone())
}

#[test]
fn a_missing_route_is_created_and_one_that_is_there_is_not() {
    let plan = plan(&world(vec![allowed_node(1), node(2)], vec![route(1, 1)]), now());
    assert_eq!(created(&plan), [route(2, 2)]);
    assert_eq!(state(&plan, "node-1"), Some(NodeRouteState::Created));
    assert_eq!(state(&plan, "node-2"), Some(NodeRouteState::Creating));
    assert_eq!(removed(&plan), []);
}

#[test]
fn a_port_that_is_behind_is_completed_without_touching_the_router() {
    let plan = plan(&world(vec![node(1)], vec![route(1, 1)]), now());
    let [RouteAction::Create { routes }] = &plan.actions[..] else { panic!("{plan:?}") };
    assert!(routes[0].on_router);
}

#[test]
fn a_range_is_listed_before_its_route_is_created_and_struck_off_after_it_was_removed() {
    let mut world = world(vec![node(2)], vec![route(1, 1)]);
    world.recorded = BTreeSet::from([route(1, 1)]);
    let actions = plan(&world, now()).actions;
    let data = |routes: &[Route]| RouteAction::ListRanges { data: range_routes::data(routes, &world.cluster) };
    assert_eq!(actions.first(), Some(&data(&[route(1, 1), route(2, 2)])));
    assert_eq!(actions.last(), Some(&data(&[route(2, 2)])));
}

#[test]
fn a_route_is_removed_once_its_node_is_gone_and_not_before() {
    let mut world = world(vec![allowed_node(1)], vec![route(1, 1), route(2, 2)]);
    world.recorded = BTreeSet::from([route(1, 1), route(2, 2)]);
    assert_eq!(removed(&plan(&world, now())), [(route(2, 2), StaleReason::NodeGone)]);
}

#[test]
fn duplicates_for_one_range_are_removed_unless_they_belong_to_somebody() {
    let mut world =
        world(vec![allowed_node(1), allowed_node(2)], vec![route(1, 2), route(1, 1), route(2, 2), route(1, 7)]);
    assert_eq!(removed(&plan(&world, now())), [(route(1, 2), StaleReason::OtherRange)], "7 may be anybody");
    assert!(world.needs_server_addresses());
    world.server_addresses = Some(BTreeSet::from(["10.0.0.7".parse().unwrap()]));
    let plan_with_servers = plan(&world, now());
    assert_eq!(removed(&plan_with_servers), [(route(1, 2), StaleReason::OtherRange)], "7 is a server of somebody");
    assert_eq!(plan_with_servers.foreign, [route(1, 7)]);
    world.server_addresses = Some(BTreeSet::new());
    let expected = [(route(1, 2), StaleReason::OtherRange), (route(1, 7), StaleReason::Orphan)];
    assert_eq!(removed(&plan(&world, now())), expected);
}

#[test]
fn servers_are_listed_only_where_that_tells_something() {
    let mut world = world(vec![allowed_node(1)], vec![route(1, 1), Route::new("0.0.0.0/0", "10.0.0.99")]);
    assert!(!world.needs_server_addresses());
    world.routes.push(route(9, 9));
    assert!(world.needs_server_addresses());
    world.recorded.insert(route(9, 9));
    assert!(!world.needs_server_addresses());
}

#[test]
fn stale_routes_make_room_and_what_does_not_fit_is_said() {
    let mut world = world(vec![allowed_node(1), node(2), node(3)], vec![route(1, 1), route(8, 8)]);
    world.limit = Some(2);
    world.server_addresses = Some(BTreeSet::new());
    let plan = plan(&world, now());
    assert_eq!(removed(&plan), [(route(8, 8), StaleReason::Orphan)]);
    assert_eq!(created(&plan), [route(2, 2)]);
    let position = |wanted: fn(&RouteAction) -> bool| plan.actions.iter().position(wanted).unwrap();
    assert!(
        position(|action| matches!(action, RouteAction::Remove { .. }))
            < position(|action| matches!(action, RouteAction::Create { .. }))
    );
    let Some(NodeRouteState::Failed(why)) = state(&plan, "node-3") else { panic!("{plan:?}") };
    assert_eq!(why, "the router has the 2 routes that it takes at most");
}

#[test]
fn node_thirty_one_gets_a_clear_message_and_the_others_keep_their_routes() {
    let nodes: Vec<RoutedNode> = (1..=31).map(|n| if n <= 30 { allowed_node(n) } else { node(n) }).collect();
    let world = RouteWorld { limit: Some(30), ..world(nodes, (1..=30).map(|n| route(n, n)).collect()) };
    let plan = plan(&world, now());
    assert_eq!(plan.actions, []);
    assert!(matches!(state(&plan, "node-31"), Some(NodeRouteState::Failed(_))));
    assert_eq!(plan.nodes.iter().filter(|report| report.state == NodeRouteState::Created).count(), 30);
}

#[test]
fn what_a_node_lacks_is_said_of_it() {
    let lacking = |change: fn(&mut RoutedNode)| {
        let mut one = node(1);
        change(&mut one);
        state(&plan(&world(vec![one], vec![]), now()), "node-1")
    };
    assert_eq!(lacking(|node| node.range = None), None, "not yet");
    assert_eq!(lacking(|node| node.address = None), None, "not yet");
    assert_eq!(lacking(|node| node.address = Some("fd00::1".parse().unwrap())), None, "another family");
    let failed = |why: &str| Some(NodeRouteState::Failed(why.to_owned()));
    assert_eq!(lacking(|node| node.port = None), failed("no port with address 10.0.0.1 on a network of the router"));
    let elsewhere = |node: &mut RoutedNode| (node.port, node.in_cloud) = (None, false);
    assert_eq!(lacking(elsewhere), None, "a machine somewhere else");
    let outside = "10.9.0.0/24 is not in the cluster's range 100.100.0.0/16";
    assert_eq!(lacking(|node| node.range = Some("10.9.0.0/24".parse().unwrap())), failed(outside));
}

#[test]
fn an_entry_without_a_route_is_forgotten_once_nobody_wants_it() {
    let mut world = world(vec![allowed_node(1)], vec![route(1, 1)]);
    world.recorded = BTreeSet::from([route(1, 1), route(2, 2)]);
    assert_eq!(plan(&world, now()).actions, [RouteAction::Forget { routes: vec![route(2, 2)] }]);
    // A create that is under way, or was cut off, is repeated and not forgotten.
    world.nodes.push(node(2));
    assert_eq!(created(&plan(&world, now())), [route(2, 2)]);
}

#[test]
fn a_pair_goes_with_its_node_and_stays_while_the_port_is_unknown() {
    let pair = |n: u8| RecordedPair { port: format!("port-{n}"), range: format!("100.100.{n}.0/24") };
    let without_port = RoutedNode { port: None, ..node(3) };
    let mut world = world(vec![allowed_node(1), without_port], vec![route(1, 1), route(3, 3)]);
    world.recorded_pairs = BTreeSet::from([pair(1), pair(2), pair(3)]);
    assert_eq!(plan(&world, now()).actions, [RouteAction::Disallow { pair: pair(2) }]);
}

#[test]
fn a_broken_route_that_the_router_lists_is_nudged_and_one_that_is_missing_is_created() {
    let broken = RoutedNode { route_broken: true, ..allowed_node(1) };
    let nudge = RouteAction::Nudge { route: Route::new(nudge::DESTINATION, "10.0.0.1") };
    assert_eq!(plan(&world(vec![broken.clone()], vec![route(1, 1)]), now()).actions, [nudge]);
    let missing = plan(&world(vec![broken.clone()], vec![]), now());
    assert!(!missing.actions.iter().any(|action| matches!(action, RouteAction::Nudge { .. })));
    let recently = RouteWorld { last_nudge: Some(now()), ..world(vec![broken], vec![route(1, 1)]) };
    assert_eq!(plan(&recently, now()).actions, []);
}

/// What the router, the ports, the ledger and the ConfigMap are after a plan was carried out.
fn carry_out(world: &mut RouteWorld, plan: &RoutePlan) {
    for action in &plan.actions {
        match action {
            RouteAction::ListRanges { data } => world.listed = Some(data.clone()),
            RouteAction::Remove { routes } => {
                let gone: Vec<&Route> = routes.iter().map(|stale| &stale.route).collect();
                world.routes.retain(|route| !gone.contains(&route));
                world.recorded.retain(|route| !gone.contains(&route));
            }
            RouteAction::Forget { routes } => world.recorded.retain(|route| !routes.contains(route)),
            RouteAction::Disallow { pair } => _ = world.recorded_pairs.remove(pair),
            RouteAction::Create { routes } => {
                for create in routes {
                    if !create.on_router {
                        world.routes.push(create.route.clone());
                    }
                    world.recorded.insert(create.route.clone());
                    let range = create.route.destination.clone();
                    world.recorded_pairs.insert(RecordedPair { port: create.port.id.clone(), range: range.clone() });
                    let owner = world.nodes.iter_mut().find(|node| node.name == create.node).unwrap();
                    owner.port.as_mut().unwrap().allowed.push(range);
                }
            }
            RouteAction::Nudge { .. } => world.last_nudge = Some(now()),
        }
    }
}

prop_compose! {
    fn any_route()(kind in 0..10u8, range in 0..12u8, hop in 0..12u8) -> Route {
        match kind {
            0 => Route::new(format!("192.168.{range}.0/24"), format!("10.0.0.{hop}")),
            1 => Route::new("100.96.0.0/11", format!("10.0.0.{hop}")),
            2 => Route::new(format!("nonsense {range}"), format!("10.0.0.{hop}")),
            3 => Route::new(format!("100.100.{range}.0/24"), "nowhere"),
            _ => route(range, hop),
        }
    }
}

prop_compose! {
    fn any_world()(
        routes in prop::collection::btree_set(any_route(), 0..14),
        recorded in prop::collection::btree_set(any_route(), 0..6),
        nodes in prop::collection::btree_map(0..10u8, (any::<bool>(), any::<bool>()), 0..10),
        servers in prop::option::of(prop::collection::btree_set(0..12u8, 0..12)),
        spare in prop::option::of(0..6usize),
        is_listed in any::<bool>(),
    ) -> RouteWorld {
        let nodes = nodes.into_iter().map(|(n, (broken, has_port))| {
            let node = RoutedNode { route_broken: broken, ..node(n) };
            if has_port { node } else { RoutedNode { port: None, ..node } }
        });
        let routes: Vec<Route> = routes.into_iter().collect();
        let mut world = world(nodes.collect(), routes);
        world.recorded = recorded;
        let address = |n: u8| format!("10.0.0.{n}").parse().unwrap();
        world.server_addresses = servers.map(|all| all.into_iter().map(address).collect());
        world.limit = spare.map(|spare| world.routes.len() + spare);
        if !is_listed {
            world.listed = None;
        }
        world
    }
}

proptest! {
    #[test]
    fn plans_never_touch_routes_of_others(mut world in any_world()) {
        let is_ours = |route: &Route| world.recorded.contains(route) || {
            let leads_to_node = world.nodes.iter().any(|node| node.address == route.next_hop());
            let is_dead = world.server_addresses.as_ref().is_some_and(|all| route.next_hop().is_some_and(|hop| !all.contains(&hop)));
            route.is_within(&world.cluster) && (leads_to_node || is_dead)
        };
        let foreign: Vec<Route> = world.routes.iter().filter(|route| !is_ours(route)).cloned().collect();
        let plan = plan(&world, now());
        carry_out(&mut world, &plan);
        for route in foreign {
            prop_assert!(world.routes.contains(&route), "{route} is gone by {plan:?}");
        }
    }

    #[test]
    fn plans_never_exceed_the_limit_at_any_step(mut world in any_world()) {
        let Some(limit) = world.limit else { return Ok(()) };
        let plan = plan(&world, now());
        for action in plan.actions {
            carry_out(&mut world, &RoutePlan { actions: vec![action], ..RoutePlan::default() });
            prop_assert!(world.routes.len() <= limit, "{} of {limit}", world.routes.len());
        }
    }

    #[test]
    fn plans_converge_and_then_rest(mut world in any_world()) {
        let first = plan(&world, now());
        carry_out(&mut world, &first);
        let second = plan(&world, now());
        // What was settled only now may be nudged; nothing else is left.
        prop_assert!(second.actions.iter().all(|action| matches!(action, RouteAction::Nudge { .. })), "{second:?}");
        carry_out(&mut world, &second);
        prop_assert_eq!(plan(&world, now()).actions, vec![]);
        for node in &world.nodes {
            let route = node.wanted_route().unwrap();
            let is_reported = second.nodes.iter().any(|report| report.node == node.name && report.state == NodeRouteState::Created);
            prop_assert_eq!(is_reported, node.port.is_some() && world.routes.contains(&route));
        }
    }

    #[test]
    fn whatever_has_a_route_is_listed_all_along(mut world in any_world()) {
        let plan = plan(&world, now());
        for action in plan.actions {
            let is_list = matches!(action, RouteAction::ListRanges { .. });
            carry_out(&mut world, &RoutePlan { actions: vec![action], ..RoutePlan::default() });
            if is_list || world.listed.is_some() {
                let listed = world.listed.clone().unwrap_or_default();
                for key in range_routes::data(&world.routes, &world.cluster).keys() {
                    prop_assert!(listed.contains_key(key), "{key} is routed and not listed");
                }
            }
        }
    }
}
