//! Pods, and the pod templates of every workload.
//!
//! [`validate_pod_spec`] is the common part. A pod is judged more strictly than a template
//! ([`Owner`]): upstream learned some rules too late to apply them to templates that exist.

use k8s_openapi::api::core::v1::{Pod, PodSpec, PodTemplateSpec};

use crate::{
    field::{Errors, FieldError, Path},
    strategy::{Rules, SpecPart},
    validation::{labels, own_annotations},
};

mod admission;
mod annotations;
mod containers;
mod defaults;
mod disabled_fields;
mod env;
mod image;
mod mounts;
mod network;
mod os;
mod probes;
mod qos;
mod restart_rules;
pub(crate) mod scheduling;
mod security;
mod spec;
mod status;
mod update;
pub(crate) mod volumes;

pub use defaults::default_pod_spec;
pub use qos::qos_class;
pub use update::{validate_ephemeral_containers_update, validate_resize};

/// Whose spec is being judged.
#[derive(Clone, Copy)]
enum Owner<'a> {
    /// A pod of this name.
    Pod(&'a str),
    Template,
}

/// Fills in a template of pods.
pub fn default_template(template: &mut PodTemplateSpec) {
    default_pod_spec(template.spec.get_or_insert_default());
}

/// Judges a template of pods. It should have been filled in before.
pub fn validate_template(template: &PodTemplateSpec, path: &Path, errors: &mut Errors) {
    let missing = PodSpec::default();
    let spec = template.spec.as_ref().unwrap_or(&missing);
    if let Some(meta) = &template.metadata {
        if let Some(labels) = &meta.labels {
            labels::validate_labels(labels, &path.child("labels"), errors);
        }
        if let Some(annotations) = &meta.annotations {
            labels::validate_annotations(annotations, &path.child("annotations"), errors);
            annotations::validate(annotations, spec, &path.child("annotations"), errors);
            let pairs = annotations.iter().map(|(key, value)| (key.as_str(), value.as_str()));
            own_annotations::check(pairs, &path.child("metadata").child("annotations"), errors);
        }
    }
    validate_pod_spec(spec, &path.child("spec"), errors);
    if spec.ephemeral_containers.as_ref().is_some_and(|containers| !containers.is_empty()) {
        errors.push(FieldError::forbidden(
            &path.child("spec").child("ephemeralContainers"),
            "ephemeral containers not allowed in pod template",
        ));
    }
}

/// Judges what a template says its pods are to be.
pub fn validate_pod_spec(spec: &PodSpec, path: &Path, errors: &mut Errors) {
    spec::validate(spec, Owner::Template, path, errors);
}

/// The kind `Pod`.
pub struct PodRules;

impl Rules for PodRules {
    type Object = Pod;

    fn default(pod: &mut Pod) {
        default_pod_spec(pod.spec.get_or_insert_default());
        defaults::default_pod(pod);
    }

    fn prepare_create(pod: &mut Pod) {
        admission::admit_create(pod);
        status::initialize(pod);
    }

    fn prepare_update(pod: &mut Pod, old: &Pod) {
        admission::admit_update(pod, old);
    }

    fn validate(pod: &Pod, errors: &mut Errors) {
        let missing = PodSpec::default();
        let spec = pod.spec.as_ref().unwrap_or(&missing);
        if let Some(annotations) = &pod.metadata.annotations {
            annotations::validate(annotations, spec, &Path::new("metadata").child("annotations"), errors);
        }
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        spec::validate(spec, Owner::Pod(name), &Path::new("spec"), errors);
    }

    fn validate_create(pod: &Pod, errors: &mut Errors) {
        let Some(spec) = &pod.spec else { return };
        let path = Path::new("spec");
        if spec.ephemeral_containers.as_ref().is_some_and(|containers| !containers.is_empty()) {
            errors.push(FieldError::forbidden(&path.child("ephemeralContainers"), "cannot be set on create"));
        }
        let gated = spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty());
        if gated && spec.node_name.as_ref().is_some_and(|name| !name.is_empty()) {
            errors.push(FieldError::forbidden(
                &path.child("nodeName"),
                "cannot be set until all schedulingGates have been cleared",
            ));
        }
    }

    fn validate_update(pod: &Pod, old: &Pod, errors: &mut Errors) {
        annotations::validate_update(pod, old, errors);
        update::validate(pod, old, errors);
    }

    fn prepare_part(part: SpecPart, pod: &mut Pod, old: &Pod) {
        let given = std::mem::replace(pod, old.clone());
        let (Some(spec), Some(given)) = (pod.spec.as_mut(), given.spec) else { return };
        match part {
            SpecPart::EphemeralContainers => spec.ephemeral_containers = given.ephemeral_containers,
            SpecPart::Resources => update::take_resources(spec, given),
        }
    }

    fn validate_part(part: SpecPart, pod: &Pod, old: &Pod, errors: &mut Errors) {
        match part {
            SpecPart::EphemeralContainers => validate_ephemeral_containers_update(pod, old, errors),
            SpecPart::Resources => validate_resize(pod, old, errors),
        }
    }

    fn validate_status(pod: &Pod, old: &Pod, errors: &mut Errors) {
        annotations::validate_update(pod, old, errors);
        status::validate_update(pod, old, errors);
    }
}

#[cfg(test)]
mod tests;
