//! The scheduling decision: nodes and pods in, placements or reasons out. No clock, no I/O, no randomness.
//!
//! * [`view`]: the parts of pods, nodes, offers and budgets that scheduling reads; [`decode`] reads them from JSON
//! * [`cluster`]: the scheduler's cache: nodes, offers and pods as last observed, updated change by change
//! * [`devices`]: dynamic resource allocation: which devices a pod's ResourceClaims get on a node
//! * [`schedule`](schedule()): a [`verdict`] for each pod of a batch. [`select_node`] finds the best node that passes all
//!   filters ([`filters`], [`pod_topology`], [`score_index`]); [`victims`] finds pods to preempt; [`diagnose`] explains
//!   why no node fits ([`reason`])

mod cluster;
mod contradiction;
pub mod decode;
pub mod devices;
mod diagnose;
mod exclusions;
mod filters;
mod host_ports;
mod pod_topology;
pub mod reason;
mod schedule;
mod score;
mod score_index;
mod select_node;
mod selector;
#[cfg(test)]
mod tests;
pub mod verdict;
mod victims;
pub mod view;

pub use cluster::Cluster;
pub use schedule::schedule;
