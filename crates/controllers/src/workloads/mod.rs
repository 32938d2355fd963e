//! Workload controllers: ReplicaSet, Deployment, StatefulSet, DaemonSet, Job, CronJob, and what tidies up after them.
//!
//! * [`controller_ref`]: controller references: adopting, releasing; [`controller_history`]: ControllerRevisions
//! * [`pod_template`]: pods from a template; [`pod_names`]: their names; [`pod_control`]: creating and deleting them
//! * [`event_handlers`]: which owner a change of an object concerns
//! * [`replica_set`], [`deployment`], [`stateful_set`], [`daemon_set`]: one folder per kind
//! * [`job`], [`cron_job`], [`ttl_after_finished`]: Jobs, their schedule, and their deletion after a time
//! * [`disruption`]: the status of PodDisruptionBudgets; [`pod_gc`]: pods that nobody else removes

pub mod controller_history;
pub mod controller_ref;
pub mod cron_job;
pub mod daemon_set;
pub mod deployment;
pub mod disruption;
pub mod event_handlers;
pub mod job;
mod pod_control;
pub mod pod_gc;
mod pod_names;
pub mod pod_template;
pub mod replica_set;
pub mod stateful_set;
pub mod ttl_after_finished;
