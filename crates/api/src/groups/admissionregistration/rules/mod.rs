//! The `admissionregistration.k8s.io` group.
//!
//! Expressions are checked for being there; whether they compile is found out where they run.

mod matching;
mod policy;
mod policy_binding;
mod webhook;
pub(crate) mod webhook_client;

pub use policy::ValidatingAdmissionPolicyRules;
pub use policy_binding::ValidatingAdmissionPolicyBindingRules;
pub use webhook::{MutatingWebhookConfigurationRules, ValidatingWebhookConfigurationRules};
