//! Pods get machines: all of them, once each, and not where machines are silent or refuse.

use std::{
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use mainstay_sim::{
    conduct::Conduct,
    fleet::{Settings, Watching},
    machine::Shape,
};

use crate::cluster::{Cluster, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_pod_is_bound_exactly_once_and_becomes_ready() {
    for watching in [Watching::Together, Watching::Each] {
        let dir = tempfile::tempdir().unwrap();
        let cluster = Cluster::start(dir.path(), usize::MAX).await;
        let machines = cluster.machines(Settings { watching, ..Settings::new(20) }).await;
        let ledger = machines.fleet.ledger().clone();
        cluster.create("p", 500, &ledger).await;
        within("500 ready pods", ledger.until(|counts| counts.ready == 500)).await;
        let pods = cluster.pods().await;
        assert_eq!(pods.len(), 500);
        assert!(pods.values().all(|pod| pod.is_ready() && pod.spec.node_name.starts_with("hollow-")));
        let holds = machines.fleet.holds();
        assert_eq!(holds.iter().sum::<usize>(), 500, "each pod is on one machine: {holds:?}");
        assert_eq!((ledger.counts().bound, ledger.counts().moved), (500, 0));
        let counters = &machines.fleet.counters;
        assert_eq!((counters.started.load(Relaxed), counters.refused.load(Relaxed)), (500, 0));
        machines.stop().await;
        cluster.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_fell_silent_gets_nothing_new_after_its_offer_ran_out() {
    let ttl = Duration::from_secs(2);
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(dir.path(), usize::MAX).await;
    let settings = Settings { shape: Shape { ttl, ..Shape::default() }, ..Settings::new(4) };
    let machines = cluster.machines(settings).await;
    let ledger = machines.fleet.ledger().clone();
    // Offers arrive one after the other, so the first pods may all go where the first came from.
    let mut before = 0;
    within("pods on every machine", async {
        while machines.fleet.holds().contains(&0) {
            cluster.create(&format!("before-{before}"), 4, &ledger).await;
            before += 4;
            ledger.until(|counts| counts.ready == before).await;
        }
    })
    .await;

    machines.fleet.behave(1, Conduct::Silent { after: Duration::ZERO });
    let silent = machines.fleet.name(1).to_owned();
    // Gone from the list once nobody believes it any more, within its time.
    let offers = async || {
        let path = http::Request::get("/apis/mainstay.dev/v1/offers").body(Vec::new()).unwrap();
        cluster.client.request_text(path).await.expect("list offers")
    };
    let since = Instant::now();
    while offers().await.contains(&format!("\"name\":\"{silent}\"")) {
        assert!(since.elapsed() < ttl * 4, "the offer of a silent machine is still there");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    cluster.create("after", 60, &ledger).await;
    within("the other pods", ledger.until(|counts| counts.bound == before + 60)).await;
    let pods = cluster.pods().await;
    let there = pods.iter().filter(|(name, pod)| name.starts_with("after") && pod.spec.node_name == silent);
    assert_eq!(there.count(), 0);
    machines.stop().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_liar_cannot_take_is_refused_and_placed_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(dir.path(), usize::MAX).await;
    // Each has room for five pods; the liar says so for ever.
    let shape = Shape { cpu: 500, ttl: Duration::from_secs(2), ..Shape::default() };
    let machines = cluster.machines(Settings { shape, ..Settings::new(4) }).await;
    machines.fleet.behave(0, Conduct::Lying);
    let ledger = machines.fleet.ledger().clone();
    cluster.create("p", 20, &ledger).await;
    within("all pods", async {
        // A pod counts as ready once, wherever; so look at where they are in the end.
        while !cluster.pods().await.values().all(|pod| pod.is_ready()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_eq!(machines.fleet.holds(), [5, 5, 5, 5]);
    assert_eq!(machines.fleet.counters.started.load(Relaxed), 20, "each pod was started once");
    machines.stop().await;
    cluster.stop().await;
}
