//! Applies events about nodes, their Leases and offers, PodDisruptionBudgets and namespaces.

use std::{collections::BTreeSet, time::Instant};

use super::{Action, SchedulerState, WatchedKind, missing_names};
use crate::{
    core::{
        decode::{NamespaceObject, NodeLease, OfferObject},
        view::{BudgetView, NodeView},
    },
    offers::OfferChange,
    reflector::{Delta, Item},
};

impl SchedulerState {
    pub(super) fn apply_nodes(&mut self, delta: Delta<NodeView>) {
        match delta {
            Delta::Replaced { items, round, .. } => {
                let listed: BTreeSet<&str> = items.iter().map(|item| item.object.name.as_str()).collect();
                let deleted = missing_names(self.nodes.iter(), &listed);
                deleted.iter().for_each(|name| self.remove_node(name));
                items.into_iter().for_each(|item| self.update_node(item.view));
                self.mark_synced(WatchedKind::Nodes, round);
            }
            Delta::Updated(Item { view, .. }) => self.update_node(view),
            Delta::Deleted(object) => self.remove_node(&object.name),
        }
    }

    fn update_node(&mut self, node: NodeView) {
        let name = node.name.clone();
        self.nodes.insert(name.clone());
        if self.cluster.update_node(node) {
            self.changes.add_node(&name, true);
            self.changes.topology = true;
        }
    }

    fn remove_node(&mut self, name: &str) {
        if self.nodes.remove(name) {
            self.cluster.remove_node(name);
            self.changes.topology = true;
        }
    }

    pub(super) fn apply_offers(&mut self, delta: Delta<OfferObject>, now: Instant) {
        match delta {
            Delta::Replaced { items, round, .. } => {
                let listed: BTreeSet<&str> = items.iter().map(|item| item.object.name.as_str()).collect();
                let deleted = missing_names(self.offer_versions.keys(), &listed);
                deleted.iter().for_each(|name| self.remove_offer(name));
                items.into_iter().for_each(|item| self.update_offer(item, now));
                self.mark_synced(WatchedKind::Offers, round);
            }
            Delta::Updated(item) => self.update_offer(item, now),
            Delta::Deleted(object) => self.remove_offer(&object.name),
        }
    }

    /// A list repeats offers that are known; only one with another version was renewed since.
    fn update_offer(&mut self, item: Item<OfferObject>, now: Instant) {
        let (name, OfferObject { offer, ttl }) = (item.object.name, item.view);
        if self.offer_versions.insert(name.clone(), item.object.version) == Some(item.object.version) {
            return;
        }
        self.metrics.offers_received.inc();
        let change = self.offers.receive(&name, offer.clone(), ttl, now);
        if change != OfferChange::Renewed && self.cluster.update_offer(&name, offer) {
            self.changes.add_node(&name, change == OfferChange::New);
        }
    }

    pub(super) fn apply_leases(&mut self, delta: Delta<NodeLease>, now: Instant) {
        match delta {
            Delta::Replaced { items, .. } => {
                let listed: BTreeSet<&str> = items.iter().map(|item| item.object.name.as_str()).collect();
                self.lease_versions.retain(|name, _| listed.contains(name.as_str()));
                items.into_iter().for_each(|item| self.update_lease(item, now));
            }
            Delta::Updated(item) => self.update_lease(item, now),
            Delta::Deleted(object) => drop(self.lease_versions.remove(&object.name)),
        }
    }

    /// A list repeats Leases that are known; only one with another version was renewed since.
    fn update_lease(&mut self, item: Item<NodeLease>, now: Instant) {
        let Item { object, view } = item;
        let renewed = view.offer_version.filter(|version| self.offer_versions.get(&object.name) == Some(version));
        let before = self.lease_versions.insert(object.name.clone(), object.version);
        if before != Some(object.version) && renewed.is_some() {
            self.metrics.offers_renewed.inc();
            self.offers.renew(&object.name, now);
        }
    }

    fn remove_offer(&mut self, name: &str) {
        self.offer_versions.remove(name);
        self.offers.withdraw(name);
        self.cluster.remove_offer(name);
    }

    /// Removes expired offers, and lets pods try nodes again whose refusals have expired.
    pub(super) fn expire_offers(&mut self, now: Instant) {
        for node in self.offers.expire(now) {
            self.metrics.offers_expired.inc();
            self.cluster.remove_offer(&node);
            self.changes.other = true;
            let version = self.offer_versions.get(&node).copied().unwrap_or(0);
            tracing::info!(node, "offer expired; the node gets no more pods until it offers again");
            self.actions.push(Action::DeleteOffer { node, version });
        }
        for (uid, _) in self.offers.expire_refusals(now) {
            if let Some(pod) = self.pods_by_uid.get(&uid).cloned() {
                self.activate(&pod, now);
            }
        }
    }

    /// Deletes all offers, so that every node has to offer again. Returns the names of the nodes.
    pub(super) fn withdraw_all_offers(&mut self) -> Vec<String> {
        let mut offers: Vec<(String, u64)> =
            self.offer_versions.iter().map(|(name, version)| (name.clone(), *version)).collect();
        offers.sort();
        for (node, version) in &offers {
            self.offers.withdraw(node);
            self.cluster.remove_offer(node);
            self.actions.push(Action::DeleteOffer { node: node.clone(), version: *version });
        }
        offers.into_iter().map(|(node, _)| node).collect()
    }

    pub(super) fn apply_budgets(&mut self, delta: Delta<BudgetView>) {
        self.changes.other = true;
        match delta {
            Delta::Replaced { items, round, .. } => {
                let listed: BTreeSet<(String, String)> =
                    items.iter().map(|item| (item.view.namespace.clone(), item.view.name.clone())).collect();
                let known = std::mem::replace(&mut self.budgets, listed.clone());
                for (namespace, name) in known.difference(&listed) {
                    self.cluster.remove_budget(namespace, name);
                }
                items.into_iter().for_each(|item| self.cluster.update_budget(item.view));
                self.mark_synced(WatchedKind::Budgets, round);
            }
            Delta::Updated(Item { view, .. }) => {
                self.budgets.insert((view.namespace.clone(), view.name.clone()));
                self.cluster.update_budget(view);
            }
            Delta::Deleted(object) => {
                self.cluster.remove_budget(&object.namespace, &object.name);
                self.budgets.remove(&(object.namespace, object.name));
            }
        }
    }

    pub(super) fn apply_namespaces(&mut self, delta: Delta<NamespaceObject>) {
        match delta {
            Delta::Replaced { items, round, .. } => {
                let listed: BTreeSet<&str> = items.iter().map(|item| item.object.name.as_str()).collect();
                for name in missing_names(self.namespaces.keys(), &listed) {
                    self.remove_namespace(&name);
                }
                items.into_iter().for_each(|item| self.update_namespace(item));
                self.mark_synced(WatchedKind::Namespaces, round);
            }
            Delta::Updated(item) => self.update_namespace(item),
            Delta::Deleted(object) => self.remove_namespace(&object.name),
        }
    }

    fn update_namespace(&mut self, item: Item<NamespaceObject>) {
        let (name, labels) = (item.object.name, item.view.into_labels());
        if self.namespaces.get(&name) != Some(&labels) {
            self.namespaces.insert(name.clone(), labels.clone());
            self.cluster.update_namespace(&name, labels);
            self.changes.topology = true;
        }
    }

    fn remove_namespace(&mut self, name: &str) {
        self.namespaces.remove(name);
        self.cluster.remove_namespace(name);
    }
}
