//! Workers over a runtime in memory and an API in this process.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use mainstay_runtime::{ContainerState, fake::Fake};
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{WorkerContext, Workers};
use crate::{
    events::Events,
    heal::{Healer, OwnerPolicies},
    hook::Hooks,
    metrics::Metrics,
    node::Evictions,
    objects::Objects,
    pods::{Pods, Source},
    probe::Probes,
    settings::Settings,
    sources::mirror::Mirrors,
    spec::Specs,
    task_scope::TaskScope,
    testing,
    user_ids::UserIds,
    volumes::Volumes,
    wake::Wake,
};

struct Node {
    runtime: Arc<Fake>,
    pods: Arc<Pods>,
    severed: Arc<AtomicBool>,
    stop: CancellationToken,
    workers: tokio::task::JoinHandle<()>,
    _directory: TempDir,
}

impl Node {
    async fn new() -> Self {
        let (client, severed) = testing::severable(testing::api(&["default"]).await);
        let directory = tempfile::tempdir().unwrap();
        let settings = Arc::new(Settings {
            directory: directory.path().join("agent"),
            log_directory: directory.path().join("logs"),
            ..testing::settings()
        });
        let runtime = Arc::new(Fake::new());
        let wake = Wake::default();
        let pods = Arc::new(Pods::new(wake.clone()));
        let context = context(client, settings, runtime.clone(), pods.clone(), wake);
        let stop = CancellationToken::new();
        let workers = tokio::spawn(Workers::new(Arc::new(context)).run(stop.clone()));
        Self { runtime, pods, severed, stop, workers, _directory: directory }
    }

    async fn stop(self) {
        self.stop.cancel();
        self.workers.await.unwrap();
    }

    /// Waits until this attempt of the container runs.
    async fn wait_running(&self, container: &str, attempt: u32) {
        let is_up = |status: &mainstay_runtime::ContainerStatus| {
            status.attempt == attempt && matches!(status.state, ContainerState::Running { .. })
        };
        self.runtime.wait_for(container, is_up).await;
    }
}

fn context(client: Client, settings: Arc<Settings>, runtime: Arc<Fake>, pods: Arc<Pods>, wake: Wake) -> WorkerContext {
    let (events, _) = Events::channel();
    let (metrics, tasks) = (Metrics::default(), TaskScope::default());
    let policies = OwnerPolicies::new(Some(client.clone()), tasks.clone());
    let healer = Healer::new(
        Some(client.clone()),
        policies.clone(),
        pods.clone(),
        events.clone(),
        settings.directory.clone(),
        metrics.clone(),
        tasks,
    );
    let objects = Arc::new(Objects::new(client.clone(), wake.clone()));
    let volumes = Arc::new(Volumes::new(&settings, objects.clone()));
    let (_, node) = watch::channel(None);
    let mirrors = Mirrors::new(client.clone(), pods.clone(), wake.clone(), node);
    WorkerContext {
        runtime_name: "fake".to_owned(),
        specs: Specs::new(settings.clone(), objects.clone(), volumes.clone(), events.clone()),
        probes: Probes::new(runtime.clone(), events.clone(), wake.clone(), policies),
        hooks: Hooks::new(runtime.clone()),
        user_ids: UserIds::of_machine(&settings.instance),
        settings,
        client,
        runtime,
        pods,
        evictions: Evictions::new(wake.clone()),
        wake,
        events,
        objects,
        volumes,
        healer: Arc::new(healer),
        traffic: Arc::default(),
        mirrors,
        is_cri: false,
        metrics,
    }
}

fn pod_of_a_set() -> Pod {
    let owner = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "set", "controller": true,
    });
    serde_json::from_value(json!({
        "metadata": { "name": "web-1", "namespace": "default", "uid": "pod-1", "ownerReferences": [owner] },
        "spec": {
            "nodeName": "m1", "restartPolicy": "Always", "automountServiceAccountToken": false,
            "containers": [{ "name": "web", "image": "busybox", "imagePullPolicy": "IfNotPresent" }],
        },
    }))
    .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_crashed_container_is_restarted_although_the_api_never_answers() {
    let node = Node::new().await;
    node.pods.put(Source::Api, pod_of_a_set());
    node.wait_running("web", 0).await;
    node.severed.store(true, Ordering::SeqCst);
    node.runtime.exit("web", 1);
    // On the test's clock, which stands still while anything can be done: no call to the API is waited for.
    let restarted = tokio::time::timeout(Duration::from_millis(500), node.wait_running("web", 1)).await;
    assert!(restarted.is_ok(), "the restart waits for the API");
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_crashed_container_is_restarted_although_its_owner_could_never_be_read() {
    let node = Node::new().await;
    let mut pod = pod_of_a_set();
    pod.metadata.owner_references.as_mut().unwrap()[0].uid = "read-in-vain".to_owned();
    let mut other = pod_of_a_set();
    other.metadata.uid = Some("pod-2".to_owned());
    // The first pod has what every container needs of the API read, and then the API is gone.
    other.metadata.owner_references = None;
    other.spec.as_mut().unwrap().containers[0].name = "other".to_owned();
    node.pods.put(Source::Api, other);
    node.wait_running("other", 0).await;
    node.severed.store(true, Ordering::SeqCst);
    node.pods.put(Source::Api, pod);
    node.wait_running("web", 0).await;
    node.runtime.exit("web", 1);
    let restarted = tokio::time::timeout(Duration::from_millis(500), node.wait_running("web", 1)).await;
    assert!(restarted.is_ok(), "the restart waits for the API");
    node.stop().await;
}
