//! RBAC: what Roles and ClusterRoles allow to whom bindings name, with upstream's semantics and messages.
//!
//! * [`policy_rule`]: what one rule allows, and whether rules cover others
//! * [`policy`]: all roles and bindings, indexed by subject; [`cache`]: how they are kept current
//! * [`bootstrap_policy`]: roles and bindings that every cluster has; [`controller_policy`]: those of our own parts
//!
//! Nobody grants what they do not hold: see the admission plugin `rbac_escalation`.

pub mod bootstrap_policy;
mod cache;
pub mod controller_policy;
mod policy;
mod policy_rule;

pub use self::{
    cache::RbacCache,
    policy::{Grant, RoleKey, RoleNotFound},
    policy_rule::{PolicyRule, count_rights, missing, quoted_list},
};
