//! Pods are bound: all of them, once each, and not to nodes that are silent or refuse.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use mainstay_sim::{
    faults::NodeBehavior,
    fleet::{Settings, WatchMode},
    hollow_node::NodeTemplate,
};

use crate::cluster::{Cluster, with_timeout};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_pod_is_bound_exactly_once_and_becomes_ready() {
    for watch_mode in [WatchMode::Shared, WatchMode::PerNode] {
        let dir = tempfile::tempdir().unwrap();
        let cluster = Cluster::start(dir.path(), usize::MAX).await;
        let running = cluster.start_fleet(Settings { watch_mode, ..Settings::new(20) }).await;
        let pod_times = running.fleet.pod_times().clone();
        cluster.create("p", 500, &pod_times).await;
        with_timeout("500 ready pods", pod_times.wait_for(|counts| counts.ready == 500)).await;
        let pods = cluster.pods().await;
        assert_eq!(pods.len(), 500);
        assert!(pods.values().all(|pod| pod.is_ready() && pod.spec.node_name.starts_with("hollow-")));
        let pods_per_node = running.fleet.pods_per_node();
        assert_eq!(pods_per_node.iter().sum::<usize>(), 500, "each pod is on one node: {pods_per_node:?}");
        assert_eq!((pod_times.counts().bound, pod_times.counts().moved), (500, 0));
        let counters = &running.fleet.counters;
        assert_eq!((counters.started.load(Relaxed), counters.refused.load(Relaxed)), (500, 0));
        running.stop().await;
        cluster.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_node_gets_no_pods_after_its_offer_expired() {
    let ttl = Duration::from_secs(2);
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(dir.path(), usize::MAX).await;
    let settings = Settings { template: NodeTemplate { ttl, ..NodeTemplate::default() }, ..Settings::new(4) };
    let running = cluster.start_fleet(settings).await;
    let pod_times = running.fleet.pod_times().clone();
    // Offers arrive one after the other, so the first pods may all go where the first came from.
    let mut before = 0;
    with_timeout("pods on every node", async {
        while running.fleet.pods_per_node().contains(&0) {
            cluster.create(&format!("before-{before}"), 4, &pod_times).await;
            before += 4;
            pod_times.wait_for(|counts| counts.ready == before).await;
        }
    })
    .await;

    running.fleet.set_behavior(1, NodeBehavior::Silent { after: Duration::ZERO });
    let silent = running.fleet.name(1).to_owned();
    let offers = async || {
        let path = http::Request::get("/apis/mainstay.dev/v1/offers").body(Vec::new()).unwrap();
        cluster.client.request_text(path).await.expect("list offers")
    };
    with_timeout("the expiry of the silent node's offer", async {
        while offers().await.contains(&format!("\"name\":\"{silent}\"")) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    cluster.create("after", 60, &pod_times).await;
    with_timeout("the other pods", pod_times.wait_for(|counts| counts.bound == before + 60)).await;
    let pods = cluster.pods().await;
    let there = pods.iter().filter(|(name, pod)| name.starts_with("after") && pod.spec.node_name == silent);
    assert_eq!(there.count(), 0);
    running.stop().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_that_a_lying_node_cannot_take_are_refused_and_bound_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(dir.path(), usize::MAX).await;
    // Each has room for five pods; the liar says so for ever.
    let template = NodeTemplate { cpu: 500, ttl: Duration::from_secs(2), ..NodeTemplate::default() };
    let running = cluster.start_fleet(Settings { template, ..Settings::new(4) }).await;
    running.fleet.set_behavior(0, NodeBehavior::Lying);
    let pod_times = running.fleet.pod_times().clone();
    cluster.create("p", 20, &pod_times).await;
    with_timeout("all pods", async {
        // A pod counts as ready once, wherever; so look at where they are in the end.
        while !cluster.pods().await.values().all(|pod| pod.is_ready()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_eq!(running.fleet.pods_per_node(), [5, 5, 5, 5]);
    // A start is counted once the server has answered to its report.
    with_timeout("all starts are counted", async {
        while running.fleet.counters.started.load(Relaxed) < 20 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_eq!(running.fleet.counters.started.load(Relaxed), 20, "each pod was started once");
    running.stop().await;
    cluster.stop().await;
}
