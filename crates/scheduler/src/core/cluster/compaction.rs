//! Frees what is no longer used: classes of pods that are gone, nodes that left.

use super::{Cluster, node_info::NodeInfo, pods::PodInfo};

/// So many unused entries are kept: a little waste is cheaper than rebuilding.
const SPARE: usize = 1024;

impl Cluster {
    /// Rebuilds everything from the pods and nodes there are, if most of what was compiled is unused.
    pub(in crate::core) fn compact(&mut self) {
        let live = self.pods.len() + self.nominations.len();
        let compiled = self.classes.len().max(self.topology.profiles.len());
        if compiled > 2 * live + SPARE || self.has_many_removed_nodes() {
            *self = std::mem::take(self).rebuilt();
        }
    }

    /// Checked only when there are more nodes than at the last check.
    fn has_many_removed_nodes(&mut self) -> bool {
        if self.checked_epoch == self.node_epoch {
            return false;
        }
        self.checked_epoch = self.node_epoch;
        let unreferenced = self.nodes.iter().filter(|node| node.is_unreferenced()).count();
        unreferenced > self.nodes.len() / 2 + SPARE
    }

    /// The same cluster, compiled anew.
    pub(in crate::core) fn rebuilt(self) -> Self {
        let mut fresh =
            Self { namespaces: self.namespaces, budgets: self.budgets, devices: self.devices, ..Self::default() };
        let names: Vec<_> = self.nodes.iter().map(|node| node.name.clone()).collect();
        let mut nominations = vec![];
        for NodeInfo { name, node, offer, nominated_pods, .. } in self.nodes {
            if let Some(node) = node {
                fresh.update_node(node);
            }
            if let Some(offer) = offer {
                fresh.update_offer(&name, offer);
            }
            nominations.extend(nominated_pods.into_iter().map(|nominated| (nominated.pod, name.clone())));
        }
        for PodInfo { view, node, bound_version, assigned_ports, is_victim, .. } in self.pods.into_pods() {
            let id = fresh.add_pod(view, &names[node], bound_version, assigned_ports);
            fresh.set_victim(id, is_victim);
        }
        nominations.into_iter().for_each(|(pod, node)| fresh.nominate(&pod, &node));
        fresh
    }
}
