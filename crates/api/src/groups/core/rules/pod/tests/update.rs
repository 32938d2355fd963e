//! What may change about a pod, and the errors for the rest.

use super::*;

const ONLY: &str = "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,\
     `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing \
     tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

fn update(change: Value, expected: &[&str]) {
    assert_update::<PodRules>(&pod_with(json!({})), change, expected);
}

/// The stored pod's one container with a change.
fn container(change: Value) -> Value {
    let stored = completed::<PodRules>(pod_with(json!({})));
    json!({"spec": {"containers": [with(&stored["spec"]["containers"][0], change)]}})
}

#[test]
fn images_and_metadata_may_change() {
    update(container(json!({"image": "i:2"})), &[]);
    update(json!({"metadata": {"labels": {"a": "b"}}}), &[]);
    update(json!({"spec": {"activeDeadlineSeconds": 5}}), &[]);
    update(json!({"spec": {"hostNetwork": false, "nodeSelector": {}, "initContainers": []}}), &[]);
}

#[test]
fn other_fields_may_not() {
    update(container(json!({"command": ["x"]})), &[&format!("{ONLY}\n  containers[0].command: null -> [\"x\"]")]);
    update(json!({"spec": {"hostname": "h"}}), &[&format!("{ONLY}\n  hostname: null -> \"h\"")]);
    update(
        json!({"spec": {"terminationGracePeriodSeconds": 1}}),
        &[&format!("{ONLY}\n  terminationGracePeriodSeconds: 30 -> 1")],
    );
    update(
        json!({"spec": {"containers": []}}),
        &[
            "spec.containers: Required value",
            "spec.containers: Forbidden: pod updates may not add or remove containers",
        ],
    );
}

#[test]
fn what_was_computed_need_not_be_repeated() {
    update(json!({"spec": {"priority": null, "preemptionPolicy": null, "tolerations": null}}), &[]);
}

#[test]
fn a_negative_grace_period_may_become_one() {
    let base = pod_with(json!({"terminationGracePeriodSeconds": -5}));
    assert_update::<PodRules>(&base, json!({"spec": {"terminationGracePeriodSeconds": 1}}), &[]);
}

#[test]
fn deadlines_only_draw_nearer() {
    let base = pod_with(json!({"activeDeadlineSeconds": 10}));
    assert_update::<PodRules>(&base, json!({"spec": {"activeDeadlineSeconds": 5}}), &[]);
    assert_update::<PodRules>(
        &base,
        json!({"spec": {"activeDeadlineSeconds": 11}}),
        &["spec.activeDeadlineSeconds: Invalid value: 11: must be less than or equal to previous value"],
    );
    assert_update::<PodRules>(
        &base,
        json!({"spec": {"activeDeadlineSeconds": null}}),
        &["spec.activeDeadlineSeconds: Invalid value: null: must not update from a positive integer to nil value"],
    );
}

#[test]
fn tolerations_are_only_added() {
    let base = pod_with(json!({"tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute"}]}));
    let stored = completed::<PodRules>(base.clone());
    let retained = stored["spec"]["tolerations"].as_array().expect("tolerations").clone();
    let mut more = retained.clone();
    more.push(json!({"key": "b", "operator": "Exists"}));
    more[0]["tolerationSeconds"] = json!(5);
    assert_update::<PodRules>(&base, json!({"spec": {"tolerations": more}}), &[]);
    assert_update::<PodRules>(
        &base,
        json!({"spec": {"tolerations": retained[1..]}}),
        &["spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"],
    );
}

#[test]
fn gates_are_only_opened() {
    let base = pod_with(json!({"schedulingGates": [{"name": "a"}, {"name": "b"}], "nodeSelector": {"x": "y"}}));
    assert_update::<PodRules>(&base, json!({"spec": {"schedulingGates": [{"name": "b"}]}}), &[]);
    assert_update::<PodRules>(&base, json!({"spec": {"schedulingGates": null}}), &[]);
    assert_update::<PodRules>(&base, json!({"spec": {"nodeSelector": {"more": "z"}}}), &[]);
    assert_update::<PodRules>(
        &base,
        json!({"spec": {"schedulingGates": [{"name": "c"}]}}),
        &["spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new scheduling gate 'c'"],
    );
    assert_update::<PodRules>(
        &base,
        json!({"spec": {"nodeSelector": {"x": "z"}}}),
        &[
            r#"spec.nodeSelector: Invalid value: {"x":"z"}: only additions to spec.nodeSelector are allowed (no mutations or deletions)"#,
        ],
    );
    let narrowed = json!({"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]}}}}});
    assert_update::<PodRules>(&base, narrowed, &[]);
}

#[test]
fn mirror_pods_stay_mirror_pods() {
    update(
        json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}}),
        &[
            r#"metadata.annotations[kubernetes.io/config.mirror]: Invalid value: "x": must set spec.nodeName if mirror pod annotation is set"#,
            "metadata.annotations[kubernetes.io/config.mirror]: Forbidden: may not add mirror pod annotation",
        ],
    );
}

#[test]
fn a_status_keeps_what_is_over() {
    let base = pod_with(json!({"restartPolicy": "Never"}));
    let ended = json!([{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 1}}}]);
    let running =
        json!([{"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}}]);
    assert_status::<PodRules>(&base, json!({"status": {"phase": "Running", "containerStatuses": ended}}), &[]);
    assert_status::<PodRules>(
        &base,
        json!({"status": {"qosClass": "Guaranteed", "podIPs": [{"ip": "1.1.1.1"}, {"ip": "1.1.1.2"}], "hostIPs": [{"ip": "x"}]}}),
        &[
            r#"status.qosClass: Invalid value: "Guaranteed": field is immutable"#,
            r#"status.podIPs: Invalid value: ["1.1.1.1","1.1.1.2"]: may specify no more than one IP for each IP family"#,
            r#"status.hostIPs[0].ip: Invalid value: "x": must be equal to `hostIP`"#,
            r#"status.hostIPs[0]: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"#,
        ],
    );
    let stored = completed::<PodRules>(base);
    let old: Pod =
        serde_json::from_value(with(&stored, json!({"status": {"containerStatuses": ended}}))).expect("a pod");
    let new: Pod =
        serde_json::from_value(with(&stored, json!({"status": {"containerStatuses": running}}))).expect("a pod");
    let mut errors = Errors::new();
    PodRules::validate_status(&new, &old, &mut errors);
    assert_eq!(
        errors.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state"]
    );
}

#[test]
fn a_container_runs_again_where_its_own_rules_or_those_of_another_say_so() {
    let rule = |action: &str| json!([{"action": action, "exitCodes": {"operator": "In", "values": [42]}}]);
    let container = |name: &str, more: Value| {
        let mut container = json!({"name": name, "image": "i"});
        container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        container
    };
    let status = |code: Option<i32>| {
        let state = match code {
            Some(code) => json!({"terminated": {"exitCode": code}}),
            None => json!({"running": {}}),
        };
        let own = json!({"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state});
        json!({"status": {"containerStatuses": [own]}})
    };
    let is_refused = |containers: Value, code: i32| {
        let stored = completed::<PodRules>(pod_with(json!({"restartPolicy": "Never", "containers": containers})));
        let pod = |code| serde_json::from_value::<Pod>(with(&stored, status(code))).expect("a pod");
        let mut errors = Errors::new();
        PodRules::validate_status(&pod(None), &pod(Some(code)), &mut errors);
        errors.iter().any(|error| error.to_string().contains("may not be transitioned"))
    };
    let own = json!([container("c", json!({"restartPolicy": "Never", "restartPolicyRules": rule("Restart")}))]);
    assert!(!is_refused(own.clone(), 42) && is_refused(own, 1));
    assert!(!is_refused(json!([container("c", json!({"restartPolicy": "OnFailure"}))]), 1));
    let other = container("d", json!({"restartPolicy": "Never", "restartPolicyRules": rule("RestartAllContainers")}));
    assert!(!is_refused(json!([container("c", json!({})), other]), 0), "all containers start anew");
    assert!(is_refused(json!([container("c", json!({}))]), 0));
}

/// Two versions of a pod, judged by one of the subresources' functions.
fn judged(check: fn(&Pod, &Pod, &mut Errors), old: Value, new: Value) -> Vec<String> {
    let complete = |manifest: Value| {
        let mut pod: Pod = serde_json::from_value(manifest).expect("a pod");
        PodRules::default(&mut pod);
        pod
    };
    let mut errors = Errors::new();
    check(&complete(new), &complete(old), &mut errors);
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn ephemeral_containers_are_only_added() {
    let with_debuggers = |names: &[&str]| {
        let list: Vec<_> = names.iter().map(|name| json!({"name": name, "image": "i:1"})).collect();
        pod_with(json!({"ephemeralContainers": list}))
    };
    let check = validate_ephemeral_containers_update;
    assert_eq!(judged(check, with_debuggers(&["a"]), with_debuggers(&["b", "a"])), [""; 0]);
    assert_eq!(
        judged(check, with_debuggers(&["a"]), with_debuggers(&["b"])),
        ["spec.ephemeralContainers: Forbidden: existing ephemeral containers \"a\" may not be removed\n"]
    );
}

#[test]
fn a_resize_changes_cpu_and_memory_only() {
    let sized = |cpu: &str, memory: &str| {
        container_with(json!({"resources": {"requests": {"cpu": cpu}, "limits": {"memory": memory}}}))
    };
    assert_eq!(judged(validate_resize, sized("1", "1Gi"), sized("2", "2Gi")), [""; 0]);
    assert_eq!(judged(validate_resize, sized("1", "1Gi"), sized("1", "512Mi")), [""; 0]);
    // A limit stands for a request that is not given: both are, so that only the limit comes and goes.
    let requests = json!({"cpu": "1", "memory": "1Gi"});
    let unlimited = container_with(json!({"resources": {"requests": requests}}));
    let limited = container_with(json!({"resources": {"requests": requests, "limits": {"memory": "2Gi"}}}));
    assert_eq!(judged(validate_resize, unlimited.clone(), limited.clone()), [""; 0]);
    assert_eq!(
        judged(validate_resize, limited, unlimited),
        ["spec.containers[0].resources.limits: Forbidden: resource limits cannot be removed"]
    );
    assert_eq!(
        judged(validate_resize, sized("1", "1Gi"), with(&sized("1", "1Gi"), json!({"spec": {"hostname": "h"}}))),
        ["spec: Forbidden: only cpu and memory resources are mutable"]
    );
}
