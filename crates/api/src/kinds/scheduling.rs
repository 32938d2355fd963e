//! `scheduling.k8s.io/v1`.

use k8s_openapi::api::scheduling::v1::PriorityClass;

use super::builder::of;
use crate::{descriptor::Descriptor, table::scheduling as table};

pub fn kinds() -> Vec<Descriptor> {
    vec![of::<PriorityClass>().columns(&table::PRIORITY_CLASSES).short("pc").generation()]
}
