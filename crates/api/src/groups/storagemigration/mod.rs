//! storagemigration.k8s.io: StorageVersionMigration.

mod kinds;
pub mod rules;
pub mod table;

pub use kinds::kinds;
