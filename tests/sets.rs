//! StatefulSets and DaemonSets with pods that really run, and machines that are emptied without hurting anyone.

use std::{collections::BTreeSet, thread};

use serde_json::{Value, json};

use crate::harness::{Kubectl, Machines, PATIENCE, Version, eventually};

/// A set whose pods note every start in their volume, and what they knew by then. One that ends at once is never ready,
/// not even for the moment that it runs.
const DB: &str = r#"
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, annotations: {mainstay.dev/replace-unready: "true"}}
spec:
  serviceName: db
  replicas: 2
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: c
        image: host
        command: [sh, -c, 'echo "$(hostname) $SAID" >> /data/starts; eval "$SAID"; touch /up; exec sleep 1000']
        readinessProbe: {exec: {command: [test, -e, /up]}, periodSeconds: 1}
        env: [{name: SAID, value: ':'}]
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
"#;

#[test]
fn a_stateful_set_keeps_names_and_data_through_scaling_updates_and_undoing() {
    let k = Kubectl::with_pods(Version::V1_32);
    k.create(DB);
    let rolled_out = || {
        let output = k.ok("rollout status statefulset db --timeout=55s");
        assert!(output.ends_with("pods at revision") || output.contains("complete"), "{output}");
    };
    let starts = |pod: &str| k.ok(&format!("exec {pod} -- cat /data/starts")).lines().map(str::to_owned).collect();
    let expect = |pod: &str, expected: &[&str]| {
        let expected: Vec<String> = expected.iter().map(|output| format!("{pod} {output}")).collect();
        let found: Vec<String> = starts(pod);
        assert_eq!(found, expected, "{pod}");
    };
    rolled_out();
    assert_eq!(k.value("pods", "{.items[*].metadata.name}"), "db-0 db-1");
    assert_eq!(k.value("pvc", "{.items[*].metadata.name}"), "data-db-0 data-db-1");
    expect("db-0", &[":"]);
    expect("db-1", &[":"]);

    k.ok("scale statefulset db --replicas=1");
    k.ok("wait --for=delete pod/db-1 --timeout=30s");
    assert_eq!(k.value("pvc", "{.items[*].metadata.name}"), "data-db-0 data-db-1");
    k.ok("scale statefulset db --replicas=2");
    rolled_out();
    expect("db-1", &[":", ":"]);

    k.ok("set env statefulset/db SAID=true");
    rolled_out();
    expect("db-0", &[":", "true"]);
    expect("db-1", &[":", ":", "true"]);
    let history = k.ok("rollout history statefulset db");
    assert!(history.lines().any(|line| line.starts_with("2 ")), "{history}");
    assert!(k.ok("rollout history statefulset db --revision=1").contains("SAID:"), "what it was is shown");

    // One that cannot run stops the update, and undoing it waits for that pod, as upstream does: until somebody deletes it, or
    // the set is one whose outdated pods are replaced although they are not ready.
    k.ok("set env statefulset/db 'SAID=exit 1'");
    eventually("it fails again and again", || {
        let restarts = k.value("pod db-1 --ignore-not-found", "{.status.containerStatuses[0].restartCount}");
        restarts.parse::<u32>().is_ok_and(|count| count > 0)
    });
    expect("db-0", &[":", "true"]);
    k.ok("rollout undo statefulset db");
    k.ok("annotate statefulset db mainstay.dev/replace-unready=true");
    rolled_out();
    expect("db-0", &[":", "true"]);
    let last: Vec<String> = starts("db-1");
    assert_eq!(last.last().map(String::as_str), Some("db-1 true"), "{last:?}");
    k.ok("rollout undo statefulset db --to-revision=1");
    rolled_out();
    expect("db-0", &[":", "true", ":"]);

    k.ok("delete statefulset db");
    k.ok("wait --for=delete pod/db-0 pod/db-1 --timeout=30s");
    assert_eq!(k.value("pvc", "{.items[*].metadata.name}"), "data-db-0 data-db-1", "claims outlive the set");
}

fn set(kind: &str, name: &str, spec: Value, pod: Value) -> String {
    let mut set = json!({
        "apiVersion": "apps/v1", "kind": kind, "metadata": { "name": name },
        "spec": { "selector": { "matchLabels": { "app": name } }, "template": {
            "metadata": { "labels": { "app": name } },
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [{ "name": "c", "image": "host", "command": ["sh", "-c", "exec sleep 1000"] }],
            },
        } },
    });
    set["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    set["spec"]["template"]["spec"].as_object_mut().unwrap().extend(pod.as_object().unwrap().clone());
    set.to_string()
}

/// The machines on which pods of an app are ready, as often as there are pods.
fn serving(machines: &Machines, app: &str) -> Vec<String> {
    let path = r#"jsonpath={range .items[*]}{.spec.nodeName}/{.status.conditions[?(@.type=="Ready")].status}/{.metadata.deletionTimestamp} {end}"#;
    let output = machines.kubectl(&["get", "pods", "-l", &format!("app={app}"), "-o", path], "").ok();
    let ready = output.split_whitespace().filter_map(|pod| pod.strip_suffix("/True/"));
    let mut ready: Vec<String> = ready.map(str::to_owned).collect();
    ready.sort();
    ready
}

fn serves(machines: &Machines, app: &str, expected: &[&str]) {
    eventually(&format!("{app} serves on {expected:?}"), || (serving(machines, app) == expected).then_some(()));
}

#[test]
fn a_daemon_set_follows_the_labels_of_machines_and_is_undone() {
    let machines = Machines::joined(&["a", "b"]);
    let kubectl = |line: &str| machines.kubectl(&line.split(' ').collect::<Vec<_>>(), "").ok();
    let edge = set("DaemonSet", "log", json!({}), json!({ "nodeSelector": { "role": "edge" } }));
    machines.kubectl(&["create", "-f", "-"], &edge).ok();
    kubectl("label node a role=edge");
    serves(&machines, "log", &["a"]);
    kubectl("label node b role=edge");
    serves(&machines, "log", &["a", "b"]);
    kubectl("label node a role-");
    serves(&machines, "log", &["b"]);
    kubectl("label node a role=edge");
    serves(&machines, "log", &["a", "b"]);

    let reported = || kubectl("get pods -l app=log -o jsonpath={.items[*].spec.containers[0].env[0].value}");
    kubectl("set env daemonset/log SAID=two");
    machines.kubectl_within(&["rollout", "status", "daemonset", "log", "--timeout=60s"], "", PATIENCE * 3).ok();
    assert_eq!(reported(), "two two");
    assert!(kubectl("rollout history daemonset log").lines().any(|line| line.starts_with("2 ")));
    kubectl("rollout undo daemonset log");
    machines.kubectl_within(&["rollout", "status", "daemonset", "log", "--timeout=60s"], "", PATIENCE * 3).ok();
    assert_eq!(reported(), "");
    kubectl("delete daemonset log");
    eventually("its pods are gone", || kubectl("get pods -o name").trim().is_empty().then_some(()));
}

#[test]
fn a_machine_is_drained_as_fast_as_the_budget_allows_and_comes_back() {
    let machines = Machines::joined(&["a", "b"]);
    let kubectl = |line: &str| machines.kubectl(&line.split(' ').collect::<Vec<_>>(), "").ok();
    machines.kubectl(&["create", "-f", "-"], &set("DaemonSet", "log", json!({}), json!({}))).ok();
    kubectl("cordon b");
    let web = json!({ "replicas": 3, "serviceName": "web", "podManagementPolicy": "Parallel" });
    machines.kubectl(&["create", "-f", "-"], &set("StatefulSet", "web", web, json!({}))).ok();
    serves(&machines, "web", &["a", "a", "a"]);
    serves(&machines, "log", &["a", "b"]);
    kubectl("create pdb web --selector=app=web --max-unavailable=1");
    eventually("one may go", || (kubectl("get pdb web -o jsonpath={.status.disruptionsAllowed}") == "1").then_some(()));
    kubectl("uncordon b");
    let drain = ["drain", "a", "--ignore-daemonsets", "--timeout=80s"];
    thread::scope(|scope| {
        let drained = scope.spawn(|| machines.kubectl_within(&drain, "", PATIENCE * 3));
        while !drained.is_finished() {
            let there = serving(&machines, "web");
            assert!(there.len() >= 2, "never more than one is missing: {there:?}");
        }
        let output = drained.join().expect("no panic").ok();
        assert!(output.contains("node/a drained"), "{output}");
    });
    serves(&machines, "web", &["b", "b", "b"]);
    let on: BTreeSet<String> = serving(&machines, "log").into_iter().collect();
    assert_eq!(on, BTreeSet::from(["a".to_owned(), "b".to_owned()]), "what belongs to the machine stays on it");
    let nodes = kubectl("get nodes");
    assert!(nodes.lines().any(|line| line.starts_with("a ") && line.contains("SchedulingDisabled")), "{nodes}");
    kubectl("uncordon a");
    kubectl("scale statefulset web --replicas=5");
    eventually("it takes pods again", || serving(&machines, "web").contains(&"a".to_owned()).then_some(()));
    kubectl("delete statefulset/web daemonset/log pdb/web");
    eventually("its pods are gone", || kubectl("get pods -o name").trim().is_empty().then_some(()));
}
