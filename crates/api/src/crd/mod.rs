//! Custom kinds: from a CustomResourceDefinition to a [`Descriptor`](crate::descriptor::Descriptor) that the generic verbs serve.
//!
//! * [`structural`]: the schema of a version, parsed once; [`schema_rules`]: what a schema may say
//! * [`prune`](prune::prune_resource), [`default`](default::apply_defaults), [`validate`](validate::validate),
//!   [`embedded`]: what a schema makes of an object; [`format`], [`pattern`]: the parts of validation that are languages of their own
//! * [`cel`], that is `x-kubernetes-validations`
//! * [`columns`], [`json_path`]: what `kubectl get` shows
//! * [`apply`]: how values are merged by server-side apply
//! * [`kind`]: descriptors; [`strategy`]: defaulting and validation as the verbs call them; [`conversion`]: between versions
//! * [`status`]: names, conditions and stored versions of a definition

pub mod apply;
pub mod cel;
pub mod columns;
pub mod conversion;
pub mod default;
pub mod embedded;
pub mod format;
pub mod json_path;
pub mod kind;
pub mod pattern;
pub mod prune;
pub mod schema_rules;
pub mod status;
pub mod strategy;
pub mod structural;
mod structural_rules;
#[cfg(test)]
pub(crate) mod testing;
pub mod validate;
mod walk_path;

pub use columns::CustomColumns;
pub use kind::{CustomKind, definition_name};
pub use structural::Structural;

/// The resource of definitions.
pub const GROUP: &str = "apiextensions.k8s.io";
pub const PLURAL: &str = "customresourcedefinitions";
/// Keeps a definition until all objects of its kind are gone.
pub const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";
