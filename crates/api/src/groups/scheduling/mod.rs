//! scheduling.k8s.io: PriorityClass.

mod kinds;
pub mod rules;
pub mod table;

pub use kinds::kinds;
