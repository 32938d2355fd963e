//! Mirror pods: static pods shown in the API. [`super::pod_watch`] tells which there are.
//!
//! The file is what counts. A mirror is made when it is missing, made again when somebody deletes it, and removed
//! with its file; its status is written by whoever writes all pods' status, who asks [`Mirrors::api_identity`]
//! under which name and uid the API knows the pod.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams, Preconditions},
};
use mainstay_api::wellknown::kubernetes::MIRROR_POD;
use mainstay_errors::error_chain;
use mainstay_runtime::PodUid;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::manifest::HASH;
use crate::{
    pods::{Pods, Source},
    wake::Wake,
};

const RETRY_DELAY: Duration = Duration::from_secs(2);
const SLOWLY: Duration = Duration::from_secs(30);

/// How the API knows a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// Namespace and name.
type Key = (String, String);

#[derive(Clone, Debug, PartialEq, Eq)]
struct MirrorState {
    uid: String,
    /// The uid of the static pod it shows; nothing if it is no mirror.
    shows: Option<String>,
    deleting: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Action {
    Create(Key),
    Delete(Key, String),
}

/// What is to be done: `wanted` are the uids of static pods.
fn plan(wanted: &BTreeMap<Key, String>, found: &BTreeMap<Key, MirrorState>) -> Vec<Action> {
    let stale = found
        .iter()
        .filter(|(key, found)| found.shows.is_some() && (found.deleting || wanted.get(*key) != found.shows.as_ref()));
    let delete = stale.map(|(key, found)| Action::Delete(key.clone(), found.uid.clone()));
    let missing = wanted.keys().filter(|key| !found.contains_key(*key));
    delete.chain(missing.map(|key| Action::Create(key.clone()))).collect()
}

pub struct Mirrors {
    client: Client,
    pods: Arc<Pods>,
    wake: Wake,
    /// The Node that mirrors belong to.
    node: watch::Receiver<Option<Node>>,
    found: RwLock<BTreeMap<Key, MirrorState>>,
    /// All pods of this node have been listed once.
    listed: AtomicBool,
    /// What the API last refused, so that it is logged once.
    refused: Mutex<BTreeMap<Key, String>>,
    /// The set of static pods has changed, or what shows them.
    pub changed: Arc<Notify>,
}

impl Mirrors {
    pub fn new(client: Client, pods: Arc<Pods>, wake: Wake, node: watch::Receiver<Option<Node>>) -> Arc<Self> {
        let (found, listed, refused, changed) = Default::default();
        Arc::new(Self { client, pods, wake, node, found, listed, refused, changed })
    }

    /// For a static pod that of its mirror, once there is one; for another its own.
    pub fn api_identity(&self, pod: &Pod) -> Option<Identity> {
        let meta = &pod.metadata;
        let key = (meta.namespace.clone()?, meta.name.clone()?);
        let uid = meta.uid.clone()?;
        let own = meta.annotations.as_ref().is_none_or(|all| all.get(HASH) != Some(&uid));
        let uid = if own {
            uid
        } else {
            let found = self.found.read();
            found.get(&key).filter(|found| found.shows.as_ref() == Some(&uid) && !found.deleting)?.uid.clone()
        };
        Some(Identity { namespace: key.0, name: key.1, uid })
    }

    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        stop.run_until_cancelled(self.follow()).await;
    }

    async fn follow(&self) {
        let mut pause = SLOWLY;
        loop {
            tokio::select! {
                () = self.changed.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
            // Nothing is deleted before both sides have delivered a complete list.
            if self.listed.load(Ordering::Acquire) && self.pods.synced_sources().borrow().file {
                pause = if self.settle().await { SLOWLY } else { RETRY_DELAY };
            }
        }
    }

    /// All pods that the API has for this node.
    pub fn observe_all(&self, pods: &[Pod]) {
        *self.found.write() = pods.iter().filter_map(entry).collect();
        self.listed.store(true, Ordering::Release);
        self.wanted().into_values().for_each(|uid| self.wake.pod(&PodUid(uid)));
        self.changed.notify_one();
    }

    /// A pod of this node as the API has it now.
    pub fn observe(&self, pod: &Pod) {
        let Some((key, found)) = entry(pod) else { return };
        let is_mirror = found.shows.is_some();
        self.record_mirror(key, found);
        if is_mirror {
            self.changed.notify_one();
        }
    }

    /// A pod of this node that the API no longer has.
    pub fn observe_deleted(&self, pod: &Pod) {
        if let Some((key, found)) = entry(pod) {
            self.gone(&key, &found.uid);
            self.changed.notify_one();
        }
    }

    fn record_mirror(&self, key: Key, found: MirrorState) {
        let shows = found.shows.clone();
        let is_new = self.found.write().insert(key, found.clone()).as_ref() != Some(&found);
        if let Some(uid) = shows.filter(|_| is_new) {
            self.wake.pod(&PodUid(uid)); // its status can be reported now
        }
    }

    fn gone(&self, key: &Key, uid: &str) {
        let mut all = self.found.write();
        if all.get(key).is_some_and(|found| found.uid == uid) {
            all.remove(key);
        }
    }

    fn static_pods(&self) -> Vec<Arc<Pod>> {
        let all = self.pods.all().into_iter();
        all.filter(|wanted| wanted.source == Source::File).map(|wanted| wanted.pod).collect()
    }

    fn wanted(&self) -> BTreeMap<Key, String> {
        self.static_pods().iter().filter_map(|pod| entry(pod).map(|(key, found)| (key, found.uid))).collect()
    }

    /// `true` if everything is as it should be.
    async fn settle(&self) -> bool {
        let actions = plan(&self.wanted(), &self.found.read());
        let mut done = true;
        let mut freed = BTreeSet::new();
        for action in actions {
            match action {
                Action::Delete(key, uid) => {
                    done &= self.delete(&key, &uid).await;
                    freed.insert(key);
                }
                Action::Create(key) => done &= self.create(&key).await,
            }
        }
        for key in freed {
            if self.wanted().contains_key(&key) && !self.found.read().contains_key(&key) {
                done &= self.create(&key).await;
            }
        }
        done
    }

    async fn create(&self, key: &Key) -> bool {
        let own = |pod: &Arc<Pod>| entry(pod).is_some_and(|(found, _)| found == *key);
        let Some(pod) = self.static_pods().into_iter().find(own) else { return true };
        let owner = self.node.borrow().as_ref().and_then(owner);
        let Some(owner) = owner else { return false };
        let mirror = mirror(&pod, owner);
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &key.0);
        match pods.create(&PostParams::default(), &mirror).await {
            Ok(made) => {
                self.refused.lock().remove(key);
                if let Some((key, found)) = entry(&made) {
                    self.record_mirror(key, found);
                }
                true
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 422) => {
                let why = status.message.clone();
                if self.refused.lock().insert(key.clone(), why.clone()).as_ref() != Some(&why) {
                    tracing::warn!(
                        namespace = key.0,
                        name = key.1,
                        why,
                        "the API refuses the mirror pod of a static pod"
                    );
                }
                false
            }
            Err(error) => {
                tracing::debug!(
                    namespace = key.0,
                    name = key.1,
                    error = error_chain(&error),
                    "cannot show a static pod in the API"
                );
                false
            }
        }
    }

    async fn delete(&self, key: &Key, uid: &str) -> bool {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &key.0);
        let only_this = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        let params = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        match pods.delete(&key.1, &params.preconditions(only_this)).await {
            Ok(_) => self.gone(key, uid),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => self.gone(key, uid),
            Err(error) => {
                tracing::debug!(
                    namespace = key.0,
                    name = key.1,
                    error = error_chain(&error),
                    "cannot remove a mirror pod"
                );
                return false;
            }
        }
        true
    }
}

fn entry(pod: &Pod) -> Option<(Key, MirrorState)> {
    let meta = &pod.metadata;
    let found = MirrorState {
        uid: meta.uid.clone()?,
        shows: meta.annotations.as_ref().and_then(|all| all.get(MIRROR_POD).cloned()),
        deleting: meta.deletion_timestamp.is_some(),
    };
    Some(((meta.namespace.clone()?, meta.name.clone()?), found))
}

fn owner(node: &Node) -> Option<OwnerReference> {
    Some(OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.metadata.name.clone()?,
        uid: node.metadata.uid.clone()?,
        controller: Some(true),
        ..OwnerReference::default()
    })
}

fn mirror(pod: &Pod, owner: OwnerReference) -> Pod {
    let mut mirror = pod.clone();
    let meta = &mut mirror.metadata;
    let uid = meta.uid.take().unwrap_or_default();
    meta.annotations.get_or_insert_default().insert(MIRROR_POD.to_owned(), uid);
    meta.owner_references = Some(vec![owner]);
    meta.creation_timestamp = None;
    mirror.status = None;
    mirror
}

#[cfg(test)]
mod tests;
