//! policy: PodDisruptionBudget.

mod kinds;
pub mod rules;
pub mod table;

pub use kinds::kinds;
