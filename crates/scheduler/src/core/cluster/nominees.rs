//! Pods that room is being made for: what they need is kept from pods that are no more important.

use std::sync::Arc;

use super::{Cluster, MachineId, machine::Nominee};
use crate::core::view::{PodKey, PodView};

impl Cluster {
    pub(in crate::core) fn nominate(&mut self, pod: &Arc<PodView>, machine: &str) {
        let at = self.slot(machine);
        self.unnominate(&pod.key);
        let class = self.class(&pod.shape);
        let requests = self.classes[class].requests.clone();
        self.machines[at].nominees.push(Nominee { pod: Arc::clone(pod), requests });
        self.nominated.insert(pod.key.clone(), at);
        self.touch(at);
    }

    /// Where it was nominated.
    pub(in crate::core) fn unnominate(&mut self, key: &PodKey) -> Option<MachineId> {
        let at = self.nominated.remove(key)?;
        self.machines[at].nominees.retain(|nominee| nominee.pod.key != *key);
        self.touch(at);
        Some(at)
    }

    /// What `look` sees while nothing is kept for the pod.
    pub(in crate::core) fn as_if_not_nominated<T>(&mut self, key: &PodKey, look: impl FnOnce(&Self) -> T) -> T {
        let Some(at) = self.nominated.get(key).copied() else { return look(self) };
        let all = self.machines[at].nominees.clone();
        self.machines[at].nominees.retain(|nominee| nominee.pod.key != *key);
        let seen = look(self);
        self.machines[at].nominees = all;
        seen
    }
}
