//! `apiextensions.k8s.io`: CustomResourceDefinitions. What becomes of them is in [`crd`](crate::crd).

mod kinds;
mod rules;

pub use kinds::kinds;
