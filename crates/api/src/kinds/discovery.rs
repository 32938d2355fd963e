//! `discovery.k8s.io/v1`.

use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::builder::of;
use crate::{descriptor::Descriptor, rules::discovery::EndpointSliceRules, table::discovery as table};

pub fn kinds() -> Vec<Descriptor> {
    vec![of::<EndpointSlice>().rules::<EndpointSliceRules>().columns(&table::ENDPOINT_SLICES).generation()]
}
