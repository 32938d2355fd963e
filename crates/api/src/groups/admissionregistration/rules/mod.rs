//! The `admissionregistration.k8s.io` group.
//!
//! Expressions of policies, and match conditions of webhooks, are compiled: what does not compile is refused.

mod expressions;
mod matching;
mod mutating_policy;
mod policy;
mod policy_binding;
mod policy_scope;
mod webhook;
pub(crate) mod webhook_client;

pub use mutating_policy::MutatingAdmissionPolicyRules;
pub use policy::ValidatingAdmissionPolicyRules;
pub use policy_binding::{MutatingAdmissionPolicyBindingRules, ValidatingAdmissionPolicyBindingRules};
pub use webhook::{MutatingWebhookConfigurationRules, ValidatingWebhookConfigurationRules};
