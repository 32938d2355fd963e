//! The ResourceClaims of one pod: which are allocated already, and which have to be.

use super::{allocator::AllocationFailure, requests::ClaimRequests, result::Allocation, view::ClaimKey};
use crate::core::view::NodeView;

/// A claim that is to be allocated, if it is not yet, and reserved for a pod before the pod is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimBinding {
    pub claim: ClaimKey,
    pub uid: String,
    pub allocation: Allocation,
}

#[derive(Debug, Default)]
pub struct PodClaims {
    pub allocated: Vec<ClaimBinding>,
    pub pending: Vec<ClaimRequests>,
}

impl PodClaims {
    pub fn is_empty(&self) -> bool {
        self.allocated.is_empty() && self.pending.is_empty()
    }

    /// Why what is allocated already cannot be used on the node.
    pub fn unusable_on(&self, node: &NodeView) -> Option<AllocationFailure> {
        let elsewhere = self.allocated.iter().find(|own| !own.allocation.is_usable_on(&node.name, &node.labels))?;
        Some(AllocationFailure::ClaimElsewhere { claim: elsewhere.claim.to_string() })
    }

    /// All claims, with these allocations for those that had none.
    pub fn bindings(self, allocations: Vec<Allocation>) -> Vec<ClaimBinding> {
        let made = self.pending.into_iter().zip(allocations);
        let made = made.map(|(claim, allocation)| ClaimBinding { claim: claim.key, uid: claim.uid, allocation });
        self.allocated.into_iter().chain(made).collect()
    }
}
