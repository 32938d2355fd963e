//! PodDisruptionBudget.

use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use crate::{
    field::{Errors, FieldError, Path},
    strategy::Rules,
    validation::{
        check::{non_negative, optional_one_of, shown},
        int_or_percent, labels,
    },
};

pub struct PodDisruptionBudgetRules;

impl Rules for PodDisruptionBudgetRules {
    type Object = PodDisruptionBudget;

    /// The counters are always written.
    fn default(object: &mut PodDisruptionBudget) {
        let status = object.status.get_or_insert_default();
        status.current_healthy.get_or_insert(0);
        status.desired_healthy.get_or_insert(0);
        status.disruptions_allowed.get_or_insert(0);
        status.expected_pods.get_or_insert(0);
    }

    fn prepare_create(object: &mut PodDisruptionBudget) {
        object.status = None;
        Self::default(object);
    }

    fn validate(object: &PodDisruptionBudget, errors: &mut Errors) {
        let (path, Some(spec)) = (Path::new("spec"), &object.spec) else { return };
        if spec.min_available.is_some() && spec.max_unavailable.is_some() {
            let words = "minAvailable and maxUnavailable cannot be both set";
            errors.push(FieldError::invalid(&path, shown(spec), words));
        }
        for (name, value) in [("minAvailable", &spec.min_available), ("maxUnavailable", &spec.max_unavailable)] {
            if let Some(value) = value {
                int_or_percent::validate(value, &path.child(name), errors);
                int_or_percent::at_most_all(value, &path.child(name), errors);
            }
        }
        if let Some(selector) = &spec.selector {
            labels::validate_selector(selector, &path.child("selector"), errors);
        }
        optional_one_of(
            &spec.unhealthy_pod_eviction_policy,
            &["AlwaysAllow", "IfHealthyBudget"],
            &path.child("unhealthyPodEvictionPolicy"),
            errors,
        );
    }

    fn validate_status(object: &PodDisruptionBudget, _: &PodDisruptionBudget, errors: &mut Errors) {
        let (path, Some(status)) = (Path::new("status"), &object.status) else { return };
        let counters = [
            ("disruptionsAllowed", status.disruptions_allowed),
            ("currentHealthy", status.current_healthy),
            ("desiredHealthy", status.desired_healthy),
            ("expectedPods", status.expected_pods),
        ];
        for (name, value) in counters {
            non_negative(value.unwrap_or_default().into(), &path.child(name), errors);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validation::testing::{assert_completes, assert_refused, assert_status, with};

    #[test]
    fn a_budget_is_in_numbers_or_percent() {
        let budget = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
        });
        let status =
            json!({"status": {"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0}});
        assert_completes::<PodDisruptionBudgetRules>(budget.clone(), with(&budget, status));
        let cases: &[(Value, &[&str])] = &[
            (
                json!({"maxUnavailable": "50%", "selector": null}),
                &[
                    r#"spec: Invalid value: {"maxUnavailable":"50%","minAvailable":1}: minAvailable and maxUnavailable cannot be both set"#,
                ],
            ),
            (
                json!({"minAvailable": "150%"}),
                &[r#"spec.minAvailable: Invalid value: "150%": must not be greater than 100%"#],
            ),
            (
                json!({"minAvailable": -1}),
                &["spec.minAvailable: Invalid value: -1: must be greater than or equal to 0"],
            ),
            (
                json!({"unhealthyPodEvictionPolicy": "Maybe"}),
                &[
                    r#"spec.unhealthyPodEvictionPolicy: Unsupported value: "Maybe": supported values: "AlwaysAllow", "IfHealthyBudget""#,
                ],
            ),
        ];
        for (change, expected) in cases {
            assert_refused::<PodDisruptionBudgetRules>(with(&budget, json!({"spec": change})), expected);
        }
        assert_status::<PodDisruptionBudgetRules>(
            &budget,
            json!({"status": {"expectedPods": -1}}),
            &["status.expectedPods: Invalid value: -1: must be greater than or equal to 0"],
        );
    }
}
