//! `admissionregistration.k8s.io/v1`.

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
    ValidatingWebhookConfiguration,
};

use super::builder::of;
use crate::{
    descriptor::Descriptor,
    rules::admissionregistration::{
        MutatingWebhookConfigurationRules, ValidatingAdmissionPolicyBindingRules, ValidatingAdmissionPolicyRules,
        ValidatingWebhookConfigurationRules,
    },
    table::admissionregistration as table,
};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        of::<MutatingWebhookConfiguration>()
            .rules::<MutatingWebhookConfigurationRules>()
            .columns(&table::WEBHOOK_CONFIGURATIONS)
            .category("api-extensions")
            .generation(),
        of::<ValidatingAdmissionPolicy>()
            .rules::<ValidatingAdmissionPolicyRules>()
            .columns(&table::VALIDATING_ADMISSION_POLICIES)
            .category("api-extensions")
            .status()
            .generation(),
        of::<ValidatingAdmissionPolicyBinding>()
            .rules::<ValidatingAdmissionPolicyBindingRules>()
            .columns(&table::VALIDATING_ADMISSION_POLICY_BINDINGS)
            .category("api-extensions")
            .generation(),
        of::<ValidatingWebhookConfiguration>()
            .rules::<ValidatingWebhookConfigurationRules>()
            .columns(&table::WEBHOOK_CONFIGURATIONS)
            .category("api-extensions")
            .generation(),
    ]
}
