//! `node.k8s.io/v1`.

use k8s_openapi::api::node::v1::RuntimeClass;

use super::{rules::RuntimeClassRules, table};
use crate::{descriptor::Descriptor, groups::builder::describe};

pub fn kinds() -> Vec<Descriptor> {
    vec![describe::<RuntimeClass>().rules::<RuntimeClassRules>().columns(&table::RUNTIME_CLASSES)]
}
