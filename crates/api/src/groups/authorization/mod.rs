//! authorization.k8s.io: access reviews.

mod kinds;

pub use kinds::kinds;
