//! Deployment.

use k8s_openapi::{
    api::apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment},
    apimachinery::pkg::util::intstr::IntOrString,
};

use super::{
    replicas::{Counters, validate_collisions},
    template::{self, Wording},
};
use crate::{
    field::{Errors, FieldError, Path},
    groups::core::rules::pod,
    strategy::Rules,
    validation::{
        check::{count, immutable, shown},
        int_or_percent,
    },
};

pub struct DeploymentRules;

/// Upstream speaks of the ReplicaSet below; the words are those of both kinds.
pub(super) const WORDING: Wording = Wording {
    selector_required: true,
    empty_selector: "empty selector is invalid for deployment",
    invalid_selector: Some("invalid label selector"),
    deadline: "activeDeadlineSeconds in ReplicaSet is not Supported",
};

fn quarter() -> IntOrString {
    IntOrString::String("25%".to_owned())
}

impl Rules for DeploymentRules {
    type Object = Deployment;

    fn default(object: &mut Deployment) {
        let spec = &mut object.spec;
        spec.replicas.get_or_insert(1);
        spec.revision_history_limit.get_or_insert(10);
        spec.progress_deadline_seconds.get_or_insert(600);
        let strategy = spec.strategy.get_or_insert_default();
        if strategy.type_.get_or_insert_with(|| "RollingUpdate".to_owned()) == "RollingUpdate" {
            let rolling = strategy.rolling_update.get_or_insert_default();
            rolling.max_surge.get_or_insert_with(quarter);
            rolling.max_unavailable.get_or_insert_with(quarter);
        }
        pod::default_template(&mut spec.template);
    }

    fn prepare_create(object: &mut Deployment) {
        object.status = Some(Default::default());
    }

    fn validate(object: &Deployment, errors: &mut Errors) {
        validate_spec(&object.spec, &Path::new("spec"), errors);
    }

    fn validate_update(object: &Deployment, old: &Deployment, errors: &mut Errors) {
        immutable(&object.spec.selector, &old.spec.selector, &Path::new("spec").child("selector"), errors);
    }

    fn validate_status(object: &Deployment, old: &Deployment, errors: &mut Errors) {
        let Some(status) = &object.status else { return };
        let counters = Counters {
            replicas: status.replicas.unwrap_or(0),
            ready: status.ready_replicas,
            available: status.available_replicas,
            others: &[("updatedReplicas", status.updated_replicas)],
            free: &[
                ("unavailableReplicas", status.unavailable_replicas),
                ("terminatingReplicas", status.terminating_replicas),
            ],
            observed_generation: status.observed_generation,
            beyond_ready: "cannot be greater than readyReplicas",
        };
        counters.validate(errors);
        let collisions = old.status.as_ref().and_then(|status| status.collision_count);
        validate_collisions(status.collision_count, collisions, errors);
    }
}

fn validate_spec(spec: &DeploymentSpec, path: &Path, errors: &mut Errors) {
    count(spec.replicas, &path.child("replicas"), errors);
    template::validate(&spec.selector, &spec.template, &WORDING, path, errors);
    if let Some(strategy) = &spec.strategy {
        validate_strategy(strategy, &path.child("strategy"), errors);
    }
    count(spec.min_ready_seconds, &path.child("minReadySeconds"), errors);
    count(spec.revision_history_limit, &path.child("revisionHistoryLimit"), errors);
    if let Some(deadline) = spec.progress_deadline_seconds {
        let path = path.child("progressDeadlineSeconds");
        count(Some(deadline), &path, errors);
        if deadline <= spec.min_ready_seconds.unwrap_or(0) {
            errors.push(FieldError::invalid(&path, deadline, "must be greater than minReadySeconds"));
        }
    }
}

fn validate_strategy(strategy: &DeploymentStrategy, path: &Path, errors: &mut Errors) {
    let rolling_path = path.child("rollingUpdate");
    match (strategy.type_.as_deref(), &strategy.rolling_update) {
        (Some("Recreate"), None) => {}
        (Some("Recreate"), Some(_)) => {
            errors.push(FieldError::forbidden(&rolling_path, "may not be specified when strategy `type` is 'Recreate'"))
        }
        (Some("RollingUpdate"), Some(rolling)) => validate_rolling(rolling, &rolling_path, errors),
        _ => errors.push(FieldError::not_supported(path, shown(strategy), &["Recreate", "RollingUpdate"])),
    }
}

fn validate_rolling(rolling: &RollingUpdateDeployment, path: &Path, errors: &mut Errors) {
    let (Some(unavailable), Some(surge)) = (&rolling.max_unavailable, &rolling.max_surge) else { return };
    let at = path.child("maxUnavailable");
    int_or_percent::validate(unavailable, &at, errors);
    int_or_percent::validate(surge, &path.child("maxSurge"), errors);
    if int_or_percent::is_zero(unavailable) && int_or_percent::is_zero(surge) {
        errors.push(FieldError::invalid(&at, shown(unavailable), "may not be 0 when `maxSurge` is 0"));
    }
    int_or_percent::at_most_all(unavailable, &at, errors);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validation::testing::{assert_refused, assert_status, assert_update, completed, with};

    fn web() -> Value {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
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
    fn a_minimal_deployment_is_completed() {
        let stored = completed::<DeploymentRules>(web());
        let mut spec = stored["spec"].clone();
        assert_eq!(spec["template"]["spec"]["restartPolicy"], "Always");
        spec.as_object_mut().expect("an object").remove("template");
        assert_eq!(
            spec,
            json!({
                "replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600,
                "selector": {"matchLabels": {"app": "web"}},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
            })
        );
        assert_update::<DeploymentRules>(&web(), json!({}), &[]);
        assert_eq!(completed::<DeploymentRules>(stored.clone()), stored);
    }

    #[test]
    fn recreating_has_no_rolling_parameters() {
        let stored = completed::<DeploymentRules>(with(&web(), json!({"spec": {"strategy": {"type": "Recreate"}}})));
        assert_eq!(stored["spec"]["strategy"], json!({"type": "Recreate"}));
    }

    #[test]
    fn bad_deployments_are_refused_with_upstreams_messages() {
        let cases: &[(Value, &[&str])] = &[
            (json!({"replicas": -1}), &["spec.replicas: Invalid value: -1: must be greater than or equal to 0"]),
            (
                json!({"selector": null}),
                &[
                    "spec.selector: Required value",
                    r#"spec.template.metadata.labels: Invalid value: {"app":"web"}: `selector` does not match template `labels`"#,
                ],
            ),
            (
                json!({"selector": {"matchLabels": {"app": null}}}),
                &[r#"spec.selector: Invalid value: {"matchLabels":{}}: empty selector is invalid for deployment"#],
            ),
            (
                json!({"selector": {"matchLabels": {"app": "api"}}}),
                &[
                    r#"spec.template.metadata.labels: Invalid value: {"app":"web"}: `selector` does not match template `labels`"#,
                ],
            ),
            (
                json!({"template": {"metadata": null}}),
                &["spec.template.metadata.labels: Invalid value: null: `selector` does not match template `labels`"],
            ),
            (
                json!({"template": {"spec": {"restartPolicy": "Never"}}}),
                &[r#"spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always""#],
            ),
            (
                json!({"template": {"spec": {"activeDeadlineSeconds": 5}}}),
                &[
                    "spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in ReplicaSet is not Supported",
                ],
            ),
            (
                json!({"strategy": {"type": "Recreate", "rollingUpdate": {}}}),
                &["spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'"],
            ),
            (
                json!({"strategy": {"type": "Canary"}}),
                &[
                    r#"spec.strategy: Unsupported value: {"type":"Canary"}: supported values: "Recreate", "RollingUpdate""#,
                ],
            ),
            (
                json!({"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "0%"}}}),
                &[
                    r#"spec.strategy.rollingUpdate.maxUnavailable: Invalid value: "0%": may not be 0 when `maxSurge` is 0"#,
                ],
            ),
            (
                json!({"strategy": {"rollingUpdate": {"maxUnavailable": "110%"}}}),
                &[
                    r#"spec.strategy.rollingUpdate.maxUnavailable: Invalid value: "110%": must not be greater than 100%"#,
                ],
            ),
            (
                json!({"progressDeadlineSeconds": 30, "minReadySeconds": 30}),
                &["spec.progressDeadlineSeconds: Invalid value: 30: must be greater than minReadySeconds"],
            ),
        ];
        for (change, expected) in cases {
            assert_refused::<DeploymentRules>(with(&web(), json!({"spec": change})), expected);
        }
    }

    #[test]
    fn the_selector_stays_as_it_was_made() {
        let relabelled = json!({"spec": {
            "selector": {"matchLabels": {"app": "api"}},
            "template": {"metadata": {"labels": {"app": "api"}}},
        }});
        assert_update::<DeploymentRules>(
            &web(),
            relabelled,
            &[r#"spec.selector: Invalid value: {"matchLabels":{"app":"api"}}: field is immutable"#],
        );
        assert_update::<DeploymentRules>(&web(), json!({"spec": {"replicas": 3}}), &[]);
    }

    #[test]
    fn status_counts_add_up() {
        let counts =
            json!({"status": {"replicas": 1, "updatedReplicas": 2, "readyReplicas": 0, "availableReplicas": 1}});
        assert_status::<DeploymentRules>(
            &web(),
            counts,
            &[
                "status.updatedReplicas: Invalid value: 2: cannot be greater than status.replicas",
                "status.availableReplicas: Invalid value: 1: cannot be greater than readyReplicas",
            ],
        );
    }
}
