//! `admissionregistration.k8s.io/v1`.

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
    ValidatingWebhookConfiguration,
};

use super::builder::of;
use crate::{descriptor::Descriptor, table::admissionregistration as table};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        of::<MutatingWebhookConfiguration>()
            .columns(&table::WEBHOOK_CONFIGURATIONS)
            .category("api-extensions")
            .generation(),
        of::<ValidatingAdmissionPolicy>()
            .columns(&table::VALIDATING_ADMISSION_POLICIES)
            .category("api-extensions")
            .status()
            .generation(),
        of::<ValidatingAdmissionPolicyBinding>()
            .columns(&table::VALIDATING_ADMISSION_POLICY_BINDINGS)
            .category("api-extensions")
            .generation(),
        of::<ValidatingWebhookConfiguration>()
            .columns(&table::WEBHOOK_CONFIGURATIONS)
            .category("api-extensions")
            .generation(),
    ]
}
