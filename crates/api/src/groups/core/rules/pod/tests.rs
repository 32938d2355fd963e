//! Manifests in, errors out, as a user would read them.

use serde_json::{Value, json};

use super::*;
use crate::validation::testing::{assert_completes, assert_refused, assert_status, assert_update, completed, with};

mod spec;
mod update;

/// A pod with the given spec, container and all.
fn pod(spec: Value) -> Value {
    json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec})
}

/// A pod with one sound container, with more fields of the pod.
fn pod_with(spec: Value) -> Value {
    pod(with(&json!({"containers": [{"name": "c", "image": "i:1"}]}), spec))
}

/// A pod of one container, with more fields of the container.
fn container_with(fields: Value) -> Value {
    pod(json!({"containers": [with(&json!({"name": "c", "image": "i:1"}), fields)]}))
}

fn refused(manifest: Value, expected: &[&str]) {
    assert_refused::<PodRules>(manifest, expected);
}

#[test]
fn a_minimal_pod_is_completed_as_upstream_completes_it() {
    assert_completes::<PodRules>(
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "c", "image": "nginx"}]},
        }),
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p"},
            "spec": {
                "containers": [{
                    "name": "c",
                    "image": "nginx",
                    "imagePullPolicy": "Always",
                    "resources": {},
                    "terminationMessagePath": "/dev/termination-log",
                    "terminationMessagePolicy": "File",
                }],
                "dnsPolicy": "ClusterFirst",
                "enableServiceLinks": true,
                "preemptionPolicy": "PreemptLowerPriority",
                "priority": 0,
                "restartPolicy": "Always",
                "schedulerName": "default-scheduler",
                "securityContext": {},
                "serviceAccount": "default",
                "serviceAccountName": "default",
                "terminationGracePeriodSeconds": 30,
            },
            "status": {"phase": "Pending", "qosClass": "BestEffort"},
        }),
    );
}

/// A pod that says nearly everything there is to say.
fn rich() -> Value {
    serde_json::from_str(include_str!("tests/rich.json")).expect("JSON")
}

#[test]
fn a_rich_pod_is_sound() {
    let stored = completed::<PodRules>(rich());
    let at = |path: &str| stored.pointer(path).unwrap_or_else(|| panic!("{path} in {stored:#}"));
    for (path, expected) in [
        ("/spec/serviceAccountName", json!("robot")),
        ("/spec/priority", json!(2_000_001_000)),
        ("/spec/tolerations", json!([{"operator": "Exists"}])),
        ("/spec/overhead", json!({"cpu": "250m", "memory": "64Mi"})),
        ("/spec/containers/0/imagePullPolicy", json!("IfNotPresent")),
        ("/spec/containers/0/ports/0", json!({"containerPort": 80, "hostPort": 80, "name": "http", "protocol": "TCP"})),
        ("/spec/containers/0/resources/limits", json!({"cpu": "2", "memory": "1536Mi", "hugepages-2Mi": "4Mi"})),
        ("/spec/containers/0/resources/requests", json!({"cpu": "500m", "memory": "1536Mi", "hugepages-2Mi": "4Mi"})),
        ("/spec/containers/0/env/1/valueFrom/fieldRef/apiVersion", json!("v1")),
        ("/spec/containers/0/livenessProbe/httpGet/path", json!("/")),
        ("/spec/containers/0/livenessProbe/httpGet/scheme", json!("HTTP")),
        ("/spec/containers/0/livenessProbe/periodSeconds", json!(10)),
        ("/spec/containers/0/livenessProbe/timeoutSeconds", json!(1)),
        ("/spec/containers/0/livenessProbe/failureThreshold", json!(3)),
        ("/spec/containers/0/readinessProbe/grpc/service", json!("")),
        ("/spec/volumes/0", json!({"name": "data", "emptyDir": {}})),
        ("/spec/volumes/1/emptyDir/sizeLimit", json!("1Gi")),
        ("/spec/volumes/2/configMap/defaultMode", json!(420)),
        ("/spec/volumes/5/hostPath/type", json!("")),
        ("/spec/volumes/7/projected/sources/0/serviceAccountToken/expirationSeconds", json!(3600)),
        ("/spec/volumes/7/projected/sources/2/downwardAPI/items/0/resourceFieldRef/divisor", json!("0")),
        ("/spec/volumes/8/ephemeral/volumeClaimTemplate/spec/volumeMode", json!("Filesystem")),
        ("/spec/volumes/9/iscsi/iscsiInterface", json!("default")),
        ("/spec/volumes/11/image/pullPolicy", json!("Always")),
        (
            "/spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution/0/labelSelector/matchExpressions",
            json!([{"key": "version", "operator": "In", "values": ["v1"]}]),
        ),
        ("/status/qosClass", json!("Burstable")),
    ] {
        assert_eq!(*at(path), expected, "{path}");
    }
}

#[test]
fn completing_twice_changes_nothing() {
    for manifest in [rich(), pod_with(json!({}))] {
        let once = completed::<PodRules>(manifest);
        let mut typed: Pod = serde_json::from_value(once.clone()).expect("a pod");
        PodRules::default(&mut typed);
        assert_eq!(serde_json::to_value(&typed).expect("JSON"), once);
    }
}

#[test]
fn a_template_leaves_to_its_pods_what_is_theirs() {
    let mut template: PodTemplateSpec = serde_json::from_value(json!({"spec": {
        "hostNetwork": true,
        "containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}], "resources": {"limits": {"cpu": 1}}}],
    }}))
    .expect("a template");
    default_template(&mut template);
    let mut errors = Errors::new();
    validate_template(&template, &Path::new("spec").child("template"), &mut errors);
    assert!(errors.is_empty(), "{errors:?}");
    let stored = serde_json::to_value(&template).expect("JSON");
    assert_eq!(stored["spec"]["containers"][0]["ports"], json!([{"containerPort": 80, "protocol": "TCP"}]));
    assert_eq!(stored["spec"]["containers"][0]["resources"], json!({"limits": {"cpu": "1"}}));
    for absent in ["enableServiceLinks", "priority", "tolerations", "serviceAccountName"] {
        assert_eq!(stored["spec"].get(absent), None, "{absent}");
    }
}

#[test]
fn templates_are_refused_where_their_labels_are_wrong() {
    let template: PodTemplateSpec = serde_json::from_value(json!({
        "metadata": {"labels": {"app": "a b"}, "annotations": {"kubernetes.io/config.mirror": "x"}},
    }))
    .expect("a template");
    let mut template = template;
    default_template(&mut template);
    let mut errors = Errors::new();
    validate_template(&template, &Path::new("template"), &mut errors);
    let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
    assert!(texts[0].starts_with(r#"template.labels: Invalid value: "a b": a valid label must be"#), "{}", texts[0]);
    assert_eq!(
        texts[1..],
        [
            r#"template.annotations[kubernetes.io/config.mirror]: Invalid value: "x": must set spec.nodeName if mirror pod annotation is set"#,
            "template.spec.containers: Required value",
        ]
    );
}

#[test]
fn a_gated_pod_says_why_it_waits() {
    let stored = completed::<PodRules>(pod_with(json!({"schedulingGates": [{"name": "x.io/a"}]})));
    assert_eq!(
        stored["status"]["conditions"],
        json!([{
            "type": "PodScheduled",
            "status": "False",
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }])
    );
}
