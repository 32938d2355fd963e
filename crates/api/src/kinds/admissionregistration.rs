//! `admissionregistration.k8s.io/v1`.

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
    ValidatingWebhookConfiguration,
};

use super::builder::of;
use crate::descriptor::Descriptor;

pub fn kinds() -> Vec<Descriptor> {
    vec![
        of::<MutatingWebhookConfiguration>().category("api-extensions").generation(),
        of::<ValidatingAdmissionPolicy>().category("api-extensions").status().generation(),
        of::<ValidatingAdmissionPolicyBinding>().category("api-extensions").generation(),
        of::<ValidatingWebhookConfiguration>().category("api-extensions").generation(),
    ]
}
