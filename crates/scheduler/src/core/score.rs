//! Which of the machines that fit is best. Everything is a number of hundredths of a percent, weighted as
//! upstream weighs it: room once, node affinity and neighbours and spreading twice, unwanted taints three times.

use mainstay_api::matching::NodeTerm as _;

use super::{
    cluster::Machine,
    fit::tolerates,
    verdict::Strategy,
    view::{MachineRules, NodeView},
};

/// The best any one consideration can give.
pub const FULL: i64 = 10_000;
const NODE_AFFINITY: i64 = 2;
const TAINTS: i64 = 3;
pub const NEIGHBOURS: i64 = 2;
pub const SPREAD: i64 = 2;

/// Of resources that decide how full a machine is: cpu, memory, pods.
const MEASURES: usize = 3;

/// What does not depend on the pods there.
pub fn fixed(rules: &MachineRules, node: &NodeView) -> i32 {
    let weight = |(weight, _): &(i32, _)| i64::from(*weight);
    let total: i64 = rules.preferred.iter().map(weight).sum();
    let matched = rules.preferred.iter().filter(|(_, term)| term.matches(&node.name, &node.labels));
    let affinity = if total > 0 { matched.map(weight).sum::<i64>() * FULL / total } else { 0 };
    let unwanted = node.taints.iter().filter(|taint| !taint.effect.is_hard() && !tolerates(rules, taint)).count();
    let taints = if unwanted == 0 { FULL } else { FULL / 10 / unwanted as i64 };
    i32::try_from(NODE_AFFINITY * affinity + TAINTS * taints).unwrap_or(i32::MAX / 2)
}

/// How much room there is, or how little, once the pod is there.
pub fn room(machine: &Machine, requests: &[(usize, i64)], strategy: Strategy) -> i64 {
    let (mut sum, mut measured) = (0, 0);
    for resource in 0..MEASURES {
        let whole = machine.whole(resource).min(1 << 48);
        if whole <= 0 {
            continue;
        }
        let asked = requests.iter().find(|(wanted, _)| *wanted == resource).map_or(0, |(_, amount)| *amount);
        let left = machine.free(resource).saturating_sub(asked).clamp(0, whole);
        sum += left * FULL / whole;
        measured += 1;
    }
    let empty = if measured > 0 { sum / measured } else { 0 };
    match strategy {
        Strategy::Spread => empty,
        Strategy::Binpack => FULL - empty,
    }
}
