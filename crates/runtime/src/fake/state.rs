//! State of the fake runtime.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use crate::{
    RuntimeError,
    fake::{Call, ExecResult, RecordedCall},
    observed::{ContainerId, ContainerStats, ContainerStatus, SandboxId, SandboxStatus},
    spec::{ContainerSpec, Resources, SandboxSpec},
};

pub(super) type OnExec = Arc<dyn Fn(&str, &[String]) -> Result<ExecResult, RuntimeError> + Send + Sync>;

#[derive(Default)]
pub(super) struct State {
    pub sandboxes: BTreeMap<SandboxId, Sandbox>,
    pub containers: BTreeMap<ContainerId, Container>,
    pub made: Vec<RecordedCall>,
    pub failures: HashMap<Call, VecDeque<RuntimeError>>,
    pub hanging: HashSet<Call>,
    /// Calls that panic once.
    pub panicking: HashSet<Call>,
    pub unreachable: bool,
    /// Names of containers that do not end on the stop signal.
    pub stubborn: HashSet<String>,
    pub on_exec: Option<OnExec>,
    pub stats: Option<Vec<ContainerStats>>,
    ids: u64,
    addresses: u16,
}

pub(super) struct Sandbox {
    pub spec: SandboxSpec,
    pub status: SandboxStatus,
    pub resources: Resources,
}

pub(super) struct Container {
    pub spec: ContainerSpec,
    pub status: ContainerStatus,
    pub resources: Resources,
}

impl State {
    pub fn next_id(&mut self) -> String {
        self.ids += 1;
        format!("{:064x}", self.ids)
    }

    pub fn next_address(&mut self) -> IpAddr {
        self.addresses += 1;
        let [high, low] = self.addresses.to_be_bytes();
        Ipv4Addr::new(10, 199, high, low).into()
    }

    pub fn sandbox(&mut self, id: &SandboxId) -> Result<&mut Sandbox, RuntimeError> {
        self.sandboxes.get_mut(id).ok_or_else(|| RuntimeError::NotFound { what: "sandbox", id: id.to_string() })
    }

    pub fn container(&mut self, id: &ContainerId) -> Result<&mut Container, RuntimeError> {
        self.containers.get_mut(id).ok_or_else(|| RuntimeError::NotFound { what: "container", id: id.to_string() })
    }

    /// By id, else the newest of this name, running ones before others; `pod/name` names it exactly.
    pub fn named(&mut self, container: &str) -> Option<&mut Container> {
        let id = ContainerId(container.to_owned());
        if self.containers.contains_key(&id) {
            return self.containers.get_mut(&id);
        }
        self.containers
            .values_mut()
            .filter(|c| match container.split_once('/') {
                Some((pod, name)) => c.status.pod.name == pod && c.spec.name == name,
                None => c.spec.name == container,
            })
            .max_by_key(|c| (c.status.state.is_running(), c.status.attempt, c.status.id.clone()))
    }
}
