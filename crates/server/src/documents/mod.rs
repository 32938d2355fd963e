//! Responses that are computed and never stored: discovery, OpenAPI, health, metrics, access reviews, backups.

pub mod component_status;
pub mod debug;
pub mod discovery;
pub mod health;
mod issuer;
pub mod metrics;
pub mod nonresource;
pub mod openapi;
pub mod reviews;
pub mod rotate_key;
