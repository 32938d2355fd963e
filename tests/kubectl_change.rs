//! Small commands that change one thing: label, annotate, scale, set, delete, wait.

use std::{thread, time::Duration};

use crate::{
    harness::{Kubectl, eventually},
    with_each_kubectl,
};

/// A template that every kind of replicated workload takes.
fn workload(version: &str, kind: &str, more: &str) -> String {
    let selector = if kind == "ReplicationController" { "{app: w}" } else { "{matchLabels: {app: w}}" };
    format!(
        "
apiVersion: {version}
kind: {kind}
metadata: {{name: w}}
spec:
  replicas: 1
  selector: {selector}
  {more}
  template:
    metadata: {{labels: {{app: w}}}}
    spec: {{containers: [{{name: c, image: nginx:1}}]}}
"
    )
}

fn labels_are_set_overwritten_on_demand_and_removed(k: &Kubectl) {
    k.ok("create configmap c");
    assert_eq!(k.ok("label cm c a=1 b=2"), "configmap/c labeled");
    let refused = k.refused("label cm c a=9");
    assert!(refused.contains("'a' already has a value (1), and --overwrite is false"), "{refused}");
    k.ok("label cm c a=9 --overwrite");
    k.ok("label cm c b-");
    assert_eq!(k.value("cm c", "{.metadata.labels}"), r#"{"a":"9"}"#);
    k.ok("label cm --all x=y");
    assert_eq!(k.ok("get cm -l x=y,a=9 -o name"), "configmap/c");
    let refused = k.refused("label cm c 'a=b c'");
    assert!(refused.contains("a valid label must be"), "{refused}");
}

fn annotations_are_set_overwritten_on_demand_and_removed(k: &Kubectl) {
    k.ok("create configmap c");
    assert_eq!(k.ok("annotate cm c example.org/a='some text'"), "configmap/c annotated");
    assert!(k.refused("annotate cm c example.org/a=other").contains("--overwrite is false"));
    k.ok("annotate cm c example.org/a=other --overwrite");
    assert_eq!(k.value("cm c", "{.metadata.annotations}"), r#"{"example.org/a":"other"}"#);
    k.ok("annotate cm c example.org/a-");
    assert_eq!(k.value("cm c", "{.metadata.annotations}"), "");
}

fn every_replicated_kind_scales(k: &Kubectl) {
    for (version, kind, more) in [
        ("apps/v1", "Deployment", ""),
        ("apps/v1", "ReplicaSet", ""),
        ("apps/v1", "StatefulSet", "serviceName: w"),
        ("v1", "ReplicationController", ""),
    ] {
        k.apply(&workload(version, kind, more));
        let output = k.ok(&format!("scale {kind} w --replicas=4"));
        assert!(output.ends_with("/w scaled"), "{output}");
        assert_eq!(k.value(&format!("{kind} w"), "{.spec.replicas}"), "4");
        let refused = k.refused(&format!("scale {kind} w --current-replicas=9 --replicas=1"));
        assert!(refused.contains("Expected replicas to be 9, was 4"), "{refused}");
        k.ok(&format!("delete {kind} w --wait=false"));
    }
    let scale = k.refused("scale deploy nobody --replicas=1");
    assert!(scale.contains("deployments.apps \"nobody\" not found"), "{scale}");
}

fn set_changes_images_env_and_resources(k: &Kubectl) {
    k.apply(&workload("apps/v1", "Deployment", ""));
    assert_eq!(k.ok("set image deploy/w c=nginx:2"), "deployment.apps/w image updated");
    k.ok("set env deploy/w COLOR=red");
    k.ok("set resources deploy w --limits=cpu=200m,memory=64Mi");
    k.ok("set serviceaccount deploy w bot");
    let spec = &k.json("get deploy w -o json")["spec"]["template"]["spec"];
    let container = &spec["containers"][0];
    assert_eq!(container["image"], "nginx:2");
    assert_eq!(container["env"][0]["value"], "red");
    assert_eq!(container["resources"]["limits"]["memory"], "64Mi");
    assert_eq!(spec["serviceAccountName"], "bot");
    assert_eq!(k.value("deploy w", "{.metadata.generation}"), "5");
    assert_eq!(k.ok("rollout pause deploy w"), "deployment.apps/w paused");
    assert_eq!(k.value("deploy w", "{.spec.paused}"), "true");
    assert_eq!(k.ok("rollout resume deploy w"), "deployment.apps/w resumed");
    k.ok("rollout restart deploy w");
    assert!(k.value("deploy w", "{.spec.template.metadata.annotations}").contains("restartedAt"));
}

fn deletion_reaches_what_was_named_selected_or_listed(k: &Kubectl) {
    for name in ["a", "b", "c", "d", "e"] {
        k.ok(&format!("create configmap {name}"));
    }
    k.ok("label cm a b x=1");
    assert_eq!(k.ok("delete cm -l x=1"), "configmap \"a\" deleted\nconfigmap \"b\" deleted");
    assert_eq!(k.ok("delete cm/c --wait=false"), "configmap \"c\" deleted");
    assert_eq!(k.ok("delete cm d --dry-run=server"), "configmap \"d\" deleted (server dry run)");
    assert_eq!(k.ok("get cm d -o name"), "configmap/d");
    assert_eq!(k.ok("delete cm nobody --ignore-not-found"), "");
    let all = k.ok("delete cm --all");
    assert!(all.contains("configmap \"d\" deleted") && all.contains("configmap \"e\" deleted"), "{all}");
}

fn a_pod_is_deleted_by_force_at_once(k: &Kubectl) {
    k.ok("run p --image=nginx");
    let output = k.ok("delete pod p --grace-period=0 --force");
    assert!(output.contains("pod \"p\" force deleted"), "{output}");
    assert!(k.refused("get pod p").contains("NotFound"));
    // Nobody runs it: its grace is of no use.
    k.ok("run p --image=nginx");
    k.ok("delete pod p");
    assert!(k.refused("get pod p").contains("NotFound"));
}

fn finalizers_hold_an_object_until_they_are_gone(k: &Kubectl) {
    k.create(r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"held","finalizers":["example.org/hold"]}}"#);
    k.ok("delete cm held --wait=false");
    assert!(!k.value("cm held", "{.metadata.deletionTimestamp}").is_empty());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| k.run("wait --for=delete cm/held --timeout=60s"));
        thread::sleep(Duration::from_millis(300)); // the wait should begin before the end; if not, it passes too
        k.ok(r#"patch cm held --type=merge -p '{"metadata":{"finalizers":null}}'"#);
        assert_eq!(waiting.join().expect("no panic").ok().trim(), "configmap/held condition met");
    });
    assert!(k.refused("get cm held").contains("NotFound"));
}

fn wait_sees_conditions(k: &Kubectl) {
    k.apply(&workload("apps/v1", "Deployment", ""));
    let late = k.refused("wait --for=condition=Ripe deploy/w --timeout=1s");
    assert!(late.contains("timed out waiting for the condition"), "{late}");
    k.ok("create configmap c");
    if k.is_recent() {
        assert_eq!(
            k.ok("wait --for=jsonpath='{.spec.replicas}'=1 deploy/w --timeout=30s"),
            "deployment.apps/w condition met"
        );
        assert_eq!(k.ok("wait --for=create cm/c --timeout=30s"), "configmap/c condition met");
    }
    assert_eq!(k.ok("wait --for=condition=Progressing deploy/w --timeout=30s"), "deployment.apps/w condition met");
}

fn dependents_follow_their_owner_unless_orphaned(k: &Kubectl) {
    let modes: &[(&str, bool)] = if k.is_recent() {
        &[("--cascade=background", true), ("--cascade=foreground", true), ("--cascade=orphan", false)]
    } else {
        &[
            ("--cascade=background", true),
            ("--cascade=foreground", true),
            ("--cascade=orphan", false),
            ("--cascade=false", false),
        ]
    };
    for (flag, follows) in modes {
        k.ok("create configmap owner");
        let uid = k.value("cm owner", "{.metadata.uid}");
        k.create(&format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"owned","ownerReferences":[
                {{"apiVersion":"v1","kind":"ConfigMap","name":"owner","uid":"{uid}","blockOwnerDeletion":true}}]}}}}"#
        ));
        k.ok(&format!("delete cm owner {flag}"));
        if *follows {
            eventually("the dependent is gone", || k.ok("get cm owned --ignore-not-found").is_empty().then_some(()));
        } else {
            eventually("the dependent has no owner", || {
                k.value("cm owned", "{.metadata.ownerReferences}").is_empty().then_some(())
            });
            k.ok("delete cm owned");
        }
    }
}

fn a_namespace_takes_its_content_along(k: &Kubectl) {
    k.ok("create namespace team");
    k.ok("create configmap c -n team");
    k.ok("create deployment d --image=nginx -n team");
    assert_eq!(k.ok("delete namespace team"), "namespace \"team\" deleted");
    assert!(k.refused("get ns team").contains("NotFound"));
    let left = k.ok("get cm,deploy,sa -n team -o name");
    assert_eq!(left, "");
    k.ok("create namespace team");
    eventually("the account that every namespace has", || {
        (k.ok("get sa default -n team --ignore-not-found -o name") == "serviceaccount/default").then_some(())
    });
    let refused = k.refused("delete namespace default");
    assert!(refused.contains("namespaces \"default\" is forbidden: this namespace may not be deleted"), "{refused}");
}

with_each_kubectl!(
    labels_are_set_overwritten_on_demand_and_removed,
    annotations_are_set_overwritten_on_demand_and_removed,
    every_replicated_kind_scales,
    set_changes_images_env_and_resources,
    deletion_reaches_what_was_named_selected_or_listed,
    a_pod_is_deleted_by_force_at_once,
    finalizers_hold_an_object_until_they_are_gone,
    wait_sees_conditions,
    dependents_follow_their_owner_unless_orphaned,
    a_namespace_takes_its_content_along,
);
