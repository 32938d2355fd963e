//! Tables of single repairs, and properties of plans.

use proptest::prelude::*;

use super::*;

const ROLES: [&str; 2] = ["network_admin", "member"];

fn now() -> Timestamp {
    Timestamp::from_second(10_000_000).unwrap()
}

fn server(name: &str, minutes: i64) -> FlightServer {
    let pool = if name.contains("-large-") { "large" } else { "small" };
    FlightServer {
        id: format!("id-{name}"),
        name: name.to_owned(),
        state: MemberState::Running,
        vm_state: "active".to_owned(),
        task_state: String::new(),
        created: Some(now() - SignedDuration::from_mins(minutes)),
        security_groups: BTreeSet::from(["default".to_owned()]),
        tags: member_tags("kate", pool).into(),
        metadata: member_metadata("kate", pool),
    }
}

fn rule(protocol: &str) -> RuleView {
    RuleView {
        id: format!("rule-{protocol}"),
        is_ingress: true,
        is_ipv4: true,
        protocol: Some(protocol.to_owned()),
        remote_prefix: Some("100.100.0.0/16".to_owned()),
        ..RuleView::default()
    }
}

/// A Kluster that lacks nothing, with these servers, all of which are Nodes.
fn world(servers: Vec<FlightServer>) -> FlightWorld {
    let nodes = servers.iter().map(|server| server.name.clone()).collect();
    let pool = |name: &str| PoolView { name: name.to_owned(), size: 3, allow_reboot: true };
    FlightWorld {
        kluster: "kate".to_owned(),
        cluster_range: "100.100.0.0/16".to_owned(),
        security_group: "default".to_owned(),
        pools: vec![pool("small"), pool("large")],
        groups: Some(vec![GroupView { id: "g".to_owned(), rules: PROTOCOLS.map(rule).into() }]),
        servers: Some(servers),
        nodes: Some(nodes),
        is_pod_network_troubled: false,
        wanted_roles: ROLES.map(str::to_owned).into(),
        roles: Some(ROLES.map(str::to_owned).into()),
        last_touch: None,
    }
}

fn three() -> Vec<FlightServer> {
    ["aaaaa", "bbbbb", "ccccc"].map(|suffix| server(&format!("kks-kate-small-{suffix}"), 600)).into()
}

fn repairs(world: &FlightWorld) -> Vec<Repair> {
    plan(world, now()).repairs
}

#[test]
fn a_healthy_kluster_needs_nothing() {
    assert_eq!(plan(&world(three()), now()), FlightPlan::default());
}

#[test]
fn missing_rules_are_created_and_others_left_alone() {
    let mut empty = world(three());
    empty.groups = Some(vec![GroupView { id: "g".to_owned(), rules: vec![] }]);
    let created =
        |protocol| Repair::CreateRule { group: "g".to_owned(), protocol, prefix: "100.100.0.0/16".to_owned() };
    assert_eq!(repairs(&empty), PROTOCOLS.map(created));
    for change in [
        (|rule: &mut RuleView| rule.is_ingress = false) as fn(&mut RuleView),
        |rule| rule.is_ipv4 = false,
        |rule| rule.has_ports = true,
        |rule| rule.remote_prefix = Some("100.100.0.0/17".to_owned()),
        |rule| rule.remote_prefix = None,
        |rule| rule.protocol = None,
    ] {
        let mut one_off = world(three());
        change(&mut one_off.groups.as_mut().unwrap()[0].rules[1]);
        assert_eq!(repairs(&one_off), [created("udp")]);
    }
}

#[test]
fn a_group_that_is_not_one_is_said_and_nothing_is_created() {
    for count in [0, 2] {
        let mut ambiguous = world(three());
        ambiguous.groups = Some(vec![GroupView::default(); count]);
        ambiguous.is_pod_network_troubled = true;
        let name = "default".to_owned();
        let expected = FlightPlan { repairs: vec![], problems: vec![FlightProblem::SecurityGroup { name, count }] };
        assert_eq!(plan(&ambiguous, now()), expected);
    }
}

#[test]
fn running_servers_get_the_group_and_building_ones_do_not() {
    let mut servers = three();
    servers[0].security_groups.clear();
    (servers[1].security_groups, servers[1].state) = (BTreeSet::new(), MemberState::Starting);
    let mut foreign = server("kks-kate-small-aaaaab", 600);
    foreign.security_groups.clear();
    servers.push(foreign);
    let expected = ServerRef {
        id: "id-kks-kate-small-aaaaa".to_owned(),
        name: "kks-kate-small-aaaaa".to_owned(),
        pool: "small".to_owned(),
    };
    assert_eq!(repairs(&world(servers)), [Repair::AssignGroup { server: expected, group: "default".to_owned() }]);
}

/// What is done about one server of three that is no Node.
fn cure(minutes: i64, change: fn(&mut FlightWorld)) -> Vec<&'static str> {
    let mut servers = three();
    servers[0] = server("kks-kate-small-aaaaa", minutes);
    let mut world = world(servers);
    world.nodes.as_mut().unwrap().remove("kks-kate-small-aaaaa");
    change(&mut world);
    let label = |repair: &Repair| match repair {
        Repair::SoftReboot { .. } => "reboot",
        Repair::Delete { why: DeleteReason::NeverJoined { .. }, .. } => "replace",
        Repair::Delete { why: DeleteReason::Errored, .. } => "errored",
        _ => "other",
    };
    repairs(&world).iter().map(label).collect()
}

#[test]
fn a_server_that_never_joined_is_rebooted_and_then_replaced() {
    assert_eq!(cure(24, |_| {}), [""; 0]);
    assert_eq!(cure(26, |_| {}), ["reboot"]);
    assert_eq!(
        cure(44, |world| drop(
            world.servers.as_mut().unwrap()[0]
                .metadata
                .insert(REBOOTED_AT.to_owned(), (now() - SignedDuration::from_mins(18)).to_string())
        )),
        [""; 0],
        "rebooted already"
    );
    assert_eq!(cure(44, |world| world.pools[0].allow_reboot = false), [""; 0], "the pool forbids reboots");
    assert_eq!(cure(46, |_| {}), ["replace"]);
    assert_eq!(
        cure(46, |world| world.servers.as_mut().unwrap()[0].state = MemberState::Starting),
        ["replace"],
        "whatever its state"
    );
    assert_eq!(
        cure(46, |world| world.servers.as_mut().unwrap()[0].task_state = "deleting".to_owned()),
        [""; 0],
        "it goes already"
    );
    assert_eq!(
        cure(46_000, |world| _ = world.nodes.as_mut().unwrap().insert("kks-kate-small-aaaaa".to_owned())),
        [""; 0],
        "a Node of any age"
    );
    assert_eq!(cure(46, |world| world.nodes = None), [""; 0], "the Nodes are not known");
    assert_eq!(
        cure(46, |world| world.servers.as_mut().unwrap()[0].vm_state = "error".to_owned()),
        ["replace"],
        "once, not twice"
    );
}

#[test]
fn nothing_is_cured_while_most_of_a_pool_is_sick() {
    let mut sick = world(three());
    sick.nodes = Some(BTreeSet::from(["kks-kate-small-ccccc".to_owned()]));
    let problem = FlightProblem::MostOfPoolSick { pool: "small".to_owned(), sick: 2, members: 3 };
    assert_eq!(plan(&sick, now()), FlightPlan { repairs: vec![], problems: vec![problem] });
    // A pool of one is no crowd.
    let mut single = world(vec![server("kks-kate-small-aaaaa", 50)]);
    single.nodes = Some(BTreeSet::new());
    assert_eq!(repairs(&single).len(), 1);
}

#[test]
fn a_pools_budget_bounds_cures_and_the_oldest_is_first() {
    let name = |n: usize| format!("kks-kate-small-{n:05}");
    let servers: Vec<FlightServer> = (0..20).map(|n| server(&name(n), 50 + n as i64)).collect();
    let mut many = world(servers);
    (0..5).for_each(|n| _ = many.nodes.as_mut().unwrap().remove(&name(n)));
    let deleted: Vec<String> = repairs(&many).iter().filter_map(Repair::deleted_server).collect();
    assert_eq!(deleted, [format!("id-{}", name(4)), format!("id-{}", name(3))], "a tenth of twenty");
    for rebooted in 0..2 {
        let metadata = &mut many.servers.as_mut().unwrap()[rebooted].metadata;
        metadata.insert(REBOOTED_AT.to_owned(), now().to_string());
    }
    assert_eq!(repairs(&many), [], "two are being rebooted");
}

#[test]
fn errored_servers_are_deleted_unless_they_go_already() {
    let mut servers = three();
    servers[0].vm_state = "error".to_owned();
    (servers[1].vm_state, servers[1].task_state) = ("error".to_owned(), "deleting".to_owned());
    for server in &mut servers[..2] {
        server.state = MemberState::from_nova(&server.task_state, &server.vm_state, 0);
    }
    let deleted: Vec<Repair> = repairs(&world(servers));
    let [Repair::Delete { server, why: DeleteReason::Errored }] = &deleted[..] else { panic!("{deleted:?}") };
    assert_eq!(server.name, "kks-kate-small-aaaaa");
}

#[test]
fn missing_roles_are_assigned_if_the_user_is_known() {
    let mut without = world(three());
    without.roles = Some(BTreeSet::from(["Member".to_owned()]));
    assert_eq!(repairs(&without), [Repair::AssignRole { role: "network_admin".to_owned() }], "case does not matter");
    without.roles = None;
    assert_eq!(repairs(&without), []);
}

#[test]
fn missing_tags_and_metadata_are_restored_on_running_servers() {
    let mut servers = three();
    servers[0].tags.remove("kubernikus:nodepool=small");
    servers[1].metadata.insert("provisioner".to_owned(), "somebody".to_owned());
    (servers[2].tags, servers[2].state) = (BTreeSet::new(), MemberState::Starting);
    let done = repairs(&world(servers));
    let [Repair::RestoreTags { tags, .. }, Repair::RestoreMetadata { items, .. }] = &done[..] else {
        panic!("{done:?}")
    };
    assert_eq!(tags, &["kubernikus:nodepool=small"]);
    assert_eq!(items, &BTreeMap::from([("provisioner".to_owned(), "kubernikus".to_owned())]));
}

#[test]
fn the_group_is_touched_rarely_and_only_in_trouble() {
    let touched = |change: fn(&mut FlightWorld)| {
        let mut world = world(three());
        world.is_pod_network_troubled = true;
        change(&mut world);
        repairs(&world).contains(&Repair::TouchGroup { group: "g".to_owned() })
    };
    assert!(touched(|_| {}));
    assert!(!touched(|world| world.is_pod_network_troubled = false));
    assert!(!touched(|world| world.last_touch = Some(now() - SignedDuration::from_mins(9))));
    assert!(touched(|world| world.last_touch = Some(now() - SignedDuration::from_mins(10))));
    assert!(!touched(|world| drop(world.groups.as_mut().unwrap()[0].rules.pop())), "the missing rule is a change");
    let mut left_over = world(three());
    let rule = RuleView { id: "t".to_owned(), description: TOUCH_DESCRIPTION.to_owned(), ..RuleView::default() };
    left_over.groups.as_mut().unwrap()[0].rules.push(rule);
    assert_eq!(repairs(&left_over), [Repair::RemoveTouchRule { rule: "t".to_owned() }]);
}

#[test]
fn a_step_without_its_facts_does_nothing_and_the_others_go_on() {
    let mut servers = three();
    servers[0].tags.clear();
    let mut world = world(servers);
    (world.groups, world.nodes, world.roles) = (None, None, None);
    assert!(matches!(&repairs(&world)[..], [Repair::RestoreTags { .. }]));
    world.servers = None;
    world.roles = Some(BTreeSet::new());
    assert_eq!(repairs(&world), ROLES.map(|role| Repair::AssignRole { role: role.to_owned() }));
}

proptest! {
    #[test]
    fn cures_never_exceed_the_budget_nor_touch_joined_or_foreign_servers(
        ages in prop::collection::vec((0..120i64, any::<bool>(), any::<bool>()), 0..30),
    ) {
        let servers: Vec<FlightServer> = ages.iter().enumerate().map(|(n, (age, _, is_foreign))| {
            let kluster = if *is_foreign { "kate2" } else { "kate" };
            server(&format!("kks-{kluster}-small-{n:05}"), *age)
        }).collect();
        let mut world = world(servers.clone());
        for (server, (_, joined, _)) in servers.iter().zip(&ages) {
            if !joined {
                world.nodes.as_mut().unwrap().remove(&server.name);
            }
        }
        let members = servers.iter().filter(|server| is_member(&server.name, "kate", "small")).count();
        let cured: Vec<ServerRef> = repairs(&world).into_iter().filter_map(|repair| match repair {
            Repair::Delete { server, .. } | Repair::SoftReboot { server, .. } => Some(server),
            _ => None,
        }).collect();
        prop_assert!(cured.len() <= cure_budget(members.max(3)));
        for server in cured {
            prop_assert!(is_member(&server.name, "kate", "small"), "{}", server.name);
            prop_assert!(!world.nodes.as_ref().unwrap().contains(&server.name));
        }
    }
}
