//! Pods that ended and that the offer of their node still counts: what they requested is about to be free.
//!
//! A pod ends in the API before its node offers anew. In between its resources are nobody's: too early to place a pod
//! there, and too late to preempt another pod for them. An entry goes when an offer shows the room, or by age, should
//! the node never show it (a pod that the API forgot while its containers run on). A wrong entry delays a preemption
//! and does nothing else.

use std::sync::Arc;

use super::{Cluster, NodeInfo, PodId, PoolShare};

/// Dropped when aged so often without being shown by an offer.
const OLDEST: u8 = 2;

#[derive(Clone, Debug)]
pub struct EndedPod {
    requests: Vec<(usize, i64)>,
    /// What it took of pools.
    pub shares: Vec<PoolShare>,
    /// What the node will offer, by resource, when this pod and those before it are gone.
    expected: Vec<(usize, i64)>,
    age: u8,
}

impl NodeInfo {
    /// Requested by pods that ended, and not offered yet.
    pub fn ended_amount(&self, resource: usize) -> i64 {
        let requests = self.ended_pods.iter().flat_map(|ended| &ended.requests);
        requests.filter(|(id, _)| *id == resource).map(|(_, amount)| amount).sum()
    }

    /// Forgets the pods whose resources are among those offered now.
    pub fn forget_shown(&mut self, offered: &[i64]) {
        let is_offered = |(resource, amount): &(usize, i64)| offered.get(*resource).copied().unwrap_or(0) >= *amount;
        self.ended_pods.retain(|ended| !ended.expected.iter().all(is_offered));
    }
}

impl Cluster {
    /// Removes a pod that ended. If the offer counts it, its resources are remembered as about to be free.
    pub(super) fn end_pod(&mut self, id: PodId) {
        let (node, class, subtracted, shares) = {
            let pod = self.pod_info(id);
            (pod.node, pod.class, pod.subtracted, pod.shares.clone())
        };
        if !subtracted && let Some(offer) = &self.nodes[node].offer {
            let offered = self.resources.by_id(&offer.free);
            let requests = self.classes[class].requests.clone();
            let info = &mut self.nodes[node];
            let expect = |(resource, amount): &(usize, i64)| {
                let offered = offered.get(*resource).copied().unwrap_or(0);
                (*resource, offered.saturating_add(info.ended_amount(*resource)).saturating_add(*amount))
            };
            let expected = requests.iter().map(expect).collect();
            info.ended_pods.push(EndedPod { requests, shares, expected, age: 0 });
        }
        self.remove_pod_by_id(id);
    }

    pub fn has_ended_pods(&self) -> bool {
        self.nodes.iter().any(|node| !node.ended_pods.is_empty())
    }

    /// Ages the pods that ended; returns the nodes where some were given up.
    pub fn age_ended_pods(&mut self) -> Vec<Arc<str>> {
        let mut given_up = Vec::new();
        for node in &mut self.nodes {
            let before = node.ended_pods.len();
            node.ended_pods.iter_mut().for_each(|ended| ended.age += 1);
            node.ended_pods.retain(|ended| ended.age < OLDEST);
            if node.ended_pods.len() < before {
                given_up.push(Arc::clone(&node.name));
            }
        }
        given_up
    }
}
