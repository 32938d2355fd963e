//! The desired pods of this node from all sources, and which of them still take resources.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use k8s_openapi::api::core::v1::Pod;
use mainstay_api::{pod::is_finished, wellknown::kubernetes::MIRROR_POD};
use mainstay_runtime::PodUid;
use parking_lot::RwLock;
use tokio::sync::watch;

use crate::wake::Wake;

/// Whether a pod of the API only shows a static pod. Such a pod is nobody's to run.
pub fn is_mirror_pod(pod: &Pod) -> bool {
    pod.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(MIRROR_POD))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    Api,
    /// The directory of static pods.
    File,
}

#[derive(Clone, Debug)]
pub struct DesiredPod {
    pub pod: Arc<Pod>,
    pub source: Source,
}

/// Which sources have delivered a complete list at least once. Until all have, nothing is an orphan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncedSources {
    pub api: bool,
    pub file: bool,
}

pub struct Pods {
    wanted: RwLock<BTreeMap<PodUid, DesiredPod>>,
    /// What is wanted, and what was until it has really ended.
    held: RwLock<BTreeMap<PodUid, Arc<Pod>>>,
    /// Those that are to end before anything is done for them.
    rejected: RwLock<BTreeSet<PodUid>>,
    /// The newest version of a pod in the API that is taken into account here.
    seen: AtomicU64,
    changed: watch::Sender<()>,
    synced: watch::Sender<SyncedSources>,
    wake: Wake,
    /// Adapts pods to this node before anybody sees them.
    adapt: fn(&mut Pod),
}

impl Pods {
    pub fn new(wake: Wake) -> Self {
        let (wanted, held, rejected, seen, changed, synced) = Default::default();
        Self { wanted, held, rejected, seen, changed, synced, wake, adapt: |_| {} }
    }

    /// Pods go through `adapt` before anybody sees them.
    pub fn adapting(self, adapt: fn(&mut Pod)) -> Self {
        Self { adapt, ..self }
    }

    pub fn get(&self, uid: &PodUid) -> Option<DesiredPod> {
        self.wanted.read().get(uid).cloned()
    }

    /// The pod of this name; of several (an old one may still be ending) the newest.
    pub fn named(&self, namespace: &str, name: &str) -> Option<DesiredPod> {
        let wanted = self.wanted.read();
        let mut found: Vec<&DesiredPod> = wanted
            .values()
            .filter(|w| {
                w.pod.metadata.name.as_deref() == Some(name) && w.pod.metadata.namespace.as_deref() == Some(namespace)
            })
            .collect();
        found.sort_by_key(|w| (w.pod.metadata.deletion_timestamp.is_none(), w.pod.metadata.creation_timestamp.clone()));
        found.pop().cloned()
    }

    pub fn all(&self) -> Vec<DesiredPod> {
        self.wanted.read().values().cloned().collect()
    }

    pub fn upsert(&self, source: Source, mut pod: Pod) {
        let Some(uid) = pod.metadata.uid.clone().map(PodUid) else { return };
        (self.adapt)(&mut pod);
        let pod = Arc::new(pod);
        self.held.write().insert(uid.clone(), pod.clone());
        self.wanted.write().insert(uid.clone(), DesiredPod { pod, source });
        self.changed.send_replace(());
        self.wake.pod(&uid);
    }

    pub fn remove(&self, source: Source, uid: &PodUid) {
        let mut wanted = self.wanted.write();
        if wanted.get(uid).is_some_and(|w| w.source == source) {
            wanted.remove(uid);
        }
        drop(wanted);
        self.wake.pod(uid);
    }

    /// Everything a source wants; what it wanted before and does not want now is gone.
    pub fn replace(&self, source: Source, pods: Vec<Pod>) {
        let keep: Vec<PodUid> = pods.iter().filter_map(|pod| pod.metadata.uid.clone().map(PodUid)).collect();
        let gone: Vec<PodUid> = {
            let wanted = self.wanted.read();
            wanted.iter().filter(|(uid, w)| w.source == source && !keep.contains(uid)).map(|(u, _)| u.clone()).collect()
        };
        for uid in gone {
            self.remove(source, &uid);
        }
        for pod in pods {
            self.upsert(source, pod);
        }
        self.synced.send_modify(|synced| match source {
            Source::Api => synced.api = true,
            Source::File => synced.file = true,
        });
    }

    /// A pod that comes only to be reported as failed takes nothing.
    pub fn reject(&self, uid: &PodUid) {
        self.rejected.write().insert(uid.clone());
    }

    /// The pods that take something of this machine. Those that ended by themselves take nothing.
    pub fn active_pods(&self) -> Vec<(PodUid, Arc<Pod>)> {
        let (held, rejected) = (self.held.read(), self.rejected.read());
        let takers = held.iter().filter(|(uid, pod)| !is_finished(pod) && !rejected.contains(*uid));
        takers.map(|(uid, pod)| (uid.clone(), pod.clone())).collect()
    }

    /// Uids of the pods that are wanted, and of those that were and have not ended.
    pub fn held_uids(&self) -> BTreeSet<String> {
        self.held.read().keys().map(|uid| uid.0.clone()).collect()
    }

    /// Nothing of a pod is left on this machine. What is wanted stays held.
    pub fn release(&self, uid: &PodUid) {
        let wanted = self.wanted.read();
        if !wanted.contains_key(uid) {
            self.rejected.write().remove(uid);
            if self.held.write().remove(uid).is_some() {
                self.changed.send_replace(());
            }
        }
    }

    /// All events of the API up to this version are taken into account.
    pub fn set_observed_version(&self, version: u64) {
        self.seen.store(version, Ordering::Release);
        self.changed.send_replace(());
    }

    pub fn observed_version(&self) -> u64 {
        self.seen.load(Ordering::Acquire)
    }

    /// Tells when something is held that was not, or no longer, or has changed.
    pub fn changed(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    pub fn synced_sources(&self) -> watch::Receiver<SyncedSources> {
        self.synced.subscribe()
    }
}
