//! Updates of the cache: what the API reports, and what the scheduler assumes until the API confirms it.

use std::sync::Arc;

use super::{ClassId, Cluster, EXCLUDED, NodeId, NodeInfo, PodId, PodInfo, ProfileId, role_pools::RecordedShares};
use crate::core::view::{AssignedHostPort, BudgetView, Labels, NodeView, OfferView, PodKey, PodView};

impl Cluster {
    /// Returns whether anything changed.
    pub fn update_node(&mut self, node: NodeView) -> bool {
        let id = self.node_id_or_insert(&node.name);
        if self.nodes[id].node.as_ref() == Some(&node) {
            return false;
        }
        let allocatable = self.resources.by_id(&node.allocatable);
        self.change_node(id, |info| {
            info.allocatable = allocatable;
            info.node = Some(node);
        });
        true
    }

    pub fn remove_node(&mut self, name: &str) {
        if let Some(id) = self.find_node(name).filter(|id| self.nodes[*id].node.is_some()) {
            self.change_node(id, |info| {
                info.node = None;
                info.allocatable.clear();
            });
        }
    }

    /// Returns whether different resources or ports are free than before.
    pub fn update_offer(&mut self, node: &str, offer: OfferView) -> bool {
        let id = self.node_id_or_insert(node);
        let free = self.resources.by_id(&offer.free);
        let pools = self.pools_of_offer(&offer);
        let seen = offer.seen;
        let before = self.nodes[id].offer.replace(offer);
        self.nodes[id].forget_shown(&free);
        let free_before = std::mem::replace(&mut self.nodes[id].free, free);
        let had_pools = !std::mem::replace(&mut self.nodes[id].pools, pools).is_empty();
        for pod in self.nodes[id].pods.clone() {
            let pod = self.pods.get_mut(pod);
            pod.subtracted = pod.bound_version.is_none_or(|version| version > seen);
            if pod.subtracted {
                self.nodes[id].subtract(&self.classes[pod.class].requests);
            }
        }
        if had_pools || !self.nodes[id].pools.is_empty() {
            self.nodes[id].pods.clone().into_iter().for_each(|pod| self.take_from_pools(pod));
        }
        let info = &self.nodes[id];
        let same_ports = |a: &OfferView, b: &OfferView| {
            a.automatic_ports == b.automatic_ports && a.explicit_ports == b.explicit_ports && a.pools == b.pools
        };
        let changed = free_before != info.free
            || !before.as_ref().zip(info.offer.as_ref()).is_some_and(|(a, b)| same_ports(a, b));
        if changed {
            self.mark_changed(id);
        }
        changed
    }

    pub fn remove_offer(&mut self, node: &str) {
        if let Some(id) = self.find_node(node)
            && self.nodes[id].offer.take().is_some()
        {
            self.nodes[id].free.clear();
            self.nodes[id].pools.clear();
            self.nodes[id].ended_pods.clear();
            self.mark_changed(id);
        }
    }

    /// The current state of a pod: on a node, nominated for one, or neither.
    pub fn update_pod(&mut self, pod: Arc<PodView>) {
        let known = self.pods.find(&pod.key);
        if let Some(id) = known.filter(|id| self.pod_info(*id).view.uid == pod.uid) {
            return self.update_known_pod(id, pod);
        }
        if let Some(id) = known {
            self.end_pod(id);
        }
        if pod.finished {
            self.remove_nomination(&pod.key);
        } else if let Some(node) = pod.node.clone() {
            self.remove_nomination(&pod.key);
            let (version, ports) = (pod.version, pod.assigned_ports.clone());
            self.add_pod(pod, &node, Some(version), ports);
        } else if let Some(node) = pod.nominated_node.clone().filter(|_| !pod.terminating) {
            self.nominate(&pod, &node);
        }
    }

    fn update_known_pod(&mut self, id: PodId, pod: Arc<PodView>) {
        let known = self.pod_info(id);
        let assumed = known.bound_version.is_none();
        if known.bound_version.is_some_and(|bound| pod.version < bound) {
            return;
        }
        if pod.node.is_none() && assumed && !pod.finished && !pod.terminating {
            return; // from before it was assumed
        }
        let (bound_version, is_victim) = (known.bound_version, known.is_victim);
        let stays = pod.node.as_deref() == Some(&*self.nodes[known.node].name);
        if stays && bound_version.is_some() && known.is_unchanged(&pod) {
            return self.pods.replace_view(id, pod);
        }
        if pod.finished {
            return self.end_pod(id);
        }
        self.remove_pod_by_id(id);
        if let Some(node) = pod.node.clone() {
            let bound_version = bound_version.filter(|_| stays).unwrap_or(pod.version);
            let ports = pod.assigned_ports.clone();
            let id = self.add_pod(pod, &node, Some(bound_version), ports);
            self.set_victim(id, is_victim && stays);
        }
    }

    pub fn remove_pod(&mut self, key: &PodKey) {
        self.remove_nomination(key);
        self.forget(key);
    }

    /// The API bound an assumed pod, at this version.
    pub fn confirm(&mut self, key: &PodKey, version: u64) {
        let Some(id) = self.pods.find(key) else { return };
        let pod = self.pods.get_mut(id);
        if pod.bound_version.is_some() {
            return;
        }
        pod.bound_version = Some(version);
        let node = pod.node;
        let in_offer = self.nodes[node].offer.as_ref().is_some_and(|offer| version <= offer.seen);
        if pod.subtracted && in_offer {
            pod.subtracted = false;
            self.nodes[node].restore_shares(&pod.shares);
            self.nodes[node].restore(&self.classes[pod.class].requests);
            self.mark_changed(node);
        }
    }

    /// An assumed pod was not bound.
    pub fn forget(&mut self, key: &PodKey) {
        if let Some(id) = self.pods.find(key) {
            self.end_pod(id);
        }
    }

    /// A victim could not be deleted.
    pub fn unmark_victim(&mut self, key: &PodKey) {
        if let Some(id) = self.pods.find(key) {
            self.set_victim(id, false);
        }
    }

    pub fn update_budget(&mut self, budget: BudgetView) {
        self.budgets.insert((budget.namespace.clone(), budget.name.clone()), budget);
    }

    pub fn remove_budget(&mut self, namespace: &str, name: &str) {
        self.budgets.remove(&(namespace.to_owned(), name.to_owned()));
    }

    /// Rules may select pods by their namespace's labels.
    pub fn update_namespace(&mut self, name: &str, labels: Labels) {
        if self.namespaces.get(name) != Some(&labels) {
            self.namespaces.insert(name.to_owned(), labels);
            self.namespace_changed(name);
        }
    }

    pub fn remove_namespace(&mut self, name: &str) {
        if self.namespaces.remove(name).is_some() {
            self.namespace_changed(name);
        }
    }

    pub(super) fn mark_changed(&mut self, node: NodeId) {
        self.change_log.push(node, self.nodes.len());
    }

    pub(super) fn add_pod(
        &mut self,
        pod: Arc<PodView>,
        node: &str,
        bound_version: Option<u64>,
        ports: Vec<AssignedHostPort>,
    ) -> PodId {
        let node = self.node_id_or_insert(node);
        let ids = (self.class_id(&pod.spec), self.profile_id(&pod.label_set));
        self.add_pod_to_node(pod, ids, node, bound_version, ports)
    }

    /// Puts the pod on the node and counts it everywhere. Without a version it is assumed to be there until
    /// [`Cluster::confirm`] or [`Cluster::forget`].
    pub(in crate::core) fn add_pod_to_node(
        &mut self,
        view: Arc<PodView>,
        (class, profile): (ClassId, ProfileId),
        node: NodeId,
        bound_version: Option<u64>,
        assigned_ports: Vec<AssignedHostPort>,
    ) -> PodId {
        let info = &mut self.nodes[node];
        let seen = info.offer.as_ref().map(|offer| offer.seen);
        let subtracted = bound_version.is_none_or(|version| seen.is_none_or(|seen| version > seen));
        if subtracted && info.offer.is_some() {
            info.subtract(&self.classes[class].requests);
        }
        let (shares, is_victim) = (vec![], false);
        let pod = PodInfo { view, node, class, profile, bound_version, assigned_ports, shares, subtracted, is_victim };
        let id = self.pods.insert(pod);
        info.hold_ports(id, &self.classes[class].spec.ports, &self.pods.get(id).assigned_ports);
        info.pods.push(id);
        if !info.pools.is_empty() {
            self.take_from_pools(id);
        }
        self.classes[class].pod_count += 1;
        self.count_pod(id, 1);
        self.mark_changed(node);
        id
    }

    /// Works out what a pod takes of its node's pools, and subtracts it unless the offer takes it into account.
    fn take_from_pools(&mut self, id: PodId) {
        let pod = self.pod_info(id);
        let recorded = match &pod.shares[..] {
            [] => RecordedShares::Annotation(&pod.view.role_shares),
            known => RecordedShares::Known(known),
        };
        let (node, subtracted) = (pod.node, pod.subtracted);
        let shares = self.pool_shares(pod.class, node, !subtracted, &recorded);
        if subtracted {
            self.nodes[node].subtract_shares(&shares);
        }
        self.pods.get_mut(id).shares = shares;
    }

    pub(super) fn remove_pod_by_id(&mut self, id: PodId) {
        self.count_pod(id, -1);
        let pod = self.pods.remove(id);
        let info = &mut self.nodes[pod.node];
        if pod.subtracted && info.offer.is_some() {
            info.restore(&self.classes[pod.class].requests);
            info.restore_shares(&pod.shares);
        }
        info.release_ports(id, &self.classes[pod.class].spec.ports, &pod.assigned_ports);
        info.pods.retain(|other| *other != id);
        self.classes[pod.class].pod_count -= 1;
        self.mark_changed(pod.node);
    }

    pub(in crate::core) fn set_victim(&mut self, id: PodId, is_victim: bool) {
        if self.pod_info(id).is_victim != is_victim {
            self.count_pod(id, -1);
            self.pods.get_mut(id).is_victim = is_victim;
            self.count_pod(id, 1);
            self.mark_changed(self.pod_info(id).node);
        }
    }

    pub(super) fn node_id_or_insert(&mut self, name: &str) -> NodeId {
        if let Some(id) = self.find_node(name) {
            return id;
        }
        let (id, info) = (self.nodes.len(), NodeInfo::new(name));
        self.node_ids.insert(Arc::clone(&info.name), id);
        self.nodes.push(info);
        self.node_filters.iter_mut().for_each(|filter| filter.static_scores.push(EXCLUDED));
        self.topology.add_node();
        self.node_epoch += 1;
        id
    }
}
