//! What a node has for pods, and what of it is left. Pure.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::api::resource::Quantity};
use mainstay_api::{
    offer::OfferSpec,
    ports::PortRanges,
    resources::{self, ResourceList, format_quantity},
    roles::{ANY_ROLE, PodRoles, PoolCapacity, RoleReservation, split_machine},
};

use super::PodDemand;
use crate::settings::Offering;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCapacity {
    /// What pods may ask for, all of them together.
    pub allocatable: ResourceList,
    /// For pods that ask for any port.
    pub automatic: PortRanges,
    /// Where ports that pods ask for by number may lie.
    pub explicit: PortRanges,
    /// What each role has; empty if nothing is reserved for roles.
    pub pools: Vec<PoolCapacity>,
}

impl NodeCapacity {
    pub fn new(node: &Node, automatic: PortRanges, explicit: PortRanges) -> Self {
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        let quantities = allocatable.into_iter().flatten().map(|(name, quantity)| (name.as_str(), quantity.0.as_str()));
        Self { allocatable: resources::parse_list(quantities), automatic, explicit, pools: vec![] }
    }

    /// The same, with parts that are kept for roles.
    pub fn with_roles(mut self, reservations: &[RoleReservation]) -> Self {
        if !reservations.is_empty() {
            self.pools = split_machine(&self.allocatable, (&self.automatic, &self.explicit), reservations);
        }
        self
    }

    /// What is left beside what is held; the rest of the offer is for others to fill in.
    pub fn offered(&self, held: &[PodDemand]) -> OfferSpec {
        let used = PodDemand::sum_requests(held);
        let left = self.allocatable.iter().map(|(name, all)| {
            let left = all.saturating_sub(used.get(name).copied().unwrap_or(0));
            (name.clone(), left.max(0))
        });
        let taken = PodDemand::taken_ports(held);
        let (automatic, explicit) = match &self.pools[..] {
            [] => (self.automatic.clone(), self.explicit.clone()),
            pools => (
                pools.iter().flat_map(|pool| pool.automatic.ranges()).collect(),
                pools.iter().flat_map(|pool| pool.explicit.ranges()).collect(),
            ),
        };
        OfferSpec {
            free: quantities(left),
            automatic_ports: automatic.without(&taken).texts(),
            explicit_ports: explicit.texts(),
            pools: self.offered_pools(held, &taken),
            ..OfferSpec::default()
        }
    }

    /// How much of a resource pods with these roles have here in all; `None` if the machine does not have it.
    pub fn allocatable_for(&self, roles: &PodRoles, resource: &str) -> Option<i64> {
        let all = self.allocatable.get(resource).copied()?;
        if !self.divides(resource) {
            return Some(all);
        }
        let pools = self.pools.iter().filter(|pool| roles.contains(&pool.role));
        Some(pools.filter_map(|pool| pool.resources.get(resource)).sum())
    }

    /// The host ports of pods with these roles, given out or asked for by number.
    pub fn ports_for(&self, roles: &PodRoles, assigned: bool) -> PortRanges {
        if self.pools.is_empty() {
            return if assigned { self.automatic.clone() } else { self.explicit.clone() };
        }
        let own = self.pools.iter().filter(|pool| roles.contains(&pool.role));
        own.flat_map(|pool| if assigned { pool.automatic.ranges() } else { pool.explicit.ranges() }).collect()
    }

    /// Whether this resource is divided among roles.
    pub fn divides(&self, resource: &str) -> bool {
        !self.pools.is_empty() && mainstay_api::roles::is_pooled(resource)
    }

    /// Whether the machine has something for one of these roles, were it empty.
    pub fn serves_roles(&self, roles: &PodRoles) -> bool {
        match &self.pools[..] {
            [] => roles.contains(ANY_ROLE),
            pools => pools.iter().any(|pool| roles.contains(&pool.role)),
        }
    }
}

impl Offering {
    /// What a machine that is this Node has for pods.
    pub fn capacity(&self, node: &Node) -> NodeCapacity {
        NodeCapacity::new(node, self.automatic.clone(), self.explicit.clone()).with_roles(&self.roles)
    }
}

/// As the API writes them.
pub(super) fn quantities(amounts: impl IntoIterator<Item = (String, i64)>) -> BTreeMap<String, Quantity> {
    let quantity = |(name, amount): (String, i64)| {
        let text = format_quantity(&name, amount);
        (name, Quantity(text))
    };
    amounts.into_iter().map(quantity).collect()
}
