//! The built-in descriptors, one file per API group.

mod admissionregistration;
mod apps;
mod authentication;
mod authorization;
mod autoscaling;
mod batch;
mod builder;
mod certificates;
mod coordination;
mod core;
mod discovery;
mod events;
mod mainstay;
mod networking;
mod node;
mod policy;
mod rbac;
mod scheduling;
mod storage;
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
        node::kinds(),
        mainstay::kinds(),
    ];
    groups.into_iter().flatten().collect()
}
