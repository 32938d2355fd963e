//! Pods, and the pod templates of every workload.

use k8s_openapi::api::core::v1::{PodSpec, PodTemplateSpec};

use super::labels;
use crate::field::{Errors, FieldError, Path};

mod defaults;
mod image;

pub use defaults::default_pod_spec;

/// Fills in a template of pods.
pub fn default_template(template: &mut PodTemplateSpec) {
    default_pod_spec(template.spec.get_or_insert_default());
}

/// Judges a template of pods.
pub fn validate_template(template: &PodTemplateSpec, path: &Path, errors: &mut Errors) {
    if let Some(meta) = &template.metadata {
        labels::validate_labels(meta.labels.as_ref().unwrap_or(&labels::Map::new()), &path.child("labels"), errors);
        labels::validate_annotations(
            meta.annotations.as_ref().unwrap_or(&labels::Map::new()),
            &path.child("annotations"),
            errors,
        );
    }
    validate_pod_spec(template.spec.as_ref().unwrap_or(&PodSpec::default()), &path.child("spec"), errors);
}

/// Judges what a pod is to be.
pub fn validate_pod_spec(spec: &PodSpec, path: &Path, errors: &mut Errors) {
    if spec.containers.is_empty() {
        errors.push(FieldError::required(&path.child("containers"), ""));
    }
}
