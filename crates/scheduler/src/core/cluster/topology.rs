//! Domains and how many pods of interest each has.
//!
//! A *key* is a machine label that divides machines into domains; domain 0 is "has no such label". A *selection*
//! says which pods; a *tally* counts them per domain of one key, within a *scope* of machines if only some count.
//! A *term* is a rule that pods carry and that others have to respect; its carriers are tallied as well.

use std::collections::HashMap;

use super::{KeyId, MachineId, ScopeId, SelId, TallyId, TermId, class::ByPrint};
use crate::core::{
    fit,
    selector::{Labels, PodSelector},
    view::{MachineRules, NodeView, Tags},
};

#[derive(Debug, Default)]
pub struct Topology {
    machines: usize,
    pub keys: Vec<Key>,
    pub selections: Vec<Selection>,
    pub profiles: Vec<Profile>,
    pub profile_of: ByPrint<usize>,
    pub scopes: Vec<Scope>,
    pub tallies: Vec<Tally>,
    pub terms: Vec<Term>,
}

#[derive(Debug)]
pub struct Key {
    pub label: String,
    values: HashMap<String, u32>,
    pub names: Vec<String>,
    /// By machine.
    pub of: Vec<u32>,
}

#[derive(Debug)]
pub struct Selection {
    /// All of these.
    pub all: Vec<PodSelector>,
    pub tallies: Vec<TallyId>,
    /// Terms about such pods.
    pub terms: Vec<TermId>,
}

/// Pods that selectors cannot tell apart.
#[derive(Debug)]
pub struct Profile {
    pub tags: Tags,
    /// Selections it belongs to, sorted.
    pub selections: Vec<SelId>,
}

impl Profile {
    pub fn is_in(&self, selection: SelId) -> bool {
        self.selections.binary_search(&selection).is_ok()
    }
}

/// The machines that count.
#[derive(Debug, PartialEq, Eq)]
pub struct Scope {
    pub rules: MachineRules,
    pub affinity: bool,
    pub taints: bool,
    /// Labels they must have.
    pub keys: Vec<String>,
    pub inside: Vec<bool>,
}

impl Scope {
    fn admits(&self, node: &NodeView) -> bool {
        self.keys.iter().all(|key| node.labels.contains_key(key))
            && (!self.affinity || fit::selected(&self.rules, node))
            && (!self.taints || fit::untolerated(&self.rules, node).is_none())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Pods that a selection matches.
    Matching(SelId),
    /// Pods that carry a term.
    Carrying(TermId),
}

#[derive(Debug)]
pub struct Tally {
    pub who: Who,
    pub key: KeyId,
    pub scope: Option<ScopeId>,
    /// By domain.
    pub pods: Vec<u32>,
    pub total: u64,
    /// By domain: machines that count.
    pub machines: Vec<u32>,
    /// Domains with machines that count.
    pub domains: usize,
}

impl Tally {
    pub fn pods(&self, domain: u32) -> u32 {
        self.pods.get(domain as usize).copied().unwrap_or(0)
    }

    /// The fewest pods in any domain that has machines.
    pub fn fewest(&self) -> u32 {
        let counted = self.machines.iter().zip(&self.pods).filter(|(machines, _)| **machines > 0);
        counted.map(|(_, pods)| *pods).min().unwrap_or(0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Near,
    Away,
    Prefer(i64),
}

#[derive(Debug)]
pub struct Term {
    pub kind: Kind,
    pub tally: TallyId,
}

impl Topology {
    pub fn add_machine(&mut self) {
        self.machines += 1;
        self.keys.iter_mut().for_each(|key| key.of.push(0));
        self.scopes.iter_mut().for_each(|scope| scope.inside.push(false));
    }

    pub fn domain(&self, tally: &Tally, machine: MachineId) -> u32 {
        self.keys[tally.key].of[machine]
    }

    /// Works out a machine's domains and scopes from its Node, or from there being none.
    pub fn describe(&mut self, machine: MachineId, node: Option<&NodeView>) {
        for key in &mut self.keys {
            key.of[machine] = match node {
                Some(node) => key.domain(&node.labels),
                None => 0,
            };
        }
        for scope in &mut self.scopes {
            scope.inside[machine] = node.is_some_and(|node| scope.admits(node));
        }
    }

    pub fn count_machine(&mut self, machine: MachineId, sign: i32) {
        for id in 0..self.tallies.len() {
            self.count_machine_in(id, machine, sign);
        }
    }

    pub fn count_machine_in(&mut self, id: TallyId, machine: MachineId, sign: i32) {
        let tally = &mut self.tallies[id];
        let domain = self.keys[tally.key].of[machine] as usize;
        if domain == 0 || tally.scope.is_some_and(|scope| !self.scopes[scope].inside[machine]) {
            return;
        }
        if domain >= tally.machines.len() {
            tally.machines.resize(domain + 1, 0);
            tally.pods.resize(domain + 1, 0);
        }
        let (before, after) = (tally.machines[domain], tally.machines[domain].saturating_add_signed(sign));
        tally.machines[domain] = after;
        match (before, after) {
            (0, 1..) => tally.domains += 1,
            (1.., 0) => tally.domains -= 1,
            _ => {}
        }
    }

    pub fn count_pod_in(&mut self, id: TallyId, machine: MachineId, leaving: bool, sign: i32) {
        let tally = &mut self.tallies[id];
        let domain = self.keys[tally.key].of[machine] as usize;
        let outside = tally.scope.is_some_and(|scope| leaving || !self.scopes[scope].inside[machine]);
        if domain == 0 || outside {
            return;
        }
        if domain >= tally.pods.len() {
            tally.machines.resize(domain + 1, 0);
            tally.pods.resize(domain + 1, 0);
        }
        tally.pods[domain] = tally.pods[domain].saturating_add_signed(sign);
        tally.total = tally.total.saturating_add_signed(i64::from(sign));
    }

    pub fn key(&mut self, label: &str, nodes: &[Option<&NodeView>]) -> KeyId {
        if let Some(known) = self.keys.iter().position(|key| key.label == label) {
            return known;
        }
        let mut key = Key { label: label.to_owned(), values: HashMap::new(), names: vec![String::new()], of: vec![] };
        key.of = nodes.iter().map(|node| node.map_or(0, |node| key.domain(&node.labels))).collect();
        self.keys.push(key);
        self.keys.len() - 1
    }

    pub fn scope(&mut self, mut scope: Scope, nodes: &[Option<&NodeView>]) -> ScopeId {
        scope.inside = nodes.iter().map(|node| node.is_some_and(|node| scope.admits(node))).collect();
        if let Some(known) = self.scopes.iter().position(|known| *known == scope) {
            return known;
        }
        self.scopes.push(scope);
        self.scopes.len() - 1
    }
}

impl Key {
    fn domain(&mut self, labels: &Labels) -> u32 {
        let Some(value) = labels.get(&self.label) else { return 0 };
        if let Some(known) = self.values.get(value) {
            return *known;
        }
        let next = self.names.len() as u32;
        self.names.push(value.clone());
        self.values.insert(value.clone(), next);
        next
    }
}
