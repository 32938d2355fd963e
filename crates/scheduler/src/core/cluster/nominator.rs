//! Nominated pods: pods that others were preempted for. What they request is kept from pods of no higher priority.

use std::sync::Arc;

use super::{Cluster, NodeId, node_info::NominatedPod};
use crate::core::view::{PodKey, PodView};

impl Cluster {
    pub(in crate::core) fn nominate(&mut self, pod: &Arc<PodView>, node: &str) {
        let node = self.node_id_or_insert(node);
        self.remove_nomination(&pod.key);
        let class = self.class_id(&pod.spec);
        let (requests, roles) = (self.classes[class].requests.clone(), self.classes[class].roles.clone());
        self.nodes[node].nominated_pods.push(NominatedPod { pod: Arc::clone(pod), requests, roles });
        self.nominations.insert(pod.key.clone(), node);
        self.mark_changed(node);
    }

    /// Returns the node that it was nominated for.
    pub(in crate::core) fn remove_nomination(&mut self, key: &PodKey) -> Option<NodeId> {
        let node = self.nominations.remove(key)?;
        self.nodes[node].nominated_pods.retain(|nominated| nominated.pod.key != *key);
        self.mark_changed(node);
        Some(node)
    }

    /// The result of `inspect` while nothing is kept for the pod.
    pub(in crate::core) fn without_nomination<T>(&mut self, key: &PodKey, inspect: impl FnOnce(&Self) -> T) -> T {
        let Some(node) = self.nominations.get(key).copied() else { return inspect(self) };
        let all = self.nodes[node].nominated_pods.clone();
        self.nodes[node].nominated_pods.retain(|nominated| nominated.pod.key != *key);
        let result = inspect(self);
        self.nodes[node].nominated_pods = all;
        result
    }
}
