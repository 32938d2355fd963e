//! A server is killed in the middle of a batch of binds: no pod is bound twice, and none is lost.

use mainstay_sim::fleet::{FleetActivity, Settings};

use crate::cluster::{Cluster, with_timeout};

const PODS: usize = 300;
/// How many binds the first server makes at most.
const BINDS: usize = 137;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn binds_that_were_acknowledged_stand_and_the_others_are_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(dir.path(), BINDS).await;
    // Nobody reports, so that every write that names a node is a bind.
    let silent = || Settings { start_delay: None, ..Settings::new(10) };
    let running = cluster.start_fleet(silent()).await;
    running.fleet.set_activity(FleetActivity::HeartbeatsOnly).await;
    cluster.create("p", PODS, running.fleet.pod_times()).await;
    running.fleet.set_activity(FleetActivity::Offering).await;
    with_timeout("the kill", cluster.store.cut.notified()).await;
    running.stop().await;
    let store = cluster.store.clone();
    cluster.stop().await;

    // Held, so that what the dead server left behind can be looked at.
    let cluster = Cluster::start(dir.path(), usize::MAX).await;
    let left = cluster.pods().await;
    assert_eq!(left.len(), PODS);
    let bound = left.values().filter(|pod| !pod.spec.node_name.is_empty()).count();
    assert_eq!(bound, store.binds(), "all binds that were acknowledged, and no others");
    assert!((1..=BINDS).contains(&bound), "{bound}");
    let running = cluster.start_fleet(Settings { start_delay: Some(std::time::Duration::ZERO), ..silent() }).await;
    let pod_times = running.fleet.pod_times();
    with_timeout("all pods", pod_times.wait_for(|counts| counts.ready == PODS)).await;
    let now = cluster.pods().await;
    assert_eq!(now.len(), PODS);
    for (name, before) in left {
        let after = &now[&name];
        assert_eq!(after.uid(), before.uid());
        if !before.spec.node_name.is_empty() {
            assert_eq!(after.spec.node_name, before.spec.node_name, "{name} moved");
        }
    }
    assert_eq!((pod_times.counts().bound, pod_times.counts().moved), (PODS, 0));
    assert_eq!(running.fleet.pods_per_node().iter().sum::<usize>(), PODS);
    running.stop().await;
    cluster.stop().await;
}
