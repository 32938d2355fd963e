//! What several tests need: an API within the test's process, settings of an agent.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use kube::Client;
use mainstay_testing::TestApi;
pub use mainstay_testing::until;

use crate::settings::{Eviction, Network, Reserved, Settings};

/// A client of a new API that has these namespaces.
pub async fn api(namespaces: &[&str]) -> Client {
    TestApi::start(namespaces).await.client("test")
}

/// A client that can be cut off: from then on its calls are never answered.
pub fn severable(client: Client) -> (Client, Arc<AtomicBool>) {
    let severed = Arc::new(AtomicBool::new(false));
    let is_severed = severed.clone();
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (client, is_severed) = (client.clone(), is_severed.clone());
        async move {
            if is_severed.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            client.send(request).await
        }
    });
    (Client::new(service, "default"), severed)
}

pub fn settings() -> Settings {
    Settings {
        node_name: "m1".into(),
        addresses: vec!["10.0.0.5".parse().unwrap()],
        port: 10250,
        directory: "/var/lib/mainstay/agent".into(),
        runtime_directory: "/var/lib/mainstay/runtime".into(),
        log_directory: "/var/lib/mainstay/logs".into(),
        store_directory: None,
        instance: "mainstay".into(),
        static_pods: None,
        labels: vec![],
        taints: vec![],
        max_pods: 110,
        reserved: Reserved { cpu_millis: 100, memory: 256 << 20, ephemeral_storage: 1 << 30 },
        eviction: Eviction::default(),
        offering: Default::default(),
        cluster_dns: vec![],
        cluster_domain: "cluster.local".into(),
        network: Network::Bridge,
        drain_timeout: Duration::ZERO,
        termination_grace: Duration::from_secs(30),
        restart_backoff: Default::default(),
        timing: Default::default(),
        route_check: Default::default(),
        disks_by_id: "/dev/disk/by-id".into(),
        slow_start_limit: Duration::from_secs(120),
        status_interval: Duration::from_secs(300),
        machine: Default::default(),
        machine_files: vec![],
    }
}
