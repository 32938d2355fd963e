//! `apiextensions.k8s.io/v1`.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use super::rules::CustomResourceDefinitions;
use crate::{crd, descriptor::Descriptor, groups::builder::describe, table::generic};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        describe::<CustomResourceDefinition>()
            .strategy(CustomResourceDefinitions)
            .columns(&generic::NAME_CREATED)
            .short("crd")
            .short("crds")
            .category("api-extensions")
            .stored_below("apiextensions.k8s.io/customresourcedefinitions")
            .status()
            .generation()
            .deletion_finalizer(crd::CLEANUP_FINALIZER),
    ]
}
