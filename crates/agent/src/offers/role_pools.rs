//! Pools of roles on this machine: what the pods that it holds take of each, and what is left. Pure.
//!
//! Pods take what was recorded when they were bound; then those without a record (static pods, pods that name their node) take
//! from the first of their pools that have some left. [`share_out`] decides, as in the scheduler.

use std::collections::BTreeSet;

use mainstay_api::{
    offer::OfferPool,
    resources::ResourceList,
    roles::{PoolCapacity, SharedOut, share_out},
};

use super::{NodeCapacity, PodDemand, capacity::quantities};

impl NodeCapacity {
    /// What is left in each pool beside what is held, in the order of the pools; below zero if more is held than there is.
    pub(super) fn left_in_pools(&self, held: &[PodDemand]) -> Vec<ResourceList> {
        let mut left: Vec<ResourceList> = self.pools.iter().map(|pool| pool.resources.clone()).collect();
        if self.pools.is_empty() {
            return left;
        }
        let (recorded, others): (Vec<&PodDemand>, Vec<&PodDemand>) =
            held.iter().partition(|demand| !demand.recorded_shares.is_empty());
        for demand in recorded.into_iter().chain(others) {
            let pools = self.pools_of(demand);
            let SharedOut { takes, lacking } = self.take(demand, &pools, &left);
            for (resource, amount) in lacking {
                let first = pools.first().copied().unwrap_or(0);
                subtract(&mut left[first], resource, amount);
            }
            for take in takes {
                subtract(&mut left[take.pool], take.resource, take.amount);
            }
        }
        left
    }

    /// What a pod takes of pools that have so much left.
    pub(super) fn take<'a>(
        &self,
        demand: &'a PodDemand,
        pools: &[usize],
        left: &[ResourceList],
    ) -> SharedOut<usize, &'a str> {
        // Of a resource that the machine does not have, others know more.
        let is_divided = |name: &str| self.divides(name) && self.allocatable.contains_key(name);
        let requests = demand.requests.iter().filter(|(name, _)| is_divided(name));
        let requests = requests.map(|(name, amount)| (name.as_str(), *amount));
        let free = |pool: usize, resource: &str| left[pool].get(resource).copied().unwrap_or(0);
        let recorded = |pool: usize, resource: &str| demand.recorded_shares.amount(&self.pools[pool].role, resource);
        share_out(pools, requests, free, recorded)
    }

    /// The pools that a pod may use, in its order.
    pub(super) fn pools_of(&self, demand: &PodDemand) -> Vec<usize> {
        let position = |role: &String| self.pools.iter().position(|pool| pool.role == *role);
        demand.roles.names().iter().filter_map(position).collect()
    }

    pub(super) fn offered_pools(&self, held: &[PodDemand], taken_ports: &BTreeSet<u16>) -> Vec<OfferPool> {
        let left = self.left_in_pools(held);
        let pool = |(own, left): (&PoolCapacity, ResourceList)| OfferPool {
            role: own.role.clone(),
            capacity: quantities(own.resources.clone()),
            free: quantities(left.into_iter().map(|(name, amount)| (name, amount.max(0)))),
            automatic_ports: own.automatic.without(taken_ports).texts(),
            explicit_ports: own.explicit.texts(),
        };
        self.pools.iter().zip(left).map(pool).collect()
    }
}

fn subtract(from: &mut ResourceList, resource: &str, amount: i64) {
    let left = from.entry(resource.to_owned()).or_default();
    *left = left.saturating_sub(amount);
}
