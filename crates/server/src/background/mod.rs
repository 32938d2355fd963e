//! What the server does without being asked, from its start until it stops.
//!
//! * [`bootstrap`]: objects that every cluster has; [`bootstrap_rbac`]: its roles and bindings;
//!   [`bootstrap_flowcontrol`]: its priority levels and who gets them;
//!   [`servers`]: the endpoints of the `kubernetes` Service
//! * [`event_expiry`]: deletes old Events and tokens when the expiry controller asks for it
//! * [`storage_migration`]: writes stored objects anew when a StorageVersionMigration asks for it
//! * [`store_space`]: refuses writes while the store's disk is full

pub mod bootstrap;
mod bootstrap_flowcontrol;
mod bootstrap_rbac;
pub mod event_expiry;
pub mod servers;
pub mod storage_migration;
pub mod store_space;
