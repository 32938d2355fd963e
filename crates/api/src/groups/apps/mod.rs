//! apps: Deployment, ReplicaSet, StatefulSet, DaemonSet, ControllerRevision.

mod kinds;
pub mod rules;
pub mod table;

pub use kinds::kinds;
