//! Dynamic resource allocation: which devices the ResourceClaims of a pod get on a node. Pure, as all of [`core`](super).
//!
//! * [`view`]: ResourceClaims, ResourceSlices, DeviceClasses and DeviceTaintRules as allocation reads them
//! * [`catalog`]: all of them together, with the allocations that the scheduler assumes until the API shows them
//! * [`pool`]: the devices that drivers publish; [`usage`]: which of them are allocated
//! * [`selectors`]: CEL selectors, compiled once and evaluated once per device; [`candidates`]: the devices they select
//! * [`pod_claims`]: the claims of one pod; [`requests`]: what claims ask for, with their classes looked up
//! * [`allocator`]: the search for devices on one node; [`constraint`], [`capacity`]: what it must keep
//! * [`result`]: the allocation as it is written into a claim's status
//! * [`binding`]: what allocated devices have to report before their pods are bound
//! * [`extended`]: the claims that stand for extended resources of pods
//!
//! What is guaranteed, and tested with random claims: no device is allocated twice unless it allows that, no constraint,
//! counter or capacity is exceeded, the same input has the same result, and the work for one pod is bounded.
//!
//! Devices that stand for `cpu` or `memory` of the node (an alpha feature upstream) are not allocated: nobody here accounts
//! for them.

mod allocator;
mod binding;
mod candidates;
mod capacity;
mod catalog;
mod constraint;
pub mod extended;
mod pod_claims;
mod pool;
mod requests;
mod result;
mod selectors;
#[cfg(test)]
mod tests;
mod usage;
pub mod view;

pub use allocator::AllocationFailure;
pub use binding::BindingProgress;
pub use catalog::DeviceCatalog;
pub use pod_claims::{ClaimBinding, PodClaims};
pub use result::Allocation;
