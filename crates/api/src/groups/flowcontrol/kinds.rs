//! `flowcontrol.apiserver.k8s.io/v1`.

use k8s_openapi::api::flowcontrol::v1::{FlowSchema, PriorityLevelConfiguration};

use super::{
    rules::{FlowSchemaRules, PriorityLevelConfigurationRules},
    table,
};
use crate::{descriptor::Descriptor, groups::builder::describe};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        describe::<FlowSchema>().rules::<FlowSchemaRules>().columns(&table::FLOW_SCHEMAS).status().generation(),
        describe::<PriorityLevelConfiguration>()
            .rules::<PriorityLevelConfigurationRules>()
            .columns(&table::PRIORITY_LEVEL_CONFIGURATIONS)
            .status()
            .generation(),
    ]
}
