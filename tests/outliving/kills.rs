//! `kill -9` at random moments while pods come and go.

use std::time::Duration;

use kube::api::{DeleteParams, PostParams};

use super::{Marks, at_rest, create, delete_all, has_ended, host, pods, restarts, sleeper};
use crate::harness::Cluster;

const KILLS: usize = 100;
/// Pods that live through all of it.
const CALM: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_kills_leave_no_orphan_no_duplicate_and_nothing_behind() {
    let mut cluster = Cluster::with_pods(&[]);
    let marks = Marks::new();
    let mut random = fastrand::Rng::new();
    println!("seed {}", random.get_seed());
    for number in 0..CALM {
        create(&cluster, &sleeper(&format!("calm-{number}"), &marks.mark(number))).await;
    }
    at_rest(&cluster, &marks).await;
    let calm: Vec<_> = (0..CALM).map(|number| host::pids(&marks.mark(number))).collect();
    let mut alive: Vec<String> = Vec::new();
    for round in 0..KILLS {
        let api = pods(&cluster).await;
        let name = format!("busy-{round}");
        // Whatever the kill cuts off may or may not have happened.
        let storm = async {
            if api.create(&PostParams::default(), &sleeper(&name, &marks.mark(CALM + round))).await.is_ok() {
                alive.push(name.clone());
            }
            while alive.len() > 4 {
                let victim = alive.swap_remove(random.usize(..alive.len()));
                let _ = api.delete(&victim, &DeleteParams::default()).await;
            }
            std::future::pending::<()>().await;
        };
        let moment = Duration::from_millis(fastrand::u64(0..600));
        let _ = tokio::time::timeout(moment, storm).await;
        cluster.kill();
        cluster.start_again();
    }
    let list = at_rest(&cluster, &marks).await;
    for pod in &list {
        // One that was made but not begun when the agent died is made anew, which counts; one that ran is kept.
        assert!(!has_ended(pod), "no container notices: {pod:?}");
        let calm = pod.metadata.name.as_ref().is_some_and(|name| name.starts_with("calm"));
        assert!(!calm || restarts(pod) == 0, "not restarted: {pod:?}");
    }
    let after: Vec<_> = (0..CALM).map(|number| host::pids(&marks.mark(number))).collect();
    assert_eq!(calm, after, "the same processes, from before the first kill");
    delete_all(&cluster).await;
    assert!(at_rest(&cluster, &marks).await.is_empty());
    let data_dir = cluster.data_dir();
    let left: Vec<_> =
        host::traces(&data_dir).into_iter().filter(|t| t.contains("/pod") || t.contains("shim")).collect();
    assert!(left.is_empty(), "with no pods, nothing of pods: {left:#?}");
    cluster.kill();
    super::ends::down(&data_dir);
    assert_eq!(host::traces(&data_dir), Vec::<String>::new());
}
