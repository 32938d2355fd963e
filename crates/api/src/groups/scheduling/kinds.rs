//! `scheduling.k8s.io/v1`.

use k8s_openapi::api::scheduling::v1::PriorityClass;

use super::{rules::PriorityClassRules, table};
use crate::{descriptor::Descriptor, groups::builder::describe};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        describe::<PriorityClass>()
            .rules::<PriorityClassRules>()
            .columns(&table::PRIORITY_CLASSES)
            .short("pc")
            .generation(),
    ]
}
