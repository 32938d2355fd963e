//! The healing ladder and the restart budget: which cure, and how many at once.
//!
//! [`ladder`] decides what is done about one pod's failures, [`budget`] and [`slots`] how many pods of a set may
//! be killed for failed liveness at the same time, over all machines; [`suspect`] when it is the machine. What was
//! tried for a pod is kept beside it, so that an agent that was restarted goes on from the same rung.

pub mod budget;
mod history;
mod ladder;
mod owner;
mod policies;
mod slots;
mod suspect;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use mainstay_runtime::PodUid;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

pub use self::policies::Policies;
use self::{
    history::{Files, Record},
    slots::{Asked, Slots},
    suspect::Machine,
};
use crate::{
    events::{Events, Kind},
    metrics::{Metrics, Owner},
    pods::Pods,
};

pub struct Healer {
    policies: Arc<Policies>,
    pods: Arc<Pods>,
    events: Events,
    files: Files,
    slots: Slots,
    records: Mutex<BTreeMap<PodUid, Record>>,
    machine: Mutex<Machine>,
    metrics: Metrics,
}

/// Why a container has to be started again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It ended by itself with this code.
    Crashed {
        exit_code: i32,
    },
    OutOfMemory,
    /// Its startup or liveness probe failed.
    Unhealthy {
        why: String,
    },
}

/// What is to be done about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rung {
    /// Start the container again.
    Restart,
    /// Give up this incarnation: new sandbox, all containers anew.
    Recreate { why: String },
    /// The pod is deleted so that its owner makes another elsewhere.
    Move { why: String },
}

/// Whether an unhealthy container may be killed now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leave {
    Granted,
    /// Too many of its set are being restarted; it goes on running, degraded.
    Kept {
        why: String,
    },
}

impl Healer {
    /// `directory` is the agent's own; without a client, budgets are this machine's alone.
    pub fn new(
        client: Option<Client>,
        policies: Arc<Policies>,
        pods: Arc<Pods>,
        events: Events,
        directory: PathBuf,
        metrics: Metrics,
    ) -> Self {
        Self {
            policies,
            pods,
            events,
            files: Files::new(directory),
            slots: Slots::new(client),
            records: Mutex::default(),
            machine: Mutex::default(),
            metrics,
        }
    }

    /// A container failed; the answer is recorded, so each failure is told once. Restarts that someone asked for
    /// (a changed image, an operator) are no failures and are not told at all.
    pub async fn failed(&self, pod: &Pod, container: &str, attempt: u32, cause: &Cause) -> Rung {
        if matches!(cause, Cause::Crashed { exit_code: 0 }) {
            return Rung::Restart; // it did what it had to do, and is started again because that is its policy
        }
        let Some(uid) = uid(pod) else { return Rung::Restart };
        let policy = self.policies.of(pod).await;
        let now = Timestamp::now();
        let (step, record) = {
            let mut records = self.records.lock();
            let record = records.entry(uid.clone()).or_insert_with(|| self.files.read(&uid));
            if let Some((told, rung)) = record.told.get(container)
                && *told == attempt
            {
                return rung.clone();
            }
            record.history.settle(&policy, now);
            let step = ladder::step(&policy, &record.history, owner::may_move(pod), container, cause, now);
            record.history.record(&step.rung, now);
            record.told.insert(container.to_owned(), (attempt, step.rung.clone()));
            (step, record.clone())
        };
        self.files.write(&uid, &record);
        self.slots.used(&uid);
        if matches!(cause, Cause::Unhealthy { .. }) {
            self.count(pod);
        }
        let (kind, reason) = match &step.rung {
            Rung::Restart => (Kind::Normal, "HealRestart"),
            Rung::Recreate { .. } => (Kind::Warning, "HealRecreate"),
            Rung::Move { .. } => (Kind::Warning, "HealMove"),
        };
        self.events.container(pod, container, kind, reason, step.said);
        if step.rung != Rung::Restart {
            self.machine.lock().failed(owner::set(pod), owner::shown(pod), now);
        }
        step.rung
    }

    /// Asks the budget of the pod's set for leave to kill a container whose liveness failed. Held until `healthy`
    /// or until a time has passed.
    pub async fn may_kill(&self, pod: &Pod, _container: &str, _attempt: u32) -> Leave {
        let Some(controller) = owner::controller(pod) else { return Leave::Granted };
        let Some(uid) = uid(pod) else { return Leave::Granted };
        let policy = self.policies.of(pod).await;
        let here = self
            .pods
            .all()
            .iter()
            .filter(|w| owner::controller(&w.pod).is_some_and(|o| o.uid == controller.uid))
            .count();
        let asked = Asked {
            pod,
            uid: &uid,
            controller,
            policy: &policy,
            size: self.policies.set(pod).await.size,
            here: u32::try_from(here).unwrap_or(u32::MAX).max(1),
        };
        self.slots.take(&asked).await
    }

    /// All containers of the pod are ready. Costs nothing for a pod that always was.
    pub async fn healthy(&self, pod: &Pod) {
        let Some(uid) = uid(pod) else { return };
        self.slots.release(&uid, proof(pod)).await;
        let was_ill = {
            let mut records = self.records.lock();
            let record = records.entry(uid.clone()).or_insert_with(|| self.files.read(&uid));
            !record.history.is_empty()
        };
        if !was_ill {
            return;
        }
        let policy = self.policies.of(pod).await;
        let now = Timestamp::now();
        let changed = {
            let mut records = self.records.lock();
            let Some(record) = records.get_mut(&uid) else { return };
            let before = record.history.clone();
            record.history.well(now);
            record.history.settle(&policy, now);
            (record.history != before).then(|| record.clone())
        };
        if let Some(record) = changed {
            self.files.write(&uid, &record);
        }
    }

    pub fn forget(&self, pod: &PodUid) {
        self.records.lock().remove(pod);
        self.slots.forget(pod);
        self.files.remove(pod);
    }

    /// Why this machine itself may be ill, if so: pods of several sets keep failing here.
    pub fn suspect(&self) -> Option<String> {
        let sets = self.pods.all().iter().map(|wanted| owner::set(&wanted.pod)).collect();
        self.machine.lock().suspect(&sets, Timestamp::now())
    }

    fn count(&self, pod: &Pod) {
        let owner = Owner { namespace: pod.metadata.namespace.clone().unwrap_or_default(), owner: owner::shown(pod) };
        let total = self.metrics.liveness_restarts.get_or_create(&owner).inc() + 1;
        let Owner { namespace, owner } = owner;
        tracing::info!(namespace, owner, total, "liveness restart");
    }
}

/// How long it would take liveness to fail again, had the restart not helped.
fn proof(pod: &Pod) -> Duration {
    let spec = pod.spec.as_ref();
    let all = spec.into_iter().flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    let seconds = all.filter_map(|container| container.liveness_probe.as_ref()).map(|probe| {
        let count = |given: Option<i32>, stock: u64| given.and_then(|n| u64::try_from(n).ok()).unwrap_or(stock);
        let failing = count(probe.period_seconds, 10) * count(probe.failure_threshold, 3);
        count(probe.initial_delay_seconds, 0) + failing + count(probe.timeout_seconds, 1)
    });
    Duration::from_secs(seconds.max().unwrap_or(0))
}

fn uid(pod: &Pod) -> Option<PodUid> {
    pod.metadata.uid.clone().map(PodUid)
}

#[cfg(test)]
mod tests;
