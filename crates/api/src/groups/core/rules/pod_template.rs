//! PodTemplates.

use k8s_openapi::api::core::v1::PodTemplate;

use crate::{
    field::{Errors, Path},
    groups::core::rules::pod,
    strategy::Rules,
};

/// The kind `PodTemplate`.
pub struct PodTemplateRules;

impl Rules for PodTemplateRules {
    type Object = PodTemplate;

    fn default(template: &mut PodTemplate) {
        pod::default_template(template.template.get_or_insert_default());
    }

    fn validate(template: &PodTemplate, errors: &mut Errors) {
        if let Some(inner) = &template.template {
            pod::validate_template(inner, &Path::new("template"), errors);
        }
    }
}
