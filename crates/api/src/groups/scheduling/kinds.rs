//! `scheduling.k8s.io/v1`.

use k8s_openapi::api::scheduling::v1::PriorityClass;

use super::{rules::PriorityClassRules, table};
use crate::{descriptor::Descriptor, groups::builder::of};

pub fn kinds() -> Vec<Descriptor> {
    vec![of::<PriorityClass>().rules::<PriorityClassRules>().columns(&table::PRIORITY_CLASSES).short("pc").generation()]
}
