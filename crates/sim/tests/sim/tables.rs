//! Machines that hold tables know of every change, and a pod is drained once they all do.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use mainstay_sim::{
    fleet::Settings,
    propagation::{self, Plan},
};

use crate::cluster::{Cluster, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_machine_hears_of_a_pod_and_lets_it_go() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(dir.path(), usize::MAX).await;
    let settings =
        Settings { tables: true, start_delay: None, stop_delay: Duration::from_secs(60), ..Settings::new(20) };
    let machines = cluster.machines(settings).await;
    let plan = Plan { others: 30, rounds: 3 };
    let found = within("three rounds", propagation::measure(&cluster.client, &machines.fleet, plan)).await.unwrap();
    assert_eq!((found.known.len(), found.each.len(), found.drained.len()), (3, 60, 3));
    assert!(found.known.iter().all(|time| *time < Duration::from_secs(5)), "{found:?}");
    assert!(machines.fleet.tables.acknowledged.load(Relaxed) >= 20 * 4, "at the start and in every round");
    machines.stop().await;
    cluster.stop().await;
}
