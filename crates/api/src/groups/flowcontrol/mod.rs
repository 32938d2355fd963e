//! flowcontrol.apiserver.k8s.io: FlowSchema, PriorityLevelConfiguration, and the objects every cluster starts with.

pub mod bootstrap;
mod kinds;
pub mod rules;
pub mod table;

pub use kinds::kinds;
