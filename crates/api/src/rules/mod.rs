//! Defaulting and validation of the kinds people write by hand.
//!
//! One file per kind, each a [`Rules`](crate::strategy::Rules) implementation; beside them the
//! vocabulary they share: [`names`], [`labels`], [`meta`], [`resources`] and the small checks of
//! [`check`].

pub mod admissionregistration;
pub mod apps;
pub mod autoscaling;
pub mod batch;
pub mod certificates;
pub mod check;
pub mod coordination;
pub mod core;
pub mod diff;
pub mod discovery;
pub mod heal;
pub mod int_or_percent;
pub mod labels;
pub mod meta;
pub mod names;
pub mod networking;
pub mod offer;
pub mod pod;
pub mod policy;
pub mod rbac;
pub mod resources;
pub mod runtime_class;
pub mod scheduling;
pub mod service;
pub mod service_table;
pub mod storage;
#[cfg(test)]
pub(crate) mod testing;
