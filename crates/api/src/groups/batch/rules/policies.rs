//! When a Job gives up on account of its pods, and when it is content early.

use std::collections::BTreeSet;

use k8s_openapi::api::batch::v1::{
    JobSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyOnPodConditionsPattern,
    PodFailurePolicyRule, SuccessPolicy, SuccessPolicyRule,
};

use super::indexes;
use crate::{
    field::{Errors, FieldError, Path},
    validation::{
        check::{count, list, shown, text, unshown},
        names,
    },
};

const ACTIONS: &[&str] = &["Count", "FailIndex", "FailJob", "Ignore"];
const MAX_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;
const MAX_CONDITIONS: usize = 20;
const MAX_INDEXES_LENGTH: usize = 64 * 1024;

fn at_most<T>(items: &[T], limit: usize, path: &Path, errors: &mut Errors) {
    if items.len() > limit {
        errors.push(FieldError::too_many(path, items.len(), limit));
    }
}

/// As [`one_of`](crate::validation::check::required_one_of), naming the choices when none was made.
fn chosen(value: &str, choices: &[&str], path: &Path, errors: &mut Errors) {
    if value.is_empty() {
        let quoted: Vec<_> = choices.iter().map(|choice| format!("{choice:?}")).collect();
        errors.push(FieldError::required(path, format!("valid values: [{}]", quoted.join(" "))));
    } else if !choices.contains(&value) {
        errors.push(FieldError::not_supported(path, value, choices));
    }
}

pub fn validate_failure(policy: &PodFailurePolicy, spec: &JobSpec, path: &Path, errors: &mut Errors) {
    let path = path.child("rules");
    at_most(&policy.rules, MAX_RULES, &path, errors);
    let containers: BTreeSet<_> = spec
        .template
        .spec
        .iter()
        .flat_map(|pod| pod.containers.iter().chain(list(&pod.init_containers)))
        .map(|container| container.name.as_str())
        .collect();
    for (i, rule) in policy.rules.iter().enumerate() {
        let path = path.index(i);
        if rule.action == "FailIndex" && spec.backoff_limit_per_index.is_none() {
            let detail = "requires the backoffLimitPerIndex to be set";
            errors.push(FieldError::invalid(&path.child("action"), rule.action.as_str(), detail));
        }
        validate_failure_rule(rule, &containers, &path, errors);
    }
}

fn validate_failure_rule(rule: &PodFailurePolicyRule, containers: &BTreeSet<&str>, path: &Path, errors: &mut Errors) {
    chosen(&rule.action, ACTIONS, &path.child("action"), errors);
    let conditions = list(&rule.on_pod_conditions);
    if let Some(codes) = &rule.on_exit_codes {
        validate_exit_codes(codes, containers, &path.child("onExitCodes"), errors);
    }
    validate_conditions(conditions, &path.child("onPodConditions"), errors);
    match (rule.on_exit_codes.is_some(), !conditions.is_empty()) {
        (true, true) => {
            errors.push(unshown(path, "specifying both OnExitCodes and OnPodConditions is not supported"));
        }
        (false, false) => {
            errors.push(unshown(path, "specifying one of OnExitCodes and OnPodConditions is required"));
        }
        _ => {}
    }
}

fn validate_exit_codes(
    codes: &PodFailurePolicyOnExitCodesRequirement,
    containers: &BTreeSet<&str>,
    path: &Path,
    errors: &mut Errors,
) {
    chosen(&codes.operator, &["In", "NotIn"], &path.child("operator"), errors);
    if let Some(container) = codes.container_name.as_deref().filter(|name| !containers.contains(name)) {
        let detail = "must be one of the container or initContainer names in the pod template";
        errors.push(FieldError::invalid(&path.child("containerName"), container, detail));
    }
    let path = path.child("values");
    if codes.values.is_empty() {
        errors.push(FieldError::invalid(&path, shown(&codes.values), "at least one value is required"));
    }
    at_most(&codes.values, MAX_EXIT_CODES, &path, errors);
    let mut seen = BTreeSet::new();
    for (i, code) in codes.values.iter().copied().enumerate() {
        if codes.operator == "In" && code == 0 {
            errors.push(FieldError::invalid(&path.index(i), code, "must not be 0 for the In operator"));
        }
        if !seen.insert(code) {
            errors.push(FieldError::duplicate(&path.index(i), code));
        }
    }
    if !codes.values.is_sorted() {
        errors.push(FieldError::invalid(&path, shown(&codes.values), "must be ordered"));
    }
}

fn validate_conditions(patterns: &[PodFailurePolicyOnPodConditionsPattern], path: &Path, errors: &mut Errors) {
    at_most(patterns, MAX_CONDITIONS, path, errors);
    for (i, pattern) in patterns.iter().enumerate() {
        let path = path.index(i);
        names::refuse(&pattern.type_, &path.child("type"), names::qualified_name, errors);
        chosen(text(&pattern.status), &["False", "True", "Unknown"], &path.child("status"), errors);
    }
}

pub fn validate_success(policy: &SuccessPolicy, completions: i32, path: &Path, errors: &mut Errors) {
    let path = path.child("rules");
    if policy.rules.is_empty() {
        let detail = "at least one rules must be specified when the successPolicy is specified";
        errors.push(FieldError::required(&path, detail));
    }
    at_most(&policy.rules, MAX_RULES, &path, errors);
    for (i, rule) in policy.rules.iter().enumerate() {
        validate_success_rule(rule, completions, &path.index(i), errors);
    }
}

fn validate_success_rule(rule: &SuccessPolicyRule, completions: i32, path: &Path, errors: &mut Errors) {
    if rule.succeeded_count.is_none() && rule.succeeded_indexes.is_none() {
        let detail = "at least one of succeededCount or succeededIndexes must be specified";
        errors.push(FieldError::required(path, detail));
    }
    let mut named = None;
    if let Some(list) = &rule.succeeded_indexes {
        let path = path.child("succeededIndexes");
        if list.len() > MAX_INDEXES_LENGTH {
            errors.push(FieldError::too_long(&path, MAX_INDEXES_LENGTH));
        }
        named = Some(indexes::count(list, completions).unwrap_or_else(|error| {
            let detail = format!("error parsing succeededIndexes: {error}");
            errors.push(FieldError::invalid(&path, list.as_str(), detail));
            0
        }));
    }
    if let Some(wanted) = rule.succeeded_count {
        let path = path.child("succeededCount");
        count(Some(wanted), &path, errors);
        let limits = [
            (Some(completions), "the number of specified completions"),
            (named, "the number of indexes in the specified succeededIndexes field"),
        ];
        for (limit, what) in limits {
            if let Some(limit) = limit.filter(|limit| wanted > *limit) {
                let detail = format!("must be less than or equal to {limit} ({what})");
                errors.push(FieldError::invalid(&path, wanted, detail));
            }
        }
    }
}
