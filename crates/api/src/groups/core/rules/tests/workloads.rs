//! Controllers and templates, limits and quotas.

use super::*;

#[test]
fn a_replication_controller_takes_its_selector_from_its_template() {
    let template = json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": "i:1"}]},
    });
    let stored = completed::<ReplicationControllerRules>(named(
        "ReplicationController",
        json!({"spec": {"template": template}}),
    ));
    assert_eq!(stored["spec"]["selector"], json!({"app": "web"}));
    assert_eq!(stored["metadata"]["labels"], json!({"app": "web"}));
    assert_eq!(stored["spec"]["replicas"], json!(1));
    assert_eq!(stored["status"], json!({"replicas": 0}));
    assert_refused::<ReplicationControllerRules>(
        named("ReplicationController", json!({"spec": {"replicas": -1}})),
        &[
            "spec.selector: Required value",
            "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
            "spec.template: Required value",
        ],
    );
    assert_refused::<ReplicationControllerRules>(
        named(
            "ReplicationController",
            json!({"spec": {
                "selector": {"app": "db"},
                "template": with(&template, json!({"spec": {"restartPolicy": "Never", "activeDeadlineSeconds": 1}})),
            }}),
        ),
        &[
            r#"spec.template.metadata.labels: Invalid value: {"app":"web"}: `selector` does not match template `labels`"#,
            r#"spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always""#,
            "spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in ReplicationController is not Supported",
        ],
    );
}

#[test]
fn a_pod_template_is_judged_like_any() {
    assert_refused::<PodTemplateRules>(
        named("PodTemplate", json!({"template": {"spec": {"containers": [{"name": "c"}]}}})),
        &["template.spec.containers[0].image: Required value"],
    );
}

#[test]
fn limits_default_from_each_other() {
    let mut range: k8s_openapi::api::core::v1::LimitRange = serde_json::from_value(named(
        "LimitRange",
        json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": 2}, "min": {"cpu": "0.1", "memory": "1Mi"}}]}}),
    ))
    .expect("a limit range");
    LimitRangeRules::default(&mut range);
    assert_eq!(
        serde_json::to_value(&range).expect("JSON")["spec"]["limits"][0],
        json!({
            "type": "Container",
            "max": {"cpu": "2"},
            "min": {"cpu": "100m", "memory": "1Mi"},
            "default": {"cpu": "2"},
            "defaultRequest": {"cpu": "2", "memory": "1Mi"},
        })
    );
}

#[test]
fn limits_are_refused_with_upstreams_messages() {
    assert_refused::<LimitRangeRules>(
        named(
            "LimitRange",
            json!({"spec": {"limits": [
                {"type": "Pod", "default": {"cpu": "1"}, "max": {"cpu": "1"}, "min": {"cpu": "2"}},
                {"type": "Pod"},
                {"type": "Room"},
                {"type": "PersistentVolumeClaim"},
                {"type": "Container", "max": {"cpu": "1"}, "default": {"cpu": "2"}, "maxLimitRequestRatio": {"cpu": "500m"}},
            ]}}),
        ),
        &[
            "spec.limits[0].default: Forbidden: may not be specified when `type` is 'Pod'",
            r#"spec.limits[0].min[cpu]: Invalid value: "2": min value 2 is greater than max value 1"#,
            r#"spec.limits[1].type: Duplicate value: "Pod""#,
            r#"spec.limits[2].type: Invalid value: "Room": must be a standard limit type or fully qualified"#,
            "spec.limits[3].limits: Required value: either minimum or maximum storage value is required, but neither was provided",
            r#"spec.limits[4].defaultRequest[cpu]: Invalid value: "2": default request value 2 is greater than max value 1"#,
            r#"spec.limits[4].default[cpu]: Invalid value: "1": default value 2 is greater than max value 1"#,
            r#"spec.limits[4].maxLimitRequestRatio[cpu]: Invalid value: "500m": ratio 500m is less than 1"#,
        ],
    );
}

#[test]
fn quotas_count_what_there_is() {
    assert_refused::<ResourceQuotaRules>(
        named(
            "ResourceQuota",
            json!({"spec": {"hard": {
                "pods": 5, "requests.cpu": "0.5", "count/deployments.apps": 3, "requests.x.io/gpu": 1,
            }}}),
        ),
        &[],
    );
    assert_refused::<ResourceQuotaRules>(
        named(
            "ResourceQuota",
            json!({"spec": {
                "hard": {"wishes": 3, "pods": "-1", "secrets": 1},
                "scopes": ["BestEffort", "NotBestEffort"],
                "scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In"}]},
            }}),
        ),
        &[
            r#"spec.hard[pods]: Invalid value: "-1": must be greater than or equal to 0"#,
            r#"spec.hard[wishes]: Invalid value: "wishes": must be a standard resource type or fully qualified"#,
            r#"spec.hard[wishes]: Invalid value: "wishes": must be a standard resource for quota"#,
            r#"spec.scopes: Invalid value: ["BestEffort","NotBestEffort"]: unsupported scope applied to resource"#,
            r#"spec.scopes: Invalid value: ["BestEffort","NotBestEffort"]: unsupported scope applied to resource"#,
            r#"spec.scopes: Invalid value: ["BestEffort","NotBestEffort"]: conflicting scopes"#,
            r#"spec.scopeSelector.matchExpressions: Invalid value: {"matchExpressions":[{"operator":"In","scopeName":"PriorityClass"}]}: unsupported scope applied to resource"#,
            "spec.scopeSelector.matchExpressions.values: Required value: must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
        ],
    );
    assert_update::<ResourceQuotaRules>(
        &named("ResourceQuota", json!({"spec": {"hard": {"pods": 1}}})),
        json!({"spec": {"scopes": ["BestEffort"]}}),
        &[r#"spec.scopes: Invalid value: ["BestEffort"]: field is immutable"#],
    );
}
