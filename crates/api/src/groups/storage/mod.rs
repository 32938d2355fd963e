//! storage.k8s.io: StorageClass and the CSI kinds.

mod kinds;
pub mod rules;
pub mod table;

pub use kinds::kinds;
