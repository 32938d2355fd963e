//! What all workers share: runtime, API client, caches, recorders.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use mainstay_runtime::Runtime;
use tokio::sync::watch;

use super::drain_turns::DrainTurns;
use crate::{
    dependencies::Dependencies,
    devices::DeviceManager,
    events::{EventType, Events},
    fence::Fence,
    heal::Healer,
    hook::Hooks,
    metrics::Metrics,
    node::Evictions,
    objects::Objects,
    pods::Pods,
    probe::Probes,
    services::Traffic,
    settings::Settings,
    sources::mirror::Mirrors,
    spec::Specs,
    user_ids::UserIds,
    volumes::Volumes,
    wake::Wake,
};

pub struct WorkerContext {
    pub settings: Arc<Settings>,
    /// As in `containerID: mainstay://…`.
    pub runtime_name: String,
    pub client: Client,
    pub runtime: Arc<dyn Runtime>,
    pub pods: Arc<Pods>,
    pub wake: Wake,
    pub events: Events,
    pub objects: Arc<Objects>,
    pub specs: Specs,
    pub volumes: Arc<Volumes>,
    pub devices: Arc<DeviceManager>,
    pub probes: Probes,
    pub hooks: Hooks,
    pub healer: Arc<Healer>,
    pub evictions: Evictions,
    pub fence: Arc<Fence>,
    pub dependencies: Arc<Dependencies>,
    pub turns: DrainTurns,
    pub traffic: Arc<Traffic>,
    pub mirrors: Arc<Mirrors>,
    /// This node as the API has it.
    pub node: watch::Receiver<Option<Node>>,
    pub user_ids: UserIds,
    /// Containers are made by a CRI runtime.
    pub is_cri: bool,
    pub metrics: Metrics,
}

impl WorkerContext {
    /// A worker panicked: a fault of ours, to be seen in the log, the metrics and the pod's events.
    pub fn report_panic(&self, pod: Option<&Pod>, message: &str) {
        tracing::error!(message, "a pod's worker panicked; what it did is tried again");
        self.metrics.worker_panics.inc();
        if let Some(pod) = pod {
            let text = format!("The agent failed to work on this pod and tries again: {message}");
            self.events.pod(pod, EventType::Warning, "AgentPanic", text);
        }
    }
}
