//! The snapshot that a plan is made from.

use std::collections::BTreeMap;

use jiff::Timestamp;
use mainstay_api::config_versions::ConfigVersions;
use mainstay_runtime::{ContainerId, ContainerStatus, SandboxStatus, spec::Resources};

use super::{
    drain_turns::DrainTurn,
    resize::PendingResize,
    retry_state::PodRetryState,
    view::{ContainerView, PodView},
};
use crate::{dependencies::NeedsObservation, heal::HealingObservation, probe, settings::RestartBackoff};

/// The annotation in which a container remembers what it was made from.
pub const IDENTITY: &str = "mainstay.dev/identity";
/// The annotation in which a container remembers the limits it was made with.
pub const RESOURCES: &str = "mainstay.dev/resources";
/// The annotation in which a container remembers its pod's grace, in seconds, for when nobody else does. Upstream's.
pub const GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";

#[derive(Clone, Debug)]
pub struct World {
    pub pod: PodView,
    /// Newest first; all but the first are left over.
    pub sandboxes: Vec<SandboxStatus>,
    /// By name, newest first.
    pub containers: BTreeMap<String, Vec<ContainerStatus>>,
    pub probes: BTreeMap<ContainerId, probe::Results>,
    pub retry_state: PodRetryState,
    pub healing: HealingObservation,
    pub restart_backoff: RestartBackoff,
    /// What the pod asks for now and cannot have at present.
    pub pending_resize: Option<PendingResize>,
    /// Until when a pod that ends waits for machines to stop sending to it; nothing if none does.
    pub drains_until: Option<Timestamp>,
    /// The pod must be unique, and this node has no contact: nothing of it is started.
    pub is_cut_off: bool,
    pub needs: NeedsObservation,
    /// Versions of ConfigMaps and Secrets that its volumes show, if any.
    pub config_versions: ConfigVersions,
    /// Of a pod that ends: whether others of its set have to be stopped before.
    pub turn: DrainTurn,
}

impl World {
    pub fn sandbox(&self) -> Option<&SandboxStatus> {
        self.sandboxes.first()
    }

    /// The latest container of this name.
    pub fn newest(&self, name: &str) -> Option<&ContainerStatus> {
        self.containers.get(name)?.first()
    }

    pub fn all(&self) -> impl Iterator<Item = &ContainerStatus> {
        self.containers.values().flatten()
    }

    /// Whether any container of the pod proper has been made in this sandbox: then initialisation is over.
    pub fn is_initialized(&self) -> bool {
        self.pod.main.iter().any(|c| self.newest(&c.name).is_some())
    }

    /// What the pod waits for before any of its containers is made. Once one was, only needs that are to be kept count.
    pub fn waits_for(&self) -> Option<String> {
        let has_begun = self.pod.init.iter().chain(&self.pod.main).any(|c| self.newest(&c.name).is_some());
        self.needs.message().filter(|_| !has_begun)
    }

    /// A running container, the limits that it has, if they are not those it should have.
    pub fn outdated_resources(&self, wanted: &ContainerView) -> Option<(&ContainerStatus, Resources)> {
        let observed = self.newest(&wanted.name).filter(|observed| observed.state.is_running())?;
        let applied = match self.retry_state.containers.get(&wanted.name).and_then(|state| state.applied.as_ref()) {
            Some((id, resources)) if *id == observed.id => resources.clone(),
            Some(_) | None => observed.annotations.get(RESOURCES).and_then(|text| serde_json::from_str(text).ok())?,
        };
        (applied != wanted.resources).then_some((observed, applied))
    }

    pub fn results(&self, id: &ContainerId) -> probe::Results {
        let unprobed = probe::Results { started: false, ready: false, failed: None };
        self.probes.get(id).cloned().unwrap_or(unprobed)
    }
}
