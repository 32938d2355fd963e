use super::*;

fn server(name: &str, state: MemberState) -> ServerView {
    ServerView {
        id: format!("id-{name}"),
        name: format!("kks-kate-small-{name}"),
        state,
        volumes: Vec::new(),
        addresses: Vec::new(),
    }
}

fn node(name: &str, unschedulable: bool) -> NodeView {
    NodeView { name: format!("kks-kate-small-{name}"), uid: format!("uid-{name}"), unschedulable, ready: true }
}

fn world(size: i32, servers: Vec<ServerView>) -> PoolWorld {
    PoolWorld {
        kluster: "kate".to_owned(),
        pool: PoolSpec { name: "small".to_owned(), size, ..PoolSpec::default() },
        servers,
        nodes: Some(Vec::new()),
        intended: Vec::new(),
        recorded: Vec::new(),
        is_removing: false,
        is_blocked: false,
    }
}

fn creates(plan: &PoolPlan) -> usize {
    plan.actions.iter().filter(|action| matches!(action, PoolAction::Create { .. })).count()
}

fn deleted(plan: &PoolPlan) -> Vec<&str> {
    fn deleted_id(action: &PoolAction) -> Option<&str> {
        match action {
            PoolAction::Delete { id, .. } => Some(id),
            _ => None,
        }
    }
    plan.actions.iter().filter_map(deleted_id).collect()
}

#[test]
fn needed_and_unneeded_count_running_and_starting_members_alone() {
    use MemberState::{Errored, Other, Running, Starting, Stopping};
    for (size, states, create, delete) in [
        (3, vec![], 3, 0),
        (3, vec![Running, Starting], 1, 0),
        (3, vec![Running, Stopping, Errored, Other], 2, 0),
        (1, vec![Running, Running, Starting], 0, 2),
        (0, vec![Running], 0, 1),
        (2, vec![Running, Running], 0, 0),
    ] {
        let servers = states.iter().enumerate().map(|(at, state)| server(&format!("aaaa{at}"), *state)).collect();
        let plan = plan(&world(size, servers));
        assert_eq!((creates(&plan), deleted(&plan).len()), (create, delete), "{size} {states:?}");
    }
}

#[test]
fn servers_of_others_are_not_counted() {
    let mut foreign = server("aaaaa", MemberState::Running);
    foreign.name = "kks-kate-small-2-aaaaa".to_owned();
    assert_eq!(creates(&plan(&world(1, vec![foreign]))), 1);
}

#[test]
fn a_shrinking_pool_gives_up_servers_without_a_node_then_cordoned_ones_then_others() {
    let servers = ["aaaa1", "aaaa2", "aaaa3", "aaaa4"].map(|name| server(name, MemberState::Running)).to_vec();
    let mut world = world(1, servers);
    world.nodes = Some(vec![node("aaaa1", false), node("aaaa2", true), node("aaaa4", false)]);
    assert_eq!(deleted(&plan(&world)), ["id-aaaa3", "id-aaaa2", "id-aaaa1"]);
    world.pool.size = 3;
    assert_eq!(deleted(&plan(&world)), ["id-aaaa3"]);
    world.nodes = None;
    assert_eq!(deleted(&plan(&world)), ["id-aaaa1"], "without Nodes, in the order of the list");
}

#[test]
fn three_to_one_with_one_cordoned_takes_the_cordoned_one_first() {
    let servers = ["aaaa1", "aaaa2", "aaaa3"].map(|name| server(name, MemberState::Running)).to_vec();
    let mut world = world(1, servers);
    world.nodes = Some(vec![node("aaaa1", false), node("aaaa2", false), node("aaaa3", true)]);
    assert_eq!(deleted(&plan(&world)), ["id-aaaa3", "id-aaaa1"]);
}

#[test]
fn an_errored_server_goes_along_and_a_stopping_one_is_not_asked_twice() {
    let servers = vec![
        server("aaaa1", MemberState::Errored),
        server("aaaa2", MemberState::Stopping),
        server("aaaa3", MemberState::Running),
        server("aaaa4", MemberState::Running),
    ];
    assert_eq!(deleted(&plan(&world(1, servers))), ["id-aaaa1", "id-aaaa3"]);
}

#[test]
fn what_was_meant_to_be_created_is_adopted_or_created_under_its_name() {
    let mut world = world(2, vec![server("aaaa1", MemberState::Starting)]);
    world.intended = vec!["kks-kate-small-aaaa1".to_owned(), "kks-kate-small-aaaa2".to_owned()];
    assert_eq!(
        plan(&world).actions,
        [
            PoolAction::Adopt { name: "kks-kate-small-aaaa1".to_owned(), id: "id-aaaa1".to_owned() },
            PoolAction::Create { name: Some("kks-kate-small-aaaa2".to_owned()) },
        ]
    );
    world.pool.size = 1;
    assert!(plan(&world).actions.contains(&PoolAction::Withdraw { name: "kks-kate-small-aaaa2".to_owned() }));
}

#[test]
fn a_blocked_pool_creates_nothing_and_deletes_all_the_same() {
    let mut blocked = world(3, vec![]);
    blocked.is_blocked = true;
    assert_eq!(plan(&blocked).actions, []);
    let mut shrinking = world(0, vec![server("aaaa1", MemberState::Running)]);
    shrinking.is_blocked = true;
    assert_eq!(deleted(&plan(&shrinking)).len(), 1);
}

#[test]
fn the_node_of_a_server_that_is_gone_is_removed_once_it_is_not_ready() {
    let mut world = world(0, vec![]);
    let mut stale = node("aaaa1", false);
    world.nodes = Some(vec![stale.clone()]);
    assert_eq!(plan(&world).actions, []);
    stale.ready = false;
    world.nodes = Some(vec![stale]);
    let remove = PoolAction::RemoveNode { name: "kks-kate-small-aaaa1".to_owned(), uid: "uid-aaaa1".to_owned() };
    assert_eq!(plan(&world).actions, [remove]);
}

#[test]
fn a_server_that_the_cloud_does_not_have_is_struck_from_the_ledger() {
    let mut world = world(1, vec![server("aaaa1", MemberState::Running)]);
    let entry = |name: &str| (format!("kks-kate-small-{name}"), format!("id-{name}"));
    world.recorded = vec![entry("aaaa1"), entry("aaaa2")];
    assert_eq!(plan(&world).actions, [PoolAction::RecordGone { name: "kks-kate-small-aaaa2".to_owned() }]);
}

#[test]
fn any_pool_that_changes_has_the_kluster_looked_at_soon() {
    let now = Timestamp::UNIX_EPOCH;
    let quiet = plan(&world(1, vec![server("aaaa1", MemberState::Running)]));
    let moving = plan(&world(1, vec![server("aaaa1", MemberState::Starting)]));
    assert!(!quiet.is_changing && moving.is_changing);
    assert_eq!(next_look(&[moving, quiet], now), now + SOON);
    let mut removing = world(0, vec![server("aaaa1", MemberState::Other)]);
    removing.is_removing = true;
    assert!(plan(&removing).is_changing, "Nova may still list it, as deleted");
    let quiet = plan(&world(0, vec![]));
    assert_eq!(next_look(&[quiet], now), now + RESYNC);
}

#[test]
fn the_status_counts_what_runs_what_is_ready_and_what_may_be_scheduled_to() {
    let servers = vec![server("aaaa1", MemberState::Running), server("aaaa2", MemberState::Starting)];
    let mut world = world(3, servers);
    let mut unready = node("aaaa2", true);
    unready.ready = false;
    world.nodes = Some(vec![node("aaaa1", false), unready]);
    let status = plan(&world).status;
    assert_eq!((status.size, status.running, status.healthy, status.schedulable), (3, 2, 1, 1));
}

mod convergence {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever there is: after the plan's own actions, the pool has its size, and a second plan does nothing.
        #[test]
        fn a_pool_reaches_its_size_and_then_rests(size in 0..6i32, states in prop::collection::vec(0..5u8, 0..8)) {
            let state = |number: &u8| match number {
                0 => MemberState::Starting,
                1 | 2 => MemberState::Running,
                3 => MemberState::Errored,
                _ => MemberState::Stopping,
            };
            let servers = states.iter().enumerate().map(|(at, number)| server(&format!("aaaa{at}"), state(number)));
            let mut world = world(size, servers.collect());
            let (mut next, first) = (0, plan(&world));
            for action in first.actions {
                match action {
                    PoolAction::Create { .. } => {
                        next += 1;
                        world.servers.push(server(&format!("bbbb{next}"), MemberState::Running));
                    }
                    PoolAction::Delete { id, .. } => world.servers.retain(|server| server.id != id),
                    other => prop_assert!(false, "{other:?}"),
                }
            }
            let counted = world.servers.iter().filter(|server| server.state.counts()).count();
            prop_assert_eq!(counted, usize::try_from(size).unwrap());
            prop_assert_eq!(plan(&world).actions, vec![]);
        }
    }
}
