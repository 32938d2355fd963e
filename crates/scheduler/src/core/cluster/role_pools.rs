//! Pools of roles on a node: what each has left, what pods take of them, and what a class of pods may still get.
//!
//! Which pools a pod takes from, and how much of each, is decided by [`share_out`], as on the machine itself. What was recorded when
//! the pod was bound counts first, so that both have the same picture. Nodes that reserve nothing have no pools, and cost nothing here.

use mainstay_api::{
    ports::PortRanges,
    roles::{ANY_ROLE, PodRoles, RoleShares, Take, share_out},
};

use super::{ClassId, Cluster, NodeId, NodeInfo, PodId, REST, RoleId};
use crate::core::{
    diagnose::FreedRoom,
    view::{OfferView, PoolView},
};

/// So much of a resource, taken from the pool of a role.
pub type PoolShare = Take<RoleId, usize>;

/// The id of the resource that is counted per node, not per role.
const PODS_ID: usize = 2;

#[derive(Debug)]
pub struct PoolInfo {
    pub role: RoleId,
    /// By resource: what the offer says, less what was bound here since.
    pub free: Vec<i64>,
    /// By resource.
    pub capacity: Vec<i64>,
}

impl PoolInfo {
    pub fn free(&self, resource: usize) -> i64 {
        self.free.get(resource).copied().unwrap_or(0)
    }

    fn capacity(&self, resource: usize) -> i64 {
        self.capacity.get(resource).copied().unwrap_or(0)
    }

    fn add(&mut self, resource: usize, amount: i64) {
        if resource >= self.free.len() {
            self.free.resize(resource + 1, 0);
        }
        self.free[resource] = self.free[resource].saturating_add(amount);
    }
}

impl NodeInfo {
    /// Whether the node has something for one of these roles, were it empty.
    pub fn serves_roles(&self, roles: &[RoleId]) -> bool {
        if self.pools.is_empty() {
            roles.contains(&REST)
        } else {
            self.pools.iter().any(|own| roles.contains(&own.role))
        }
    }

    /// Whether this resource is divided among roles here.
    pub fn divides(&self, resource: usize) -> bool {
        !self.pools.is_empty() && resource != PODS_ID
    }

    /// How much of a resource pods with these roles have here in all.
    pub fn allocatable_for(&self, roles: &[RoleId], resource: usize) -> i64 {
        if !self.divides(resource) {
            return if self.serves_roles(roles) { self.allocatable(resource) } else { 0 };
        }
        let pools = self.pools.iter().filter(|own| roles.contains(&own.role));
        pools.fold(0, |sum, pool| sum.saturating_add(pool.capacity(resource)))
    }

    /// The pools of these roles, in their order.
    fn pools_in_order<'a>(&'a self, roles: &'a [RoleId]) -> impl Iterator<Item = &'a PoolInfo> {
        roles.iter().filter_map(|role| self.pools.iter().find(|own| own.role == *role))
    }

    fn pool(&self, role: RoleId) -> Option<&PoolInfo> {
        self.pools.iter().find(|own| own.role == role)
    }

    pub fn subtract_shares(&mut self, shares: &[PoolShare]) {
        self.add_shares(shares, -1);
    }

    pub fn restore_shares(&mut self, shares: &[PoolShare]) {
        self.add_shares(shares, 1);
    }

    fn add_shares(&mut self, shares: &[PoolShare], sign: i64) {
        for share in shares {
            if let Some(pool) = self.pools.iter_mut().find(|own| own.role == share.pool) {
                pool.add(share.resource, sign * share.amount);
            }
        }
    }

    /// The ranges of automatic ports for pods with these roles, in their order.
    pub fn offered_automatic_ports<'a>(&'a self, roles: &'a PodRoles) -> impl Iterator<Item = &'a PortRanges> {
        self.offer
            .iter()
            .flat_map(move |offer| offered_ports(offer, roles, |pool| &pool.automatic_ports, &offer.automatic_ports))
    }

    /// The ranges in which explicit ports of pods with these roles may lie.
    pub fn offered_explicit_ports<'a>(&'a self, roles: &'a PodRoles) -> impl Iterator<Item = &'a PortRanges> {
        self.offer
            .iter()
            .flat_map(move |offer| offered_ports(offer, roles, |pool| &pool.explicit_ports, &offer.explicit_ports))
    }
}

fn offered_ports<'a>(
    offer: &'a OfferView,
    roles: &'a PodRoles,
    of_pool: impl Fn(&'a PoolView) -> &'a PortRanges + 'a,
    of_node: &'a PortRanges,
) -> impl Iterator<Item = &'a PortRanges> {
    let whole = (offer.pools.is_empty() && roles.contains(ANY_ROLE)).then_some(of_node);
    let pools = roles.names().iter().filter_map(|role| offer.pools.iter().find(|pool| pool.role == *role));
    whole.into_iter().chain(pools.map(of_pool))
}

impl Cluster {
    /// The pools of an offer, with nothing subtracted yet.
    pub(super) fn pools_of_offer(&mut self, offer: &OfferView) -> Vec<PoolInfo> {
        let pools = offer.pools.iter();
        let pools = pools.map(|pool| {
            let (free, capacity) = (self.resources.by_id(&pool.free), self.resources.by_id(&pool.capacity));
            PoolInfo { role: self.roles.id(&pool.role), free, capacity }
        });
        pools.collect()
    }

    /// What a pod of a class takes of the pools of a node: of what is free, or of all of them if the offer takes the pod into account.
    /// What goes beyond that is taken from the first one.
    pub(super) fn pool_shares(
        &self,
        class: ClassId,
        node: NodeId,
        is_offered: bool,
        recorded: &RecordedShares<'_>,
    ) -> Vec<PoolShare> {
        let (rules, info) = (&self.classes[class], &self.nodes[node]);
        if info.pools.is_empty() {
            return vec![];
        }
        let pools: Vec<RoleId> = info.pools_in_order(&rules.roles).map(|pool| pool.role).collect();
        let requests = rules.requests.iter().copied().filter(|(resource, _)| info.divides(*resource));
        let free = |role, resource| match info.pool(role) {
            Some(pool) if is_offered => pool.capacity(resource),
            Some(pool) => pool.free(resource),
            None => 0,
        };
        let recorded = |role, resource| match recorded {
            RecordedShares::Known(shares) => {
                let own = shares.iter().filter(|share| share.pool == role && share.resource == resource);
                own.map(|share| share.amount).sum()
            }
            RecordedShares::Annotation(shares) => shares.amount(self.role_name(role), self.resource_name(resource)),
        };
        let mut shared = share_out(&pools, requests, free, recorded);
        let first = pools.first().copied().unwrap_or(REST);
        let beyond = shared.lacking.into_iter().map(|(resource, amount)| PoolShare { pool: first, resource, amount });
        shared.takes.extend(beyond);
        shared.takes
    }

    /// What a pod takes of the pools of its node, by name.
    pub(in crate::core) fn named_shares(&self, pod: PodId) -> RoleShares {
        let mut named = RoleShares::default();
        for share in &self.pod_info(pod).shares {
            named.add(self.role_name(share.pool), self.resource_name(share.resource), share.amount);
        }
        named
    }

    /// How much of a resource pods of a class could get on a node: what is offered to their roles, and freed in thought, less what is
    /// kept for nominated pods.
    pub(in crate::core) fn available(
        &self,
        class: ClassId,
        node: NodeId,
        resource: usize,
        freed: FreedRoom<'_>,
    ) -> i64 {
        let (rules, info) = (&self.classes[class], &self.nodes[node]);
        if info.divides(resource) {
            let rooms = self.pool_rooms(class, node, resource, freed);
            return rooms.iter().fold(0, |sum: i64, (_, room)| sum.saturating_add((*room).max(0)));
        }
        if !info.serves_roles(&rules.roles) {
            return 0;
        }
        let removed = freed.removed.iter();
        let removed: i64 = removed.map(|pod| self.requested_amount(self.pod_info(*pod).class, resource)).sum();
        let ended = if freed.ended { info.ended_amount(resource) } else { 0 };
        let free = info.free(resource).saturating_add(removed).saturating_add(ended);
        free.saturating_sub(info.reserved(resource, rules.spec.priority))
    }

    /// The same for each pool that the class may use, in its order.
    pub(in crate::core) fn pool_rooms(
        &self,
        class: ClassId,
        node: NodeId,
        resource: usize,
        freed: FreedRoom<'_>,
    ) -> Vec<(RoleId, i64)> {
        let (rules, info) = (&self.classes[class], &self.nodes[node]);
        let mut rooms: Vec<(RoleId, i64)> = info.pools.iter().map(|pool| (pool.role, pool.free(resource))).collect();
        let ended = info.ended_pods.iter().filter(|_| freed.ended).flat_map(|ended| &ended.shares);
        let removed = freed.removed.iter().flat_map(|pod| &self.pod_info(*pod).shares);
        for share in ended.chain(removed).filter(|share| share.resource == resource) {
            if let Some((_, room)) = rooms.iter_mut().find(|(role, _)| *role == share.pool) {
                *room = room.saturating_add(share.amount);
            }
        }
        for nominated in info.nominated_pods.iter().filter(|own| own.outranks(rules.spec.priority)) {
            let requests = nominated.requests.iter().copied().filter(|(id, _)| *id == resource);
            let pools: Vec<RoleId> = info.pools_in_order(&nominated.roles).map(|pool| pool.role).collect();
            let free = |role, _| rooms.iter().find(|(own, _)| *own == role).map_or(0, |(_, room)| *room);
            for share in share_out(&pools, requests, free, |_, _| 0).takes {
                if let Some((_, room)) = rooms.iter_mut().find(|(role, _)| *role == share.pool) {
                    *room -= share.amount;
                }
            }
        }
        let own = rules.roles.iter().filter_map(|role| rooms.iter().find(|(own, _)| own == role));
        own.copied().collect()
    }
}

/// What is known of the pools that a pod took from.
pub enum RecordedShares<'a> {
    Known(&'a [PoolShare]),
    Annotation(&'a RoleShares),
}
