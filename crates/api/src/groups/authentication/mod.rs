//! authentication.k8s.io: TokenReview, SelfSubjectReview.

mod kinds;

pub use kinds::kinds;
