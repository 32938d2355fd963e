//! Who leaves for whom.

use serde_json::{Value, json};

use super::fixtures::{cluster, node, on, placed, pod, requests, verdict};
use crate::core::{
    Cluster,
    verdict::Verdict,
    view::{BudgetView, PodKey, PodView, Requirement, Selector},
};

fn important(name: &str, priority: i32, cpu: &str) -> PodView {
    let spec = json!({ "priority": priority, "containers": [requests(json!({ "cpu": cpu }))] });
    pod(name, json!({ "metadata": { "labels": { "app": name } }, "spec": spec }))
}

fn full(pods: &[(&str, &str, i32, &str)]) -> Cluster {
    let mut names: Vec<&str> = pods.iter().map(|(node, ..)| *node).collect();
    names.dedup();
    let mut cluster = cluster(names.iter().map(|name| node(name, json!({}))));
    for (node, name, priority, cpu) in pods {
        cluster.update_pod(on(node, important(name, *priority, cpu)));
    }
    cluster
}

fn budget(app: &str, allowed: i32) -> BudgetView {
    let selector = Some(Selector(vec![Requirement::equal("app", app)]));
    let (namespace, name) = ("ns".to_owned(), app.to_owned());
    BudgetView { namespace, name, selector, disruptions_allowed: allowed, disrupted: vec![] }
}

#[test]
fn as_few_and_as_unimportant_pods_leave_as_possible() {
    let mut one = full(&[("n1", "a", 1, "1"), ("n1", "b", 2, "2"), ("n1", "c", 3, "1")]);
    assert_eq!(placed(&mut one, important("new", 10, "1")), "n1 without a");
    let mut one = full(&[("n1", "a", 1, "1"), ("n1", "b", 2, "2"), ("n1", "c", 3, "1")]);
    assert_eq!(placed(&mut one, important("new", 10, "2")), "n1 without b", "b alone is enough, and a stays");
    let mut two = full(&[("n1", "a", 5, "4"), ("n2", "b", 4, "2"), ("n2", "c", 4, "2")]);
    assert_eq!(placed(&mut two, important("new", 10, "4")), "n2 without b c", "lower priority before fewer");
    let mut two = full(&[("n1", "a", 4, "2"), ("n1", "b", 4, "2"), ("n2", "c", 4, "4")]);
    assert_eq!(placed(&mut two, important("new", 10, "4")), "n2 without c", "fewer if equally important");
}

#[test]
fn nobody_leaves_for_an_equal_or_for_a_pod_that_asks_nobody_to() {
    let mut one = full(&[("n1", "a", 5, "4")]);
    assert!(placed(&mut one, important("equal", 5, "1")).contains("1 Insufficient cpu. closest"));
    assert!(placed(&mut one, important("lower", 4, "1")).contains("1 Insufficient cpu. closest"));
    let spec = json!({ "priority": 9, "preemptionPolicy": "Never", "containers": [requests(json!({ "cpu": "1" }))] });
    let output = placed(&mut one, pod("polite", json!({ "spec": spec })));
    assert!(output.contains("preemption: not eligible due to preemptionPolicy=Never."), "{output}");
    let output = placed(&mut one, important("huge", 9, "5"));
    assert!(output.contains("preemption: No preemption victims found for incoming pod."), "{output}");
}

#[test]
fn budgets_are_kept_where_there_is_a_choice() {
    let pods = [("n1", "a", 1, "4"), ("n2", "b", 2, "4")];
    let mut free = full(&pods);
    assert_eq!(placed(&mut free, important("new", 9, "1")), "n1 without a");
    let mut guarded = full(&pods);
    guarded.update_budget(budget("a", 0));
    assert_eq!(placed(&mut guarded, important("new", 9, "1")), "n2 without b");
    let mut both = full(&pods);
    both.update_budget(budget("a", 0));
    both.update_budget(budget("b", 0));
    let Verdict::Preempt { node, victims, .. } = verdict(&mut both, important("new", 9, "1")) else { panic!() };
    assert_eq!((&*node, victims[0].violates_budget), ("n1", true), "without a choice, the least important");
    let mut inside = full(&[("n1", "a", 1, "2"), ("n1", "b", 1, "2")]);
    inside.update_budget(budget("a", 0));
    assert_eq!(placed(&mut inside, important("new", 9, "1")), "n1 without b");
    inside.remove_budget("ns", "a");
}

#[test]
fn room_being_made_is_kept_for_whom_it_is_made() {
    let mut one = full(&[("n1", "a", 1, "4")]);
    assert_eq!(placed(&mut one, important("first", 9, "4")), "n1 without a");
    let output = placed(&mut one, important("first", 9, "4"));
    assert!(output.contains("a terminating pod on the nominated node"), "it waits: {output}");
    assert!(output.ends_with("waits for the deletion of preempted pods."), "{output}");
    assert!(placed(&mut one, important("equal", 9, "4")).contains("1 Insufficient cpu"));
    one.remove_pod(&PodKey::new("ns", "a"));
    let offer = super::fixtures::offer(&node("n1", json!({})));
    one.update_offer("n1", offer);
    assert!(placed(&mut one, important("sneak", 8, "1")).contains("1 Insufficient cpu"), "the room is kept");
    assert_eq!(placed(&mut one, important("first", 9, "4")), "n1");
}

#[test]
fn pods_leaving_anyway_are_waited_for_before_others_are_asked() {
    let mut one = full(&[("n1", "a", 1, "2"), ("n1", "b", 1, "2")]);
    let mut leaving = important("b", 1, "2");
    leaving.terminating = true;
    one.update_pod(on("n1", leaving));
    assert_eq!(placed(&mut one, important("new", 9, "2")), "n1 without ", "b is enough and already going");
}

#[test]
fn a_victim_that_stays_after_all_is_not_waited_for() {
    let mut one = full(&[("n1", "a", 1, "4")]);
    assert_eq!(placed(&mut one, important("new", 9, "4")), "n1 without a");
    one.unmark_victim(&PodKey::new("ns", "a"));
    assert_eq!(placed(&mut one, important("new", 9, "4")), "n1 without a", "it is asked again");
}

#[test]
fn ports_and_neighbours_can_be_made_to_leave_too() {
    let port = |name: &str, priority: i32| {
        let ports = json!([{ "containerPort": 1, "hostPort": 80 }]);
        pod(name, json!({ "spec": { "priority": priority, "containers": [{ "name": "c", "ports": ports }] } }))
    };
    let mut held = cluster([node("n1", json!({}))]);
    held.update_pod(on("n1", port("a", 1)));
    held.update_pod(on("n1", important("bystander", 0, "1")));
    assert_eq!(placed(&mut held, port("new", 9)), "n1 without a");
    let alone = |app: &str| {
        let term =
            json!({ "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "app": app } } });
        json!({ "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [term] } })
    };
    let hermit = |affinity: Value| {
        pod(
            "hermit",
            json!({ "metadata": { "labels": { "app": "hermit" } }, "spec": { "priority": 9, "affinity": affinity } }),
        )
    };
    let mut shared = full(&[("n1", "a", 1, "1"), ("n1", "b", 1, "1")]);
    assert_eq!(placed(&mut shared, hermit(alone("b"))), "n1 without b");
    let mut guarded = cluster([node("n1", json!({}))]);
    let guard =
        json!({ "metadata": { "labels": { "app": "g" } }, "spec": { "priority": 1, "affinity": alone("hermit") } });
    guarded.update_pod(on("n1", pod("guard", guard)));
    assert_eq!(placed(&mut guarded, hermit(json!({}))), "n1 without guard");
}

#[test]
fn two_that_want_the_same_room_do_not_drive_each_other_out() {
    let mut one = full(&[("n1", "a", 5, "4")]);
    for round in 0..4 {
        let output = placed(&mut one, important("b", 5, "4"));
        assert!(output.contains("Insufficient cpu"), "round {round}: {output}");
    }
    assert_eq!(placed(&mut one, important("c", 6, "4")), "n1 without a");
    one.forget(&PodKey::new("ns", "a"));
    one.update_offer("n1", super::fixtures::offer(&node("n1", json!({}))));
    assert_eq!(placed(&mut one, important("c", 6, "4")), "n1");
    assert!(placed(&mut one, important("a", 5, "4")).contains("1 Insufficient cpu"), "the weaker waits");
}

#[test]
fn a_machine_that_cannot_be_right_is_not_emptied() {
    let mut one = full(&[("n1", "a", 1, "4")]);
    let mut picky = important("new", 9, "4");
    picky = picky.with_volumes(vec![vec![]]);
    assert!(matches!(verdict(&mut one, picky), Verdict::Unschedulable(_)));
}

/// Three pods of half a cpu on a node of two, all counted by its offer.
fn three_small() -> Cluster {
    let object = node("n1", json!({ "status": { "allocatable": { "cpu": "1900m", "memory": "8Gi", "pods": "10" } } }));
    let mut one = cluster([object.clone()]);
    for name in ["a", "b", "c"] {
        one.update_pod(on("n1", important(name, 1, "500m")));
    }
    one.update_offer("n1", offer_of(&object, 400, 1));
    one
}

fn offer_of(node: &crate::core::view::NodeView, free_milli: i64, seen: u64) -> crate::core::view::OfferView {
    let mut offer = super::fixtures::offer(node);
    let (cpu, pods) = (offer.free["cpu"], offer.free["pods"]);
    offer.free.insert("cpu".to_owned(), cpu * free_milli / 1900);
    offer.free.insert("pods".to_owned(), pods - (1900 - free_milli) / 500);
    crate::core::view::OfferView { seen, ..offer }
}

#[test]
fn a_victim_that_ended_and_is_still_in_the_offer_is_waited_for() {
    let high = || important("high", 9, "600m");
    for deleted in [false, true] {
        let mut one = three_small();
        assert_eq!(placed(&mut one, high()), "n1 without c");
        let mut victim = important("c", 1, "500m");
        (victim.terminating, victim.version) = (true, 5);
        one.update_pod(on("n1", victim.clone()));
        assert!(placed(&mut one, high()).contains("1 Insufficient cpu"), "it waits for what terminates");
        if deleted {
            one.remove_pod(&PodKey::new("ns", "c"));
        } else {
            (victim.finished, victim.version) = (true, 6);
            one.update_pod(on("n1", victim));
        }
        let waits = placed(&mut one, high());
        assert!(waits.contains("1 Insufficient cpu"), "no second victim before the node offers anew: {waits}");
        let other = placed(&mut one, important("other", 9, "600m"));
        assert_eq!(other, "n1 without b", "the room is meant for the first");
        one.unmark_victim(&PodKey::new("ns", "b"));
        one.remove_pod(&PodKey::new("ns", "other"));
        let object = one.nodes().next().unwrap().clone();
        one.update_offer("n1", offer_of(&object, 900, 6));
        assert_eq!(placed(&mut one, high()), "n1");
        assert!(!one.has_ended_pods());
    }
}

#[test]
fn room_that_never_appears_is_not_waited_for_for_ever() {
    let mut one = three_small();
    assert_eq!(placed(&mut one, important("high", 9, "600m")), "n1 without c");
    one.remove_pod(&PodKey::new("ns", "c"));
    assert!(one.age_ended_pods().is_empty());
    assert!(placed(&mut one, important("high", 9, "600m")).contains("1 Insufficient cpu"));
    assert_eq!(one.age_ended_pods().len(), 1);
    assert_eq!(placed(&mut one, important("high", 9, "600m")), "n1 without b");
}
