//! The probe results of one container: started, ready, failed.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use mainstay_runtime::{ContainerId, PodUid};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{FailedProbe, Results};

pub(super) struct ProbedContainer {
    pub uid: PodUid,
    pub id: ContainerId,
    place: Mutex<(Arc<Pod>, Option<IpAddr>)>,
    outcome: Mutex<ProbeOutcome>,
    started: watch::Sender<bool>,
    stopping: AtomicBool,
}

struct ProbeOutcome {
    ready: bool,
    failed: Option<FailedProbe>,
}

impl ProbedContainer {
    pub fn new(uid: PodUid, id: ContainerId, pod: Arc<Pod>, address: Option<IpAddr>, begins: InitialState) -> Self {
        Self {
            uid,
            id,
            place: Mutex::new((pod, address)),
            outcome: Mutex::new(ProbeOutcome { ready: begins.ready, failed: None }),
            started: watch::Sender::new(begins.started),
            stopping: AtomicBool::new(false),
        }
    }

    pub fn moved(&self, pod: Arc<Pod>, address: Option<IpAddr>) {
        *self.place.lock() = (pod, address);
    }

    pub fn pod(&self) -> Arc<Pod> {
        self.place.lock().0.clone()
    }

    /// The pod is deleted.
    pub fn is_terminating(&self) -> bool {
        self.place.lock().0.metadata.deletion_timestamp.is_some()
    }

    pub fn set_stopping(&self, stopping: bool) {
        self.stopping.store(stopping, Ordering::Relaxed);
    }

    /// This container is being killed, whatever becomes of the pod.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Of the pod; on the host's network the machine's own is as good.
    pub fn address(&self) -> Option<IpAddr> {
        let (pod, address) = self.place.lock().clone();
        let reported = || pod.status.as_ref()?.pod_ip.as_deref()?.parse().ok();
        let host = || pod.spec.as_ref()?.host_network?.then_some(IpAddr::from([127, 0, 0, 1]));
        address.or_else(reported).or_else(host)
    }

    pub async fn until_started(&self) {
        // The sender lives as long as we do, so this cannot fail.
        let _ = self.started.subscribe().wait_for(|started| *started).await;
    }

    pub fn set_started(&self) -> bool {
        let healed = self.set_failed(None);
        self.started.send_if_modified(|started| !std::mem::replace(started, true)) || healed
    }

    pub fn set_ready(&self, ready: bool) -> bool {
        std::mem::replace(&mut self.outcome.lock().ready, ready) != ready
    }

    /// Says whether anything a reader would act upon is different now.
    pub fn set_failed(&self, failed: Option<FailedProbe>) -> bool {
        let mut outcome = self.outcome.lock();
        let changed = outcome.failed.is_some() != failed.is_some();
        outcome.failed = failed;
        changed
    }

    pub fn results(&self) -> Results {
        let outcome = self.outcome.lock();
        let started = *self.started.borrow();
        Results { started, ready: started && outcome.ready, failed: outcome.failed.clone() }
    }
}

/// What is believed before the first attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InitialState {
    pub started: bool,
    pub ready: bool,
}

impl InitialState {
    /// Nothing, where there is a probe to find out; unless the API remembers what was found about this very
    /// container, before this agent began.
    pub fn from_status(pod: &Pod, id: &ContainerId, has_startup: bool, has_readiness: bool) -> Self {
        let is_it = |status: &&ContainerStatus| {
            status
                .container_id
                .as_deref()
                .and_then(|id| id.split_once("://"))
                .is_some_and(|(_, reported)| reported == id.0)
        };
        let status = pod.status.as_ref();
        let known = status.and_then(|status| {
            let all = [&status.container_statuses, &status.init_container_statuses];
            all.into_iter().flatten().flatten().find(is_it)
        });
        Self {
            started: !has_startup || known.is_some_and(|status| status.started == Some(true)),
            ready: !has_readiness || known.is_some_and(|status| status.ready),
        }
    }
}
