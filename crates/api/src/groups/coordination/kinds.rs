//! `coordination.k8s.io/v1`.

use k8s_openapi::api::coordination::v1::Lease;

use super::{rules::LeaseRules, table};
use crate::{
    descriptor::{Descriptor, Volatile},
    groups::builder::describe,
    wellknown::namespace,
};

pub fn kinds() -> Vec<Descriptor> {
    let heartbeats = Volatile::InNamespace(namespace::NODE_LEASES);
    vec![describe::<Lease>().rules::<LeaseRules>().columns(&table::LEASES).volatile(heartbeats)]
}
