//! Classes of equal pods: what they ask for is compiled once, with names turned into ids.

use std::collections::HashMap;

use super::{CountsId, FilterId, RoleId, SelectionId, TermId};
use crate::core::{
    contradiction::find_contradiction,
    reason::Contradiction,
    view::{NodeRules, SchedulingSpec},
};

#[derive(Debug)]
pub struct PodClass {
    pub spec: SchedulingSpec,
    /// By resource id.
    pub requests: Vec<(usize, i64)>,
    /// The roles whose pools its pods may use, in their order.
    pub roles: Vec<RoleId>,
    pub filter: FilterId,
    /// Affinity terms of its own that constrain pods scheduled later.
    pub own_terms: Vec<TermId>,
    /// Required pod affinity.
    pub affinity: Vec<CountsId>,
    /// The pods that all required affinity terms match.
    pub affinity_selection: Option<SelectionId>,
    /// Required pod anti-affinity.
    pub anti_affinity: Vec<CountsId>,
    /// Preferred pod affinity; weights below zero are anti-affinity.
    pub preferred: Vec<(i64, CountsId)>,
    pub spread: Vec<CompiledSpread>,
    pub contradiction: Option<Contradiction>,
    /// How many of its pods are on nodes.
    pub pod_count: usize,
}

impl PodClass {
    pub fn new(spec: SchedulingSpec, requests: Vec<(usize, i64)>, roles: Vec<RoleId>, filter: FilterId) -> Self {
        let contradiction = find_contradiction(&spec);
        Self {
            spec,
            requests,
            roles,
            filter,
            own_terms: vec![],
            affinity: vec![],
            affinity_selection: None,
            anti_affinity: vec![],
            preferred: vec![],
            spread: vec![],
            contradiction,
            pod_count: 0,
        }
    }
}

/// A topology spread constraint.
#[derive(Clone, Copy, Debug)]
pub struct CompiledSpread {
    pub counts: CountsId,
    pub selection: SelectionId,
    pub max_skew: i64,
    pub min_domains: usize,
    pub hard: bool,
}

/// Filters on the Node object alone, shared by all classes with the same rules.
#[derive(Debug)]
pub struct NodeFilter {
    pub rules: NodeRules,
    /// By node: the part of its score that does not depend on pods, or [`EXCLUDED`].
    pub static_scores: Vec<i32>,
}

pub const EXCLUDED: i32 = -1;

/// A map from values that carry their own hash to ids.
#[derive(Debug)]
pub struct FingerprintMap<T> {
    map: HashMap<u64, Vec<T>>,
}

impl<T> Default for FingerprintMap<T> {
    fn default() -> Self {
        Self { map: HashMap::new() }
    }
}

impl<T: Copy> FingerprintMap<T> {
    pub fn find(&self, fingerprint: u64, is_equal: impl Fn(T) -> bool) -> Option<T> {
        self.map.get(&fingerprint)?.iter().copied().find(|id| is_equal(*id))
    }

    pub fn insert(&mut self, fingerprint: u64, id: T) {
        self.map.entry(fingerprint).or_default().push(id);
    }
}
