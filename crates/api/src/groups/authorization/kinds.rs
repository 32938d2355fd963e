//! `authorization.k8s.io/v1`: questions about what somebody may do.

use k8s_openapi::api::authorization::v1::{
    LocalSubjectAccessReview, SelfSubjectAccessReview, SelfSubjectRulesReview, SubjectAccessReview,
};

use crate::{descriptor::Descriptor, groups::builder::describe_review};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        describe_review::<LocalSubjectAccessReview>(),
        describe_review::<SelfSubjectAccessReview>(),
        describe_review::<SelfSubjectRulesReview>(),
        describe_review::<SubjectAccessReview>(),
    ]
}
