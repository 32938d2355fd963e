//! `coordination.k8s.io/v1`.

use k8s_openapi::api::coordination::v1::Lease;

use super::{rules::LeaseRules, table};
use crate::{descriptor::Descriptor, groups::builder::of};

pub fn kinds() -> Vec<Descriptor> {
    vec![of::<Lease>().rules::<LeaseRules>().columns(&table::LEASES)]
}
