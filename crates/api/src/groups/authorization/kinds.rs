//! `authorization.k8s.io/v1`: questions about what somebody may do.

use k8s_openapi::api::authorization::v1::{
    LocalSubjectAccessReview, SelfSubjectAccessReview, SelfSubjectRulesReview, SubjectAccessReview,
};

use crate::{descriptor::Descriptor, groups::builder::question};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        question::<LocalSubjectAccessReview>(),
        question::<SelfSubjectAccessReview>(),
        question::<SelfSubjectRulesReview>(),
        question::<SubjectAccessReview>(),
    ]
}
