//! The core group, `v1`: pods, Services, nodes, volumes, configuration.

mod kinds;
pub mod rules;
pub mod table;

pub use kinds::kinds;
