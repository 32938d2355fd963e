//! ReplicationControllers.

use k8s_openapi::api::core::v1::{
    PodTemplateSpec, ReplicationController, ReplicationControllerSpec, ReplicationControllerStatus,
};

use crate::{
    field::{Errors, FieldError, Path},
    groups::core::rules::pod,
    strategy::Rules,
    validation::{
        check::{self, shown, text},
        labels,
    },
};

/// The kind `ReplicationController`.
pub struct ReplicationControllerRules;

impl Rules for ReplicationControllerRules {
    type Object = ReplicationController;

    fn default(controller: &mut ReplicationController) {
        let spec = controller.spec.get_or_insert_default();
        spec.replicas.get_or_insert(1);
        let Some(template) = &mut spec.template else { return };
        pod::default_template(template);
        let labels = template.metadata.as_ref().and_then(|meta| meta.labels.clone());
        if labels.is_some() {
            fill_map(&mut spec.selector, &labels);
            fill_map(&mut controller.metadata.labels, &labels);
        }
    }

    fn prepare_create(controller: &mut ReplicationController) {
        controller.status = Some(ReplicationControllerStatus::default());
    }

    fn validate(controller: &ReplicationController, errors: &mut Errors) {
        let missing = ReplicationControllerSpec::default();
        validate_spec(controller.spec.as_ref().unwrap_or(&missing), &Path::new("spec"), errors);
    }

    fn validate_status(controller: &ReplicationController, _: &ReplicationController, errors: &mut Errors) {
        let Some(status) = &controller.status else { return };
        let path = Path::new("status");
        let counts = [
            ("fullyLabeledReplicas", status.fully_labeled_replicas),
            ("readyReplicas", status.ready_replicas),
            ("availableReplicas", status.available_replicas),
        ];
        check::non_negative(status.replicas.into(), &path.child("replicas"), errors);
        for (field, count) in counts {
            let count = count.unwrap_or_default();
            check::non_negative(count.into(), &path.child(field), errors);
            if count > status.replicas {
                let detail = "cannot be greater than status.replicas";
                errors.push(FieldError::invalid(&path.child(field), count, detail));
            }
        }
    }
}

fn fill_map(map: &mut Option<labels::Map>, from: &Option<labels::Map>) {
    if map.as_ref().is_none_or(labels::Map::is_empty) {
        map.clone_from(from);
    }
}

fn validate_spec(spec: &ReplicationControllerSpec, path: &Path, errors: &mut Errors) {
    check::non_negative(spec.min_ready_seconds.unwrap_or_default().into(), &path.child("minReadySeconds"), errors);
    if spec.selector.as_ref().is_none_or(labels::Map::is_empty) {
        errors.push(FieldError::required(&path.child("selector"), ""));
    }
    check::non_negative(spec.replicas.unwrap_or_default().into(), &path.child("replicas"), errors);
    let at = path.child("template");
    match &spec.template {
        None => errors.push(FieldError::required(&at, "")),
        Some(template) => validate_template(template, spec, &at, errors),
    }
}

fn validate_template(template: &PodTemplateSpec, spec: &ReplicationControllerSpec, path: &Path, errors: &mut Errors) {
    let labels = template.metadata.as_ref().and_then(|meta| meta.labels.clone()).unwrap_or_default();
    if spec.selector.iter().flatten().any(|(key, value)| labels.get(key) != Some(value)) {
        let at = path.child("metadata").child("labels");
        errors.push(FieldError::invalid(&at, shown(&labels), "`selector` does not match template `labels`"));
    }
    pod::validate_template(template, path, errors);
    let Some(pod) = &template.spec else { return };
    if text(&pod.restart_policy) != "Always" {
        let at = path.child("spec").child("restartPolicy");
        errors.push(FieldError::not_supported(&at, text(&pod.restart_policy), &["Always"]));
    }
    if pod.active_deadline_seconds.is_some() {
        let at = path.child("spec").child("activeDeadlineSeconds");
        errors.push(FieldError::forbidden(&at, "activeDeadlineSeconds in ReplicationController is not Supported"));
    }
}
