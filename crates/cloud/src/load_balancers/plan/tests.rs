use serde_json::json;

use super::*;

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn service() -> ServiceView {
    ServiceView {
        version: "7".into(),
        uid: "u".into(),
        is_wanted: true,
        finalizers: vec![FINALIZER.into()],
        ports: vec![PortView { protocol: "TCP".into(), port: 80, node_port: 30080 }],
        ..ServiceView::default()
    }
}

fn pool(address: &str) -> PoolView {
    PoolView { id: "p".into(), has_monitor: true, members: [(address.to_owned(), 30080)].into() }
}

fn balancer(status: &str, pool: Option<PoolView>) -> BalancerView {
    let listener = ListenerView { id: "l".into(), protocol: "TCP".into(), port: 80, pool, ..ListenerView::default() };
    BalancerView {
        provisioning_status: status.into(),
        vip_address: "10.0.0.9".into(),
        vip_port: Some("vip".into()),
        listeners: vec![listener],
    }
}

fn world(balancer: Observed<BalancerView>) -> World {
    let nodes = [("n".to_owned(), "10.0.0.1".to_owned())].into();
    World { service: Some(service()), nodes, balancer, ..World::default() }
}

fn actions(world: &World) -> Vec<Action> {
    plan(world, now()).actions
}

#[test]
fn the_finalizer_comes_before_anything_in_the_cloud() {
    let mut world = world(Observed::Absent);
    world.service.as_mut().unwrap().finalizers = vec!["other".into()];
    let finalizers = vec!["other".to_owned(), FINALIZER.to_owned()];
    assert_eq!(actions(&world), [Action::SetFinalizers { version: "7".into(), finalizers }]);
}

#[test]
fn a_balancer_is_built_one_change_at_a_time() {
    assert_eq!(actions(&world(Observed::Absent)), [Action::EnsureBalancer]);
    assert_eq!(actions(&world(Observed::Intended)), [Action::EnsureBalancer]);
    let mut bare = balancer("ACTIVE", None);
    bare.listeners.clear();
    let create = Action::CreateListener { protocol: "TCP".into(), port: 80, allowed: BTreeSet::new() };
    assert_eq!(actions(&world(Observed::Present(bare))), [create]);
    let create = Action::CreatePool { listener: "l".into(), protocol: "TCP".into(), name: "tcp-80".into() };
    assert_eq!(actions(&world(Observed::Present(balancer("ACTIVE", None)))), [create]);
    let stale = world(Observed::Present(balancer("ACTIVE", Some(pool("10.0.0.2")))));
    let nodes = stale.nodes.clone();
    assert_eq!(actions(&stale), [Action::SetMembers { pool: "p".into(), port: 30080, nodes }]);
    let unwatched = PoolView { has_monitor: false, ..pool("10.0.0.1") };
    let monitor = Action::CreateMonitor { pool: "p".into(), protocol: "TCP".into() };
    assert_eq!(actions(&world(Observed::Present(balancer("ACTIVE", Some(unwatched))))), [monitor]);
}

#[test]
fn nothing_is_asked_of_a_balancer_that_is_being_changed() {
    for status in ["PENDING_CREATE", "PENDING_UPDATE", "PENDING_DELETE"] {
        let plan = plan(&world(Observed::Present(balancer(status, None))), now());
        assert!(plan.actions.is_empty() && plan.requeue_at == Some(now() + Pace::default().poll), "{status}");
    }
}

#[test]
fn a_balancer_in_error_is_removed_to_be_created_anew() {
    assert_eq!(actions(&world(Observed::Present(balancer("ERROR", None)))), [Action::RemoveBalancer]);
}

#[test]
fn what_the_cloud_does_not_show_is_forgotten_and_not_deleted() {
    assert_eq!(actions(&world(Observed::Lost)), [Action::ForgetBalancer]);
    let mut world = world(Observed::Present(balancer("ACTIVE", Some(pool("10.0.0.1")))));
    world.address = Observed::Lost;
    assert_eq!(actions(&world), [Action::ForgetAddress]);
}

#[test]
fn a_finished_balancer_shows_its_address_and_rests() {
    let mut world = world(Observed::Present(balancer("ACTIVE", Some(pool("10.0.0.1")))));
    let addresses = vec!["10.0.0.9".to_owned()];
    assert_eq!(plan(&world, now()).status, Some(IngressStatus { version: "7".into(), addresses: addresses.clone() }));
    world.service.as_mut().unwrap().ingress = addresses;
    let plan = plan(&world, now());
    assert!(plan.actions.is_empty() && plan.status.is_none());
    assert_eq!(plan.requeue_at, Some(now() + Pace::default().resync));
}

#[test]
fn an_external_network_gives_a_floating_ip_unless_the_service_is_internal() {
    let mut world = world(Observed::Present(balancer("ACTIVE", Some(pool("10.0.0.1")))));
    world.floating_network = Some("ext".into());
    assert_eq!(actions(&world), [Action::EnsureAddress { network: "ext".into(), port: "vip".into() }]);
    let address = AddressView { id: "f".into(), address: "203.0.113.7".into(), port: None };
    world.address = Observed::Present(address.clone());
    assert_eq!(actions(&world), [Action::AssociateAddress { id: "f".into(), port: "vip".into() }]);
    world.address = Observed::Present(AddressView { port: Some("vip".into()), ..address });
    assert_eq!(plan(&world, now()).status.unwrap().addresses, ["203.0.113.7"]);
    world.service.as_mut().unwrap().is_internal = true;
    assert_eq!(actions(&world), [Action::RemoveAddress]);
}

#[test]
fn ports_that_are_no_longer_wanted_go_first() {
    let mut world = world(Observed::Present(balancer("ACTIVE", Some(pool("10.0.0.1")))));
    world.service.as_mut().unwrap().ports[0].port = 81;
    assert_eq!(actions(&world), [Action::DeleteListener { id: "l".into() }]);
    world.service.as_mut().unwrap().ports[0].port = 80;
    world.service.as_mut().unwrap().source_ranges = Some(["10.0.0.0/8".to_owned()].into());
    let allowed = BTreeSet::from(["10.0.0.0/8".to_owned()]);
    assert_eq!(actions(&world), [Action::RestrictListener { id: "l".into(), allowed }]);
}

#[test]
fn a_service_goes_after_its_balancer_and_address() {
    let mut world = world(Observed::Present(balancer("ACTIVE", None)));
    world.address = Observed::Intended;
    let service = world.service.as_mut().unwrap();
    (service.is_wanted, service.is_deleting) = (false, true);
    assert_eq!(actions(&world), [Action::RemoveAddress, Action::RemoveBalancer]);
    (world.balancer, world.address) = (Observed::Absent, Observed::Absent);
    assert_eq!(actions(&world), [Action::SetFinalizers { version: "7".into(), finalizers: vec![] }]);
    world.service.as_mut().unwrap().finalizers.clear();
    assert_eq!(actions(&world), []);
}

#[test]
fn a_service_that_changed_its_type_loses_its_address_before_its_finalizer() {
    let mut world = world(Observed::Absent);
    let service = world.service.as_mut().unwrap();
    (service.is_wanted, service.ingress) = (false, vec!["10.0.0.9".into()]);
    let plan = plan(&world, now());
    assert_eq!(plan.status, Some(IngressStatus { version: "7".into(), addresses: vec![] }));
    assert!(plan.actions.is_empty());
}

#[test]
fn what_a_vanished_service_left_is_removed() {
    let mut world = world(Observed::Lost);
    world.service = None;
    world.stale_entries = vec!["loadbalancer-1".into()];
    assert_eq!(actions(&world), [Action::RemoveBalancer, Action::RemoveStale { entry: "loadbalancer-1".into() }]);
}

#[test]
fn members_are_ready_nodes_that_are_not_excluded() {
    let node = |name: &str, ready: &str, labels: serde_json::Value| -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": labels},
            "status": {"conditions": [{"type": "Ready", "status": ready}],
                       "addresses": [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": "10.0.0.1"}]},
        }))
        .unwrap()
    };
    let nodes = [
        node("good", "True", json!({})),
        node("sick", "Unknown", json!({})),
        node("excluded", "True", json!({EXCLUDED: ""})),
    ];
    assert_eq!(member_nodes(nodes.iter()), [("good".to_owned(), "10.0.0.1".to_owned())].into());
    assert_eq!(internal_address(&nodes[1]), Some("10.0.0.1"), "the subnet is known by silent nodes as well");
}
