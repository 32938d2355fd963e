//! A server killed in the middle of a batch of binds: nothing is placed twice, and nothing is lost.

use mainstay_sim::fleet::{Pace, Settings};

use crate::cluster::{Cluster, within};

const PODS: usize = 300;
/// How many binds the first server lives to see.
const BINDS: usize = 137;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn binds_that_were_acknowledged_stand_and_the_others_are_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(dir.path(), BINDS).await;
    // Nobody reports, so that every write that names a machine is a bind.
    let silent = || Settings { start_delay: None, ..Settings::new(10) };
    let machines = cluster.machines(silent()).await;
    machines.fleet.set_pace(Pace::Held).await;
    cluster.create("p", PODS, machines.fleet.ledger()).await;
    machines.fleet.set_pace(Pace::Offering).await;
    within("the kill", cluster.store.cut.notified()).await;
    machines.stop().await;
    cluster.stop().await;

    // Held, so that what the dead server left behind can be looked at.
    let cluster = Cluster::start(dir.path(), usize::MAX).await;
    let left = cluster.pods().await;
    assert_eq!(left.len(), PODS);
    let bound = left.values().filter(|pod| !pod.spec.node_name.is_empty()).count();
    assert_eq!(bound, BINDS, "all binds that were acknowledged, and no others");
    let machines = cluster.machines(Settings { start_delay: Some(std::time::Duration::ZERO), ..silent() }).await;
    let ledger = machines.fleet.ledger();
    within("all pods", ledger.until(|counts| counts.ready == PODS)).await;
    let now = cluster.pods().await;
    assert_eq!(now.len(), PODS);
    for (name, before) in left {
        let after = &now[&name];
        assert_eq!(after.uid(), before.uid());
        if !before.spec.node_name.is_empty() {
            assert_eq!(after.spec.node_name, before.spec.node_name, "{name} moved");
        }
    }
    assert_eq!((ledger.counts().bound, ledger.counts().moved), (PODS, 0));
    assert_eq!(machines.fleet.holds().iter().sum::<usize>(), PODS);
    machines.stop().await;
    cluster.stop().await;
}
