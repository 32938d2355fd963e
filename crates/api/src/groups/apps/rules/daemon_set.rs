//! DaemonSet.

use k8s_openapi::{
    api::apps::v1::{DaemonSet, DaemonSetUpdateStrategy, RollingUpdateDaemonSet},
    apimachinery::pkg::util::intstr::IntOrString,
};

use super::{
    replicas::validate_collisions,
    template::{self, Wording},
};
use crate::{
    field::{Errors, FieldError, Path},
    groups::core::rules::pod,
    strategy::Rules,
    validation::{
        check::{count, immutable, same, shown},
        int_or_percent,
    },
};

pub struct DaemonSetRules;

/// Counts changes of the template; a field in versions of the kind that are gone.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

const WORDING: Wording = Wording {
    selector_required: false,
    empty_selector: "empty selector is invalid for daemonset",
    invalid_selector: None,
    deadline: "activeDeadlineSeconds in DaemonSet is not Supported",
};

impl Rules for DaemonSetRules {
    type Object = DaemonSet;

    fn default(object: &mut DaemonSet) {
        let spec = &mut object.spec;
        spec.revision_history_limit.get_or_insert(10);
        let strategy = spec.update_strategy.get_or_insert_default();
        if strategy.type_.get_or_insert_with(|| "RollingUpdate".to_owned()) == "RollingUpdate" {
            let rolling = strategy.rolling_update.get_or_insert_default();
            rolling.max_unavailable.get_or_insert(IntOrString::Int(1));
            rolling.max_surge.get_or_insert(IntOrString::Int(0));
        }
        pod::default_template(&mut spec.template);
    }

    fn prepare_create(object: &mut DaemonSet) {
        object.status = Some(Default::default());
        set_template_generation(object, 1);
    }

    fn prepare_update(object: &mut DaemonSet, old: &DaemonSet) {
        let changed = !same(&object.spec.template, &old.spec.template);
        set_template_generation(object, template_generation(old) + i64::from(changed));
    }

    fn validate(object: &DaemonSet, errors: &mut Errors) {
        let (path, spec) = (Path::new("spec"), &object.spec);
        template::validate(&spec.selector, &spec.template, &WORDING, &path, errors);
        count(spec.min_ready_seconds, &path.child("minReadySeconds"), errors);
        if let Some(strategy) = &spec.update_strategy {
            validate_strategy(strategy, &path.child("updateStrategy"), errors);
        }
        count(spec.revision_history_limit, &path.child("revisionHistoryLimit"), errors);
    }

    fn validate_update(object: &DaemonSet, old: &DaemonSet, errors: &mut Errors) {
        immutable(&object.spec.selector, &old.spec.selector, &Path::new("spec").child("selector"), errors);
    }

    fn validate_status(object: &DaemonSet, old: &DaemonSet, errors: &mut Errors) {
        let (path, Some(status)) = (Path::new("status"), &object.status) else { return };
        let counters = [
            ("currentNumberScheduled", Some(status.current_number_scheduled)),
            ("numberMisscheduled", Some(status.number_misscheduled)),
            ("desiredNumberScheduled", Some(status.desired_number_scheduled)),
            ("numberReady", Some(status.number_ready)),
            ("updatedNumberScheduled", status.updated_number_scheduled),
            ("numberAvailable", status.number_available),
            ("numberUnavailable", status.number_unavailable),
        ];
        for (name, value) in counters {
            count(value, &path.child(name), errors);
        }
        count(status.observed_generation, &path.child("observedGeneration"), errors);
        let collisions = old.status.as_ref().and_then(|status| status.collision_count);
        validate_collisions(status.collision_count, collisions, errors);
    }
}

fn template_generation(set: &DaemonSet) -> i64 {
    let annotations = set.metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(TEMPLATE_GENERATION)).and_then(|text| text.parse().ok()).unwrap_or(1)
}

fn set_template_generation(set: &mut DaemonSet, generation: i64) {
    set.metadata.annotations.get_or_insert_default().insert(TEMPLATE_GENERATION.to_owned(), generation.to_string());
}

fn validate_strategy(strategy: &DaemonSetUpdateStrategy, path: &Path, errors: &mut Errors) {
    match (strategy.type_.as_deref(), &strategy.rolling_update) {
        (Some("OnDelete"), _) => {}
        (Some("RollingUpdate"), Some(rolling)) => validate_rolling(rolling, &path.child("rollingUpdate"), errors),
        _ => errors.push(FieldError::not_supported(path, shown(strategy), &["RollingUpdate", "OnDelete"])),
    }
}

fn validate_rolling(rolling: &RollingUpdateDaemonSet, path: &Path, errors: &mut Errors) {
    let (Some(unavailable), Some(surge)) = (&rolling.max_unavailable, &rolling.max_surge) else { return };
    let (unavailable_path, surge_path) = (path.child("maxUnavailable"), path.child("maxSurge"));
    for (value, path) in [(unavailable, &unavailable_path), (surge, &surge_path)] {
        int_or_percent::validate(value, path, errors);
        int_or_percent::at_most_all(value, path, errors);
    }
    match (int_or_percent::is_zero(unavailable), int_or_percent::is_zero(surge)) {
        (false, false) => errors.push(FieldError::invalid(
            &surge_path,
            shown(surge),
            "may not be set when maxUnavailable is non-zero",
        )),
        (true, true) => errors.push(FieldError::required(&unavailable_path, "cannot be 0 when maxSurge is 0")),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        strategy::{Strategy, Typed},
        validation::testing::{assert_refused, assert_update, completed, with},
    };

    fn set() -> Value {
        json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent"},
            "spec": {
                "selector": {"matchLabels": {"app": "agent"}},
                "template": {
                    "metadata": {"labels": {"app": "agent"}},
                    "spec": {"containers": [{"name": "agent", "image": "agent"}]},
                },
            },
        })
    }

    #[test]
    fn machines_are_updated_one_at_a_time() {
        let stored = completed::<DaemonSetRules>(set());
        assert_eq!(
            stored["spec"]["updateStrategy"],
            json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}})
        );
        assert_eq!(stored["spec"]["revisionHistoryLimit"], 10);
        let manual = with(&set(), json!({"spec": {"updateStrategy": {"type": "OnDelete"}}}));
        assert_eq!(completed::<DaemonSetRules>(manual)["spec"]["updateStrategy"], json!({"type": "OnDelete"}));
    }

    #[test]
    fn changes_of_the_template_are_counted() {
        let old = completed::<DaemonSetRules>(set());
        let generation = |set: &Value| set["metadata"]["annotations"][TEMPLATE_GENERATION].clone();
        assert_eq!(generation(&old), "1");
        let mut scaled = with(&old, json!({"spec": {"minReadySeconds": 5}}));
        assert!(Typed::<DaemonSetRules>::new().update(&mut scaled, &old).is_empty());
        assert_eq!(generation(&scaled), "1");
        let mut newer = with(&old, json!({"spec": {"template": {"metadata": {"labels": {"v": "2"}}}}}));
        assert!(Typed::<DaemonSetRules>::new().update(&mut newer, &old).is_empty());
        assert_eq!(generation(&newer), "2");
    }

    #[test]
    fn bad_sets_are_refused_with_upstreams_messages() {
        let cases: &[(Value, &[&str])] = &[
            (
                json!({"selector": null}),
                &[
                    r#"spec.template.metadata.labels: Invalid value: {"app":"agent"}: `selector` does not match template `labels`"#,
                ],
            ),
            (
                json!({"selector": {"matchLabels": {"app": null}}}),
                &[r#"spec.selector: Invalid value: {"matchLabels":{}}: empty selector is invalid for daemonset"#],
            ),
            (
                json!({"updateStrategy": {"type": "Never"}}),
                &[
                    r#"spec.updateStrategy: Unsupported value: {"type":"Never"}: supported values: "RollingUpdate", "OnDelete""#,
                ],
            ),
            (
                json!({"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}}),
                &[
                    "spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: 1: may not be set when maxUnavailable is non-zero",
                ],
            ),
            (
                json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": 0}}}),
                &["spec.updateStrategy.rollingUpdate.maxUnavailable: Required value: cannot be 0 when maxSurge is 0"],
            ),
            (
                json!({"template": {"spec": {"activeDeadlineSeconds": 5}}}),
                &[
                    "spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in DaemonSet is not Supported",
                ],
            ),
        ];
        for (change, expected) in cases {
            assert_refused::<DaemonSetRules>(with(&set(), json!({"spec": change})), expected);
        }
        assert_update::<DaemonSetRules>(
            &set(),
            json!({"spec": {"selector": {"matchLabels": {"app": "agent", "v": "1"}},
                            "template": {"metadata": {"labels": {"v": "1"}}}}}),
            &[r#"spec.selector: Invalid value: {"matchLabels":{"app":"agent","v":"1"}}: field is immutable"#],
        );
    }
}
