//! How fast replicas may come and go.

use k8s_openapi::api::autoscaling::v2::{HPAScalingPolicy, HPAScalingRules, HorizontalPodAutoscalerBehavior};

use crate::{
    field::{Errors, FieldError, Path},
    validation::check::{NOT_POSITIVE, list, one_of, optional_one_of},
};

const MAX_WINDOW: i32 = 3600;
const MAX_PERIOD: i32 = 1800;

fn policy(type_: &str, value: i32) -> HPAScalingPolicy {
    HPAScalingPolicy { type_: type_.to_owned(), value, period_seconds: 15 }
}

/// Naming one direction completes both. How long a decline must last is the controller's to say.
pub fn default(behavior: &mut HorizontalPodAutoscalerBehavior) {
    let up = behavior.scale_up.get_or_insert_default();
    up.stabilization_window_seconds.get_or_insert(0);
    default_rules(up, || vec![policy("Pods", 4), policy("Percent", 100)]);
    default_rules(behavior.scale_down.get_or_insert_default(), || vec![policy("Percent", 100)]);
}

fn default_rules(rules: &mut HPAScalingRules, policies: impl FnOnce() -> Vec<HPAScalingPolicy>) {
    rules.select_policy.get_or_insert_with(|| "Max".to_owned());
    rules.policies.get_or_insert_with(policies);
}

pub fn validate(behavior: &HorizontalPodAutoscalerBehavior, path: &Path, errors: &mut Errors) {
    for (name, rules) in [("scaleUp", &behavior.scale_up), ("scaleDown", &behavior.scale_down)] {
        if let Some(rules) = rules {
            validate_rules(rules, &path.child(name), errors);
        }
    }
}

fn validate_rules(rules: &HPAScalingRules, path: &Path, errors: &mut Errors) {
    if let Some(window) = rules.stabilization_window_seconds {
        let at = path.child("stabilizationWindowSeconds");
        if window < 0 {
            errors.push(FieldError::invalid(&at, window, "must be greater than or equal to zero"));
        }
        at_most(window, MAX_WINDOW, &at, errors);
    }
    optional_one_of(&rules.select_policy, &["Disabled", "Max", "Min"], &path.child("selectPolicy"), errors);
    let path = path.child("policies");
    if list(&rules.policies).is_empty() {
        errors.push(FieldError::required(&path, "must specify at least one Policy"));
    }
    for (i, policy) in list(&rules.policies).iter().enumerate() {
        let path = path.index(i);
        one_of(&policy.type_, &["Percent", "Pods"], &path.child("type"), errors);
        for (name, value) in [("value", policy.value), ("periodSeconds", policy.period_seconds)] {
            if value <= 0 {
                errors.push(FieldError::invalid(&path.child(name), value, NOT_POSITIVE));
            }
        }
        at_most(policy.period_seconds, MAX_PERIOD, &path.child("periodSeconds"), errors);
    }
}

fn at_most(value: i32, limit: i32, path: &Path, errors: &mut Errors) {
    if value > limit {
        errors.push(FieldError::invalid(path, value, format!("must be less than or equal to {limit}")));
    }
}
