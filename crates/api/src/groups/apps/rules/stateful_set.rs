//! StatefulSet.

use k8s_openapi::api::{
    apps::v1::{
        RollingUpdateStatefulSetStrategy, StatefulSet, StatefulSetPersistentVolumeClaimRetentionPolicy,
        StatefulSetSpec, StatefulSetUpdateStrategy,
    },
    core::v1::{PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, PodTemplateSpec, Volume},
};

use super::{
    replicas::{Counters, validate_collisions},
    template::{self, Wording},
};
use crate::{
    field::{Errors, FieldError, Path},
    groups::core::{rules as core, rules::pod},
    strategy::Rules,
    validation::{
        check::{count, list, optional_one_of, same, shown},
        int_or_percent, names,
    },
};

pub struct StatefulSetRules;

const WORDING: Wording = Wording {
    selector_required: true,
    empty_selector: "empty selector is invalid for statefulset",
    invalid_selector: Some(""),
    deadline: "activeDeadlineSeconds in StatefulSet is not Supported",
};

const FROZEN: &str = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
    'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";

impl Rules for StatefulSetRules {
    type Object = StatefulSet;

    fn default(object: &mut StatefulSet) {
        let spec = &mut object.spec;
        spec.replicas.get_or_insert(1);
        spec.revision_history_limit.get_or_insert(10);
        spec.pod_management_policy.get_or_insert_with(|| "OrderedReady".to_owned());
        default_strategy(spec.update_strategy.get_or_insert_default());
        let retention = spec.persistent_volume_claim_retention_policy.get_or_insert_default();
        retention.when_deleted.get_or_insert_with(|| "Retain".to_owned());
        retention.when_scaled.get_or_insert_with(|| "Retain".to_owned());
        spec.volume_claim_templates.iter_mut().flatten().for_each(default_claim);
        pod::default_template(&mut spec.template);
    }

    fn prepare_create(object: &mut StatefulSet) {
        object.status = Some(Default::default());
    }

    fn validate(object: &StatefulSet, errors: &mut Errors) {
        validate_spec(&object.spec, &Path::new("spec"), errors);
    }

    fn validate_update(object: &StatefulSet, old: &StatefulSet, errors: &mut Errors) {
        let (new, old) = (&object.spec, &old.spec);
        let frozen = StatefulSetSpec {
            replicas: old.replicas,
            template: old.template.clone(),
            update_strategy: old.update_strategy.clone(),
            min_ready_seconds: old.min_ready_seconds,
            ordinals: old.ordinals.clone(),
            revision_history_limit: old.revision_history_limit,
            persistent_volume_claim_retention_policy: old.persistent_volume_claim_retention_policy.clone(),
            ..new.clone()
        };
        if !same(&frozen, old) {
            errors.push(FieldError::forbidden(&Path::new("spec"), FROZEN));
        }
    }

    fn validate_status(object: &StatefulSet, old: &StatefulSet, errors: &mut Errors) {
        let Some(status) = &object.status else { return };
        let counters = Counters {
            replicas: status.replicas,
            ready: status.ready_replicas,
            available: status.available_replicas,
            others: &[("currentReplicas", status.current_replicas), ("updatedReplicas", status.updated_replicas)],
            free: &[],
            observed_generation: status.observed_generation,
            beyond_ready: "cannot be greater than status.readyReplicas",
        };
        counters.validate(errors);
        let collisions = old.status.as_ref().and_then(|status| status.collision_count);
        validate_collisions(status.collision_count, collisions, errors);
    }
}

fn default_strategy(strategy: &mut StatefulSetUpdateStrategy) {
    if strategy.type_.is_none() {
        strategy.type_ = Some("RollingUpdate".to_owned());
        strategy.rolling_update.get_or_insert_default();
    }
    if let (Some("RollingUpdate"), Some(rolling)) = (strategy.type_.as_deref(), &mut strategy.rolling_update) {
        rolling.partition.get_or_insert(0);
    }
}

fn default_claim(claim: &mut PersistentVolumeClaim) {
    core::persistent_volume_claim::default_spec(claim.spec.get_or_insert_default());
    claim.status.get_or_insert_default().phase.get_or_insert_with(|| "Pending".to_owned());
}

fn validate_spec(spec: &StatefulSetSpec, path: &Path, errors: &mut Errors) {
    let policy = spec.pod_management_policy.as_deref().unwrap_or_default();
    if !["OrderedReady", "Parallel"].contains(&policy) {
        let at = path.child("podManagementPolicy");
        errors.push(FieldError::invalid(&at, policy, "must be 'OrderedReady' or 'Parallel'"));
    }
    if let Some(strategy) = &spec.update_strategy {
        validate_strategy(strategy, &path.child("updateStrategy"), errors);
    }
    if let Some(retention) = &spec.persistent_volume_claim_retention_policy {
        validate_retention(retention, &path.child("persistentVolumeClaimRetentionPolicy"), errors);
    }
    for (i, claim) in list(&spec.volume_claim_templates).iter().enumerate() {
        if let Some(claim) = &claim.spec {
            let at = path.child("volumeClaimTemplates").index(i).child("spec");
            core::persistent_volume_claim::validate_spec(claim, &at, errors);
        }
    }
    count(spec.replicas, &path.child("replicas"), errors);
    count(spec.min_ready_seconds, &path.child("minReadySeconds"), errors);
    let start = spec.ordinals.as_ref().and_then(|ordinals| ordinals.start);
    count(start, &path.child("ordinals.start"), errors);
    if let Some(service) = spec.service_name.as_deref().filter(|name| !name.is_empty()) {
        names::refuse(service, &path.child("serviceName"), names::dns1123_label, errors);
    }
    template::validate(&spec.selector, &as_pods_will_be(spec), &WORDING, path, errors);
}

/// The template with what the controller will put into each pod: the claimed volumes are there, host
/// name and subdomain are its own.
fn as_pods_will_be(spec: &StatefulSetSpec) -> PodTemplateSpec {
    let mut template = spec.template.clone();
    if let Some(pod) = &mut template.spec {
        pod.subdomain = None;
        pod.hostname = None;
        let claimed: Vec<_> = spec.volume_claim_templates.iter().flatten().filter_map(claimed_volume).collect();
        if !claimed.is_empty() {
            let volumes = pod.volumes.get_or_insert_default();
            volumes.retain(|volume| claimed.iter().all(|claimed| claimed.name != volume.name));
            volumes.splice(0..0, claimed);
        }
    }
    template
}

fn claimed_volume(claim: &PersistentVolumeClaim) -> Option<Volume> {
    let name = claim.metadata.name.clone()?;
    let source = PersistentVolumeClaimVolumeSource { claim_name: name.clone(), read_only: None };
    Some(Volume { name, persistent_volume_claim: Some(source), ..Default::default() })
}

fn validate_strategy(strategy: &StatefulSetUpdateStrategy, path: &Path, errors: &mut Errors) {
    let rolling_path = path.child("rollingUpdate");
    match (strategy.type_.as_deref(), &strategy.rolling_update) {
        (Some("OnDelete" | "RollingUpdate"), None) => {}
        (Some("OnDelete"), Some(rolling)) => errors.push(FieldError::invalid(
            &rolling_path,
            shown(rolling),
            "only allowed for updateStrategy 'RollingUpdate'",
        )),
        (Some("RollingUpdate"), Some(rolling)) => validate_rolling(rolling, &rolling_path, errors),
        _ => errors.push(FieldError::invalid(path, shown(strategy), "must be 'RollingUpdate' or 'OnDelete'")),
    }
}

fn validate_rolling(rolling: &RollingUpdateStatefulSetStrategy, path: &Path, errors: &mut Errors) {
    count(rolling.partition, &path.child("partition"), errors);
    if let Some(unavailable) = &rolling.max_unavailable {
        let path = path.child("maxUnavailable");
        int_or_percent::validate(unavailable, &path, errors);
        if int_or_percent::is_zero(unavailable) {
            errors.push(FieldError::invalid(&path, shown(unavailable), "cannot be 0"));
        }
        int_or_percent::at_most_all(unavailable, &path, errors);
    }
}

fn validate_retention(policy: &StatefulSetPersistentVolumeClaimRetentionPolicy, path: &Path, errors: &mut Errors) {
    let known = ["Retain", "Delete"];
    optional_one_of(&policy.when_deleted, &known, &path.child("whenDeleted"), errors);
    optional_one_of(&policy.when_scaled, &known, &path.child("whenScaled"), errors);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validation::testing::{assert_refused, assert_status, assert_update, completed, with};

    fn db() -> Value {
        json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"},
            "spec": {
                "serviceName": "db",
                "selector": {"matchLabels": {"app": "db"}},
                "template": {
                    "metadata": {"labels": {"app": "db"}},
                    "spec": {"containers": [
                        {"name": "db", "image": "db", "volumeMounts": [{"name": "data", "mountPath": "/data"}]},
                    ]},
                },
                "volumeClaimTemplates": [{
                    "metadata": {"name": "data"},
                    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
                }],
            },
        })
    }

    #[test]
    fn a_minimal_set_is_completed() {
        let mut spec = completed::<StatefulSetRules>(db())["spec"].take();
        spec.as_object_mut().expect("an object").remove("template");
        assert_eq!(
            spec,
            json!({
                "replicas": 1, "revisionHistoryLimit": 10, "podManagementPolicy": "OrderedReady", "serviceName": "db",
                "selector": {"matchLabels": {"app": "db"}},
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
                "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
                "volumeClaimTemplates": [{
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
                    "spec": {
                        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
                        "volumeMode": "Filesystem",
                    },
                    "status": {"phase": "Pending"},
                }],
            })
        );
        assert_update::<StatefulSetRules>(&db(), json!({}), &[]);
    }

    #[test]
    fn bad_sets_are_refused_with_upstreams_messages() {
        let cases: &[(Value, &[&str])] = &[
            (
                json!({"podManagementPolicy": "Any"}),
                &[r#"spec.podManagementPolicy: Invalid value: "Any": must be 'OrderedReady' or 'Parallel'"#],
            ),
            (
                json!({"updateStrategy": {"type": "Recreate"}}),
                &[r#"spec.updateStrategy: Invalid value: {"type":"Recreate"}: must be 'RollingUpdate' or 'OnDelete'"#],
            ),
            (
                json!({"updateStrategy": {"type": "OnDelete", "rollingUpdate": {"partition": 1}}}),
                &[
                    r#"spec.updateStrategy.rollingUpdate: Invalid value: {"partition":1}: only allowed for updateStrategy 'RollingUpdate'"#,
                ],
            ),
            (
                json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": -1}}}),
                &["spec.updateStrategy.rollingUpdate.partition: Invalid value: -1: must be greater than or equal to 0"],
            ),
            (
                json!({"persistentVolumeClaimRetentionPolicy": {"whenScaled": "Keep"}}),
                &[
                    r#"spec.persistentVolumeClaimRetentionPolicy.whenScaled: Unsupported value: "Keep": supported values: "Retain", "Delete""#,
                ],
            ),
            (
                json!({"volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]}),
                &["spec.volumeClaimTemplates[0].spec.resources[storage]: Required value"],
            ),
            (
                json!({"ordinals": {"start": -1}}),
                &["spec.ordinals.start: Invalid value: -1: must be greater than or equal to 0"],
            ),
            (
                json!({"selector": {"matchLabels": {"app": null}}}),
                &[r#"spec.selector: Invalid value: {"matchLabels":{}}: empty selector is invalid for statefulset"#],
            ),
            (
                json!({"template": {"spec": {"restartPolicy": "OnFailure"}}}),
                &[r#"spec.template.spec.restartPolicy: Unsupported value: "OnFailure": supported values: "Always""#],
            ),
        ];
        for (change, expected) in cases {
            assert_refused::<StatefulSetRules>(with(&db(), json!({"spec": change})), expected);
        }
    }

    #[test]
    fn what_pods_are_bound_to_does_not_change() {
        let frozen = format!("spec: Forbidden: {FROZEN}");
        for change in [
            json!({"serviceName": "other"}),
            json!({"podManagementPolicy": "Parallel"}),
            json!({"volumeClaimTemplates": null}),
        ] {
            let change = with(
                &json!({"spec": change}),
                json!({"spec": {"template": {"spec": {"containers": [{"name": "db", "image": "db"}]}}}}),
            );
            assert_update::<StatefulSetRules>(&db(), change, &[&frozen]);
        }
        let free = json!({"replicas": 3, "minReadySeconds": 5, "ordinals": {"start": 1}, "revisionHistoryLimit": 2,
            "updateStrategy": {"rollingUpdate": {"partition": 2}},
            "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete"},
            "template": {"metadata": {"annotations": {"a": "b"}}}});
        assert_update::<StatefulSetRules>(&db(), json!({"spec": free}), &[]);
    }

    #[test]
    fn status_counts_add_up() {
        assert_status::<StatefulSetRules>(
            &db(),
            json!({"status": {"replicas": 1, "currentReplicas": 2, "readyReplicas": 0, "availableReplicas": 1}}),
            &[
                "status.currentReplicas: Invalid value: 2: cannot be greater than status.replicas",
                "status.availableReplicas: Invalid value: 1: cannot be greater than status.readyReplicas",
            ],
        );
    }
}
