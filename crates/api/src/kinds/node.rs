//! `node.k8s.io/v1`.

use k8s_openapi::api::node::v1::RuntimeClass;

use super::builder::of;
use crate::{descriptor::Descriptor, rules::runtime_class::RuntimeClassRules, table::node as table};

pub fn kinds() -> Vec<Descriptor> {
    vec![of::<RuntimeClass>().rules::<RuntimeClassRules>().columns(&table::RUNTIME_CLASSES)]
}
