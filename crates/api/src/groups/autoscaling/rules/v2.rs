//! HorizontalPodAutoscaler in `autoscaling/v2`.

use k8s_openapi::api::autoscaling::v2::{HorizontalPodAutoscaler, MetricSpec, MetricTarget, ResourceMetricSource};

use super::{behavior, metrics, validate_bounds, validate_target};
use crate::{
    field::{Errors, Path},
    strategy::Rules,
    validation::check::list,
};

pub struct HorizontalPodAutoscalerV2Rules;

const CPU_PERCENT: i32 = 80;

impl Rules for HorizontalPodAutoscalerV2Rules {
    type Object = HorizontalPodAutoscaler;

    fn default(object: &mut HorizontalPodAutoscaler) {
        let spec = &mut object.spec;
        spec.min_replicas.get_or_insert(1);
        if list(&spec.metrics).is_empty() {
            spec.metrics = Some(vec![cpu()]);
        }
        if let Some(behavior) = &mut spec.behavior {
            behavior::default(behavior);
        }
    }

    fn prepare_create(object: &mut HorizontalPodAutoscaler) {
        object.status = Some(Default::default());
    }

    fn validate(object: &HorizontalPodAutoscaler, errors: &mut Errors) {
        let (path, spec) = (Path::new("spec"), &object.spec);
        validate_bounds(spec.min_replicas, spec.max_replicas, &path, errors);
        let target = &spec.scale_target_ref;
        validate_target(&target.kind, &target.name, &path.child("scaleTargetRef"), errors);
        for (i, metric) in list(&spec.metrics).iter().enumerate() {
            metrics::validate(metric, &path.child("metrics").index(i), errors);
        }
        if let Some(behavior) = &spec.behavior {
            behavior::validate(behavior, &path.child("behavior"), errors);
        }
    }
}

fn cpu() -> MetricSpec {
    let target =
        MetricTarget { type_: "Utilization".to_owned(), average_utilization: Some(CPU_PERCENT), ..Default::default() };
    MetricSpec {
        type_: "Resource".to_owned(),
        resource: Some(ResourceMetricSource { name: "cpu".to_owned(), target }),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validation::testing::{assert_refused, assert_update, completed, with};

    fn scaler() -> Value {
        json!({
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "web"},
            "spec": {"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}},
        })
    }

    #[test]
    fn a_minimal_autoscaler_looks_at_cpu() {
        let spec = completed::<HorizontalPodAutoscalerV2Rules>(scaler())["spec"].take();
        assert_eq!(
            spec,
            with(
                &scaler()["spec"],
                json!({"minReplicas": 1, "metrics": [
                    {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}},
                ]})
            )
        );
        assert_update::<HorizontalPodAutoscalerV2Rules>(&scaler(), json!({}), &[]);
    }

    #[test]
    fn behaviour_is_completed_in_both_directions() {
        let stored = completed::<HorizontalPodAutoscalerV2Rules>(with(
            &scaler(),
            json!({"spec": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}}}}),
        ));
        assert_eq!(
            stored["spec"]["behavior"],
            json!({
                "scaleUp": {
                    "stabilizationWindowSeconds": 0, "selectPolicy": "Max",
                    "policies": [
                        {"type": "Pods", "value": 4, "periodSeconds": 15},
                        {"type": "Percent", "value": 100, "periodSeconds": 15},
                    ],
                },
                "scaleDown": {
                    "stabilizationWindowSeconds": 60, "selectPolicy": "Max",
                    "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
                },
            })
        );
    }

    #[test]
    fn bad_autoscalers_are_refused_with_upstreams_messages() {
        let metric = |metric: Value| json!({"metrics": [metric]});
        let cases: &[(Value, &[&str])] = &[
            (
                json!({"minReplicas": 0, "maxReplicas": 0, "scaleTargetRef": {"kind": null}}),
                &[
                    "spec.minReplicas: Invalid value: 0: must be greater than or equal to 1",
                    "spec.maxReplicas: Invalid value: 0: must be greater than 0",
                    "spec.scaleTargetRef.kind: Required value",
                ],
            ),
            (
                metric(json!({"type": "Disk"})),
                &[
                    r#"spec.metrics[0].type: Unsupported value: "Disk": supported values: "ContainerResource", "External", "Object", "Pods", "Resource""#,
                ],
            ),
            (
                metric(
                    json!({"type": "Pods", "resource": {"name": "cpu", "target": {"type": "Value", "averageUtilization": 50}}}),
                ),
                &[
                    "spec.metrics[0].pods: Required value: must populate information for the given metric source",
                    "spec.metrics[0].resource: Forbidden: must populate the given metric source only",
                ],
            ),
            (
                metric(json!({"type": "Resource", "resource": {"target": {"type": "Share", "averageUtilization": 0}}})),
                &[
                    "spec.metrics[0].resource.name: Required value: must specify a resource name",
                    r#"spec.metrics[0].resource.target.type: Invalid value: "Share": must be either Utilization, Value, or AverageValue"#,
                    "spec.metrics[0].resource.target.averageUtilization: Invalid value: 0: must be greater than 0",
                ],
            ),
            (
                metric(
                    json!({"type": "Pods", "pods": {"metric": {"name": "rps"}, "target": {"type": "AverageValue"}}}),
                ),
                &[
                    "spec.metrics[0].pods.target.averageValue: Required value: must specify a positive target averageValue",
                ],
            ),
            (
                metric(json!({"type": "External", "external": {"metric": {"name": "q"},
                    "target": {"type": "Value", "value": "1", "averageValue": "-1"}}})),
                &[
                    r#"spec.metrics[0].external.target.averageValue: Invalid value: "-1": must be positive"#,
                    "spec.metrics[0].external.target.value: Forbidden: may not set both a target value for metric and a per-pod target",
                ],
            ),
            (
                json!({"behavior": {"scaleUp": {"stabilizationWindowSeconds": 4000, "selectPolicy": "Any", "policies": [
                    {"type": "Half", "value": 0, "periodSeconds": 2000},
                ]}}}),
                &[
                    "spec.behavior.scaleUp.stabilizationWindowSeconds: Invalid value: 4000: must be less than or equal to 3600",
                    r#"spec.behavior.scaleUp.selectPolicy: Unsupported value: "Any": supported values: "Disabled", "Max", "Min""#,
                    r#"spec.behavior.scaleUp.policies[0].type: Unsupported value: "Half": supported values: "Percent", "Pods""#,
                    "spec.behavior.scaleUp.policies[0].value: Invalid value: 0: must be greater than zero",
                    "spec.behavior.scaleUp.policies[0].periodSeconds: Invalid value: 2000: must be less than or equal to 1800",
                ],
            ),
        ];
        for (change, expected) in cases {
            assert_refused::<HorizontalPodAutoscalerV2Rules>(with(&scaler(), json!({"spec": change})), expected);
        }
    }
}
