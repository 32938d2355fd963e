//! What becomes of pods.

use std::{collections::BTreeMap, time::Duration};

use kube::api::{ListParams, Patch, PatchParams};
use mainstay_backoff::Backoff;
use mainstay_scheduler::Settings;
use serde_json::json;

use crate::cluster::{Cluster, cpu, until};

#[tokio::test]
pub async fn pods_are_spread_over_nodes_with_events() {
    let cluster = Cluster::start().await;
    cluster.node("a", "8").await;
    cluster.node("b", "8").await;
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
        let reported = cluster.events("Scheduled").await;
        let reported = reported.iter().filter_map(|event| event.message.as_deref());
        reported.filter(|message| message.starts_with("Successfully assigned default/")).count() == 101
    })
    .await;
    until("all is counted", async || cluster.metric("mainstay_scheduler_offers_used_total 101")).await;
    assert_eq!(cluster.debug("registry/tasks").await.lines().next(), Some("task_count=101"));
    cluster.stop().await;
}

/// Backoffs longer than any test: only a queueing hint makes an unschedulable pod active.
fn without_retries() -> Settings {
    let hour = Duration::from_secs(3600);
    Settings { backoff: Backoff::new(hour, hour, 0.0), ..Settings::default() }
}

#[tokio::test]
pub async fn an_unschedulable_pod_says_why_and_is_bound_as_soon_as_resources_are_free() {
    let cluster = Cluster::with(without_retries()).await;
    cluster.pod("early", cpu("900m")).await;
    let (reason, message) = {
        cluster.wait_until_unschedulable("early", "no nodes available to schedule pods").await;
        cluster.unscheduled_condition("early").await.unwrap()
    };
    assert_eq!(reason, "Unschedulable");
    assert!(message.contains("until a node joins"), "{message}");
    cluster.node("a", "1").await;
    assert_eq!(cluster.placed("early").await, "a");
    cluster.pod("late", cpu("900m")).await;
    let output = cluster.wait_until_unschedulable("late", "0/1 nodes are available: 1 Insufficient cpu.").await;
    assert!(output.contains("a lacks 800m cpu") && output.contains("when pods leave"), "{output}");
    cluster.pod("huge", cpu("64")).await;
    let output = cluster.wait_until_unschedulable("huge", "Insufficient cpu").await;
    assert!(output.contains("no node has 64 cpu"), "{output}");
    until("it is told", async || cluster.events("FailedScheduling").await.len() >= 3).await;
    cluster.delete("early").await;
    assert_eq!(cluster.placed("late").await, "a");
    assert_eq!(cluster.unscheduled_condition("late").await, None);
    cluster.stop().await;
}

#[tokio::test]
pub async fn resources_are_never_given_twice() {
    let cluster = Cluster::start().await;
    cluster.node("a", "1").await;
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
            answered += usize::from(placed || cluster.unscheduled_condition(&name).await.is_some());
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
pub async fn pods_are_bound_as_soon_as_labels_match_and_nodes_are_uncordoned() {
    let cluster = Cluster::with(without_retries()).await;
    cluster.node("a", "4").await;
    cluster.pod("picky", json!({ "nodeSelector": { "disk": "ssd" } })).await;
    cluster.wait_until_unschedulable("picky", "1 node(s) didn't match Pod's node affinity/selector").await;
    let label = json!({ "metadata": { "labels": { "disk": "ssd" } } });
    cluster.nodes().patch("a", &PatchParams::default(), &Patch::Merge(label)).await.unwrap();
    assert_eq!(cluster.placed("picky").await, "a");
    let cordon = |off: bool| Patch::Merge(json!({ "spec": { "unschedulable": off } }));
    cluster.nodes().patch("a", &PatchParams::default(), &cordon(true)).await.unwrap();
    cluster.pod("shut-out", json!({})).await;
    cluster.wait_until_unschedulable("shut-out", "1 node(s) were unschedulable").await;
    cluster.nodes().patch("a", &PatchParams::default(), &cordon(false)).await.unwrap();
    assert_eq!(cluster.placed("shut-out").await, "a");
    cluster.stop().await;
}

#[tokio::test]
pub async fn gated_pods_are_scheduled_when_the_gate_is_removed() {
    let cluster = Cluster::start().await;
    cluster.node("a", "4").await;
    cluster.pod("gated", json!({ "schedulingGates": [{ "name": "wait" }] })).await;
    let gated = "SchedulingGated";
    until("it says so", async || {
        cluster.unscheduled_condition("gated").await.is_some_and(|(reason, _)| reason == gated)
    })
    .await;
    let open = Patch::Merge(json!({ "spec": { "schedulingGates": [] } }));
    cluster.pods().patch("gated", &PatchParams::default(), &open).await.unwrap();
    assert_eq!(cluster.placed("gated").await, "a");
    cluster.stop().await;
}

#[tokio::test]
pub async fn automatic_ports_are_assigned_where_pods_have_no_addresses() {
    let cluster = Cluster::start().await;
    cluster.node("a", "4").await;
    let by_port = Patch::Merge(json!({ "metadata": { "annotations": { "mainstay.dev/endpoints": "host-port" } } }));
    cluster.nodes().patch("a", &PatchParams::default(), &by_port).await.unwrap();
    let port = json!({ "containers": [{ "name": "c", "image": "i", "ports": [{ "containerPort": 80 }] }] });
    let label = |value: &str| json!({ "labels": { "k8s.mesosphere.io/portMapping": value } });
    for (name, meta) in [("fixed", label("fixed")), ("odd", label("often")), ("plain", json!({}))] {
        cluster.pod_with(name, meta, port.clone()).await;
        cluster.placed(name).await;
    }
    let assigned_ports = async |name: &str| -> Option<String> {
        let notes = cluster.pods().get(name).await.unwrap().metadata.annotations.unwrap_or_default();
        notes.get("k8s.mesosphere.io/port_TCP_80").cloned()
    };
    let all = [assigned_ports("fixed").await, assigned_ports("odd").await, assigned_ports("plain").await];
    assert_eq!(all, [None, Some("31000".to_owned()), Some("31001".to_owned())]);
    cluster.pod("one-more", port).await;
    cluster.wait_until_unschedulable("one-more", "node(s) didn't have enough automatic ports").await;
    cluster.stop().await;
}

#[tokio::test]
pub async fn automatic_host_ports_are_assigned_and_annotated() {
    let cluster = Cluster::start().await;
    cluster.node("a", "4").await;
    let label = json!({ "labels": { "k8s.mesosphere.io/portMapping": "wildcard" } });
    let port =
        json!({ "containers": [{ "name": "c", "image": "i", "ports": [{ "name": "http", "containerPort": 80 }] }] });
    for name in ["one", "two", "three"] {
        cluster.pod_with(name, label.clone(), port.clone()).await;
    }
    cluster.wait_until_unschedulable("three", "node(s) didn't have enough automatic ports").await;
    let mut assigned_ports = vec![];
    for name in ["one", "two"] {
        cluster.placed(name).await;
        let notes = cluster.pods().get(name).await.unwrap().metadata.annotations.unwrap();
        assert_eq!(notes["k8s.mesosphere.io/port_TCP_80"], notes["k8s.mesosphere.io/portName_TCP_http"]);
        assigned_ports.push(notes["k8s.mesosphere.io/port_TCP_80"].clone());
    }
    assigned_ports.sort();
    assert_eq!(assigned_ports, ["31000", "31001"]);
    cluster.delete("one").await;
    assert_eq!(cluster.placed("three").await, "a");
    cluster.stop().await;
}

#[tokio::test]
pub async fn a_pod_of_higher_priority_preempts_one_of_lower() {
    let cluster = Cluster::start().await;
    cluster.node("a", "1").await;
    cluster.pod("low", cpu("1")).await;
    cluster.placed("low").await;
    let class = json!({ "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": { "name": "high" }, "value": 100 });
    let class: k8s_openapi::api::scheduling::v1::PriorityClass = serde_json::from_value(class).unwrap();
    kube::Api::all(cluster.client.clone()).create(&Default::default(), &class).await.unwrap();
    let mut spec = cpu("1");
    spec["priorityClassName"] = json!("high");
    cluster.pod("high", spec).await;
    // The agent of a real node would end it; here its going is up to the test.
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
