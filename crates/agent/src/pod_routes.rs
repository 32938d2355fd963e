//! Whether this node has routes to the pods of other nodes, for its condition `NetworkUnavailable`. Pure but for where it is kept.
//!
//! Routes are missing on both sides of a gap. If both said so, a single machine on a foreign network would take all others out of
//! service. So nodes are divided into those that can be reached from here and those that cannot: the smaller part is cut off, and of
//! two that are as large the one without the oldest node. A node of the other part only logs which nodes it cannot reach.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::Arc,
};

use jiff::Timestamp;
use mainstay_network::Range;
use parking_lot::Mutex;

/// So many nodes are named in a message.
const MOST_NAMED: usize = 5;

/// A Node as far as routes to its pods need it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoutedNode {
    pub range: Option<Range>,
    pub address: Option<Ipv4Addr>,
    pub created: Option<Timestamp>,
}

/// Why pods that need the pod network had better be elsewhere; nothing while routes are there. Shared with what reports the Node.
#[derive(Clone, Default)]
pub struct RouteProblem(Arc<Mutex<Option<String>>>);

impl RouteProblem {
    pub fn get(&self) -> Option<String> {
        self.0.lock().clone()
    }

    pub fn set(&self, problem: Option<String>) {
        *self.0.lock() = problem;
    }
}

/// What is wrong if there is no route to the pods behind these addresses.
pub fn judge_routes(
    own: &str,
    nodes: &BTreeMap<String, RoutedNode>,
    unreachable: &BTreeSet<Ipv4Addr>,
) -> Option<String> {
    let is_unreachable = |node: &RoutedNode| node.address.is_some_and(|address| unreachable.contains(&address));
    let with_pods = nodes.iter().filter(|(name, node)| *name == own || node.range.is_some());
    let (far, near): (Vec<_>, Vec<_>) = with_pods.partition(|(name, node)| *name != own && is_unreachable(node));
    let oldest = |part: &[(&String, &RoutedNode)]| {
        part.iter().map(|(name, node)| (node.created.unwrap_or(Timestamp::MAX), name.to_string())).min()
    };
    let is_cut_off = far.len() > near.len() || (far.len() == near.len() && oldest(&far) < oldest(&near));
    if !is_cut_off {
        return None;
    }
    let named: Vec<&str> = far.iter().take(MOST_NAMED).map(|(name, _)| name.as_str()).collect();
    let more = if far.len() > named.len() { ", …" } else { "" };
    let (count, all) = (far.len(), far.len() + near.len() - 1);
    Some(format!(
        "no route to the pods of {count} of {all} other nodes ({}{more}): their machines are on no network of this one",
        named.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes `0`, `1`, … in the order of their age.
    fn nodes(count: u8) -> BTreeMap<String, RoutedNode> {
        let node = |n: u8| RoutedNode {
            range: format!("10.244.{n}.0/24").parse().ok(),
            address: Some(Ipv4Addr::new(192, 0, 2, n)),
            created: Timestamp::from_second(n.into()).ok(),
        };
        (0..count).map(|n| (n.to_string(), node(n))).collect()
    }

    fn judged(own: &str, count: u8, far: &[u8]) -> Option<String> {
        judge_routes(own, &nodes(count), &far.iter().map(|n| Ipv4Addr::new(192, 0, 2, *n)).collect())
    }

    #[test]
    fn the_smaller_part_is_cut_off() {
        assert_eq!(judged("0", 3, &[]), None);
        let message = judged("0", 3, &[1, 2]).unwrap();
        assert!(message.starts_with("no route to the pods of 2 of 2 other nodes (1, 2): "), "{message}");
        assert_eq!(judged("1", 3, &[0]), None, "the other two have each other");
        assert!(judged("7", 8, &[0, 1, 2, 3, 4, 5, 6]).unwrap().contains("(0, 1, 2, 3, 4, …)"));
    }

    #[test]
    fn of_two_equal_parts_the_one_with_the_oldest_node_stays() {
        assert_eq!(judged("0", 2, &[1]), None);
        assert!(judged("1", 2, &[0]).is_some());
        assert_eq!(judged("2", 4, &[1, 3]), None, "it has node 0");
        assert!(judged("3", 4, &[0, 2]).is_some());
    }

    #[test]
    fn nodes_without_pods_of_their_own_do_not_count() {
        let mut all = nodes(3);
        all.get_mut("0").unwrap().range = None;
        let far = BTreeSet::from([Ipv4Addr::new(192, 0, 2, 0)]);
        assert_eq!(judge_routes("2", &all, &far), None);
    }
}
