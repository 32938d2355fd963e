//! Server-side apply: which manager owns which field, and what an apply makes of an object.
//!
//! Pure: objects go in, objects and managed fields come out; the clock is an argument. The server calls [`FieldManager`].
//!
//! * [`typed`]: what is asked of schemas: [`typed::TypeRef`]; [`builtin`]: the built-in kinds' answers
//! * [`path`], [`set`], [`fields_v1`]: sets of fields and how they are stored
//! * [`compare()`], [`merge()`], [`extract`], [`remove()`], [`validate()`], [`reconcile()`]: walks along a type
//! * [`managers`]: `metadata.managedFields`; [`updater`]: how ownership changes; [`field_manager`]: what a write does around that

mod atomics;
pub mod builtin;
mod compare;
mod extract;
pub mod field_manager;
pub mod fields_v1;
mod items;
pub mod managers;
mod merge;
pub mod path;
mod reconcile;
mod remove;
pub mod set;
pub mod typed;
pub mod updater;
mod validate;

pub use atomics::atomic_paths;
pub use compare::{Comparison, compare};
pub use extract::field_set;
pub use field_manager::{ApplyError, FieldManager, ManagedFields};
pub use merge::merge;
pub use reconcile::reconcile;
pub use remove::remove;
pub use validate::validate;

#[cfg(test)]
mod tests;
