//! What becomes of pods.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;

use crate::cluster::{Cluster, cpu, until};

#[tokio::test]
async fn pods_are_spread_over_machines_and_told_to_them() {
    let cluster = Cluster::start().await;
    cluster.machine("a", "8").await;
    cluster.machine("b", "8").await;
    cluster.pod("first", json!({})).await;
    cluster.placed("first").await;
    futures::future::join_all((0..100).map(|n| {
        let cluster = &cluster;
        async move { cluster.pod(&format!("p{n}"), json!({})).await }
    }))
    .await;
    let all = || async { cluster.pods().list(&ListParams::default()).await.unwrap().items };
    until("all are placed", async || all().await.iter().all(|pod| pod.spec.as_ref().unwrap().node_name.is_some()))
        .await;
    let mut spread: BTreeMap<String, usize> = BTreeMap::new();
    for pod in all().await {
        *spread.entry(pod.spec.unwrap().node_name.unwrap()).or_default() += 1;
    }
    assert!(spread.values().all(|count| (40..=61).contains(count)), "{spread:?}");
    until("it is told", async || {
        let told = cluster.events("Scheduled").await;
        let told = told.iter().filter_map(|event| event.message.as_deref());
        told.filter(|message| message.starts_with("Successfully assigned default/")).count() == 101
    })
    .await;
    until("all is counted", async || cluster.metric("mainstay_scheduler_offers_used_total 101")).await;
    assert_eq!(cluster.debug("registry/tasks").await.lines().next(), Some("task_count=101"));
    cluster.stop().await;
}

#[tokio::test]
async fn a_pod_that_fits_nowhere_says_why_and_goes_as_soon_as_there_is_room() {
    let cluster = Cluster::start().await;
    cluster.pod("early", cpu("900m")).await;
    let (reason, message) = {
        cluster.complains("early", "no nodes available to schedule pods").await;
        cluster.complaint("early").await.unwrap()
    };
    assert_eq!(reason, "Unschedulable");
    assert!(message.contains("until a machine joins"), "{message}");
    cluster.machine("a", "1").await;
    assert_eq!(cluster.placed("early").await, "a");
    cluster.pod("late", cpu("900m")).await;
    let said = cluster.complains("late", "0/1 nodes are available: 1 Insufficient cpu.").await;
    assert!(said.contains("a lacks 800m cpu") && said.contains("when pods leave"), "{said}");
    cluster.pod("huge", cpu("64")).await;
    let said = cluster.complains("huge", "Insufficient cpu").await;
    assert!(said.contains("no machine has 64 cpu"), "{said}");
    until("it is told", async || cluster.events("FailedScheduling").await.len() >= 3).await;
    let begun = Instant::now();
    cluster.delete("early").await;
    assert_eq!(cluster.placed("late").await, "a");
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(cluster.complaint("late").await, None);
    cluster.stop().await;
}

#[tokio::test]
async fn room_is_never_given_twice() {
    let cluster = Cluster::start().await;
    cluster.machine("a", "1").await;
    let many = (0..10).map(|n| {
        let cluster = &cluster;
        async move { cluster.pod(&format!("p{n}"), cpu("400m")).await }
    });
    futures::future::join_all(many).await;
    until("everybody has an answer", async || {
        let mut answered = 0;
        for n in 0..10 {
            let name = format!("p{n}");
            let placed = cluster.where_is(&name).await.is_some();
            answered += usize::from(placed || cluster.complaint(&name).await.is_some());
        }
        answered == 10
    })
    .await;
    let api = cluster.pods();
    cluster.stop().await; // whatever was still being decided is decided
    let pods = api.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(pods.iter().filter(|pod| pod.spec.as_ref().unwrap().node_name.is_some()).count(), 2);
}

#[tokio::test]
async fn selectors_taints_and_cordons_are_explained_and_forgiven_at_once() {
    let cluster = Cluster::start().await;
    cluster.machine("a", "4").await;
    cluster.pod("picky", json!({ "nodeSelector": { "disk": "ssd" } })).await;
    cluster.complains("picky", "1 node(s) didn't match Pod's node affinity/selector").await;
    let label = json!({ "metadata": { "labels": { "disk": "ssd" } } });
    let begun = Instant::now();
    cluster.nodes().patch("a", &PatchParams::default(), &Patch::Merge(label)).await.unwrap();
    assert_eq!(cluster.placed("picky").await, "a");
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    let cordon = |off: bool| Patch::Merge(json!({ "spec": { "unschedulable": off } }));
    cluster.nodes().patch("a", &PatchParams::default(), &cordon(true)).await.unwrap();
    cluster.pod("shut-out", json!({})).await;
    cluster.complains("shut-out", "1 node(s) were unschedulable").await;
    cluster.nodes().patch("a", &PatchParams::default(), &cordon(false)).await.unwrap();
    assert_eq!(cluster.placed("shut-out").await, "a");
    cluster.stop().await;
}

#[tokio::test]
async fn gated_pods_say_so_and_go_when_the_gate_is_gone() {
    let cluster = Cluster::start().await;
    cluster.machine("a", "4").await;
    cluster.pod("gated", json!({ "schedulingGates": [{ "name": "wait" }] })).await;
    let gated = "SchedulingGated";
    until("it says so", async || cluster.complaint("gated").await.is_some_and(|(reason, _)| reason == gated)).await;
    let open = Patch::Merge(json!({ "spec": { "schedulingGates": [] } }));
    cluster.pods().patch("gated", &PatchParams::default(), &open).await.unwrap();
    assert_eq!(cluster.placed("gated").await, "a");
    cluster.stop().await;
}

#[tokio::test]
async fn on_machines_whose_pods_have_no_addresses_ports_are_given_unasked() {
    let cluster = Cluster::start().await;
    cluster.machine("a", "4").await;
    let by_port = Patch::Merge(json!({ "metadata": { "annotations": { "mainstay.dev/endpoints": "host-port" } } }));
    cluster.nodes().patch("a", &PatchParams::default(), &by_port).await.unwrap();
    let port = json!({ "containers": [{ "name": "c", "image": "i", "ports": [{ "containerPort": 80 }] }] });
    let label = |value: &str| json!({ "labels": { "k8s.mesosphere.io/portMapping": value } });
    for (name, meta) in [("fixed", label("fixed")), ("odd", label("often")), ("plain", json!({}))] {
        cluster.pod_with(name, meta, port.clone()).await;
        cluster.placed(name).await;
    }
    let given = async |name: &str| -> Option<String> {
        let notes = cluster.pods().get(name).await.unwrap().metadata.annotations.unwrap_or_default();
        notes.get("k8s.mesosphere.io/port_TCP_80").cloned()
    };
    let all = [given("fixed").await, given("odd").await, given("plain").await];
    assert_eq!(all, [None, Some("31000".to_owned()), Some("31001".to_owned())]);
    cluster.pod("one-more", port).await;
    cluster.complains("one-more", "node(s) didn't have enough automatic ports").await;
    cluster.stop().await;
}

#[tokio::test]
async fn automatic_host_ports_are_given_and_told() {
    let cluster = Cluster::start().await;
    cluster.machine("a", "4").await;
    let label = json!({ "labels": { "k8s.mesosphere.io/portMapping": "wildcard" } });
    let port =
        json!({ "containers": [{ "name": "c", "image": "i", "ports": [{ "name": "http", "containerPort": 80 }] }] });
    for name in ["one", "two", "three"] {
        cluster.pod_with(name, label.clone(), port.clone()).await;
    }
    cluster.complains("three", "node(s) didn't have enough automatic ports").await;
    let mut given = vec![];
    for name in ["one", "two"] {
        cluster.placed(name).await;
        let notes = cluster.pods().get(name).await.unwrap().metadata.annotations.unwrap();
        assert_eq!(notes["k8s.mesosphere.io/port_TCP_80"], notes["k8s.mesosphere.io/portName_TCP_http"]);
        given.push(notes["k8s.mesosphere.io/port_TCP_80"].clone());
    }
    given.sort();
    assert_eq!(given, ["31000", "31001"]);
    cluster.delete("one").await;
    assert_eq!(cluster.placed("three").await, "a");
    cluster.stop().await;
}

#[tokio::test]
async fn the_more_important_gets_the_place_of_the_less_important() {
    let cluster = Cluster::start().await;
    cluster.machine("a", "1").await;
    cluster.pod("low", cpu("1")).await;
    cluster.placed("low").await;
    let class = json!({ "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": { "name": "high" }, "value": 100 });
    let class: k8s_openapi::api::scheduling::v1::PriorityClass = serde_json::from_value(class).unwrap();
    kube::Api::all(cluster.client.clone()).create(&Default::default(), &class).await.unwrap();
    let mut spec = cpu("1");
    spec["priorityClassName"] = json!("high");
    cluster.pod("high", spec).await;
    // The agent of a real machine would end it; here its going is up to the test.
    until("the other has to go", async || match cluster.pods().get_opt("low").await.unwrap() {
        None => true,
        Some(low) => low.metadata.deletion_timestamp.is_some(),
    })
    .await;
    if let Some(low) = cluster.pods().get_opt("low").await.unwrap() {
        let conditions = low.status.unwrap().conditions.unwrap();
        let target = conditions.iter().find(|condition| condition.type_ == "DisruptionTarget").expect("it is told why");
        assert_eq!(target.reason.as_deref(), Some("PreemptionByScheduler"));
        let high = cluster.pods().get("high").await.unwrap();
        assert_eq!(high.status.unwrap().nominated_node_name.as_deref(), Some("a"));
        cluster.delete("low").await;
    }
    assert_eq!(cluster.placed("high").await, "a");
    until("it is told", async || !cluster.events("Preempted").await.is_empty()).await;
    cluster.stop().await;
}
