//! Equal pods are one class: what they ask for is worked out once, with names turned into numbers.

use std::collections::HashMap;

use super::{FenceId, SelId, TallyId, TermId};
use crate::core::{
    contradiction::contradiction,
    reason::Contradiction,
    view::{MachineRules, Shape},
};

#[derive(Debug)]
pub struct Class {
    pub shape: Shape,
    /// By resource.
    pub requests: Vec<(usize, i64)>,
    pub fence: FenceId,
    /// Rules of its own that pods placed later have to respect.
    pub carried: Vec<TermId>,
    pub near: Vec<TallyId>,
    /// Everything in [`Class::near`] is about pods that all of the terms match.
    pub near_all: Option<SelId>,
    pub forbidden: Vec<TallyId>,
    /// Weights below zero mean to keep away.
    pub preferred: Vec<(i64, TallyId)>,
    pub spread: Vec<Spread>,
    pub contradiction: Option<Contradiction>,
    /// Pods of it on machines.
    pub held: usize,
}

impl Class {
    pub fn new(shape: Shape, requests: Vec<(usize, i64)>, fence: FenceId) -> Self {
        let contradiction = contradiction(&shape);
        Self {
            shape,
            requests,
            fence,
            carried: vec![],
            near: vec![],
            near_all: None,
            forbidden: vec![],
            preferred: vec![],
            spread: vec![],
            contradiction,
            held: 0,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Spread {
    pub tally: TallyId,
    pub sel: SelId,
    pub max_skew: i64,
    pub min_domains: usize,
    pub hard: bool,
}

/// What machines have to be, for one or several classes: per machine a score, or that it is excluded.
#[derive(Debug)]
pub struct Fence {
    pub rules: MachineRules,
    pub fixed: Vec<i32>,
}

pub const EXCLUDED: i32 = -1;

/// Things found by a hash that they carry themselves.
#[derive(Debug)]
pub struct ByPrint<T> {
    map: HashMap<u64, Vec<T>>,
}

impl<T> Default for ByPrint<T> {
    fn default() -> Self {
        Self { map: HashMap::new() }
    }
}

impl<T: Copy> ByPrint<T> {
    pub fn find(&self, print: u64, same: impl Fn(T) -> bool) -> Option<T> {
        self.map.get(&print)?.iter().copied().find(|id| same(*id))
    }

    pub fn insert(&mut self, print: u64, id: T) {
        self.map.entry(print).or_default().push(id);
    }
}
