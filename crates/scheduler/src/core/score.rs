//! Scores nodes that pass the filters, in hundredths of a percent, with upstream's weights: free resources 1, node
//! affinity, pod affinity and topology spread 2, `PreferNoSchedule` taints 3.

use mainstay_api::matching::NodeTerm as _;

use super::{
    cluster::NodeInfo,
    filters::tolerates,
    verdict::ScoringStrategy,
    view::{NodeRules, NodeView},
};

/// The best score before it is weighted.
pub const MAX_SCORE: i64 = 10_000;
const NODE_AFFINITY_WEIGHT: i64 = 2;
const TAINT_WEIGHT: i64 = 3;
pub const POD_AFFINITY_WEIGHT: i64 = 2;
pub const SPREAD_WEIGHT: i64 = 2;

/// The first resources, by id, that are scored: cpu, memory, pods.
const SCORED_RESOURCES: usize = 3;

/// The part of the score that does not depend on pods.
pub fn static_score(rules: &NodeRules, node: &NodeView) -> i32 {
    let weight = |(weight, _): &(i32, _)| i64::from(*weight);
    let total: i64 = rules.preferred.iter().map(weight).sum();
    let matched = rules.preferred.iter().filter(|(_, term)| term.matches(&node.name, &node.labels));
    let affinity = if total > 0 { matched.map(weight).sum::<i64>() * MAX_SCORE / total } else { 0 };
    let untolerated = node.taints.iter().filter(|taint| !taint.effect.is_hard() && !tolerates(rules, taint)).count();
    let taints = if untolerated == 0 { MAX_SCORE } else { MAX_SCORE / 10 / untolerated as i64 };
    i32::try_from(NODE_AFFINITY_WEIGHT * affinity + TAINT_WEIGHT * taints).unwrap_or(i32::MAX / 2)
}

/// By the share of resources that is free once the pod is there.
pub fn resource_score(info: &NodeInfo, requests: &[(usize, i64)], scoring: ScoringStrategy) -> i64 {
    let (mut sum, mut scored) = (0, 0);
    for resource in 0..SCORED_RESOURCES {
        let allocatable = info.allocatable(resource).min(1 << 48);
        if allocatable <= 0 {
            continue;
        }
        let requested = requests.iter().find(|(id, _)| *id == resource).map_or(0, |(_, amount)| *amount);
        let left = info.free(resource).saturating_sub(requested).clamp(0, allocatable);
        sum += left * MAX_SCORE / allocatable;
        scored += 1;
    }
    let free = if scored > 0 { sum / scored } else { 0 };
    match scoring {
        ScoringStrategy::LeastAllocated => free,
        ScoringStrategy::MostAllocated => MAX_SCORE - free,
    }
}
