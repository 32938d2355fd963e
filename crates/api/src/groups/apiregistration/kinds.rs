//! `apiregistration.k8s.io/v1`.

use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;

use super::{rules::ApiServiceRules, table};
use crate::{
    descriptor::{Descriptor, NameRule},
    groups::builder::describe,
};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        describe::<APIService>()
            .rules::<ApiServiceRules>()
            .columns(&table::API_SERVICES)
            .category("api-extensions")
            .named(NameRule::PathSegment)
            .stored_below("apiregistration.k8s.io/apiservices")
            .status(),
    ]
}
