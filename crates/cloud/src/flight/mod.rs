//! Flight control: repairs what a cloud lost or left half done for a Kluster.
//!
//! Clouds miss events: rules of security groups, assignments and tags get lost, servers hang between boot and the first heartbeat. Every five minutes,
//! and whenever something about a Kluster changes, the steps of [`plan`] look at each of these, in order: rules of the security group, its
//! assignment, servers that never joined, servers in error, roles of the service user, tags and metadata. [`controller`] carries repairs out; a
//! step that fails keeps no other from its work. [`metrics`]: what was repaired.

pub mod controller;
pub mod metrics;
pub mod plan;
