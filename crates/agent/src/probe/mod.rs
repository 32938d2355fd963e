//! Probes: startup, readiness, liveness.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use mainstay_runtime::{ContainerId, PodUid};

/// Probes the running containers of all pods, each probe in its own task. Wakes the pod when a result changes.
pub struct Probes {}

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
    pub failed: Option<Failed>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
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

impl Probes {
    /// Exactly these containers of the pod are probed from now on; those already probed go on undisturbed.
    pub fn follow(&self, _pod: &Arc<Pod>, _running: &[Running], _address: Option<IpAddr>) {
        todo!()
    }

    /// One entry for each container followed.
    pub fn results(&self, _pod: &PodUid) -> BTreeMap<ContainerId, Results> {
        todo!()
    }

    pub fn forget(&self, _pod: &PodUid) {
        todo!()
    }
}
