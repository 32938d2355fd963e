//! Defaulting and validation of kinds of our own.

pub mod config_template;
pub mod offer;
pub mod service_table;
