//! What a Job and the template of a CronJob share.

use k8s_openapi::api::batch::v1::JobSpec;

use super::policies;
use crate::{
    field::{Errors, FieldError, Path},
    groups::core::rules::pod,
    validation::check::{count, domain_prefixed_path, fill, one_of, optional_one_of, shown},
};

const MAX_INDEXED_PARALLELISM: i32 = 100_000;
const MAX_FAILED_INDEXES: i32 = 100_000;
/// Beyond as many completions, what is kept per index is limited further.
const MANY_COMPLETIONS: i32 = 100_000;
const LIMIT_FOR_MANY: i32 = 10_000;
const MAX_MANAGED_BY: usize = 63;

/// Defaults that also hold within a template.
pub fn default(spec: &mut JobSpec) {
    pod::default_template(&mut spec.template);
    for rule in spec.pod_failure_policy.iter_mut().flat_map(|policy| &mut policy.rules) {
        for pattern in rule.on_pod_conditions.iter_mut().flatten() {
            fill(&mut pattern.status, "True");
        }
    }
}

pub fn validate(spec: &JobSpec, path: &Path, errors: &mut Errors) {
    count(spec.parallelism, &path.child("parallelism"), errors);
    count(spec.completions, &path.child("completions"), errors);
    count(spec.active_deadline_seconds, &path.child("activeDeadlineSeconds"), errors);
    count(spec.backoff_limit, &path.child("backoffLimit"), errors);
    count(spec.ttl_seconds_after_finished, &path.child("ttlSecondsAfterFinished"), errors);
    count(spec.backoff_limit_per_index, &path.child("backoffLimitPerIndex"), errors);
    count(spec.max_failed_indexes, &path.child("maxFailedIndexes"), errors);
    if spec.max_failed_indexes.is_some() && spec.backoff_limit_per_index.is_none() {
        let at = path.child("backoffLimitPerIndex");
        errors.push(FieldError::required(&at, "when maxFailedIndexes is specified"));
    }
    if let Some(manager) = &spec.managed_by {
        let at = path.child("managedBy");
        domain_prefixed_path(manager, &at, errors);
        if manager.len() > MAX_MANAGED_BY {
            errors.push(FieldError::too_long(&at, MAX_MANAGED_BY));
        }
    }
    let mode = spec.completion_mode.as_deref().unwrap_or("NonIndexed");
    one_of(mode, &["NonIndexed", "Indexed"], &path.child("completionMode"), errors);
    match mode {
        "Indexed" => validate_indexed(spec, path, errors),
        "NonIndexed" => refuse_indexed(spec, path, errors),
        _ => {}
    }
    if let Some(policy) = &spec.pod_failure_policy {
        policies::validate_failure(policy, spec, &path.child("podFailurePolicy"), errors);
    }
    if let Some(policy) = &spec.success_policy {
        let at = path.child("successPolicy");
        if mode == "Indexed" {
            policies::validate_success(policy, spec.completions.unwrap_or(0), &at, errors);
        } else {
            errors.push(FieldError::invalid(&at, shown(policy), "requires indexed completion mode"));
        }
    }
    let replacements: &[&str] =
        if spec.pod_failure_policy.is_some() { &["Failed"] } else { &["Failed", "TerminatingOrFailed"] };
    optional_one_of(&spec.pod_replacement_policy, replacements, &path.child("podReplacementPolicy"), errors);
    pod::validate_template(&spec.template, &path.child("template"), errors);
    validate_restart_policy(spec, &path.child("template").child("spec").child("restartPolicy"), errors);
}

fn validate_indexed(spec: &JobSpec, path: &Path, errors: &mut Errors) {
    let (parallelism_path, failed_path) = (path.child("parallelism"), path.child("maxFailedIndexes"));
    let Some(completions) = spec.completions else {
        errors.push(FieldError::required(&path.child("completions"), "when completion mode is Indexed"));
        return;
    };
    let mut limit = |value: Option<i32>, limit: i32, path: &Path, detail: String| {
        if let Some(value) = value.filter(|value| *value > limit) {
            errors.push(FieldError::invalid(path, value, detail));
        }
    };
    limit(
        spec.parallelism,
        MAX_INDEXED_PARALLELISM,
        &parallelism_path,
        format!("must be less than or equal to {MAX_INDEXED_PARALLELISM} when completion mode is Indexed"),
    );
    limit(spec.max_failed_indexes, completions, &failed_path, "must be less than or equal to completions".to_owned());
    limit(
        spec.max_failed_indexes,
        MAX_FAILED_INDEXES,
        &failed_path,
        format!("must be less than or equal to {MAX_FAILED_INDEXES}"),
    );
    if completions > MANY_COMPLETIONS && spec.backoff_limit_per_index.is_some() {
        let detail = format!(
            "must be less than or equal to {LIMIT_FOR_MANY} when completions are above {MANY_COMPLETIONS} and used with backoff limit per index"
        );
        limit(spec.parallelism, LIMIT_FOR_MANY, &parallelism_path, detail.clone());
        limit(spec.max_failed_indexes, LIMIT_FOR_MANY, &failed_path, detail);
        if spec.max_failed_indexes.is_none() {
            let detail = format!("must be specified when completions is above {MANY_COMPLETIONS}");
            errors.push(FieldError::required(&failed_path, detail));
        }
    }
}

fn refuse_indexed(spec: &JobSpec, path: &Path, errors: &mut Errors) {
    let fields =
        [("backoffLimitPerIndex", spec.backoff_limit_per_index), ("maxFailedIndexes", spec.max_failed_indexes)];
    for (name, value) in fields {
        if let Some(value) = value {
            errors.push(FieldError::invalid(&path.child(name), value, "requires indexed completion mode"));
        }
    }
}

fn validate_restart_policy(spec: &JobSpec, path: &Path, errors: &mut Errors) {
    let policy = spec.template.spec.as_ref().and_then(|pod| pod.restart_policy.as_deref()).unwrap_or("Always");
    match policy {
        // What a pod has by default cannot be told from what was never thought about.
        "Always" | "" => errors.push(FieldError::required(path, r#"valid values: "OnFailure", "Never""#)),
        "Never" => {}
        "OnFailure" => {
            if spec.pod_failure_policy.is_some() {
                let detail = r#"only "Never" is supported when podFailurePolicy is specified"#;
                errors.push(FieldError::invalid(path, policy, detail));
            }
        }
        other => errors.push(FieldError::not_supported(path, other, &["OnFailure", "Never"])),
    }
}
