//! coordination.k8s.io: Lease.

mod kinds;
pub mod rules;
pub mod table;

pub use kinds::kinds;
