//! Validation of the objects that nodes write about themselves.

pub mod offer;
pub mod service_table;
