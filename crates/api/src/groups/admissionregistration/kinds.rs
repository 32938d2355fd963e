//! `admissionregistration.k8s.io/v1`.

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
    ValidatingWebhookConfiguration,
};

use super::{
    rules::{
        MutatingWebhookConfigurationRules, ValidatingAdmissionPolicyBindingRules, ValidatingAdmissionPolicyRules,
        ValidatingWebhookConfigurationRules,
    },
    table,
};
use crate::{descriptor::Descriptor, groups::builder::of};

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
