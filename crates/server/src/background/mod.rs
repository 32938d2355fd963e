//! What the server does without being asked, from its start until it stops.
//!
//! * [`bootstrap`]: objects that every cluster has; [`bootstrap_rbac`]: its roles and bindings;
//!   [`servers`]: the endpoints of the `kubernetes` Service
//! * [`event_expiry`]: deletes old Events; [`signer`]: approves and signs certificate requests
//! * [`store_space`]: refuses writes while the store's disk is full

pub mod bootstrap;
mod bootstrap_rbac;
pub mod event_expiry;
pub mod servers;
pub mod signer;
pub mod store_space;
