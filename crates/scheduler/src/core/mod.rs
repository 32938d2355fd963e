//! The decision: machines and pods in, placements and reasons out. No clock, no I/O, no chance.
//!
//! * [`view`]: pods, machines, offers and budgets as far as placing looks at them; [`wire`] reads them from JSON.
//! * [`cluster`]: the cluster as last heard of, kept up to date change by change.
//! * [`decide`](decide()): a batch of pods in, a [`verdict`] for each out. It is [`choose`]n where a pod goes, or
//!   whom it may [`preempt`], or [`explain`]ed why it stays without a machine ([`reason`]).

mod amounts;
mod choose;
mod cluster;
mod contradiction;
mod decide;
mod explain;
mod fit;
mod index;
mod near;
mod ports;
mod preempt;
pub mod reason;
mod score;
mod selector;
#[cfg(test)]
mod tests;
pub mod verdict;
pub mod view;
pub mod wire;

pub use cluster::Cluster;
pub use decide::decide;
