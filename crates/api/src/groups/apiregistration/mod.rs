//! `apiregistration.k8s.io`: APIServices, which say who serves a group and version.

mod kinds;
mod rules;
mod table;

pub use kinds::kinds;
