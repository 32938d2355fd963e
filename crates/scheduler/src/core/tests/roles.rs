//! Pools of roles: who may take what, in which order, and what is said when it is not enough.

use proptest::prelude::*;
use serde_json::json;

use super::fixtures::{asking, cluster, node, offer, on, placed, pod, verdict};
use crate::core::{
    Cluster,
    verdict::Verdict,
    view::{OfferView, PodKey, PodView, PoolView, PortRanges, ResourceList},
};

fn cpu(millis: i64) -> ResourceList {
    [("cpu".to_owned(), millis)].into()
}

fn pool(role: &str, capacity: i64, free: i64, ports: &str) -> PoolView {
    let ports = PortRanges::parse_valid([ports]);
    PoolView {
        role: role.to_owned(),
        capacity: cpu(capacity),
        free: cpu(free),
        automatic_ports: ports.clone(),
        explicit_ports: ports,
    }
}

/// The row's machine: cpu(*) 0.5 and cpu(public) 2.
fn offered() -> OfferView {
    let free = [("cpu".to_owned(), 2500), ("pods".to_owned(), 10)].into();
    let pools = vec![pool("*", 500, 500, "31000-31001"), pool("public", 2000, 2000, "31100-31101")];
    OfferView { free, pools, ..offer(&machine()) }
}

fn machine() -> crate::core::view::NodeView {
    node("n1", json!({ "status": { "allocatable": { "cpu": "2500m", "memory": "0" } } }))
}

fn cluster_of_one_node() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.update_node(machine());
    cluster.update_offer("n1", offered());
    cluster
}

fn with_roles(mut own: PodView, roles: &str) -> PodView {
    let annotated: PodView = pod("x", json!({ "metadata": { "annotations": { "k8s.mesosphere.io/roles": roles } } }));
    let mut rules = crate::core::view::SchedulingRules::clone(&own.spec);
    rules.roles = annotated.spec.roles.clone();
    own.spec = crate::core::view::SchedulingSpec::new(rules);
    own
}

fn shares(cluster: &mut Cluster, pod: PodView) -> String {
    match verdict(cluster, pod) {
        Verdict::Place { shares, .. } => shares.text(),
        other => panic!("it fits: {other:?}"),
    }
}

#[test]
fn a_pod_mixes_roles_within_one_resource_in_its_order() {
    let asks = |roles| with_roles(asking("p", "2"), roles);
    assert_eq!(
        shares(&mut cluster_of_one_node(), asks("*,public")),
        r#"{"*":{"cpu":"500m"},"public":{"cpu":"1500m"}}"#
    );
    assert_eq!(shares(&mut cluster_of_one_node(), asks("public, *,public")), r#"{"public":{"cpu":"2"}}"#);
    assert_eq!(
        shares(&mut cluster_of_one_node(), asks("unknown,public")),
        r#"{"public":{"cpu":"2"}}"#,
        "unknown ones are dropped"
    );
    assert_eq!(shares(&mut cluster_of_one_node(), with_roles(asking("p", "0"), "*")), "{}");
    let mut plain = cluster([node("n1", json!({}))]);
    assert_eq!(shares(&mut plain, with_roles(asking("p", "2"), "public,*")), "{}", "nothing is reserved there");
}

#[test]
fn without_a_role_it_stays_pending_and_says_why() {
    assert_eq!(
        placed(&mut cluster_of_one_node(), with_roles(asking("p", "1"), "")),
        "0/1 nodes are available: the pod may use no role of any node. cannot ever fit: its annotation mainstay.dev/roles (or \
         k8s.mesosphere.io/roles) names no role; the rest of each node has the role *."
    );
    assert_eq!(
        placed(&mut cluster_of_one_node(), with_roles(asking("p", "1"), "batch,x")),
        "0/1 nodes are available: 1 node(s) had nothing for the roles that the pod may use. closest: n1 has nothing for the \
         roles batch, x; no node has anything for the roles batch, x: cannot fit until a node or the pod is changed."
    );
}

#[test]
fn what_a_pool_lacks_is_said_with_the_pool() {
    assert_eq!(
        placed(&mut cluster_of_one_node(), asking("p", "1")),
        "0/1 nodes are available: 1 Insufficient cpu. closest: n1 lacks 500m cpu: the role * has 500m cpu free; no node has \
         1 cpu (the largest has 500m cpu): cannot fit until a larger node joins.",
        "what is reserved for others is not the largest"
    );
    let mut busy = cluster_of_one_node();
    assert_eq!(placed(&mut busy, with_roles(asking("a", "1500m"), "public")), "n1");
    assert_eq!(
        placed(&mut busy, with_roles(asking("p", "1500m"), "*,public")),
        "0/1 nodes are available: 1 Insufficient cpu. closest: n1 lacks 500m cpu: the role * has 500m cpu, public has 500m cpu \
         free; would fit when pods leave."
    );
}

#[test]
fn pods_take_from_their_own_pools_until_these_are_empty() {
    let mut cluster = cluster_of_one_node();
    for (name, roles, fits) in
        [("a", "*", true), ("b", "*", false), ("c", "public", true), ("d", "public,*", true), ("e", "public,*", true)]
    {
        let placed = placed(&mut cluster, with_roles(asking(name, "500m"), roles));
        assert_eq!(placed == "n1", fits, "{name}: {placed}");
    }
    assert_eq!(placed(&mut cluster, with_roles(asking("f", "500m"), "public")), "n1");
    assert_ne!(placed(&mut cluster, with_roles(asking("g", "1m"), "public,*")), "n1");
    cluster.remove_pod(&PodKey::new("ns", "a"));
    assert_eq!(
        placed(&mut cluster, with_roles(asking("h", "500m"), "public,*")),
        "n1",
        "what a pod leaves is free again"
    );
}

#[test]
fn host_ports_come_from_the_ranges_of_the_roles_in_their_order() {
    let wild = |name: &str, roles: &str| {
        let ports = json!([{ "containerPort": 80 }, { "containerPort": 81 }, { "containerPort": 82 }]);
        let labels = json!({ "k8s.mesosphere.io/portMapping": "wildcard" });
        let pod = pod(
            name,
            json!({ "metadata": { "labels": labels }, "spec": { "containers": [{ "name": "c", "ports": ports }] } }),
        );
        with_roles(pod, roles)
    };
    let Verdict::Place { ports, .. } = verdict(&mut cluster_of_one_node(), wild("p", "public,*")) else {
        panic!("it fits")
    };
    let numbers: Vec<u16> = ports.iter().map(|port| port.host_port).collect();
    assert_eq!(numbers, [31_100, 31_101, 31_000]);
    assert!(placed(&mut cluster_of_one_node(), wild("p", "*")).contains("n1 has 2 of 3 automatic host ports free"));
    let explicit = |roles: &str| {
        let ports = json!([{ "containerPort": 80, "hostPort": 31_100 }]);
        with_roles(pod("p", json!({ "spec": { "containers": [{ "name": "c", "ports": ports }] } })), roles)
    };
    assert_eq!(placed(&mut cluster_of_one_node(), explicit("public")), "n1");
    assert!(
        placed(&mut cluster_of_one_node(), explicit("*"))
            .contains("host port 31100 lies outside 31000-31001 that n1 offers")
    );
}

#[test]
fn what_was_recorded_is_subtracted_from_its_pool_until_the_offer_knows_of_it() {
    let mut cluster = cluster_of_one_node();
    let record = json!({ "metadata": { "annotations": {
        "mainstay.dev/roles": "*,public", "mainstay.dev/role-resources": r#"{"public":{"cpu":"500m"}}"#,
    }, "resourceVersion": "9" }, "spec": { "containers": [super::fixtures::requests(json!({ "cpu": "500m" }))] } });
    cluster.update_pod(on("n1", pod("old", record)));
    assert_eq!(shares(&mut cluster, with_roles(asking("p", "500m"), "*")), r#"{"*":{"cpu":"500m"}}"#);
    assert_ne!(placed(&mut cluster, with_roles(asking("q", "1501m"), "public")), "n1");
    let known = OfferView {
        seen: 9,
        pools: vec![pool("*", 500, 500, "31000"), pool("public", 2000, 1500, "31100")],
        free: [("cpu".to_owned(), 2000), ("pods".to_owned(), 9)].into(),
        ..offered()
    };
    cluster.update_offer("n1", known);
    assert_eq!(placed(&mut cluster, with_roles(asking("r", "1500m"), "public")), "n1", "and not twice");
    assert_ne!(placed(&mut cluster, with_roles(asking("s", "100m"), "*")), "n1", "p is not in the offer yet");
}

#[test]
fn victims_are_those_who_hold_the_pool_that_is_lacking() {
    let mut cluster = cluster_of_one_node();
    for (name, roles, cpu) in [("rest", "*", "500m"), ("one", "public", "1"), ("two", "public", "1")] {
        assert_eq!(placed(&mut cluster, with_roles(asking(name, cpu), roles)), "n1");
    }
    let important = |name: &str, cpu: &str, roles: &str| {
        let spec = json!({ "priority": 10, "containers": [super::fixtures::requests(json!({ "cpu": cpu }))] });
        with_roles(pod(name, json!({ "spec": spec })), roles)
    };
    assert_eq!(placed(&mut cluster, important("p", "500m", "*")), "n1 without rest");
    let kept = placed(&mut cluster, important("q", "1", "public,*"));
    assert!(kept == "n1 without one" || kept == "n1 without two", "{kept}: what is kept for p is not taken");
    let never = placed(&mut cluster, important("r", "2500m", "public"));
    assert!(never.contains("the largest has 2 cpu"), "{never}");
}

#[derive(Clone, Debug)]
enum Event {
    Place { cpu: i64, roles: &'static str },
    Remove(usize),
    Offer,
}

fn event() -> impl Strategy<Value = Event> {
    let roles = prop::sample::select(vec!["*", "public", "*,public", "public,*", "batch", "batch,public"]);
    prop_oneof![
        5 => (0..8_i64, roles).prop_map(|(cpu, roles)| Event::Place { cpu: cpu * 100, roles }),
        2 => (0..8_usize).prop_map(Event::Remove),
        1 => Just(Event::Offer),
    ]
}

proptest! {
    /// Whatever comes and goes, and however often the node offers anew: no pool gives more than it has, every pod gets all that it
    /// asks for from its own roles, and a pod is turned away only if its pools together have too little.
    #[test]
    fn pools_give_what_they_have_and_no_more(events in prop::collection::vec(event(), 1..40)) {
        let mut cluster = cluster_of_one_node();
        let mut here: Vec<(PodKey, i64, &str, mainstay_api::roles::RoleShares)> = vec![];
        let capacity = [("*", 500), ("public", 2000)];
        let left = |here: &[(PodKey, i64, &str, mainstay_api::roles::RoleShares)], role: &str, all: i64| {
            all - here.iter().map(|(_, _, _, shares)| shares.amount(role, "cpu")).sum::<i64>()
        };
        for (nth, event) in events.into_iter().enumerate() {
            match event {
                Event::Place { cpu, roles } => {
                    let own = with_roles(asking(&format!("p{nth}"), &format!("{cpu}m")), roles);
                    let allowed = |role: &str| roles.split(',').any(|own| own == role);
                    let room: i64 = capacity.iter().filter(|(role, _)| allowed(role)).map(|(role, all)| left(&here, role, *all)).sum();
                    let has_slot = here.len() < 10 && (allowed("*") || allowed("public"));
                    match verdict(&mut cluster, own.clone()) {
                        Verdict::Place { shares, .. } => {
                            prop_assert!(has_slot && cpu <= room, "{cpu} of {room} for {roles}");
                            let taken: i64 = capacity.iter().map(|(role, _)| shares.amount(role, "cpu")).sum();
                            prop_assert_eq!(taken, cpu);
                            prop_assert!(capacity.iter().all(|(role, _)| allowed(role) || shares.amount(role, "cpu") == 0));
                            here.push((own.key.clone(), cpu, roles, shares));
                        }
                        _ => prop_assert!(!has_slot || cpu > room, "{cpu} of {room} for {roles}"),
                    }
                }
                Event::Remove(index) if index < here.len() => cluster.remove_pod(&here.remove(index).0),
                Event::Remove(_) => {}
                // None of the pods is bound yet, so the offer knows none of them.
                Event::Offer => drop(cluster.update_offer("n1", offered())),
            }
            for (role, all) in capacity {
                prop_assert!(left(&here, role, all) >= 0);
            }
        }
        let used: i64 = here.iter().map(|(_, cpu, _, _)| cpu).sum();
        prop_assert_eq!(cluster.free_resources("n1")["cpu"], 2500 - used);
    }
}
