//! `policy/v1`.

use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use super::builder::of;
use crate::{
    descriptor::{Descriptor, NameRule},
    rules::policy::PodDisruptionBudgetRules,
    table::policy as table,
};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        of::<PodDisruptionBudget>()
            .rules::<PodDisruptionBudgetRules>()
            .columns(&table::POD_DISRUPTION_BUDGETS)
            .short("pdb")
            .named(NameRule::PathSegment)
            .status()
            .generation(),
    ]
}
