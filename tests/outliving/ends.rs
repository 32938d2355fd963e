//! Ends that happen while nobody looks, and `mainstay stop` and `mainstay down`.

use std::{fs, path::Path, process::Command, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::{Marks, at_rest, create, host, phase, pods, restarts, sleeper};
use crate::harness::{Cluster, PATIENCE, command, eventually};

fn mainstay(verb: &str, data_dir: &Path) -> String {
    let mut program = Command::new(env!("CARGO_BIN_EXE_mainstay"));
    program.arg(verb).arg("--data-dir").arg(data_dir);
    command::run(program, verb, "", PATIENCE * 2).ok()
}

pub fn down(data_dir: &Path) -> String {
    mainstay("down", data_dir)
}

/// A pod that sees `directory` at `/shared` and runs this once.
fn once(name: &str, directory: &Path, script: &str) -> Pod {
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeName": "here",
            "restartPolicy": "Never",
            "containers": [{
                "name": "c", "image": "host", "command": ["sh", "-c", script],
                "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
            }],
            "volumes": [{"name": "shared", "hostPath": {"path": directory}}],
        },
    });
    serde_json::from_value(pod).expect("a pod")
}

pub async fn until(cluster: &Cluster, name: &str, what: impl Fn(&Pod) -> bool) -> Pod {
    let deadline = std::time::Instant::now() + super::REST;
    loop {
        let pod = pods(cluster).await.get(name).await.expect("get the pod");
        if what(&pod) {
            return pod;
        }
        assert!(std::time::Instant::now() < deadline, "in vain: {:?}", pod.status);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The log of a pod, once its node has said at which port the agent listens since it was started anew.
async fn read_log(cluster: &Cluster, name: &str) -> String {
    let deadline = std::time::Instant::now() + super::REST;
    loop {
        match pods(cluster).await.logs(name, &Default::default()).await {
            Ok(log) => return log,
            Err(error) => assert!(std::time::Instant::now() < deadline, "read the log: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_while_the_agent_is_dead_is_reported_and_logs_go_on() {
    let mut cluster = Cluster::with_pods(&[]);
    let shared = tempfile::tempdir().expect("make a directory");
    let script = "echo before; touch /shared/begun; until [ -e /shared/go ]; do sleep 0.05; done; echo while away; \
        touch /shared/done; exit 33";
    create(&cluster, &once("p", shared.path(), script)).await;
    eventually("it has begun", || shared.path().join("begun").exists().then_some(()));
    until(&cluster, "p", |pod| phase(pod) == "Running").await;
    cluster.kill();
    fs::write(shared.path().join("go"), "").expect("let it go");
    eventually("it is done", || shared.path().join("done").exists().then_some(()));
    cluster.start_again();
    let pod = until(&cluster, "p", |pod| phase(pod) == "Failed").await;
    let status = pod.status.as_ref().and_then(|s| s.container_statuses.clone()).unwrap_or_default().remove(0);
    let ended = status.state.and_then(|s| s.terminated).expect("it is told to have ended");
    assert_eq!((ended.exit_code, ended.reason.as_deref()), (33, Some("Error")));
    assert_eq!(read_log(&cluster, "p").await, "before\nwhile away\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_leaves_containers_running_and_down_ends_them_gracefully() {
    let mut cluster = Cluster::with_pods(&[]);
    let shared = tempfile::tempdir().expect("make a directory");
    let marks = Marks::new();
    create(&cluster, &sleeper("p", &marks.mark(0))).await;
    let script = "trap 'touch /shared/asked; exit 0' TERM; touch /shared/begun; while :; do sleep 0.05; done";
    create(&cluster, &once("polite", shared.path(), script)).await;
    eventually("it has begun", || shared.path().join("begun").exists().then_some(()));
    until(&cluster, "p", |pod| phase(pod) == "Running").await;
    let before = host::pids(&marks.mark(0));
    assert_eq!(before.len(), 1);
    let data_dir = cluster.data_dir();
    mainstay("stop", &data_dir);
    mainstay("stop", &data_dir);
    assert_eq!(host::pids(&marks.mark(0)), before, "it runs on");
    assert!(!shared.path().join("asked").exists());
    cluster.kill(); // gone already; the harness has to know
    cluster.start_again();
    let pod = until(&cluster, "p", |pod| phase(pod) == "Running").await;
    assert_eq!((restarts(&pod), host::pids(&marks.mark(0))), (0, before));
    down(&data_dir);
    assert!(shared.path().join("asked").exists(), "ended by its stop signal");
    assert_eq!(host::traces(&data_dir), Vec::<String>::new());
    down(&data_dir);
    cluster.kill();
    // What is in the API comes back.
    cluster.start_again();
    until(&cluster, "p", |pod| phase(pod) == "Running").await;
    super::delete_all(&cluster).await;
    assert!(at_rest(&cluster, &marks).await.is_empty());
}
