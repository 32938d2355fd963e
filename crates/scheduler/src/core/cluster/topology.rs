//! Topology domains, and how many pods of interest each has.
//!
//! A *topology key* is a node label that divides nodes into domains; domain 0 is "has no such label". A *selection* is a
//! set of pods given by selectors. *Domain counts* count the pods of a selection per domain of one key, within a *scope*
//! of nodes if only some count. A *carried term* is an affinity term of pods that exist, which other pods have to
//! respect; the pods that carry it are counted as well.

use std::collections::HashMap;

use super::{CountsId, KeyId, NodeId, ProfileId, ScopeId, SelectionId, TermId, class::FingerprintMap};
use crate::core::{
    filters,
    selector::{Labels, PodSelector},
    view::{LabelSet, NodeRules, NodeView},
};

#[derive(Debug, Default)]
pub struct Topology {
    pub keys: Vec<TopologyKey>,
    pub selections: Vec<PodSelection>,
    pub profiles: Vec<LabelProfile>,
    pub profile_ids: FingerprintMap<ProfileId>,
    pub scopes: Vec<NodeScope>,
    pub counts: Vec<DomainCounts>,
    pub terms: Vec<CarriedTerm>,
}

#[derive(Debug)]
pub struct TopologyKey {
    pub label: String,
    domains: HashMap<String, u32>,
    /// By domain: the value of the label.
    pub domain_names: Vec<String>,
    /// By node.
    pub domain_of_node: Vec<u32>,
}

#[derive(Debug)]
pub struct PodSelection {
    /// A pod belongs to it if all match.
    pub selectors: Vec<PodSelector>,
    pub counts: Vec<CountsId>,
    /// Carried terms about such pods.
    pub terms: Vec<TermId>,
}

/// Pods with equal namespace and labels, which selectors cannot tell apart.
#[derive(Debug)]
pub struct LabelProfile {
    pub label_set: LabelSet,
    /// The selections it belongs to, sorted.
    pub selections: Vec<SelectionId>,
}

impl LabelProfile {
    pub fn is_in(&self, selection: SelectionId) -> bool {
        self.selections.binary_search(&selection).is_ok()
    }
}

/// The nodes that count for a spread constraint.
#[derive(Debug, PartialEq, Eq)]
pub struct NodeScope {
    pub rules: NodeRules,
    pub honor_affinity: bool,
    pub honor_taints: bool,
    pub required_labels: Vec<String>,
    /// By node.
    pub contains: Vec<bool>,
}

impl NodeScope {
    fn admits(&self, node: &NodeView) -> bool {
        self.required_labels.iter().all(|label| node.labels.contains_key(label))
            && (!self.honor_affinity || filters::matches_node_affinity(&self.rules, node))
            && (!self.honor_taints || filters::untolerated_taint(&self.rules, node).is_none())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountedPods {
    /// Pods of a selection.
    Matching(SelectionId),
    /// Pods that carry a term.
    Carrying(TermId),
}

#[derive(Debug)]
pub struct DomainCounts {
    pub counted_pods: CountedPods,
    pub key: KeyId,
    pub scope: Option<ScopeId>,
    /// By domain.
    pub pods: Vec<u32>,
    pub total: u64,
    /// By domain: nodes in scope.
    pub nodes: Vec<u32>,
    /// Domains with nodes in scope.
    pub domain_count: usize,
}

impl DomainCounts {
    pub fn new(counted_pods: CountedPods, key: KeyId, scope: Option<ScopeId>) -> Self {
        Self { counted_pods, key, scope, pods: vec![0], total: 0, nodes: vec![0], domain_count: 0 }
    }

    pub fn pods_in(&self, domain: u32) -> u32 {
        self.pods.get(domain as usize).copied().unwrap_or(0)
    }

    /// The fewest pods in any domain that has nodes.
    pub fn fewest(&self) -> u32 {
        let with_nodes = self.nodes.iter().zip(&self.pods).filter(|(nodes, _)| **nodes > 0);
        with_nodes.map(|(_, pods)| *pods).min().unwrap_or(0)
    }

    fn grow(&mut self, domain: usize) {
        if domain >= self.pods.len() {
            self.nodes.resize(domain + 1, 0);
            self.pods.resize(domain + 1, 0);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TermKind {
    Affinity,
    AntiAffinity,
    /// With its weight; below zero for anti-affinity.
    Preferred(i64),
}

#[derive(Debug)]
pub struct CarriedTerm {
    pub kind: TermKind,
    pub counts: CountsId,
}

impl Topology {
    pub fn add_node(&mut self) {
        self.keys.iter_mut().for_each(|key| key.domain_of_node.push(0));
        self.scopes.iter_mut().for_each(|scope| scope.contains.push(false));
    }

    pub fn domain(&self, counts: &DomainCounts, node: NodeId) -> u32 {
        self.keys[counts.key].domain_of_node[node]
    }

    /// Sets the domains and scopes of a node by its Node object, or by there being none.
    pub fn update_node(&mut self, id: NodeId, node: Option<&NodeView>) {
        for key in &mut self.keys {
            key.domain_of_node[id] = match node {
                Some(node) => key.domain(&node.labels),
                None => 0,
            };
        }
        for scope in &mut self.scopes {
            scope.contains[id] = node.is_some_and(|node| scope.admits(node));
        }
    }

    pub fn count_node(&mut self, node: NodeId, sign: i32) {
        for counts in 0..self.counts.len() {
            self.count_node_in(counts, node, sign);
        }
    }

    pub fn count_node_in(&mut self, counts: CountsId, node: NodeId, sign: i32) {
        let counts = &mut self.counts[counts];
        let domain = self.keys[counts.key].domain_of_node[node] as usize;
        if domain == 0 || counts.scope.is_some_and(|scope| !self.scopes[scope].contains[node]) {
            return;
        }
        counts.grow(domain);
        let (before, after) = (counts.nodes[domain], counts.nodes[domain].saturating_add_signed(sign));
        counts.nodes[domain] = after;
        match (before, after) {
            (0, 1..) => counts.domain_count += 1,
            (1.., 0) => counts.domain_count -= 1,
            _ => {}
        }
    }

    pub fn count_pod_in(&mut self, counts: CountsId, node: NodeId, leaving: bool, sign: i32) {
        let counts = &mut self.counts[counts];
        let domain = self.keys[counts.key].domain_of_node[node] as usize;
        let out_of_scope = counts.scope.is_some_and(|scope| leaving || !self.scopes[scope].contains[node]);
        if domain == 0 || out_of_scope {
            return;
        }
        counts.grow(domain);
        counts.pods[domain] = counts.pods[domain].saturating_add_signed(sign);
        counts.total = counts.total.saturating_add_signed(i64::from(sign));
    }

    pub fn key_id(&mut self, label: &str, nodes: &[Option<&NodeView>]) -> KeyId {
        if let Some(known) = self.keys.iter().position(|key| key.label == label) {
            return known;
        }
        let (label, domain_names) = (label.to_owned(), vec![String::new()]);
        let mut key = TopologyKey { label, domains: HashMap::new(), domain_names, domain_of_node: vec![] };
        key.domain_of_node = nodes.iter().map(|node| node.map_or(0, |node| key.domain(&node.labels))).collect();
        self.keys.push(key);
        self.keys.len() - 1
    }

    pub fn scope_id(&mut self, mut scope: NodeScope, nodes: &[Option<&NodeView>]) -> ScopeId {
        scope.contains = nodes.iter().map(|node| node.is_some_and(|node| scope.admits(node))).collect();
        if let Some(known) = self.scopes.iter().position(|known| *known == scope) {
            return known;
        }
        self.scopes.push(scope);
        self.scopes.len() - 1
    }
}

impl TopologyKey {
    fn domain(&mut self, labels: &Labels) -> u32 {
        let Some(value) = labels.get(&self.label) else { return 0 };
        if let Some(known) = self.domains.get(value) {
            return *known;
        }
        let next = self.domain_names.len() as u32;
        self.domain_names.push(value.clone());
        self.domains.insert(value.clone(), next);
        next
    }
}
