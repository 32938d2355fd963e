//! Keeps the pod counts per topology domain up to date when pods come or go and when Nodes change.

use super::{Cluster, CountsId, NodeId, NodeInfo, PodId, topology::CountedPods};
use crate::core::filters;

impl Cluster {
    /// Adds or removes (`sign`) one pod wherever it is counted.
    pub(in crate::core) fn count_pod(&mut self, id: PodId, sign: i32) {
        let topology = &mut self.topology;
        if topology.counts.is_empty() {
            return;
        }
        let pod = self.pods.get(id);
        let (node, leaving) = (pod.node, pod.is_leaving());
        for nth in 0..topology.profiles[pod.profile].selections.len() {
            let selection = topology.profiles[pod.profile].selections[nth];
            for nth in 0..topology.selections[selection].counts.len() {
                let counts = topology.selections[selection].counts[nth];
                topology.count_pod_in(counts, node, leaving, sign);
            }
        }
        for term in &self.classes[pod.class].own_terms {
            let counts = topology.terms[*term].counts;
            topology.count_pod_in(counts, node, leaving, sign);
        }
    }

    /// Changes a node's Node object, and everything that depends on it.
    pub(super) fn change_node(&mut self, id: NodeId, change: impl FnOnce(&mut NodeInfo)) {
        let pods = self.nodes[id].pods.clone();
        pods.iter().for_each(|pod| self.count_pod(*pod, -1));
        self.topology.count_node(id, -1);
        change(&mut self.nodes[id]);
        let node = self.nodes[id].node.as_ref();
        self.topology.update_node(id, node);
        for filter in &mut self.node_filters {
            filter.static_scores[id] = filters::static_score(&filter.rules, node);
        }
        self.topology.count_node(id, 1);
        pods.iter().for_each(|pod| self.count_pod(*pod, 1));
        self.mark_changed(id);
    }

    /// Fills counts that are new.
    pub(super) fn fill_counts(&mut self, counts: CountsId) {
        (0..self.nodes.len()).for_each(|node| self.topology.count_node_in(counts, node, 1));
        let counted_pods = self.topology.counts[counts].counted_pods;
        for (_, pod) in self.pods.iter() {
            let is_counted = match counted_pods {
                CountedPods::Matching(selection) => self.topology.profiles[pod.profile].is_in(selection),
                CountedPods::Carrying(term) => self.classes[pod.class].own_terms.contains(&term),
            };
            if is_counted {
                self.topology.count_pod_in(counts, pod.node, pod.is_leaving(), 1);
            }
        }
    }

    /// Selectors may select pods of the namespace by its labels, which changed.
    pub(super) fn namespace_changed(&mut self, name: &str) {
        let by_namespace_labels =
            |selection: &super::topology::PodSelection| selection.selectors.iter().any(|s| s.namespaces_like.is_some());
        if !self.topology.selections.iter().any(by_namespace_labels) {
            return;
        }
        let profiles = &self.topology.profiles;
        let in_namespace = |profile: usize| profiles[profile].label_set.namespace() == name;
        let pods: Vec<PodId> =
            self.pods.iter().filter(|(_, pod)| in_namespace(pod.profile)).map(|(id, _)| id).collect();
        pods.iter().for_each(|pod| self.count_pod(*pod, -1));
        for profile in 0..self.topology.profiles.len() {
            if self.topology.profiles[profile].label_set.namespace() == name {
                let label_set = self.topology.profiles[profile].label_set.clone();
                self.topology.profiles[profile].selections = self.selections_matching(&label_set);
            }
        }
        pods.iter().for_each(|pod| self.count_pod(*pod, 1));
    }
}
