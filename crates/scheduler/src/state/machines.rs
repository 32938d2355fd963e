//! Machines, their offers, and what is kept of budgets and namespaces.

use std::{collections::BTreeSet, time::Instant};

use super::{Source, State, Work, missing};
use crate::{
    board::Received,
    core::view::{BudgetView, NodeView},
    follow::{Item, Seen},
    wire::{NamespaceWire, OfferWire},
};

impl State {
    pub(super) fn hear_nodes(&mut self, seen: Seen<NodeView>) {
        match seen {
            Seen::All { items, round, .. } => {
                let told: BTreeSet<&str> = items.iter().map(|item| item.id.name.as_str()).collect();
                let lost = missing(self.nodes.iter(), &told);
                lost.iter().for_each(|name| self.node_gone(name));
                items.into_iter().for_each(|item| self.node_there(item.view));
                self.heard_all(Source::Nodes, round);
            }
            Seen::There(Item { view, .. }) => self.node_there(view),
            Seen::Gone(id) => self.node_gone(&id.name),
        }
    }

    fn node_there(&mut self, node: NodeView) {
        let name = node.name.clone();
        self.nodes.insert(name.clone());
        if self.cluster.put_machine(node) {
            self.changes.machine(&name, true);
            self.changes.neighbourhoods = true;
        }
    }

    fn node_gone(&mut self, name: &str) {
        if self.nodes.remove(name) {
            self.cluster.remove_machine(name);
            self.changes.neighbourhoods = true;
        }
    }

    pub(super) fn hear_offers(&mut self, seen: Seen<OfferWire>, now: Instant) {
        match seen {
            Seen::All { items, round, .. } => {
                let told: BTreeSet<&str> = items.iter().map(|item| item.id.name.as_str()).collect();
                let lost = missing(self.offers.keys(), &told);
                lost.iter().for_each(|name| self.offer_gone(name));
                items.into_iter().for_each(|item| self.offer_there(item, now));
                self.heard_all(Source::Offers, round);
            }
            Seen::There(item) => self.offer_there(item, now),
            Seen::Gone(id) => self.offer_gone(&id.name),
        }
    }

    /// An account of everything repeats offers that are known; only one in another version was made since.
    fn offer_there(&mut self, item: Item<OfferWire>, now: Instant) {
        let (id, OfferWire { terms, ttl }) = (item.id, item.view);
        if self.offers.insert(id.name.clone(), id.version) == Some(id.version) {
            return;
        }
        self.metrics.offers_received.inc();
        let received = self.board.receive(&id.name, terms.clone(), ttl, now);
        if received != Received::Renewed && self.cluster.put_offer(&id.name, terms) {
            self.changes.machine(&id.name, received == Received::New);
        }
    }

    fn offer_gone(&mut self, name: &str) {
        self.offers.remove(name);
        self.board.withdraw(name);
        self.cluster.remove_offer(name);
    }

    /// Takes down what has expired, and lets pods try machines again that turned them away a while ago.
    pub(super) fn expire(&mut self, now: Instant) {
        for machine in self.board.expire(now) {
            self.metrics.offers_expired.inc();
            self.cluster.remove_offer(&machine);
            self.changes.anything = true;
            let version = self.offers.get(&machine).copied().unwrap_or(0);
            tracing::info!(machine, "its offer has expired: it gets no more pods");
            self.work.push(Work::TearUp { machine, version });
        }
        for (uid, _) in self.board.forgive(now) {
            if let Some(pod) = self.by_uid.get(&uid).cloned() {
                self.again(&pod, now);
            }
        }
    }

    /// Every machine has to offer again what it has. Says which machines there are.
    pub(super) fn tear_up_all(&mut self) -> Vec<String> {
        let mut offers: Vec<(String, u64)> = self.offers.iter().map(|(name, at)| (name.clone(), *at)).collect();
        offers.sort();
        for (machine, version) in &offers {
            self.board.withdraw(machine);
            self.cluster.remove_offer(machine);
            self.work.push(Work::TearUp { machine: machine.clone(), version: *version });
        }
        offers.into_iter().map(|(machine, _)| machine).collect()
    }

    pub(super) fn hear_budgets(&mut self, seen: Seen<BudgetView>) {
        self.changes.anything = true;
        match seen {
            Seen::All { items, round, .. } => {
                let told: BTreeSet<(String, String)> =
                    items.iter().map(|item| (item.view.namespace.clone(), item.view.name.clone())).collect();
                let known = std::mem::replace(&mut self.budgets, told.clone());
                for (namespace, name) in known.difference(&told) {
                    self.cluster.remove_budget(namespace, name);
                }
                items.into_iter().for_each(|item| self.cluster.put_budget(item.view));
                self.heard_all(Source::Budgets, round);
            }
            Seen::There(Item { view, .. }) => {
                self.budgets.insert((view.namespace.clone(), view.name.clone()));
                self.cluster.put_budget(view);
            }
            Seen::Gone(id) => {
                self.cluster.remove_budget(&id.namespace, &id.name);
                self.budgets.remove(&(id.namespace, id.name));
            }
        }
    }

    pub(super) fn hear_namespaces(&mut self, seen: Seen<NamespaceWire>) {
        match seen {
            Seen::All { items, round, .. } => {
                let told: BTreeSet<&str> = items.iter().map(|item| item.id.name.as_str()).collect();
                for name in missing(self.namespaces.keys(), &told) {
                    self.namespace_gone(&name);
                }
                items.into_iter().for_each(|item| self.namespace_there(item));
                self.heard_all(Source::Namespaces, round);
            }
            Seen::There(item) => self.namespace_there(item),
            Seen::Gone(id) => self.namespace_gone(&id.name),
        }
    }

    fn namespace_there(&mut self, item: Item<NamespaceWire>) {
        let labels = item.view.labels();
        if self.namespaces.get(&item.id.name) != Some(&labels) {
            self.namespaces.insert(item.id.name.clone(), labels.clone());
            self.cluster.put_namespace(&item.id.name, labels);
            self.changes.neighbourhoods = true;
        }
    }

    fn namespace_gone(&mut self, name: &str) {
        self.namespaces.remove(name);
        self.cluster.remove_namespace(name);
    }
}
