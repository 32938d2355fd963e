//! Whether labels, names and taints are what a rule asks for.
//!
//! Rules come in several forms: as the API writes them ([`k8s_openapi`]), or read into something smaller by who asks
//! them often. All share what is decided here: a form only says where its parts are, and nothing is copied.
//!
//! * [`Requirement`]: on one label or field; [`NodeTerm`] and [`selected`]: on a machine
//! * [`Toleration`] and [`Taint`]

mod node;
mod requirement;
#[cfg(test)]
mod tests;
mod toleration;

pub use node::{NodeTerm, selected, suits};
pub use requirement::{Labels, Operator, Requirement, UNLABELLED, equal};
pub use toleration::{Effect, Taint, Toleration, repels};
