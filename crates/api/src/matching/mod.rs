//! Label selectors, node selectors, node affinity, taints and tolerations: what matches what.
//!
//! The rules exist as the types of [`k8s_openapi`] and as smaller types of callers that evaluate them often. Both
//! implement the traits here, which only say where the parts are; the decisions are here once, and nothing is copied.
//!
//! * [`Requirement`]: on one label or field; [`NodeTerm`] and [`matches_node_selector`]: on a node
//! * [`Toleration`] and [`Taint`]

mod node;
mod requirement;
#[cfg(test)]
mod tests;
mod toleration;

pub use node::{NodeTerm, matches_node_selector, pod_matches_node};
pub use requirement::{Labels, Operator, Requirement, UNLABELLED, has_labels};
pub use toleration::{Effect, Taint, Toleration, has_untolerated_taint};
