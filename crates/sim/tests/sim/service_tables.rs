//! Nodes with service tables apply every change, and a pod is drained once all have acknowledged.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use mainstay_sim::{
    fleet::Settings,
    propagation::{self, Plan},
};

use crate::cluster::{Cluster, with_timeout};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_applies_an_endpoint_and_acknowledges_its_removal() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(dir.path(), usize::MAX).await;
    let settings =
        Settings { service_tables: true, start_delay: None, stop_delay: Duration::from_secs(60), ..Settings::new(20) };
    let running = cluster.start_fleet(settings).await;
    let plan = Plan { others: 30, rounds: 3 };
    let times =
        with_timeout("three rounds", propagation::measure(&cluster.client, &running.fleet, plan)).await.unwrap();
    assert_eq!((times.last_node.len(), times.each_node.len(), times.drained.len()), (3, 60, 3));
    assert!(running.fleet.service_tables.acknowledged.load(Relaxed) >= 20 * 4, "at the start and in every round");
    running.stop().await;
    cluster.stop().await;
}
