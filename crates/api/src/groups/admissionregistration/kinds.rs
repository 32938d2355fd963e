//! `admissionregistration.k8s.io/v1`.

use k8s_openapi::api::admissionregistration::v1::{
    MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, MutatingWebhookConfiguration, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding, ValidatingWebhookConfiguration,
};

use super::{
    rules::{
        MutatingAdmissionPolicyBindingRules, MutatingAdmissionPolicyRules, MutatingWebhookConfigurationRules,
        ValidatingAdmissionPolicyBindingRules, ValidatingAdmissionPolicyRules, ValidatingWebhookConfigurationRules,
    },
    table,
};
use crate::{descriptor::Descriptor, groups::builder::describe};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        describe::<MutatingAdmissionPolicy>()
            .rules::<MutatingAdmissionPolicyRules>()
            .columns(&table::MUTATING_ADMISSION_POLICIES)
            .category("api-extensions")
            .generation(),
        describe::<MutatingAdmissionPolicyBinding>()
            .rules::<MutatingAdmissionPolicyBindingRules>()
            .columns(&table::ADMISSION_POLICY_BINDINGS)
            .category("api-extensions")
            .generation(),
        describe::<MutatingWebhookConfiguration>()
            .rules::<MutatingWebhookConfigurationRules>()
            .columns(&table::WEBHOOK_CONFIGURATIONS)
            .category("api-extensions")
            .generation(),
        describe::<ValidatingAdmissionPolicy>()
            .rules::<ValidatingAdmissionPolicyRules>()
            .columns(&table::VALIDATING_ADMISSION_POLICIES)
            .category("api-extensions")
            .status()
            .generation(),
        describe::<ValidatingAdmissionPolicyBinding>()
            .rules::<ValidatingAdmissionPolicyBindingRules>()
            .columns(&table::ADMISSION_POLICY_BINDINGS)
            .category("api-extensions")
            .generation(),
        describe::<ValidatingWebhookConfiguration>()
            .rules::<ValidatingWebhookConfigurationRules>()
            .columns(&table::WEBHOOK_CONFIGURATIONS)
            .category("api-extensions")
            .generation(),
    ]
}
