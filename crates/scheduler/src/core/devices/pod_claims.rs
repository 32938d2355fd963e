//! The ResourceClaims of one pod: which are allocated already, and which have to be.

use std::sync::Arc;

use super::{
    allocator::AllocationFailure, extended::ExtendedClaim, requests::ClaimRequests, result::Allocation, view::ClaimKey,
};
use crate::core::view::NodeView;

/// A claim that is to be allocated, if it is not yet, and reserved for a pod before the pod is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimBinding {
    pub claim: ClaimKey,
    /// Empty if the claim is still to be made.
    pub uid: String,
    pub allocation: Allocation,
    /// It stands for extended resources of the pod, and is made with it.
    pub extended: Option<Arc<ExtendedClaim>>,
}

#[derive(Debug, Default)]
pub struct PodClaims {
    pub allocated: Vec<ClaimBinding>,
    pub pending: Vec<ClaimRequests>,
    /// Those of the allocated ones whose devices have failed: no node can use them.
    pub failed: Vec<ClaimKey>,
}

impl PodClaims {
    pub fn is_empty(&self) -> bool {
        self.allocated.is_empty() && self.pending.is_empty()
    }

    /// Why what is allocated already cannot be used on the node.
    pub fn unusable_on(&self, node: &NodeView) -> Option<AllocationFailure> {
        let elsewhere = self.allocated.iter().find(|own| !own.allocation.is_usable_on(&node.name, &node.labels));
        let unusable = self.failed.first().or(elsewhere.map(|own| &own.claim))?;
        Some(AllocationFailure::ClaimElsewhere { claim: unusable.to_string() })
    }

    /// All claims, with these allocations for those that had none.
    pub fn bindings(self, allocations: Vec<Allocation>) -> Vec<ClaimBinding> {
        let made = self.pending.into_iter().zip(allocations);
        let made = made.map(|(claim, allocation)| ClaimBinding {
            claim: claim.key,
            uid: if claim.extended.is_some() { String::new() } else { claim.uid },
            allocation,
            extended: claim.extended,
        });
        self.allocated.into_iter().chain(made).collect()
    }
}
