//! The CRI client against Debian's containerd, runc and CNI plugins, as `tools/test-deps` fetches them. Wants root.

mod containerd;
mod faults;
mod pods;

use mainstay_runtime::suite;

use containerd::Containerd;

/// One containerd per test; claims of a test share it.
async fn hold(groups: &[&str]) {
    suite::run(Containerd::start().await, groups).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_and_containers() {
    hold(&["sandboxes", "containers"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_and_logs() {
    hold(&["processes", "logs"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_and_security() {
    hold(&["pods", "security"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_and_limits() {
    hold(&["streams", "terminals", "limits"]).await;
}
