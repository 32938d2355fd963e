//! The `apps` group: controllers that keep a set of like pods.

mod controller_revision;
mod daemon_set;
mod deployment;
mod replica_set;
mod replicas;
mod stateful_set;
mod template;

pub use controller_revision::ControllerRevisionRules;
pub use daemon_set::DaemonSetRules;
pub use deployment::DeploymentRules;
pub use replica_set::ReplicaSetRules;
pub use stateful_set::StatefulSetRules;
