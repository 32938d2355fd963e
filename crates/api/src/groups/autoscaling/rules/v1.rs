//! HorizontalPodAutoscaler in `autoscaling/v1`: CPU only.

use k8s_openapi::api::autoscaling::v1::HorizontalPodAutoscaler;

use super::{validate_bounds, validate_target};
use crate::{
    field::{Errors, FieldError, Path},
    strategy::Rules,
};

pub struct HorizontalPodAutoscalerV1Rules;

impl Rules for HorizontalPodAutoscalerV1Rules {
    type Object = HorizontalPodAutoscaler;

    fn default(object: &mut HorizontalPodAutoscaler) {
        object.spec.min_replicas.get_or_insert(1);
    }

    fn prepare_create(object: &mut HorizontalPodAutoscaler) {
        object.status = Some(Default::default());
    }

    fn validate(object: &HorizontalPodAutoscaler, errors: &mut Errors) {
        let (path, spec) = (Path::new("spec"), &object.spec);
        validate_bounds(spec.min_replicas, spec.max_replicas, &path, errors);
        let target = &spec.scale_target_ref;
        validate_target(&target.kind, &target.name, &path.child("scaleTargetRef"), errors);
        if let Some(percentage) = spec.target_cpu_utilization_percentage.filter(|percentage| *percentage < 1) {
            // Upstream judges the newer form, so that is where it finds the fault.
            let at = path.child("metrics").index(0).child("resource").child("target").child("averageUtilization");
            errors.push(FieldError::invalid(&at, percentage, "must be greater than 0"));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::validation::testing::{assert_completes, assert_refused, with};

    #[test]
    fn at_least_one_replica() {
        let scaler = json!({
            "apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "web"},
            "spec": {"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "web"}},
        });
        let stored = json!({"spec": {"minReplicas": 1}, "status": {"currentReplicas": 0, "desiredReplicas": 0}});
        assert_completes::<HorizontalPodAutoscalerV1Rules>(scaler.clone(), with(&scaler, stored));
        assert_refused::<HorizontalPodAutoscalerV1Rules>(
            with(&scaler, json!({"spec": {"minReplicas": 4, "targetCPUUtilizationPercentage": 0}})),
            &[
                "spec.maxReplicas: Invalid value: 3: must be greater than or equal to `minReplicas`",
                "spec.metrics[0].resource.target.averageUtilization: Invalid value: 0: must be greater than 0",
            ],
        );
    }
}
