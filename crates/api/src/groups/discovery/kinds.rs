//! `discovery.k8s.io/v1`.

use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::{rules::EndpointSliceRules, table};
use crate::{descriptor::Descriptor, groups::builder::describe};

pub fn kinds() -> Vec<Descriptor> {
    vec![describe::<EndpointSlice>().rules::<EndpointSliceRules>().columns(&table::ENDPOINT_SLICES).generation()]
}
