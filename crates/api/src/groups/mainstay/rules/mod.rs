//! Defaulting and validation of our own kinds.

pub mod cloud_resource;
pub mod config_template;
pub mod kluster;
pub mod machine;
pub mod machine_file;
pub mod node_pool;
pub mod offer;
pub mod release;
pub mod service_table;
