//! The API groups: of each the descriptors of its kinds, their defaulting and validation, and the columns `kubectl get` shows.
//!
//! Adding a kind is a row in its group's `kinds.rs`, with rules and columns beside it where it needs them.

pub mod admissionregistration;
pub mod apiextensions;
pub mod apiregistration;
pub mod apps;
pub mod authentication;
pub mod authorization;
pub mod autoscaling;
pub mod batch;
mod builder;
pub mod certificates;
pub mod coordination;
pub mod core;
pub mod discovery;
pub mod events;
pub mod flowcontrol;
pub mod kubernikus;
pub mod mainstay;
pub mod networking;
pub mod node;
pub mod policy;
pub mod rbac;
pub mod resource;
pub mod scheduling;
pub mod storage;
pub mod storagemigration;
#[cfg(test)]
mod tests;

use crate::descriptor::Descriptor;

pub fn all() -> Vec<Descriptor> {
    let groups = [
        core::kinds(),
        apps::kinds(),
        batch::kinds(),
        autoscaling::kinds(),
        policy::kinds(),
        rbac::kinds(),
        networking::kinds(),
        storage::kinds(),
        scheduling::kinds(),
        coordination::kinds(),
        discovery::kinds(),
        events::kinds(),
        certificates::kinds(),
        authentication::kinds(),
        authorization::kinds(),
        admissionregistration::kinds(),
        apiextensions::kinds(),
        apiregistration::kinds(),
        node::kinds(),
        flowcontrol::kinds(),
        resource::kinds(),
        storagemigration::kinds(),
        mainstay::kinds(),
        kubernikus::kinds(),
    ];
    groups.into_iter().flatten().collect()
}
