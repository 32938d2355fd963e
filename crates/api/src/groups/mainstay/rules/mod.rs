//! Defaulting and validation of our own kinds.

pub mod config_template;
pub mod machine;
pub mod offer;
pub mod release;
pub mod service_table;
