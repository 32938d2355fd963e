//! Decides how the machines of a Kluster that is deleted go: after deorbit, volumes detached first, then routes and servers, then server groups.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use mainstay_api::cloud::{cloud_resource::ResourceType, teardown_receipt::ReceiptStatus};

use super::members::{MemberState, ServerView};
use crate::{deorbit::receipt::add_machine_item, openstack::network::RouterRoute};

/// How long volumes may take to detach; the server is deleted all the same afterwards, which detaches them.
pub const DETACH_LIMIT: SignedDuration = SignedDuration::from_mins(2);

#[derive(Clone, Debug, PartialEq)]
pub struct TerminationWorld {
    /// Servers of the Kluster's pools, and others of its ledger.
    pub servers: Vec<ServerView>,
    /// Routes of its router.
    pub routes: Vec<RouterRoute>,
    /// Routes that its ledger has, also by way of servers that are gone.
    pub recorded_routes: Vec<RouterRoute>,
    pub cluster_cidr: String,
    /// Ids and names of its server groups.
    pub groups: Vec<(String, String)>,
    /// Entries of its servers, groups, routes and address pairs in the ledger: one whose create had no answer may still become a server.
    pub entries_left: usize,
    /// The receipt so far.
    pub status: ReceiptStatus,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TerminationAction {
    Detach { server: String, volume: String },
    RemoveRoutes(Vec<RouterRoute>),
    Delete { id: String, name: String },
    DeleteGroup { id: String, name: String },
}

#[derive(Debug, PartialEq)]
pub struct TerminationPlan {
    pub actions: Vec<TerminationAction>,
    pub status: ReceiptStatus,
    /// The cloud was seen without all of it.
    pub is_over: bool,
}

pub fn plan(world: &TerminationWorld, now: Timestamp) -> TerminationPlan {
    let mut status = world.status.clone();
    let mut actions = Vec::new();
    let routes = find_routes(world);
    for route in &routes {
        let id = format!("{} via {}", route.destination, route.nexthop);
        add_machine_item(&mut status, ResourceType::Route, &id, "");
    }
    if !routes.is_empty() {
        actions.push(TerminationAction::RemoveRoutes(routes.clone()));
    }
    for server in &world.servers {
        let item = add_machine_item(&mut status, ResourceType::Server, &server.id, &server.name);
        let since = item.released.get_or_insert(Time(now)).0;
        item.message = format!("the cloud still has it: {:?}", server.state);
        let waits = !server.volumes.is_empty() && now.duration_since(since) < DETACH_LIMIT;
        if server.state == MemberState::Stopping {
            continue; // asked for already
        }
        if waits {
            let detach =
                |volume: &String| TerminationAction::Detach { server: server.id.clone(), volume: volume.clone() };
            actions.extend(server.volumes.iter().map(detach));
        } else {
            actions.push(TerminationAction::Delete { id: server.id.clone(), name: server.name.clone() });
        }
    }
    if world.servers.is_empty() {
        for (id, name) in &world.groups {
            add_machine_item(&mut status, ResourceType::ServerGroup, id, name);
            actions.push(TerminationAction::DeleteGroup { id: id.clone(), name: name.clone() });
        }
    }
    for item in &mut status.items {
        let is_there = match item.resource {
            ResourceType::Server => world.servers.iter().any(|server| server.id == item.id),
            ResourceType::ServerGroup => world.groups.iter().any(|(id, _)| *id == item.id),
            ResourceType::Route => {
                routes.iter().any(|route| item.id == format!("{} via {}", route.destination, route.nexthop))
            }
            _ => continue,
        };
        if is_there {
            item.gone = None;
        } else {
            item.gone.get_or_insert(Time(now));
            item.message.clear();
        }
    }
    let is_empty = world.servers.is_empty() && world.groups.is_empty() && routes.is_empty();
    let is_over = is_empty && world.entries_left == 0;
    if is_over {
        status.finished = Some(Time(now));
    }
    TerminationPlan { actions, status, is_over }
}

/// Routes to the Kluster's pods by way of its servers, also of those that are gone already.
fn find_routes(world: &TerminationWorld) -> Vec<RouterRoute> {
    let is_ours = |route: &&RouterRoute| {
        let by_server = world.servers.iter().any(|server| server.addresses.contains(&route.nexthop));
        let was_ours = world.status.items.iter().any(|item| {
            item.resource == ResourceType::Route && item.id == format!("{} via {}", route.destination, route.nexthop)
        });
        let in_range = contains_whole(&world.cluster_cidr, &route.destination);
        world.recorded_routes.contains(route) || ((by_server || was_ours) && in_range)
    };
    world.routes.iter().filter(is_ours).cloned().collect()
}

/// Whether the first and the last address of a range lie in another; not if one of them is no range.
fn contains_whole(outer: &str, inner: &str) -> bool {
    let range = |text: &str| text.parse::<ipnet::IpNet>().ok();
    matches!((range(outer), range(inner)), (Some(outer), Some(inner)) if outer.contains(&inner))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time_at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn server(id: &str, volumes: &[&str]) -> ServerView {
        ServerView {
            id: id.to_owned(),
            name: format!("kks-kate-small-{id}"),
            state: MemberState::Running,
            volumes: volumes.iter().map(|volume| (*volume).to_owned()).collect(),
            addresses: vec![format!("10.0.0.{}", id.len())],
        }
    }

    fn route(destination: &str, nexthop: &str) -> RouterRoute {
        RouterRoute { destination: destination.to_owned(), nexthop: nexthop.to_owned() }
    }

    fn world(servers: Vec<ServerView>) -> TerminationWorld {
        TerminationWorld {
            servers,
            routes: Vec::new(),
            recorded_routes: Vec::new(),
            cluster_cidr: "100.100.0.0/16".to_owned(),
            groups: Vec::new(),
            entries_left: 0,
            status: ReceiptStatus::default(),
        }
    }

    #[test]
    fn volumes_are_detached_before_their_server_is_deleted_but_not_for_ever() {
        let mut world = world(vec![server("a", &["v"])]);
        let detach = TerminationAction::Detach { server: "a".to_owned(), volume: "v".to_owned() };
        let delete = TerminationAction::Delete { id: "a".to_owned(), name: "kks-kate-small-a".to_owned() };
        let first = plan(&world, time_at(0));
        assert_eq!(first.actions, std::slice::from_ref(&detach));
        world.status = first.status;
        assert_eq!(plan(&world, time_at(119)).actions, [detach]);
        assert_eq!(plan(&world, time_at(120)).actions, std::slice::from_ref(&delete));
        world.servers[0].volumes.clear();
        assert_eq!(plan(&world, time_at(5)).actions, [delete]);
    }

    #[test]
    fn routes_by_way_of_its_servers_go_and_those_of_others_stay() {
        let mut world = world(vec![server("a", &[])]);
        world.routes = vec![
            route("100.100.1.0/24", "10.0.0.1"),
            route("100.100.2.0/24", "10.0.0.9"),
            route("192.168.0.0/24", "10.0.0.1"),
            route("100.0.0.0/8", "10.0.0.1"),
        ];
        let first = plan(&world, time_at(0));
        assert_eq!(first.actions[0], TerminationAction::RemoveRoutes(vec![route("100.100.1.0/24", "10.0.0.1")]));
        // The server is gone before its route was removed: the route is known from the receipt.
        world.status = first.status;
        world.servers.clear();
        let second = plan(&world, time_at(5));
        assert_eq!(second.actions, [TerminationAction::RemoveRoutes(vec![route("100.100.1.0/24", "10.0.0.1")])]);
        assert!(!second.is_over);
        world.status = second.status;
        world.routes.remove(0);
        let last = plan(&world, time_at(10));
        assert!(last.is_over && last.actions.is_empty());
        let gone: Vec<_> = last.status.items.iter().map(|item| (item.resource, item.gone.clone())).collect();
        assert_eq!(
            gone,
            [(ResourceType::Route, Some(Time(time_at(10)))), (ResourceType::Server, Some(Time(time_at(5))))]
        );
    }

    #[test]
    fn a_route_of_the_ledger_goes_although_its_server_is_gone() {
        let mut world = world(vec![]);
        world.routes = vec![route("100.100.7.0/24", "10.0.0.77"), route("100.100.8.0/24", "10.0.0.78")];
        world.recorded_routes = vec![route("100.100.7.0/24", "10.0.0.77"), route("100.100.9.0/24", "10.0.0.79")];
        world.entries_left = 2;
        let first = plan(&world, time_at(0));
        assert_eq!(first.actions, [TerminationAction::RemoveRoutes(vec![route("100.100.7.0/24", "10.0.0.77")])]);
        assert_eq!(first.status.items.len(), 1, "what is in the ledger alone is nothing in the cloud");
        assert!(!first.is_over);
    }

    #[test]
    fn server_groups_go_after_the_last_server_and_a_stopping_server_is_not_asked_twice() {
        let mut stopping = server("a", &[]);
        stopping.state = MemberState::Stopping;
        let mut world = world(vec![stopping]);
        world.groups = vec![("g".to_owned(), "kate/small".to_owned())];
        assert_eq!(plan(&world, time_at(0)).actions, []);
        world.servers.clear();
        let delete = TerminationAction::DeleteGroup { id: "g".to_owned(), name: "kate/small".to_owned() };
        assert_eq!(plan(&world, time_at(5)).actions, [delete]);
        assert!(!plan(&world, time_at(5)).is_over);
        world.groups.clear();
        world.entries_left = 1;
        assert!(!plan(&world, time_at(10)).is_over, "a create without an answer may still take effect");
        world.entries_left = 0;
        assert!(plan(&world, time_at(10)).is_over);
    }
}
