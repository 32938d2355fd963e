//! Pods on one machine: from what the API and the machine's own directory ask for to running,
//! probed, healed and observable containers.
//!
//! [`worker`] is the heart: one task per pod that looks at what is wanted and what is there, decides in
//! a pure `plan`, and acts. Everything else either tells it to look again ([`wake`]) or does one thing
//! for it.

pub mod admission;
pub mod agent;
mod bounded_command;
mod container_lists;
pub mod dependencies;
pub mod devices;
pub mod events;
pub mod fence;
pub mod formats;
pub mod heal;
pub mod hook;
mod host_network;
pub mod host_services;
pub mod join;
pub mod leftovers;
pub mod logs;
pub mod machine_files;
pub mod machine_steps;
pub mod metrics;
pub mod network;
pub mod node;
pub mod objects;
pub mod offers;
pub mod pod_routes;
pub mod pods;
pub mod probe;
mod publish_own;
pub mod route_check;
pub mod servers;
pub mod services;
pub mod settings;
pub mod sources;
pub mod spec;
pub mod standalone;
pub mod stream;
mod task_scope;
pub mod teardown;
#[cfg(test)]
mod testing;
pub mod tls;
pub mod user_ids;
pub mod volumes;
pub mod wake;
mod watch_backoff;
pub mod worker;
