//! ReplicaSet.

use k8s_openapi::api::apps::v1::ReplicaSet;

use super::{deployment::WORDING, replicas::Counters, template};
use crate::{
    field::{Errors, Path},
    groups::core::rules::pod,
    strategy::Rules,
    validation::check::{count, immutable},
};

pub struct ReplicaSetRules;

impl Rules for ReplicaSetRules {
    type Object = ReplicaSet;

    fn default(object: &mut ReplicaSet) {
        let spec = &mut object.spec;
        spec.replicas.get_or_insert(1);
        pod::default_template(spec.template.get_or_insert_default());
    }

    fn prepare_create(object: &mut ReplicaSet) {
        object.status = Some(Default::default());
    }

    fn validate(object: &ReplicaSet, errors: &mut Errors) {
        let (path, spec) = (Path::new("spec"), &object.spec);
        count(spec.replicas, &path.child("replicas"), errors);
        count(spec.min_ready_seconds, &path.child("minReadySeconds"), errors);
        if let Some(pod_template) = &spec.template {
            template::validate(&spec.selector, pod_template, &WORDING, &path, errors);
        }
    }

    fn validate_update(object: &ReplicaSet, old: &ReplicaSet, errors: &mut Errors) {
        immutable(&object.spec.selector, &old.spec.selector, &Path::new("spec").child("selector"), errors);
    }

    fn validate_status(object: &ReplicaSet, _: &ReplicaSet, errors: &mut Errors) {
        let Some(status) = &object.status else { return };
        let counters = Counters {
            replicas: status.replicas,
            ready: status.ready_replicas,
            available: status.available_replicas,
            others: &[("fullyLabeledReplicas", status.fully_labeled_replicas)],
            free: &[("terminatingReplicas", status.terminating_replicas)],
            observed_generation: status.observed_generation,
            beyond_ready: "cannot be greater than readyReplicas",
        };
        counters.validate(errors);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validation::testing::{assert_refused, assert_status, assert_update, completed, with};

    fn set() -> Value {
        json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web"},
            "spec": {
                "selector": {"matchLabels": {"app": "web"}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{"name": "web", "image": "nginx"}]},
                },
            },
        })
    }

    #[test]
    fn replicas_default_to_one() {
        let stored = completed::<ReplicaSetRules>(set());
        assert_eq!(stored["spec"]["replicas"], 1);
        assert_eq!(stored["status"], json!({"replicas": 0}));
        let none = completed::<ReplicaSetRules>(with(&set(), json!({"spec": {"replicas": 0}})));
        assert_eq!(none["spec"]["replicas"], 0);
    }

    #[test]
    fn bad_sets_are_refused() {
        assert_refused::<ReplicaSetRules>(
            with(&set(), json!({"spec": {"replicas": -2, "selector": {"matchLabels": {"app": "x"}}}})),
            &[
                "spec.replicas: Invalid value: -2: must be greater than or equal to 0",
                r#"spec.template.metadata.labels: Invalid value: {"app":"web"}: `selector` does not match template `labels`"#,
            ],
        );
        assert_update::<ReplicaSetRules>(
            &set(),
            json!({"spec": {"selector": {"matchLabels": {"app": "web", "tier": "1"}},
                            "template": {"metadata": {"labels": {"tier": "1"}}}}}),
            &[r#"spec.selector: Invalid value: {"matchLabels":{"app":"web","tier":"1"}}: field is immutable"#],
        );
        assert_status::<ReplicaSetRules>(
            &set(),
            json!({"status": {"replicas": 1, "readyReplicas": 2}}),
            &["status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas"],
        );
    }
}
