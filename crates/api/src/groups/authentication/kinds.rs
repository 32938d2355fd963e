//! `authentication.k8s.io/v1`: questions about who somebody is.

use k8s_openapi::api::authentication::v1::{SelfSubjectReview, TokenReview};

use crate::{descriptor::Descriptor, groups::builder::question};

pub fn kinds() -> Vec<Descriptor> {
    vec![question::<SelfSubjectReview>(), question::<TokenReview>()]
}
