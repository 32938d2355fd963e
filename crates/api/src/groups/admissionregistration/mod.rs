//! admissionregistration.k8s.io: webhook configurations and admission policies.

mod kinds;
pub mod rules;
pub mod table;

pub use kinds::kinds;
