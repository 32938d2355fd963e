//! Probes: startup, readiness, liveness.
//!
//! One task with one timer per probe, and nothing shared between attempts. Liveness and readiness wait for the
//! startup probe. Unlike upstream's, a liveness probe goes on after it has failed as often as it may: a
//! container that is kept running although it fails (see [`crate::heal`]) must be able to get well again.

mod check;
mod probed_container;
mod schedule;
mod tally;
mod task;

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use mainstay_runtime::{ContainerId, PodUid, Runtime};
use parking_lot::Mutex;
use tokio::{task::JoinSet, time::Instant};

pub use self::check::{format_duration, http as http_get, join, port, target_host, tcp};
use self::{
    probed_container::{InitialState, ProbedContainer},
    task::Task,
};
use crate::{events::Events, heal::OwnerPolicies, wake::Wake};

/// Probes the running containers of all pods, each probe in its own task. Wakes the pod when a result changes.
pub struct Probes {
    shared: Arc<Shared>,
    pods: Mutex<BTreeMap<PodUid, BTreeMap<ContainerId, Entry>>>,
}

struct Shared {
    runtime: Arc<dyn Runtime>,
    events: Events,
    wake: Wake,
    policies: OwnerPolicies,
}

struct Entry {
    followed: Arc<ProbedContainer>,
    /// Ended when this is dropped.
    _tasks: JoinSet<()>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    pub name: String,
    pub id: ContainerId,
    pub started_at: Timestamp,
}

/// What probes say of one running container. Without a probe: started, and ready once started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Results {
    pub started: bool,
    pub ready: bool,
    /// A startup or liveness probe has failed as often as it may.
    pub failed: Option<FailedProbe>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedProbe {
    pub probe: ProbeKind,
    pub why: String,
    pub since: Timestamp,
    /// Of the probe, if it sets one; else the pod's grace counts.
    pub grace_seconds: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeKind {
    Startup,
    Liveness,
    Readiness,
}

impl ProbeKind {
    /// As events call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }
}

impl Probes {
    pub fn new(runtime: Arc<dyn Runtime>, events: Events, wake: Wake, policies: OwnerPolicies) -> Self {
        Self { shared: Arc::new(Shared { runtime, events, wake, policies }), pods: Mutex::default() }
    }

    /// Exactly these containers of the pod are probed from now on; those already probed go on undisturbed.
    pub fn follow(&self, pod: &Arc<Pod>, running: &[Running], address: Option<IpAddr>) {
        let Some(uid) = pod.metadata.uid.clone().map(PodUid) else { return };
        let mut pods = self.pods.lock();
        if running.is_empty() {
            pods.remove(&uid);
            return;
        }
        let containers = pods.entry(uid.clone()).or_default();
        containers.retain(|id, _| running.iter().any(|r| r.id == *id));
        for running in running {
            match containers.get(&running.id) {
                Some(entry) => entry.followed.moved(pod.clone(), address),
                None => {
                    containers.insert(running.id.clone(), self.begin(uid.clone(), pod, running, address));
                }
            }
        }
    }

    /// One entry for each container followed.
    pub fn results(&self, pod: &PodUid) -> BTreeMap<ContainerId, Results> {
        let pods = self.pods.lock();
        let containers = pods.get(pod).into_iter().flatten();
        containers.map(|(id, entry)| (id.clone(), entry.followed.results())).collect()
    }

    /// The container is being killed, or is not after all: while it is, neither startup nor liveness is asked for.
    pub fn set_stopping(&self, pod: &PodUid, container: &ContainerId, stopping: bool) {
        if let Some(entry) = self.pods.lock().get(pod).and_then(|containers| containers.get(container)) {
            entry.followed.set_stopping(stopping);
        }
    }

    pub fn forget(&self, pod: &PodUid) {
        self.pods.lock().remove(pod);
    }

    fn begin(&self, uid: PodUid, pod: &Arc<Pod>, running: &Running, address: Option<IpAddr>) -> Entry {
        let container = container_of(pod, &running.name);
        let probes = container.into_iter().flat_map(|container| {
            [
                (ProbeKind::Startup, &container.startup_probe),
                (ProbeKind::Liveness, &container.liveness_probe),
                (ProbeKind::Readiness, &container.readiness_probe),
            ]
            .into_iter()
            .filter_map(move |(kind, probe)| Some((kind, container, probe.as_ref()?)))
        });
        let probes: Vec<_> = probes.collect();
        let has = |wanted| probes.iter().any(|(kind, ..)| *kind == wanted);
        let begins = InitialState::from_status(pod, &running.id, has(ProbeKind::Startup), has(ProbeKind::Readiness));
        let followed = Arc::new(ProbedContainer::new(uid, running.id.clone(), pod.clone(), address, begins));
        let age = Duration::try_from(Timestamp::now().duration_since(running.started_at)).unwrap_or_default();
        let mut tasks = JoinSet::new();
        for (kind, container, probe) in probes {
            if kind == ProbeKind::Startup && begins.started {
                continue;
            }
            let delay = Duration::from_secs(probe.initial_delay_seconds.unwrap_or(0).max(0) as u64);
            let task = Task {
                shared: self.shared.clone(),
                followed: followed.clone(),
                container: container.clone(),
                kind,
                probe: probe.clone(),
                first: Instant::now() + delay.saturating_sub(age),
            };
            tasks.spawn(task.run());
        }
        Entry { followed, _tasks: tasks }
    }
}

/// A container or a sidecar. Other init containers end before anyone could ask them.
fn container_of<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    let mut containers = mainstay_api::pod::lasting_containers(pod.spec.as_ref()?);
    containers.find(|container| container.name == name)
}

#[cfg(test)]
mod tests;
