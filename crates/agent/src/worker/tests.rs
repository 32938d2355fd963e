//! Workers over a runtime in memory and an API in this process.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use mainstay_events::EventWriter;
use mainstay_runtime::{
    ContainerState, PodUid,
    fake::{Call, Fake},
    observed::{ContainerStats, PodRef},
};
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{WorkerContext, Workers, drain_turns::DrainTurns};
use crate::{
    dependencies::Dependencies,
    devices::DeviceManager,
    events::{EventType, Events},
    fence::{Fence, FenceParts},
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
    client: Client,
    recorded: EventWriter,
    metrics: Metrics,
    severed: Arc<AtomicBool>,
    stop: CancellationToken,
    workers: tokio::task::JoinHandle<()>,
    _directory: TempDir,
}

impl Node {
    async fn new() -> Self {
        let api = testing::api(&["default"]).await;
        let (client, severed) = testing::severable(api.clone());
        let directory = tempfile::tempdir().unwrap();
        let settings = Arc::new(Settings {
            directory: directory.path().join("agent"),
            log_directory: directory.path().join("logs"),
            ..testing::settings()
        });
        let runtime = Arc::new(Fake::new());
        let wake = Wake::default();
        let pods = Arc::new(Pods::new(wake.clone()));
        let (context, recorded) = context(client, settings, runtime.clone(), pods.clone(), wake);
        let metrics = context.metrics.clone();
        let stop = CancellationToken::new();
        let workers = tokio::spawn(Workers::new(Arc::new(context)).run(stop.clone()));
        Self { runtime, pods, client: api, recorded, metrics, severed, stop, workers, _directory: directory }
    }

    /// The reasons and messages of the warnings that were recorded since the last call.
    fn warnings(&mut self) -> Vec<String> {
        let recorded = std::iter::from_fn(|| self.recorded.try_next());
        let warnings = recorded.filter(|event| event.note.event_type == EventType::Warning);
        warnings.map(|event| format!("{}: {}", event.note.reason, event.note.message)).collect()
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

fn context(
    client: Client,
    settings: Arc<Settings>,
    runtime: Arc<Fake>,
    pods: Arc<Pods>,
    wake: Wake,
) -> (WorkerContext, EventWriter) {
    let (events, recorded) = Events::new("m1");
    let (metrics, tasks) = (Metrics::default(), TaskScope::default());
    let policies = OwnerPolicies::new(Some(client.clone()), tasks.clone());
    let healer = Healer::new(
        Some(client.clone()),
        policies.clone(),
        pods.clone(),
        events.clone(),
        settings.directory.clone(),
        metrics.clone(),
        tasks.clone(),
    );
    let objects = Arc::new(Objects::new(client.clone(), wake.clone()));
    let volumes = Arc::new(Volumes::new(&settings, objects.clone()));
    let (_, node) = watch::channel(None);
    let mirrors = Mirrors::new(client.clone(), pods.clone(), wake.clone(), node.clone());
    let fence = Fence::new(FenceParts::testing(&client, runtime.clone(), &pods, &events, &wake));
    let context = WorkerContext {
        fence,
        dependencies: Dependencies::new(None, wake.clone()),
        turns: DrainTurns::new(client.clone(), tasks),
        runtime_name: "fake".to_owned(),
        specs: Specs::new(settings.clone(), objects.clone(), volumes.clone(), events.clone()),
        probes: Probes::new(runtime.clone(), events.clone(), wake.clone(), policies),
        hooks: Hooks::new(runtime.clone()),
        devices: DeviceManager::new(&settings, client.clone(), pods.clone(), wake.clone(), false),
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
        node,
        is_cri: false,
        metrics,
    };
    (context, recorded)
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
    node.pods.upsert(Source::Api, pod_of_a_set());
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
    node.pods.upsert(Source::Api, other);
    node.wait_running("other", 0).await;
    node.severed.store(true, Ordering::SeqCst);
    node.pods.upsert(Source::Api, pod);
    node.wait_running("web", 0).await;
    node.runtime.exit("web", 1);
    let restarted = tokio::time::timeout(Duration::from_millis(500), node.wait_running("web", 1)).await;
    assert!(restarted.is_ok(), "the restart waits for the API");
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_starts_as_soon_as_its_claim_is_bound_and_nobody_is_warned() {
    let mut node = Node::new().await;
    let directory = node._directory.path().join("disk");
    std::fs::create_dir(&directory).unwrap();
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "data" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Mi" } } },
    });
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(node.client.clone(), "default");
    let claim = claims.create(&Default::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
    let mut pod = pod_of_a_set();
    let spec = pod.spec.as_mut().unwrap();
    let volume = json!({ "name": "data", "persistentVolumeClaim": { "claimName": "data" } });
    spec.volumes = Some(vec![serde_json::from_value(volume).unwrap()]);
    node.pods.upsert(Source::Api, pod);
    // Much longer than any back-off, and shorter than what upstream calls long.
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(node.warnings(), Vec::<String>::new());

    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "pv" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Mi" }, "local": { "path": directory },
            "nodeAffinity": { "required": { "nodeSelectorTerms": [
                { "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "In", "values": ["m1"] }] },
            ] } },
            "claimRef": { "namespace": "default", "name": "data", "uid": claim.metadata.uid },
        },
    });
    let volumes: Api<PersistentVolume> = Api::all(node.client.clone());
    volumes.create(&Default::default(), &serde_json::from_value(volume).unwrap()).await.unwrap();
    let bind = Patch::Merge(json!({ "spec": { "volumeName": "pv" } }));
    claims.patch("data", &PatchParams::default(), &bind).await.unwrap();
    let bound = Patch::Merge(json!({ "status": { "phase": "Bound" } }));
    claims.patch_status("data", &PatchParams::default(), &bound).await.unwrap();
    let started = tokio::time::timeout(Duration::from_millis(500), node.wait_running("web", 0)).await;
    assert!(started.is_ok(), "the start waits for more than the claim");
    assert_eq!(node.warnings(), Vec::<String>::new());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_phase_somebody_set_to_failed_is_stopped_and_stays_failed() {
    let mut node = Node::new().await;
    let api: Api<Pod> = Api::namespaced(node.client.clone(), "default");
    let mut pod = pod_of_a_set();
    (pod.metadata.uid, pod.metadata.owner_references) = (None, None);
    pod.spec.as_mut().unwrap().termination_grace_period_seconds = Some(1);
    let pod = api.create(&Default::default(), &pod).await.unwrap();
    node.pods.upsert(Source::Api, pod);
    node.wait_running("web", 0).await;
    let phase = async || api.get("web-1").await.unwrap().status.and_then(|status| status.phase);
    testing::until("it is reported as running", async || phase().await.as_deref() == Some("Running")).await;

    let failed = Patch::Merge(json!({ "status": { "phase": "Failed", "reason": "ByHand" } }));
    let pod = api.patch_status("web-1", &PatchParams::default(), &failed).await.unwrap();
    node.pods.upsert(Source::Api, pod);
    let ended = async || {
        let status = api.get("web-1").await.unwrap().status.unwrap();
        let mut containers = status.container_statuses.into_iter().flatten();
        containers.any(|c| c.state.is_some_and(|state| state.terminated.is_some()))
    };
    testing::until("its container is reported as terminated", ended).await;
    let status = api.get("web-1").await.unwrap().status.unwrap();
    assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Failed"), Some("ByHand")));
    assert_eq!(node.warnings(), Vec::<String>::new(), "being stopped is no failure of the container");
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_panics_is_started_again_counted_and_reported() {
    let mut node = Node::new().await;
    // One is the loop around the pod, the other one of its actions.
    for call in [Call::Observe, Call::CreateSandbox] {
        node.runtime.panic_next(call);
    }
    node.pods.upsert(Source::Api, pod_of_a_set());
    node.wait_running("web", 0).await;
    assert_eq!(node.metrics.worker_panics.get(), 2);
    let warnings = node.warnings();
    let reported = "AgentPanic: The agent failed to work on this pod and tries again: internal error: the test says so";
    assert_eq!(warnings.iter().filter(|warning| *warning == reported).count(), 2, "{warnings:?}");
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_memory_limit_below_what_the_container_uses_is_not_set() {
    let mut node = Node::new().await;
    let limited = |memory: &str| {
        let mut pod = pod_of_a_set();
        let resources = json!({ "requests": { "memory": "1Mi" }, "limits": { "memory": memory } });
        pod.spec.as_mut().unwrap().containers[0].resources = Some(serde_json::from_value(resources).unwrap());
        pod
    };
    node.pods.upsert(Source::Api, limited("64Mi"));
    node.wait_running("web", 0).await;
    let uses = |working_set: u64| {
        let pod = PodRef { namespace: "default".into(), name: "web-1".into(), uid: PodUid("pod-1".into()) };
        vec![ContainerStats { pod: Some(pod), name: "web".into(), working_set, ..ContainerStats::default() }]
    };
    let limit = |node: &Node| node.runtime.container_resources("web").and_then(|resources| resources.memory_limit);
    node.runtime.set_stats(uses(40 << 20));
    node.pods.upsert(Source::Api, limited("32Mi"));
    let mut warnings = Vec::new();
    while warnings.is_empty() {
        tokio::time::sleep(Duration::from_millis(100)).await;
        warnings = node.warnings();
    }
    let refused =
        r#"ResizeError: attempting to set container "web" memory limit (33554432) below current usage (41943040)"#;
    assert_eq!((warnings[0].as_str(), limit(&node)), (refused, Some(64 << 20)));

    node.runtime.set_stats(uses(30 << 20));
    tokio::time::resume(); // the backoff goes by the wall clock
    testing::until("the limit is set once it can be", async || limit(&node) == Some(32 << 20)).await;
    assert_eq!(node.runtime.container("web").map(|container| container.attempt), Some(0), "without a restart");
    node.stop().await;
}
