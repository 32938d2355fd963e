//! Job.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        batch::v1::{Job, JobSpec},
        core::v1::{Affinity, PodTemplateSpec},
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};

use super::{job_spec, job_status};
use crate::{
    field::{Errors, FieldError, Path},
    strategy::Rules,
    validation::{
        check::{immutable, same, shown, text},
        labels, names,
    },
};

pub struct JobRules;

const CONTROLLER_UID: &str = "batch.kubernetes.io/controller-uid";
const JOB_NAME: &str = "batch.kubernetes.io/job-name";
/// The same from before labels had prefixes; still set on every pod.
const OLD_CONTROLLER_UID: &str = "controller-uid";
const OLD_JOB_NAME: &str = "job-name";

impl Rules for JobRules {
    type Object = Job;

    fn default(object: &mut Job) {
        let spec = object.spec.get_or_insert_default();
        if spec.completions.is_none() && spec.parallelism.is_none() {
            spec.completions = Some(1);
        }
        spec.parallelism.get_or_insert(1);
        spec.backoff_limit.get_or_insert(if spec.backoff_limit_per_index.is_some() { i32::MAX } else { 6 });
        spec.completion_mode.get_or_insert_with(|| "NonIndexed".to_owned());
        spec.suspend.get_or_insert(false);
        spec.manual_selector.get_or_insert(false);
        let replacement = if spec.pod_failure_policy.is_some() { "Failed" } else { "TerminatingOrFailed" };
        spec.pod_replacement_policy.get_or_insert_with(|| replacement.to_owned());
        job_spec::default(spec);
        if object.metadata.labels.as_ref().is_none_or(BTreeMap::is_empty) {
            object.metadata.labels = template_labels(spec).filter(|labels| !labels.is_empty()).cloned();
        }
    }

    fn prepare_create(object: &mut Job) {
        object.status = Some(Default::default());
        let Some(spec) = &mut object.spec else { return };
        if spec.manual_selector == Some(true) {
            return;
        }
        let (name, uid) = (text(&object.metadata.name), text(&object.metadata.uid));
        // A job without labels of its own bears those of its pods.
        let like_pods = object.metadata.labels.as_ref() == template_labels(spec);
        let pod_labels = spec.template.metadata.get_or_insert_default().labels.get_or_insert_default();
        // What the author wrote stays: validation will say that it is wrong.
        for (key, value) in [(OLD_JOB_NAME, name), (JOB_NAME, name), (OLD_CONTROLLER_UID, uid), (CONTROLLER_UID, uid)] {
            pod_labels.entry(key.to_owned()).or_insert_with(|| value.to_owned());
        }
        let selected = spec.selector.get_or_insert_default().match_labels.get_or_insert_default();
        selected.entry(CONTROLLER_UID.to_owned()).or_insert_with(|| uid.to_owned());
        if like_pods {
            object.metadata.labels = Some(pod_labels.clone());
        }
    }

    fn validate(object: &Job, errors: &mut Errors) {
        let (path, Some(spec)) = (Path::new("spec"), &object.spec) else { return };
        validate_generated(object, spec, errors);
        job_spec::validate(spec, &path, errors);
        validate_selector(spec, &path, errors);
        validate_host_names(object, spec, errors);
    }

    fn validate_update(object: &Job, old: &Job, errors: &mut Errors) {
        let (path, Some(new), Some(old_spec)) = (Path::new("spec"), &object.spec, &old.spec) else { return };
        validate_completions(new, old_spec, &path.child("completions"), errors);
        immutable(&new.selector, &old_spec.selector, &path.child("selector"), errors);
        let mut template = old_spec.template.clone();
        if old_spec.suspend == Some(true) && old.status.as_ref().is_none_or(|status| status.start_time.is_none()) {
            release_scheduling(&mut template, &new.template);
        }
        immutable(&new.template, &template, &path.child("template"), errors);
        immutable(&new.completion_mode, &old_spec.completion_mode, &path.child("completionMode"), errors);
        immutable(&new.pod_failure_policy, &old_spec.pod_failure_policy, &path.child("podFailurePolicy"), errors);
        let per_index = (new.backoff_limit_per_index, old_spec.backoff_limit_per_index);
        immutable(&per_index.0, &per_index.1, &path.child("backoffLimitPerIndex"), errors);
        immutable(&new.managed_by, &old_spec.managed_by, &path.child("managedBy"), errors);
        immutable(&new.success_policy, &old_spec.success_policy, &path.child("successPolicy"), errors);
    }

    fn validate_status(object: &Job, old: &Job, errors: &mut Errors) {
        job_status::validate(object, old, errors);
    }
}

fn template_labels(spec: &JobSpec) -> Option<&labels::Map> {
    spec.template.metadata.as_ref()?.labels.as_ref()
}

/// Unless the author took charge of the selector, it and the labels of the pods are those this
/// server makes up: no two jobs ever claim each other's pods.
fn validate_generated(job: &Job, spec: &JobSpec, errors: &mut Errors) {
    let (false, Some(selector)) = (spec.manual_selector == Some(true), &spec.selector) else { return };
    let (name, uid) = (text(&job.metadata.name), text(&job.metadata.uid));
    if uid.is_empty() {
        errors.push(FieldError::required(&Path::new("metadata").child("uid"), ""));
    }
    let path = Path::new("spec").child("template").child("metadata").child("labels");
    let all = [(OLD_CONTROLLER_UID, uid), (OLD_JOB_NAME, name), (CONTROLLER_UID, uid), (JOB_NAME, name)];
    // A Job that an API server from before stored has the labels of its time; what we make up selects by the prefixed one.
    let is_old = selector.match_labels.as_ref().is_some_and(|labels| !labels.contains_key(CONTROLLER_UID));
    let expected = if is_old { &all[..2] } else { &all[..] };
    for (key, value) in expected.iter().copied() {
        let detail = format!("must be '{value}'");
        match template_labels(spec).and_then(|labels| labels.get(key)) {
            None => errors.push(FieldError::required(&path.key(key), detail)),
            Some(actual) if actual != value => {
                errors.push(FieldError::invalid(&path.key(key), shown(&template_labels(spec)), detail));
            }
            Some(_) => {}
        }
    }
    let expected = expected.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    if !labels::matches(selector, &expected) {
        let at = Path::new("spec").child("selector");
        errors.push(FieldError::invalid(&at, shown(selector), "`selector` not auto-generated"));
    }
}

fn validate_selector(spec: &JobSpec, path: &Path, errors: &mut Errors) {
    let at = path.child("selector");
    match &spec.selector {
        None => errors.push(FieldError::required(&at, "")),
        Some(selector) => labels::validate_selector(selector, &at, errors),
    }
    let found = template_labels(spec);
    let matches = |selector: &LabelSelector| labels::matches(selector, found.unwrap_or(&BTreeMap::new()));
    if !spec.selector.as_ref().is_some_and(matches) {
        let at = path.child("template").child("metadata").child("labels");
        errors.push(FieldError::invalid(&at, shown(&found), "`selector` does not match template `labels`"));
    }
}

/// The pods of an indexed job are called `<job>-<index>`, which must be a host name.
fn validate_host_names(job: &Job, spec: &JobSpec, errors: &mut Errors) {
    let (Some("Indexed"), Some(completions @ 1..)) = (spec.completion_mode.as_deref(), spec.completions) else {
        return;
    };
    let name = text(&job.metadata.name);
    let longest = format!("{name}-{}", completions - 1);
    if !names::dns1123_label(&longest).is_empty() {
        errors.push(FieldError::invalid(
            &Path::new("metadata").child("name"),
            name,
            format!("will not able to create pod with invalid DNS label: {longest}"),
        ));
    }
}

/// Indexed jobs may grow and shrink, all indexes at a time; others stay as they are.
fn validate_completions(new: &JobSpec, old: &JobSpec, path: &Path, errors: &mut Errors) {
    if new.completion_mode.as_deref() != Some("Indexed") {
        immutable(&new.completions, &old.completions, path, errors);
    } else if new.completions.is_some() && new.completions != old.completions && new.completions != new.parallelism {
        let detail = "can only be modified in tandem with spec.parallelism";
        errors.push(FieldError::invalid(path, shown(&new.completions), detail));
    }
}

/// Before a suspended job has ever run, queueing software may still decide where its pods go.
fn release_scheduling(template: &mut PodTemplateSpec, new: &PodTemplateSpec) {
    if let (Some(old), Some(new)) = (&mut template.spec, &new.spec) {
        let wanted = new.affinity.as_ref().and_then(|affinity| affinity.node_affinity.clone());
        if new.affinity.is_some() || old.affinity.is_some() {
            old.affinity.get_or_insert_default().node_affinity = wanted;
        }
        if new.affinity.is_none() && same(&old.affinity, &Some(Affinity::default())) {
            old.affinity = None;
        }
        old.node_selector = new.node_selector.clone();
        old.tolerations = new.tolerations.clone();
        old.scheduling_gates = new.scheduling_gates.clone();
    }
    if let Some(new) = &new.metadata {
        let old = template.metadata.get_or_insert_default();
        old.annotations = new.annotations.clone();
        old.labels = new.labels.clone();
    }
}

#[cfg(test)]
mod tests;
