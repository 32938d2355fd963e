//! `authentication.k8s.io/v1`: questions about who somebody is.

use k8s_openapi::api::authentication::v1::{SelfSubjectReview, TokenReview};

use crate::{descriptor::Descriptor, groups::builder::describe_review};

pub fn kinds() -> Vec<Descriptor> {
    vec![describe_review::<SelfSubjectReview>(), describe_review::<TokenReview>()]
}
