use serde_json::{Value, json};

use super::*;
use crate::validation::testing::{assert_refused, assert_status, assert_update, completed, with};

fn pi() -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "pi", "uid": "u-1"},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "pi", "image": "perl"}]}}},
    })
}

fn spec(change: Value) -> Value {
    with(&pi(), json!({"spec": change}))
}

#[test]
fn a_minimal_job_is_completed() {
    let stored = completed::<JobRules>(pi());
    let mut spec = stored["spec"].clone();
    let labels = json!({
        "batch.kubernetes.io/controller-uid": "u-1", "batch.kubernetes.io/job-name": "pi",
        "controller-uid": "u-1", "job-name": "pi",
    });
    assert_eq!(spec["template"]["metadata"]["labels"], labels);
    assert_eq!(stored["metadata"]["labels"], labels);
    spec.as_object_mut().expect("an object").remove("template");
    assert_eq!(
        spec,
        json!({
            "backoffLimit": 6, "completions": 1, "parallelism": 1, "completionMode": "NonIndexed", "suspend": false,
            "manualSelector": false, "podReplacementPolicy": "TerminatingOrFailed",
            "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": "u-1"}},
        })
    );
    assert_update::<JobRules>(&pi(), json!({}), &[]);
}

#[test]
fn a_job_from_before_labels_had_prefixes_may_change() {
    let mut old = completed::<JobRules>(pi());
    old["spec"]["selector"] = json!({"matchLabels": {"controller-uid": "u-1"}});
    old["spec"]["template"]["metadata"]["labels"] = json!({"controller-uid": "u-1", "job-name": "pi"});
    let mut new = old.clone();
    new["metadata"]["labels"] = json!({"by": "us"});
    let strategy = crate::strategy::Typed::<JobRules>::new();
    let errors = crate::strategy::Strategy::update(&strategy, &mut new, &old);
    assert!(errors.is_empty(), "{errors:?}");
    new["spec"]["template"]["metadata"]["labels"] = json!({"controller-uid": "u-2", "job-name": "pi"});
    assert!(!crate::strategy::Strategy::update(&strategy, &mut new, &old).is_empty());
}

#[test]
fn defaults_depend_on_what_is_given() {
    let queue = completed::<JobRules>(spec(json!({"parallelism": 3})));
    assert_eq!(queue["spec"].get("completions"), None);
    let fixed = completed::<JobRules>(spec(json!({"completions": 3})));
    assert_eq!(fixed["spec"]["parallelism"], 1);
    let indexed = json!({"completions": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 1});
    assert_eq!(completed::<JobRules>(spec(indexed))["spec"]["backoffLimit"], i32::MAX);
    let policy = json!({"podFailurePolicy": {"rules": [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
    ]}});
    let stored = completed::<JobRules>(spec(policy));
    assert_eq!(stored["spec"]["podReplacementPolicy"], "Failed");
    assert_eq!(stored["spec"]["podFailurePolicy"]["rules"][0]["onPodConditions"][0]["status"], "True");
    let labelled = completed::<JobRules>(with(&pi(), json!({"metadata": {"labels": {"team": "a"}}})));
    assert_eq!(labelled["metadata"]["labels"], json!({"team": "a"}));
}

#[test]
fn a_manual_selector_is_left_alone() {
    let manual = spec(json!({
        "manualSelector": true, "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}},
    }));
    let stored = completed::<JobRules>(manual);
    assert_eq!(stored["spec"]["template"]["metadata"]["labels"], json!({"a": "b"}));
    assert_refused::<JobRules>(
        spec(json!({"manualSelector": true})),
        &[
            "spec.selector: Required value",
            "spec.template.metadata.labels: Invalid value: null: `selector` does not match template `labels`",
        ],
    );
}

#[test]
fn bad_jobs_are_refused_with_upstreams_messages() {
    let rule = |rule: Value| json!({"podFailurePolicy": {"rules": [rule]}});
    let indexed = |more: Value| with(&json!({"completionMode": "Indexed", "completions": 3}), more);
    let cases: &[(Value, &[&str])] = &[
        (
            json!({"template": {"spec": {"restartPolicy": null}}}),
            &[r#"spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never""#],
        ),
        (
            json!({"backoffLimit": -1, "ttlSecondsAfterFinished": -2}),
            &[
                "spec.backoffLimit: Invalid value: -1: must be greater than or equal to 0",
                "spec.ttlSecondsAfterFinished: Invalid value: -2: must be greater than or equal to 0",
            ],
        ),
        (
            json!({"completionMode": "Sorted"}),
            &[r#"spec.completionMode: Unsupported value: "Sorted": supported values: "NonIndexed", "Indexed""#],
        ),
        (
            json!({"completionMode": "Indexed", "parallelism": 2}),
            &["spec.completions: Required value: when completion mode is Indexed"],
        ),
        (
            json!({"backoffLimitPerIndex": 1, "maxFailedIndexes": 1}),
            &[
                "spec.backoffLimitPerIndex: Invalid value: 1: requires indexed completion mode",
                "spec.maxFailedIndexes: Invalid value: 1: requires indexed completion mode",
            ],
        ),
        (
            indexed(json!({"maxFailedIndexes": 4})),
            &[
                "spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified",
                "spec.maxFailedIndexes: Invalid value: 4: must be less than or equal to completions",
            ],
        ),
        (
            json!({"managedBy": "me"}),
            &[r#"spec.managedBy: Invalid value: "me": must be a domain-prefixed path (such as "acme.io/foo")"#],
        ),
        (
            json!({"podReplacementPolicy": "Never"}),
            &[
                r#"spec.podReplacementPolicy: Unsupported value: "Never": supported values: "Failed", "TerminatingOrFailed""#,
            ],
        ),
        (
            json!({"template": {"metadata": {"labels": {"job-name": "tau"}}}}),
            &[
                r#"spec.template.metadata.labels[job-name]: Invalid value: {"batch.kubernetes.io/controller-uid":"u-1","batch.kubernetes.io/job-name":"pi","controller-uid":"u-1","job-name":"tau"}: must be 'pi'"#,
            ],
        ),
        (
            json!({"selector": {"matchLabels": {"a": "b"}}}),
            &[
                r#"spec.selector: Invalid value: {"matchLabels":{"a":"b","batch.kubernetes.io/controller-uid":"u-1"}}: `selector` not auto-generated"#,
                r#"spec.template.metadata.labels: Invalid value: {"batch.kubernetes.io/controller-uid":"u-1","batch.kubernetes.io/job-name":"pi","controller-uid":"u-1","job-name":"pi"}: `selector` does not match template `labels`"#,
            ],
        ),
        (
            rule(json!({"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [2, 0]}})),
            &[
                r#"spec.podFailurePolicy.rules[0].action: Invalid value: "FailIndex": requires the backoffLimitPerIndex to be set"#,
                "spec.podFailurePolicy.rules[0].onExitCodes.values[1]: Invalid value: 0: must not be 0 for the In operator",
                "spec.podFailurePolicy.rules[0].onExitCodes.values: Invalid value: [2,0]: must be ordered",
            ],
        ),
        (
            rule(json!({})),
            &[
                r#"spec.podFailurePolicy.rules[0].action: Required value: valid values: ["Count" "FailIndex" "FailJob" "Ignore"]"#,
                "spec.podFailurePolicy.rules[0]: Invalid value: specifying one of OnExitCodes and OnPodConditions is required",
            ],
        ),
        (
            json!({"successPolicy": {"rules": [{"succeededCount": 1}]}}),
            &[
                r#"spec.successPolicy: Invalid value: {"rules":[{"succeededCount":1}]}: requires indexed completion mode"#,
            ],
        ),
        (
            indexed(json!({"successPolicy": {"rules": [{"succeededCount": 4, "succeededIndexes": "0-1"}, {}]}})),
            &[
                "spec.successPolicy.rules[0].succeededCount: Invalid value: 4: must be less than or equal to 3 (the number of specified completions)",
                "spec.successPolicy.rules[0].succeededCount: Invalid value: 4: must be less than or equal to 2 (the number of indexes in the specified succeededIndexes field)",
                "spec.successPolicy.rules[1]: Required value: at least one of succeededCount or succeededIndexes must be specified",
            ],
        ),
    ];
    for (change, expected) in cases {
        assert_refused::<JobRules>(spec(change.clone()), expected);
    }
}

#[test]
fn a_running_job_stays_as_it_was_made() {
    assert_update::<JobRules>(
        &pi(),
        json!({"spec": {"completions": 2}}),
        &["spec.completions: Invalid value: 2: field is immutable"],
    );
    assert_update::<JobRules>(
        &pi(),
        json!({"spec": {"parallelism": 5, "suspend": true, "activeDeadlineSeconds": 9}}),
        &[],
    );
    let old = completed::<JobRules>(pi());
    let template = with(&old["spec"]["template"], json!({"spec": {"nodeSelector": {"disk": "ssd"}}}));
    let message = format!("spec.template: Invalid value: {template}: field is immutable");
    assert_update::<JobRules>(&pi(), json!({"spec": {"template": template}}), &[&message]);
}

#[test]
fn an_indexed_job_changes_size_as_a_whole() {
    let indexed = spec(json!({"completionMode": "Indexed", "completions": 3, "parallelism": 3}));
    assert_update::<JobRules>(&indexed, json!({"spec": {"completions": 5, "parallelism": 5}}), &[]);
    assert_update::<JobRules>(
        &indexed,
        json!({"spec": {"completions": 5}}),
        &["spec.completions: Invalid value: 5: can only be modified in tandem with spec.parallelism"],
    );
}

#[test]
fn before_it_first_runs_a_suspended_job_may_be_placed() {
    let suspended = spec(json!({"suspend": true}));
    let placed = json!({"spec": {
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
        ]}}},
    }, "metadata": {"annotations": {"queue": "a"}}});
    assert_update::<JobRules>(&suspended, json!({"spec": {"template": placed}}), &[]);
    let old = completed::<JobRules>(suspended.clone());
    let template = with(&old["spec"]["template"], json!({"spec": {"hostNetwork": true}}));
    let message = format!("spec.template: Invalid value: {template}: field is immutable");
    assert_update::<JobRules>(&suspended, json!({"spec": {"template": template}}), &[&message]);
}

#[test]
fn indexed_pods_have_host_names() {
    let name = "n".repeat(62);
    let long =
        with(&spec(json!({"completionMode": "Indexed", "completions": 10})), json!({"metadata": {"name": name}}));
    let message = format!(
        r#"metadata.name: Invalid value: "{name}": will not able to create pod with invalid DNS label: {name}-9"#
    );
    assert_refused::<JobRules>(long, &[&message]);
}

#[test]
fn a_job_ends_once() {
    let done = json!({"status": {"startTime": "2026-01-01T00:00:00Z", "conditions": [
        {"type": "Complete", "status": "True"}, {"type": "Failed", "status": "True"},
    ]}});
    assert_status::<JobRules>(
        &pi(),
        done,
        &[
            "status.conditions: Invalid value: cannot set Complete=True and Failed=true conditions",
            "status.completionTime: Required value: completionTime is required for Complete jobs",
        ],
    );
    assert_status::<JobRules>(
        &pi(),
        json!({"status": {"active": -1}}),
        &["status.active: Invalid value: -1: must be greater than or equal to 0"],
    );
}
