//! `policy/v1`.

use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use super::builder::of;
use crate::descriptor::{Descriptor, NameRule};

pub fn kinds() -> Vec<Descriptor> {
    vec![of::<PodDisruptionBudget>().short("pdb").named(NameRule::PathSegment).status().generation()]
}
