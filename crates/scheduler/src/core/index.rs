//! Machines by how good they are for a class, best first, kept up to date by changes only.
//!
//! A tournament over all machines: the winner is known at once, and a change to one machine replays the matches on
//! its way up. A machine's strength has its score above and its place by name, turned round, below, so that equal
//! machines are taken in the order of their names whatever order they were heard of in. 0 cannot be used.

use std::collections::BinaryHeap;

use super::{
    cluster::{ClassId, Cluster, EXCLUDED, MachineId, Position},
    ports::HostPort,
    score,
    verdict::Strategy,
};

/// So many classes are kept ready; beyond it the longest unused goes.
const KEPT: usize = 256;
/// So many wrong machines are looked at one by one.
const PATIENCE: usize = 256;

#[derive(Debug, Default)]
pub struct Indexes {
    strategy: Strategy,
    ranks: Ranks,
    by_class: Vec<Option<Box<Index>>>,
    kept: usize,
    used: u64,
}

/// Places of machines by name.
#[derive(Debug, Default)]
struct Ranks {
    roll: u64,
    of: Vec<u32>,
    machine: Vec<u32>,
}

#[derive(Debug)]
pub struct Index {
    seen: Position,
    roll: u64,
    used: u64,
    tree: Vec<u64>,
    leaves: usize,
}

impl Index {
    fn empty(at: Position) -> Self {
        Self { seen: at, roll: 0, used: 0, tree: vec![], leaves: 0 }
    }

    /// How strong each machine is.
    pub fn strengths(&self, machines: usize) -> &[u64] {
        &self.tree[self.leaves..self.leaves + machines]
    }

    pub fn best(&self) -> u64 {
        self.tree.get(1).copied().unwrap_or(0)
    }

    /// The best machine that is `right`, looking at the strongest first.
    pub fn first(&self, mut right: impl FnMut(MachineId) -> bool) -> First {
        let mut open = BinaryHeap::from([(self.best(), 1)]);
        let mut looked = 0;
        while let Some((_, at)) = open.pop().filter(|(strength, _)| *strength > 0) {
            if at < self.leaves {
                open.extend([2 * at, 2 * at + 1].map(|child| (self.tree[child], child)));
            } else if right(at - self.leaves) {
                return First::Found(at - self.leaves);
            } else if looked >= PATIENCE {
                return First::TooFar;
            } else {
                looked += 1;
            }
        }
        First::None
    }

    fn set(&mut self, machine: MachineId, strength: u64) {
        let mut at = self.leaves + machine;
        if self.tree[at] == strength {
            return;
        }
        self.tree[at] = strength;
        while at > 1 {
            at /= 2;
            let winner = self.tree[2 * at].max(self.tree[2 * at + 1]);
            if self.tree[at] == winner {
                break;
            }
            self.tree[at] = winner;
        }
    }
}

/// What looking for the first right machine came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    Found(MachineId),
    None,
    /// So many were wrong that looking at all at once is cheaper.
    TooFar,
}

pub fn score_of(strength: u64) -> i64 {
    (strength >> 32) as i64 - 1
}

impl Cluster {
    pub(super) fn use_strategy(&mut self, strategy: Strategy) {
        if self.indexes.strategy != strategy {
            self.indexes = Indexes { strategy, ..Indexes::default() };
        }
    }

    pub(super) fn machine_of(&self, strength: u64) -> MachineId {
        self.indexes.ranks.machine[(u32::MAX - strength as u32) as usize] as usize
    }

    /// The class's index, up to date.
    pub(super) fn index(&mut self, class: ClassId) -> &Index {
        self.rank();
        let mut index = self.take_index(class);
        let now = self.log.now();
        let fresh = index.roll == self.roll && index.leaves > 0;
        match self.log.since(index.seen).filter(|changed| fresh && changed.len() < self.machines.len()) {
            Some(changed) => changed.iter().for_each(|at| index.set(*at as usize, self.strength(class, *at as usize))),
            None => self.rebuild(class, &mut index),
        }
        index.seen = now;
        index.roll = self.roll;
        self.indexes.used += 1;
        index.used = self.indexes.used;
        self.indexes.by_class[class].insert(index)
    }

    /// All machines by name.
    pub(super) fn by_rank(&mut self) -> Vec<MachineId> {
        self.rank();
        self.indexes.ranks.machine.iter().map(|machine| *machine as usize).collect()
    }

    /// As [`Cluster::index`] left it.
    pub(super) fn index_of(&self, class: ClassId) -> &Index {
        self.indexes.by_class[class].as_ref().expect("an index is looked at after it was brought up to date")
    }

    fn take_index(&mut self, class: ClassId) -> Box<Index> {
        let (now, indexes) = (self.log.now(), &mut self.indexes);
        if indexes.by_class.len() <= class {
            indexes.by_class.resize_with(class + 1, || None);
        }
        if let Some(index) = indexes.by_class[class].take() {
            return index;
        }
        if indexes.kept >= KEPT {
            let oldest = indexes.by_class.iter().enumerate().filter_map(|(at, index)| Some((index.as_ref()?.used, at)));
            if let Some((_, at)) = oldest.min() {
                indexes.by_class[at] = None;
                indexes.kept -= 1;
            }
        }
        indexes.kept += 1;
        Box::new(Index::empty(now))
    }

    fn rebuild(&self, class: ClassId, index: &mut Index) {
        index.leaves = self.machines.len().next_power_of_two().max(1);
        index.tree.clear();
        index.tree.resize(2 * index.leaves, 0);
        for machine in 0..self.machines.len() {
            index.tree[index.leaves + machine] = self.strength(class, machine);
        }
        for at in (1..index.leaves).rev() {
            index.tree[at] = index.tree[2 * at].max(index.tree[2 * at + 1]);
        }
    }

    fn rank(&mut self) {
        let ranks = &mut self.indexes.ranks;
        if ranks.roll == self.roll && ranks.of.len() == self.machines.len() {
            return;
        }
        ranks.roll = self.roll;
        ranks.machine = (0..self.machines.len() as u32).collect();
        ranks.machine.sort_by(|a, b| self.machines[*a as usize].name.cmp(&self.machines[*b as usize].name));
        ranks.of = vec![0; self.machines.len()];
        for (rank, machine) in ranks.machine.iter().enumerate() {
            ranks.of[*machine as usize] = rank as u32;
        }
    }

    fn strength(&self, class: ClassId, at: MachineId) -> u64 {
        let rules = &self.classes[class];
        let fixed = self.fences[rules.fence].fixed[at];
        let machine = &self.machines[at];
        if fixed == EXCLUDED || machine.offer.is_none() || !self.has_room(class, at) {
            return 0;
        }
        let score = i64::from(fixed) + score::room(machine, &rules.requests, self.indexes.strategy);
        ((score + 1) as u64) << 32 | u64::from(u32::MAX - self.indexes.ranks.of[at])
    }

    /// Resources and ports suffice.
    fn has_room(&self, class: ClassId, at: MachineId) -> bool {
        let (rules, machine) = (&self.classes[class], &self.machines[at]);
        let priority = rules.shape.priority;
        let short = |(resource, amount): &(usize, i64)| {
            *amount > machine.free(*resource) - machine.reserved(*resource, priority)
        };
        if rules.requests.iter().any(short) {
            return false;
        }
        let (ports, wishes) = (&rules.shape.ports, &rules.shape.wishes);
        if ports.is_empty() && wishes.is_empty() {
            return true;
        }
        let Some(offer) = &machine.offer else { return false };
        let free = |port: &HostPort| machine.holder(port, &[]).is_none() && machine.kept_by(port, priority).is_none();
        ports.iter().all(|port| offer.explicit.contains(port.port) && free(port))
            && machine.automatic(&rules.shape).is_ok()
    }
}
