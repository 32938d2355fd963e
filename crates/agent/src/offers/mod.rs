//! Offers: what this node has left for pods, and the admission of pods that are bound to it.
//!
//! The node, not the control plane, knows what it has left: [`OfferPublisher`] writes it to the API as an Offer,
//! [`OfferAdmission`] checks again when a pod arrives, and gives back what does not fit. Both decide by the same arithmetic
//! ([`NodeCapacity`] and [`PodDemand`]), so what was offered truthfully is also admitted.

mod admission;
mod capacity;
mod pod_demand;
mod predicates;
mod preempt;
mod publisher;
mod role_pools;
#[cfg(test)]
mod tests;

pub use admission::{Avoids, OfferAdmission, Verdict, is_fresh};
pub use capacity::NodeCapacity;
pub use pod_demand::PodDemand;
pub use predicates::{Rejection, check_pod, check_resources};
pub use publisher::OfferPublisher;
