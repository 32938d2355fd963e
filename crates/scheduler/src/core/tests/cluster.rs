//! What is taken to be where, and how much room that leaves.

use std::sync::Arc;

use serde_json::json;

use super::fixtures::{asking, cluster, node, offer, on, placed, pod};
use crate::core::{
    Cluster, schedule,
    verdict::{PendingPod, ScoringStrategy, Verdict},
    view::{OfferView, PodClaim, PodKey, PodView},
};

fn cluster_of_one_node() -> Cluster {
    cluster([node("n1", json!({}))])
}

fn key(name: &str) -> PodKey {
    PodKey::new("ns", name)
}

fn free(cluster: &Cluster) -> i64 {
    cluster.free_resources("n1")["cpu"]
}

fn offering(cpu: i64, seen: u64) -> OfferView {
    let mut offer = offer(&node("n1", json!({})));
    offer.free.insert("cpu".to_owned(), cpu);
    OfferView { seen, ..offer }
}

fn bound(name: &str, cpu: &str, version: u64) -> Arc<PodView> {
    on("n1", PodView { version, ..asking(name, cpu) })
}

#[test]
fn what_an_offer_does_not_know_of_yet_is_taken_off_and_nothing_twice() {
    let mut cluster = cluster_of_one_node();
    cluster.update_pod(bound("a", "1", 5));
    assert_eq!(free(&cluster), 3000, "bound after the offer was made");
    cluster.update_offer("n1", offering(3000, 5));
    assert_eq!(free(&cluster), 3000, "the offer knows of it");
    cluster.update_pod(bound("a", "1", 9));
    assert_eq!(free(&cluster), 3000, "it was not bound again");
    cluster.remove_pod(&key("a"));
    assert_eq!(free(&cluster), 3000, "the node will say when the room is free");
    cluster.update_offer("n1", offering(4000, 9));
    cluster.update_pod(bound("b", "1", 12));
    cluster.remove_pod(&key("b"));
    assert_eq!(free(&cluster), 4000, "the node never knew of it");
}

#[test]
fn an_assumed_pod_holds_its_room_until_it_is_known_or_forgotten() {
    let mut cluster = cluster_of_one_node();
    assert_eq!(placed(&mut cluster, asking("a", "1")), "n1");
    assert_eq!((free(&cluster), cluster.node_of_pod(&key("a"))), (3000, Some("n1")));
    cluster.update_pod(Arc::new(asking("a", "1")));
    assert_eq!(free(&cluster), 3000, "seen as it was before it was placed");
    cluster.update_offer("n1", offering(3000, 7));
    assert_eq!(free(&cluster), 2000, "whether the offer knows of it cannot be told");
    cluster.confirm(&key("a"), 7);
    assert_eq!(free(&cluster), 3000, "now it can");
    assert_eq!(placed(&mut cluster, asking("b", "1")), "n1");
    cluster.forget(&key("b"));
    assert_eq!(free(&cluster), 3000);
    assert_eq!(placed(&mut cluster, asking("c", "1")), "n1");
    assert_eq!(placed(&mut cluster, asking("c", "1")), "n1", "asked again, it is where it is");
    assert_eq!(free(&cluster), 2000);
}

#[test]
fn a_pod_given_back_is_no_longer_there_but_old_news_of_it_changes_nothing() {
    let mut cluster = cluster_of_one_node();
    assert_eq!(placed(&mut cluster, asking("a", "1")), "n1");
    cluster.confirm(&key("a"), 7);
    cluster.update_pod(Arc::new(PodView { version: 6, ..asking("a", "1") }));
    assert_eq!(cluster.node_of_pod(&key("a")), Some("n1"), "older than the binding");
    cluster.update_pod(Arc::new(PodView { version: 8, ..asking("a", "1") }));
    assert_eq!((cluster.node_of_pod(&key("a")), free(&cluster)), (None, 4000));
    let again = PodView { uid: "another".to_owned(), ..asking("b", "2") };
    cluster.update_pod(bound("b", "1", 9));
    cluster.update_pod(Arc::new(again));
    assert_eq!(cluster.node_of_pod(&key("b")), None, "the name belongs to another pod now");
    let finished = PodView { finished: true, ..PodView::clone(&bound("c", "1", 10)) };
    cluster.update_pod(bound("c", "1", 10));
    cluster.update_pod(Arc::new(finished));
    assert_eq!(free(&cluster), 4000, "what ended holds nothing");
}

#[test]
fn news_may_come_in_any_order() {
    let mut cluster = Cluster::new();
    cluster.update_pod(bound("a", "1", 5));
    cluster.update_offer("n1", offering(4000, 0));
    let output = placed(&mut cluster, asking("b", "1"));
    assert!(output.starts_with("no nodes available"), "an offer alone is no node: {output}");
    cluster.update_node(node("n1", json!({})));
    assert_eq!(free(&cluster), 3000);
    assert_eq!(placed(&mut cluster, asking("b", "3")), "n1");
    cluster.remove_node("n1");
    assert!(placed(&mut cluster, asking("c", "1")).starts_with("no nodes available"));
    assert_eq!(cluster.pods_on("n1").count(), 2);
}

#[test]
fn an_offer_says_whether_it_is_any_different() {
    let mut cluster = cluster_of_one_node();
    assert!(!cluster.update_offer("n1", offering(4000, 0)));
    assert!(!cluster.update_offer("n1", offering(4000, 3)), "only newer");
    assert!(cluster.update_offer("n1", offering(3999, 3)));
    assert!(!cluster.update_node(node("n1", json!({}))));
    assert!(cluster.update_node(node("n1", json!({ "spec": { "unschedulable": true } }))));
}

#[test]
fn a_machine_that_refused_is_left_out() {
    let mut cluster = cluster([node("n1", json!({})), node("n2", json!({}))]);
    let mut ask = |name: &str, refused: &[&str]| {
        let refused = refused.iter().map(|name| (*name).to_owned()).collect();
        schedule(&mut cluster, &[PendingPod { pod: Arc::new(asking(name, "1")), refused }], ScoringStrategy::default())
            .remove(0)
    };
    let Verdict::Place { node, .. } = ask("a", &["n1", "unknown"]) else { panic!("n2 is left") };
    assert_eq!(&*node, "n2");
    let Verdict::Unschedulable(why) = ask("b", &["n1", "n2"]) else { panic!("none is left") };
    assert_eq!(
        why.to_string(),
        "0/2 nodes are available: 2 node(s) refused the pod. closest: n1 refused it a moment ago; the node will be \
         tried again."
    );
}

#[test]
fn machines_are_filled_evenly_or_one_after_the_other() {
    let six = |strategy| {
        let mut cluster = cluster((1..=3).map(|at| node(&format!("n{at}"), json!({}))));
        let pods: Vec<PendingPod> =
            (0..6).map(|nth| PendingPod::new(Arc::new(asking(&format!("p{nth}"), "1")))).collect();
        let verdicts = schedule(&mut cluster, &pods, strategy);
        let node = |verdict: &Verdict| match verdict {
            Verdict::Place { node, .. } => node.to_string(),
            Verdict::Preempt { .. } | Verdict::Unschedulable(_) => String::new(),
        };
        verdicts.iter().map(node).collect::<Vec<String>>()
    };
    assert_eq!(six(ScoringStrategy::LeastAllocated), ["n1", "n2", "n3", "n1", "n2", "n3"]);
    assert_eq!(six(ScoringStrategy::MostAllocated), ["n1", "n1", "n1", "n1", "n2", "n2"]);
}

#[test]
fn pods_that_could_use_a_node_are_found() {
    let ssd = |labels| node("n1", json!({ "metadata": { "labels": labels } }));
    let mut cluster = cluster([ssd(json!({}))]);
    let picky = pod("p", json!({ "spec": { "nodeSelector": { "disk": "ssd" } } }));
    assert!(!cluster.could_schedule_on("n1", &picky));
    cluster.update_node(ssd(json!({ "disk": "ssd" })));
    assert!(cluster.could_schedule_on("n1", &picky));
    assert!(!cluster.could_schedule_on("n2", &picky));
    let full = PodView { nominated_node: Some("n1".to_owned()), ..asking("full", "4") };
    cluster.update_pod(Arc::new(full.clone()));
    assert!(cluster.could_schedule_on("n1", &full), "what is kept for it does not keep it away");
    assert!(!cluster.could_schedule_on("n1", &asking("other", "1")), "but others");
}

#[test]
fn a_gated_pod_waits() {
    let output =
        placed(&mut cluster_of_one_node(), PodView { gates: vec!["example.com/quota".to_owned()], ..asking("a", "1") });
    assert!(output.starts_with("0/1 nodes are available: scheduling is gated by example.com/quota."), "{output}");
}

#[test]
fn a_pod_that_claims_devices_is_not_placed_without_them() {
    let mut cluster = cluster_of_one_node();
    cluster.devices.is_listed = true;
    let claims = vec![PodClaim::NotCreated { name: "gpu".to_owned() }];
    let output = placed(&mut cluster, PodView { resource_claims: claims, ..asking("a", "1") });
    let expected = "0/1 nodes are available: pod claim \"gpu\": ResourceClaim not created yet.";
    assert!(output.starts_with(expected), "{output}");
}

#[test]
fn what_nobody_uses_is_forgotten() {
    let mut cluster = cluster_of_one_node();
    cluster.update_pod(bound("stays", "1", 1));
    for nth in 0..3000 {
        let mut odd = asking("odd", &format!("{nth}m"));
        odd.node = Some("n1".to_owned());
        cluster.update_pod(Arc::new(odd));
    }
    cluster.remove_pod(&key("odd"));
    assert!(cluster.classes.len() > 2000);
    assert_eq!(placed(&mut cluster, asking("a", "3")), "n1");
    assert!(cluster.classes.len() < 10);
    assert_eq!((free(&cluster), cluster.pods_on("n1").count()), (0, 2));
}
