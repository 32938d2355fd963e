//! What a job's controller may report.

use k8s_openapi::api::batch::v1::Job;

use crate::{
    field::{Errors, FieldError, Path},
    validation::check::{count, list, text, unique, unshown},
};

fn is_true(job: &Job, condition: &str) -> bool {
    let conditions = job.status.iter().flat_map(|status| list(&status.conditions));
    conditions.into_iter().any(|c| c.type_ == condition && c.status == "True")
}

pub fn validate(job: &Job, old: &Job, errors: &mut Errors) {
    let (path, Some(status)) = (Path::new("status"), &job.status) else { return };
    let counters = [
        ("active", status.active),
        ("succeeded", status.succeeded),
        ("failed", status.failed),
        ("ready", status.ready),
        ("terminating", status.terminating),
    ];
    for (name, value) in counters {
        count(value, &path.child(name), errors);
    }
    if let Some(uncounted) = &status.uncounted_terminated_pods {
        let path = path.child("uncountedTerminatedPods");
        let pods = [("succeeded", &uncounted.succeeded), ("failed", &uncounted.failed)].into_iter().flat_map(
            |(name, pods)| {
                let path = path.child(name);
                list(pods).iter().enumerate().map(move |(i, pod)| (path.index(i), pod.as_str()))
            },
        );
        unique(pods, errors);
    }
    validate_conditions(job, old, &path.child("conditions"), errors);
    validate_completion_time(job, &path.child("completionTime"), errors);
}

fn validate_conditions(job: &Job, old: &Job, path: &Path, errors: &mut Errors) {
    for terminal in ["Failed", "Complete", "FailureTarget"] {
        if is_true(old, terminal) && !is_true(job, terminal) {
            errors.push(unshown(path, &format!("cannot disable the terminal {terminal}=True condition")));
        }
    }
    let apart = [
        ("Complete", "Failed"),
        ("Complete", "FailureTarget"),
        ("SuccessCriteriaMet", "Failed"),
        ("SuccessCriteriaMet", "FailureTarget"),
    ];
    for (one, other) in apart {
        if is_true(job, one) && is_true(job, other) {
            errors.push(unshown(path, &format!("cannot set {one}=True and {other}=true conditions")));
        }
    }
}

fn validate_completion_time(job: &Job, path: &Path, errors: &mut Errors) {
    let Some(status) = &job.status else { return };
    match (&status.completion_time, is_true(job, "Complete")) {
        (Some(time), false) => errors.push(FieldError::invalid(
            path,
            crate::validation::check::shown(time),
            "cannot set completionTime when there is no Complete=True condition",
        )),
        (None, true) => errors.push(FieldError::required(path, "completionTime is required for Complete jobs")),
        _ => {}
    }
    if let (Some(start), Some(end)) = (&status.start_time, &status.completion_time)
        && end.0 < start.0
    {
        let detail = "must be equal to or after `startTime`";
        errors.push(FieldError::invalid(path, crate::validation::check::shown(end), detail));
    }
    if !text(&status.completed_indexes).is_empty()
        && job.spec.as_ref().is_some_and(|spec| spec.completion_mode.as_deref() != Some("Indexed"))
    {
        errors.push(FieldError::invalid(
            &Path::new("status").child("completedIndexes"),
            text(&status.completed_indexes),
            "cannot set non-empty completedIndexes when non-indexed completion mode",
        ));
    }
}
