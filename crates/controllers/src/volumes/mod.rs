//! Storage that outlives pods: claims are bound to volumes, and volumes are made for claims.
//!
//! * [`claims`]: what a claim gets, in [`plan`](claims::plan); [`fit`]: which volume suits a claim
//! * [`provision`]: the volume that is made where no ready one suits: a directory of the machine on which the first
//!   pod that uses the claim was placed
//! * [`lives`]: what becomes of a volume, until it is released and deleted
//! * [`ephemeral`]: claims that are part of a pod
//!
//! Every step is derived from what is seen: the volume first names its claim, which nobody else can then
//! take, then the claim names its volume. Whoever is interrupted finds where to go on.
//!
//! The directory itself is the business of the agent of that machine: it is made when first used, and removed
//! when the volume is deleted, which a finalizer of the agent's waits for.

pub mod claims;
pub mod ephemeral;
mod fit;
pub mod lives;
mod provision;
mod say;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::Mutex;

use crate::{catalogue::Resource, monitor::Seen, runner::Queue};

/// The finalizer of a claim that pods may be using.
pub const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
/// The finalizer of a volume that is bound.
pub const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";
pub const PROVISIONER: &str = "mainstay.dev/local-path";
/// The finalizer of a volume whose directory exists; the agent of its machine takes it off.
pub const ON_DISK: &str = "mainstay.dev/local-path";
/// Says of a Node where its agent keeps volumes.
pub const DIRECTORY: &str = "mainstay.dev/volumes";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

/// Namespace and name.
pub type Key = (String, String);

/// Which news concerns which claims and volumes. Metadata alone does not tell, so what was seen last does.
pub struct Desk {
    pub claims: Arc<Queue<Key>>,
    pub volumes: Arc<Queue<String>>,
    pub pods: Arc<Queue<Key>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Claims for which pods, volumes and classes matter: not bound yet, or about to go.
    waiting: BTreeSet<Key>,
    /// Volumes by the claim they name.
    bound: BTreeMap<Key, String>,
    /// Pods that were looked at.
    pods: BTreeSet<String>,
}

impl Desk {
    pub fn new() -> Arc<Self> {
        let (claims, volumes, pods) = (Queue::new(), Queue::new(), Queue::new());
        Arc::new(Self { claims, volumes, pods, state: Mutex::default() })
    }

    fn set_waiting(&self, claim: &Key, waiting: bool) {
        let mut state = self.state.lock();
        if waiting {
            state.waiting.insert(claim.clone());
        } else {
            state.waiting.remove(claim);
        }
    }

    fn set_bound(&self, volume: &str, claim: Option<Key>) {
        let mut state = self.state.lock();
        state.bound.retain(|_, other| other != volume);
        if let Some(claim) = claim {
            state.bound.insert(claim, volume.to_owned());
        }
    }

    pub fn seen(&self, resource: &Resource, seen: &Seen) {
        let (meta, present) = match seen {
            Seen::Present(meta) => (meta, true),
            Seen::Gone(meta) => (meta, false),
            Seen::Begin | Seen::End | Seen::Dropped => return,
        };
        let name = meta.name.clone().unwrap_or_default();
        let namespace = meta.namespace.clone().unwrap_or_default();
        let mut state = self.state.lock();
        if resource.is("", "persistentvolumeclaims") {
            let key = (namespace, name);
            if let Some(volume) = state.bound.get(&key) {
                self.volumes.wake(volume.clone());
            }
            self.claims.wake(key);
        } else if resource.is("", "persistentvolumes") {
            if let Some((claim, _)) = state.bound.iter().find(|(_, volume)| **volume == name) {
                self.claims.wake(claim.clone());
            }
            self.volumes.wake(name);
            state.waiting.iter().for_each(|claim| self.claims.wake(claim.clone()));
        } else if resource.is("storage.k8s.io", "storageclasses") {
            state.waiting.iter().for_each(|claim| self.claims.wake(claim.clone()));
        } else if resource.is("", "pods") {
            state.waiting.iter().filter(|(own, _)| *own == namespace).for_each(|claim| self.claims.wake(claim.clone()));
            let uid = meta.uid.clone().unwrap_or_default();
            if !present {
                state.pods.remove(&uid);
            } else if state.pods.insert(uid) {
                self.pods.wake((namespace, name));
            }
        }
    }
}
