//! `coordination.k8s.io/v1`.

use k8s_openapi::api::coordination::v1::Lease;

use super::builder::of;
use crate::{descriptor::Descriptor, rules::coordination::LeaseRules, table::coordination as table};

pub fn kinds() -> Vec<Descriptor> {
    vec![of::<Lease>().rules::<LeaseRules>().columns(&table::LEASES)]
}
