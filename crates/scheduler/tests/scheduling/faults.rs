//! Nodes that fall silent or turn pods away, schedulers that are asked things, and much that is hopeless.

use std::time::Duration;

use mainstay_scheduler::{DebugReply, Settings, settings::ReconcileSettings};
use serde_json::json;

use crate::cluster::{Cluster, cpu, until};

#[tokio::test]
pub async fn a_silent_node_gets_no_pods_and_its_offer_is_deleted() {
    let cluster = Cluster::start().await;
    cluster.node("a", "4").await;
    cluster.offer("a", "4", 1).await;
    until("its offer is gone", async || cluster.offers().get_opt("a").await.unwrap().is_none()).await;
    cluster.pod("p", json!({})).await;
    cluster.wait_until_unschedulable("p", "1 node(s) were not offering").await;
    until("it is counted", async || cluster.metric("mainstay_scheduler_offers_expired_total 1")).await;
    cluster.offer("a", "4", 600).await;
    assert_eq!(cluster.placed("p").await, "a");
    cluster.stop().await;
}

#[tokio::test]
pub async fn heartbeats_keep_an_offer_that_is_not_written_again() {
    let cluster = Cluster::start().await;
    cluster.node("a", "4").await;
    cluster.offer("a", "4", 2).await;
    let offer = cluster.offers().get("a").await.unwrap().metadata.resource_version.unwrap();
    for _ in 0..4 {
        cluster.heartbeat("a", &offer).await;
        tokio::time::sleep(Duration::from_secs(1)).await; // the period of heartbeats
    }
    assert_eq!(cluster.offers().get("a").await.unwrap().metadata.resource_version, Some(offer));
    assert!(cluster.metric("mainstay_scheduler_offers_expired_total 0"));
    until("without heartbeats it expires", async || cluster.offers().get_opt("a").await.unwrap().is_none()).await;
    cluster.stop().await;
}

#[tokio::test]
pub async fn two_hundred_unschedulable_pods_delay_no_other() {
    let cluster = Cluster::start().await;
    cluster.node("a", "4").await;
    futures::future::join_all((0..200).map(|n| {
        let cluster = &cluster;
        async move { cluster.pod(&format!("big-{n}"), cpu("64")).await }
    }))
    .await;
    cluster.pod("small", json!({})).await;
    assert_eq!(cluster.placed("small").await, "a");
    for n in 0..200 {
        cluster.wait_until_unschedulable(&format!("big-{n}"), "no node has 64 cpu").await;
    }
    let queue = cluster.debug("scheduler/podqueue").await;
    assert_eq!(queue.lines().count(), 200);
    cluster.delete("big-0").await;
    until("it leaves at once", async || cluster.debug("scheduler/podqueue").await.lines().count() == 199).await;
    cluster.stop().await;
}

#[tokio::test]
pub async fn a_reconciliation_runs_when_requested() {
    let reconcile = ReconcileSettings { cooldown: Duration::ZERO, ..ReconcileSettings::default() };
    let cluster = Cluster::with(Settings { reconcile, ..Settings::default() }).await;
    cluster.node("a", "4").await;
    cluster.pod("p", json!({})).await;
    cluster.placed("p").await;
    assert_eq!(cluster.handle.debug("actions/requestExplicit").await, DebugReply::Done);
    let done = "mainstay_scheduler_reconciliation_executed_total{kind=\"Explicit\"} 1";
    until("it is done", async || cluster.metric(done)).await;
    assert_eq!(cluster.handle.debug("actions/requestImplicit").await, DebugReply::Done);
    let done = "mainstay_scheduler_reconciliation_executed_total{kind=\"Implicit\"} 1";
    until("it is done", async || cluster.metric(done)).await;
    until("all is as it was", async || {
        let store = cluster.debug("scheduler/podstore").await;
        store.starts_with("default/p\ta\tplaced\t")
    })
    .await;
    cluster.pod("q", json!({})).await;
    assert_eq!(cluster.placed("q").await, "a", "the watches go on");
    cluster.stop().await;
}

#[tokio::test]
pub async fn nodes_have_to_offer_again_when_their_offers_are_deleted() {
    let cluster = Cluster::start().await;
    cluster.node("a", "4").await;
    cluster.node("b", "4").await;
    cluster.pod("p", json!({})).await;
    cluster.placed("p").await;
    assert_eq!(cluster.debug("actions/kamikaze").await, "a\nb\nOK\n");
    until("the offers are gone", async || cluster.offers().list(&Default::default()).await.unwrap().items.is_empty())
        .await;
    assert!(cluster.where_is("p").await.is_some(), "what runs, runs on");
    cluster.offer("b", "4", 600).await;
    cluster.pod("q", json!({})).await;
    assert_eq!(cluster.placed("q").await, "b");
    cluster.stop().await;
}

#[tokio::test]
pub async fn debug_is_unavailable_once_the_scheduler_stopped() {
    let cluster = Cluster::start().await;
    until("it runs", async || matches!(cluster.handle.debug("registry/tasks").await, DebugReply::Text(_))).await;
    let handle = cluster.handle.clone();
    cluster.stop().await;
    assert_eq!(handle.debug("registry/tasks").await, DebugReply::Unavailable("no scheduler runs here"));
}
