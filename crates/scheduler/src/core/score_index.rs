//! Nodes by their score for a class of pods, best first, updated by changes only.
//!
//! A tournament tree over all nodes: the best node is known at once, and a change of one node updates the path to the
//! root. A node's sort key has its score in the upper half and its place by name, reversed, in the lower half, so that
//! nodes of equal score are taken in the order of their names, whatever order they were observed in. Key 0 means that the
//! node cannot be used.

use std::collections::BinaryHeap;

use super::{
    cluster::{ClassId, Cluster, EXCLUDED, LogPosition, NodeId},
    diagnose::FreedRoom,
    score,
    verdict::ScoringStrategy,
    view::HostPort,
};

/// So many classes keep an index; beyond it the least recently used is dropped.
const MAX_INDEXES: usize = 256;
/// So many nodes that do not pass are probed one by one.
const MAX_PROBES: usize = 256;

#[derive(Debug, Default)]
pub struct ScoreIndexes {
    scoring: ScoringStrategy,
    name_ranks: NameRanks,
    by_class: Vec<Option<Box<ScoreIndex>>>,
    count: usize,
    clock: u64,
}

/// The order of nodes by name.
#[derive(Debug, Default)]
struct NameRanks {
    node_epoch: u64,
    rank_of_node: Vec<u32>,
    node_by_rank: Vec<u32>,
}

#[derive(Debug)]
pub struct ScoreIndex {
    synced_to: LogPosition,
    node_epoch: u64,
    last_used: u64,
    tree: Vec<u64>,
    leaves: usize,
}

impl ScoreIndex {
    fn new(synced_to: LogPosition) -> Self {
        Self { synced_to, node_epoch: 0, last_used: 0, tree: vec![], leaves: 0 }
    }

    /// By node.
    pub fn sort_keys(&self, nodes: usize) -> &[u64] {
        &self.tree[self.leaves..self.leaves + nodes]
    }

    pub fn best_key(&self) -> u64 {
        self.tree.get(1).copied().unwrap_or(0)
    }

    /// Probes nodes in the order of their sort keys until one is accepted.
    pub fn find_first(&self, mut accepts: impl FnMut(NodeId) -> bool) -> Probe {
        let mut open = BinaryHeap::from([(self.best_key(), 1)]);
        let mut probed = 0;
        while let Some((_, at)) = open.pop().filter(|(sort_key, _)| *sort_key > 0) {
            if at < self.leaves {
                open.extend([2 * at, 2 * at + 1].map(|child| (self.tree[child], child)));
            } else if accepts(at - self.leaves) {
                return Probe::Found(at - self.leaves);
            } else if probed >= MAX_PROBES {
                return Probe::GaveUp;
            } else {
                probed += 1;
            }
        }
        Probe::None
    }

    fn set_key(&mut self, node: NodeId, sort_key: u64) {
        let mut at = self.leaves + node;
        if self.tree[at] == sort_key {
            return;
        }
        self.tree[at] = sort_key;
        while at > 1 {
            at /= 2;
            let best = self.tree[2 * at].max(self.tree[2 * at + 1]);
            if self.tree[at] == best {
                break;
            }
            self.tree[at] = best;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    Found(NodeId),
    None,
    /// So many nodes did not pass that scoring all at once is cheaper.
    GaveUp,
}

pub fn score_from_key(sort_key: u64) -> i64 {
    (sort_key >> 32) as i64 - 1
}

impl Cluster {
    pub(super) fn set_scoring(&mut self, scoring: ScoringStrategy) {
        if self.indexes.scoring != scoring {
            self.indexes = ScoreIndexes { scoring, ..ScoreIndexes::default() };
        }
    }

    pub(super) fn node_of_key(&self, sort_key: u64) -> NodeId {
        self.indexes.name_ranks.node_by_rank[(u32::MAX - sort_key as u32) as usize] as usize
    }

    /// The class's index, brought up to date.
    pub(super) fn updated_index(&mut self, class: ClassId) -> &ScoreIndex {
        self.update_name_ranks();
        let mut index = self.take_or_create_index(class);
        let now = self.change_log.now();
        let same_nodes = index.node_epoch == self.node_epoch && index.leaves > 0;
        let changed = self.change_log.since(index.synced_to);
        match changed.filter(|changed| same_nodes && changed.len() < self.nodes.len()) {
            Some(changed) => changed.iter().map(|node| *node as NodeId).for_each(|node| {
                index.set_key(node, self.sort_key(class, node));
            }),
            None => self.rebuild_index(class, &mut index),
        }
        index.synced_to = now;
        index.node_epoch = self.node_epoch;
        self.indexes.clock += 1;
        index.last_used = self.indexes.clock;
        self.indexes.by_class[class].insert(index)
    }

    pub(super) fn nodes_by_name(&mut self) -> Vec<NodeId> {
        self.update_name_ranks();
        self.indexes.name_ranks.node_by_rank.iter().map(|node| *node as NodeId).collect()
    }

    /// As [`Cluster::updated_index`] left it.
    pub(super) fn current_index(&self, class: ClassId) -> &ScoreIndex {
        self.indexes.by_class[class].as_ref().expect("an index is read after it was brought up to date")
    }

    fn take_or_create_index(&mut self, class: ClassId) -> Box<ScoreIndex> {
        let (now, indexes) = (self.change_log.now(), &mut self.indexes);
        if indexes.by_class.len() <= class {
            indexes.by_class.resize_with(class + 1, || None);
        }
        if let Some(index) = indexes.by_class[class].take() {
            return index;
        }
        if indexes.count >= MAX_INDEXES {
            let used = |(class, index): (ClassId, &Option<Box<ScoreIndex>>)| Some((index.as_ref()?.last_used, class));
            if let Some((_, oldest)) = indexes.by_class.iter().enumerate().filter_map(used).min() {
                indexes.by_class[oldest] = None;
                indexes.count -= 1;
            }
        }
        indexes.count += 1;
        Box::new(ScoreIndex::new(now))
    }

    fn rebuild_index(&self, class: ClassId, index: &mut ScoreIndex) {
        index.leaves = self.nodes.len().next_power_of_two().max(1);
        index.tree.clear();
        index.tree.resize(2 * index.leaves, 0);
        for node in 0..self.nodes.len() {
            index.tree[index.leaves + node] = self.sort_key(class, node);
        }
        for at in (1..index.leaves).rev() {
            index.tree[at] = index.tree[2 * at].max(index.tree[2 * at + 1]);
        }
    }

    fn update_name_ranks(&mut self) {
        let ranks = &mut self.indexes.name_ranks;
        if ranks.node_epoch == self.node_epoch && ranks.rank_of_node.len() == self.nodes.len() {
            return;
        }
        ranks.node_epoch = self.node_epoch;
        ranks.node_by_rank = (0..self.nodes.len() as u32).collect();
        ranks.node_by_rank.sort_by(|a, b| self.nodes[*a as usize].name.cmp(&self.nodes[*b as usize].name));
        ranks.rank_of_node = vec![0; self.nodes.len()];
        for (rank, node) in ranks.node_by_rank.iter().enumerate() {
            ranks.rank_of_node[*node as usize] = rank as u32;
        }
    }

    fn sort_key(&self, class: ClassId, node: NodeId) -> u64 {
        let (rules, info) = (&self.classes[class], &self.nodes[node]);
        let static_score = self.node_filters[rules.filter].static_scores[node];
        if static_score == EXCLUDED || info.offer.is_none() || !self.has_resources_and_ports(class, node) {
            return 0;
        }
        let score = i64::from(static_score) + score::resource_score(info, &rules.requests, self.indexes.scoring);
        ((score + 1) as u64) << 32 | u64::from(u32::MAX - self.indexes.name_ranks.rank_of_node[node])
    }

    fn has_resources_and_ports(&self, class: ClassId, node: NodeId) -> bool {
        let (rules, info) = (&self.classes[class], &self.nodes[node]);
        let priority = rules.spec.priority;
        let is_short = |(resource, amount): &(usize, i64)| match info.divides(*resource) {
            true => *amount > self.available(class, node, *resource, FreedRoom::NONE),
            false => *amount > info.free(*resource) - info.reserved(*resource, priority),
        };
        if !info.serves_roles(&rules.roles) || rules.requests.iter().any(is_short) {
            return false;
        }
        let (ports, automatic_ports) = (&rules.spec.ports, &rules.spec.automatic_ports);
        if ports.is_empty() && automatic_ports.is_empty() {
            return true;
        }
        let is_offered = |port: &HostPort| {
            let mut offered = info.offered_explicit_ports(&rules.spec.roles);
            offered.any(|ranges| ranges.contains(port.port))
        };
        let is_free = |port: &HostPort| {
            info.port_holder(port, &[]).is_none() && info.nominated_port_holder(port, priority).is_none()
        };
        ports.iter().all(|port| is_offered(port) && is_free(port)) && info.assign_automatic_ports(&rules.spec).is_ok()
    }
}
