//! `discovery.k8s.io/v1`.

use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::builder::of;
use crate::{descriptor::Descriptor, table::discovery as table};

pub fn kinds() -> Vec<Descriptor> {
    vec![of::<EndpointSlice>().columns(&table::ENDPOINT_SLICES).generation()]
}
