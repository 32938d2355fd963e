//! Validation that kinds of all groups share: names, labels, metadata, quantities, and small checks.
//!
//! Each kind's own rules are in [`groups`](crate::groups), as an implementation of [`Rules`](crate::strategy::Rules).

pub mod check;
pub mod diff;
pub mod int_or_percent;
pub mod labels;
pub mod meta;
pub mod names;
pub mod own_annotations;
pub mod resources;
#[cfg(test)]
pub(crate) mod testing;
