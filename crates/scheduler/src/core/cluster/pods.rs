//! The pods on nodes, by id and by key.

use std::{
    borrow::Borrow,
    collections::HashMap,
    hash::{Hash, Hasher},
    sync::Arc,
};

use super::{ClassId, NodeId, PodId, PoolShare, ProfileId};
use crate::core::view::{AssignedHostPort, PodKey, PodView};

/// A pod on a node.
#[derive(Debug)]
pub struct PodInfo {
    pub view: Arc<PodView>,
    pub node: NodeId,
    pub class: ClassId,
    pub profile: ProfileId,
    /// The version at which it was bound; `None` while that is only assumed.
    pub bound_version: Option<u64>,
    pub assigned_ports: Vec<AssignedHostPort>,
    /// What it takes of the pools of its node, if that has pools.
    pub shares: Vec<PoolShare>,
    /// Its requests are subtracted from what the node offers; else the offer takes it into account already.
    pub subtracted: bool,
    /// Chosen to be preempted.
    pub is_victim: bool,
}

impl PodInfo {
    /// Whether nothing that scheduling depends on is different.
    pub fn is_unchanged(&self, now: &PodView) -> bool {
        let before = &self.view;
        before.spec.is_equal(&now.spec)
            && before.label_set == now.label_set
            && self.assigned_ports == now.assigned_ports
            && before.role_shares == now.role_shares
            && before.terminating == now.terminating
            && !now.finished
    }

    pub fn is_leaving(&self) -> bool {
        self.is_victim || self.view.terminating
    }
}

/// Ids of removed pods are used again.
#[derive(Debug, Default)]
pub struct PodTable {
    slots: Vec<Option<PodInfo>>,
    free_ids: Vec<PodId>,
    ids: HashMap<PodByKey, PodId>,
}

impl PodTable {
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    pub fn find(&self, key: &PodKey) -> Option<PodId> {
        self.ids.get(key).copied()
    }

    pub fn get(&self, id: PodId) -> &PodInfo {
        self.slots[id].as_ref().expect("ids of removed pods are not kept")
    }

    pub fn get_mut(&mut self, id: PodId) -> &mut PodInfo {
        self.slots[id].as_mut().expect("ids of removed pods are not kept")
    }

    pub fn iter(&self) -> impl Iterator<Item = (PodId, &PodInfo)> {
        self.slots.iter().enumerate().filter_map(|(id, pod)| Some((id, pod.as_ref()?)))
    }

    pub fn into_pods(self) -> impl Iterator<Item = PodInfo> {
        self.slots.into_iter().flatten()
    }

    pub fn insert(&mut self, pod: PodInfo) -> PodId {
        let id = self.free_ids.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.ids.insert(PodByKey(Arc::clone(&pod.view)), id);
        self.slots[id] = Some(pod);
        id
    }

    pub fn remove(&mut self, id: PodId) -> PodInfo {
        let pod = self.slots[id].take().expect("a pod is removed once");
        self.ids.remove(&pod.view.key);
        self.free_ids.push(id);
        pod
    }

    /// The same pod on the same node, with changes that scheduling does not depend on.
    pub fn replace_view(&mut self, id: PodId, view: Arc<PodView>) {
        self.ids.remove(&view.key);
        self.ids.insert(PodByKey(Arc::clone(&view)), id);
        self.get_mut(id).view = view;
    }
}

/// Shares the key with the view instead of copying it.
#[derive(Debug)]
struct PodByKey(Arc<PodView>);

impl PartialEq for PodByKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.key == other.0.key
    }
}

impl Eq for PodByKey {}

impl Hash for PodByKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.key.hash(state);
    }
}

impl Borrow<PodKey> for PodByKey {
    fn borrow(&self) -> &PodKey {
        &self.0.key
    }
}
