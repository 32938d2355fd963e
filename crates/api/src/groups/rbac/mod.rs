//! rbac.authorization.k8s.io: roles and bindings.

mod kinds;
pub mod rules;
pub mod table;

pub use kinds::kinds;
