//! `policy/v1`.

use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use super::{rules::PodDisruptionBudgetRules, table};
use crate::{
    descriptor::{Descriptor, NameRule},
    groups::builder::describe,
};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        describe::<PodDisruptionBudget>()
            .rules::<PodDisruptionBudgetRules>()
            .columns(&table::POD_DISRUPTION_BUDGETS)
            .short("pdb")
            .named(NameRule::PathSegment)
            .status()
            .generation(),
    ]
}
