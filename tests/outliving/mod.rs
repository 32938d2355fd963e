//! Pods that outlive what runs them: kills, stops, restarts. Takes root.
//!
//! Each pod runs a program with an argument that nobody else has, so that what really runs is counted among the
//! machine's processes, whatever the API says.

mod ends;
mod kills;
mod vanished;

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;

use crate::harness::{
    Cluster,
    host::{self, running},
};

/// Longest wait for a cluster to come to rest after a storm.
const REST: Duration = Duration::from_secs(90);

/// Arguments of `sleep` that are this test's, and each one pod's, alone.
struct Marks(String);

impl Marks {
    fn new() -> Self {
        Self(format!("{}.", fastrand::u64(1_000_000_000..9_999_999_999)))
    }

    fn mark(&self, number: usize) -> String {
        format!("{}{number:05}", self.0)
    }
}

fn sleeper(name: &str, mark: &str) -> Pod {
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeName": "here",
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "c", "image": "host", "command": ["sleep", mark]}],
        },
    });
    serde_json::from_value(pod).expect("a pod")
}

async fn pods(cluster: &Cluster) -> Api<Pod> {
    Api::default_namespaced(cluster.client().await)
}

/// Name, and the mark of what it runs, of every pod that is not on its way out.
fn wanted(pods: &[Pod]) -> BTreeMap<String, String> {
    let one = |pod: &Pod| {
        let name = pod.metadata.name.clone().expect("pods have names");
        let command = pod.spec.as_ref()?.containers[0].command.clone()?;
        Some((name, command.last()?.clone())).filter(|_| pod.metadata.deletion_timestamp.is_none())
    };
    pods.iter().filter_map(one).collect()
}

fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref());
    statuses.into_iter().flatten().map(|s| s.restart_count).sum()
}

/// Whether a container of it is known to have run and ended before.
fn has_ended(pod: &Pod) -> bool {
    let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref());
    statuses.into_iter().flatten().any(|s| s.last_state.as_ref().is_some_and(|state| state.terminated.is_some()))
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

/// Waits until every pod of the API runs exactly once, and nothing else of this test does.
async fn at_rest(cluster: &Cluster, marks: &Marks) -> Vec<Pod> {
    let deadline = std::time::Instant::now() + REST;
    loop {
        let list = match pods(cluster).await.list(&ListParams::default()).await {
            Ok(list) => list.items,
            Err(error) => panic!("list pods: {error}"),
        };
        let wanted = wanted(&list);
        let counts = running(&marks.0);
        let expected: BTreeMap<_, _> = wanted.values().map(|mark| (mark.clone(), 1)).collect();
        let settled =
            list.len() == wanted.len() && list.iter().all(|pod| phase(pod) == "Running") && counts == expected;
        if settled {
            return list;
        }
        let phases: Vec<_> = list.iter().map(|p| (p.metadata.name.clone(), phase(p).to_owned())).collect();
        assert!(std::time::Instant::now() < deadline, "no rest: running {counts:?}, wanted {expected:?}, {phases:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn create(cluster: &Cluster, pod: &Pod) {
    let made = pods(cluster).await.create(&PostParams::default(), pod).await;
    made.expect("create a pod");
}

async fn delete_all(cluster: &Cluster) {
    let api = pods(cluster).await;
    api.delete_collection(&DeleteParams::default(), &ListParams::default()).await.expect("delete all pods");
    let deadline = std::time::Instant::now() + REST;
    while !api.list(&ListParams::default()).await.expect("list pods").items.is_empty() {
        assert!(std::time::Instant::now() < deadline, "pods do not go");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
