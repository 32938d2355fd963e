//! What a node has for pods, and what of it is left. Pure.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::api::resource::Quantity};
use mainstay_api::{
    offer::OfferSpec,
    ports::PortRanges,
    resources::{self, ResourceList},
};

use super::PodDemand;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCapacity {
    /// What pods may ask for, all of them together.
    pub allocatable: ResourceList,
    /// For pods that ask for any port.
    pub automatic: PortRanges,
    /// Where ports that pods ask for by number may lie.
    pub explicit: PortRanges,
}

impl NodeCapacity {
    pub fn new(node: &Node, automatic: PortRanges, explicit: PortRanges) -> Self {
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        let quantities = allocatable.into_iter().flatten().map(|(name, quantity)| (name.as_str(), quantity.0.as_str()));
        Self { allocatable: resources::parse_list(quantities), automatic, explicit }
    }

    /// What is left beside what is held; the rest of the offer is for others to fill in.
    pub fn offered(&self, held: &[PodDemand]) -> OfferSpec {
        let used = PodDemand::sum_requests(held);
        let left = self.allocatable.iter().map(|(name, all)| {
            let left = all.saturating_sub(used.get(name).copied().unwrap_or(0));
            (name.clone(), quantity(name, left.max(0)))
        });
        OfferSpec {
            free: left.collect::<BTreeMap<_, _>>(),
            automatic_ports: self.automatic.without(&PodDemand::taken_ports(held)).texts(),
            explicit_ports: self.explicit.texts(),
            ..OfferSpec::default()
        }
    }
}

/// As the API would write it.
fn quantity(name: &str, amount: i64) -> Quantity {
    let sized = ["memory", "ephemeral-storage"].contains(&name) || name.starts_with("hugepages-");
    Quantity(match name {
        "cpu" if amount % 1000 != 0 => format!("{amount}m"),
        "cpu" => (amount / 1000).to_string(),
        _ if sized && amount > 0 && amount % 1024 == 0 => format!("{}Ki", amount / 1024),
        _ => amount.to_string(),
    })
}
