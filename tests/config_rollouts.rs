//! ConfigMaps and Secrets that reach pods as versions, with pods that really run.

use crate::harness::{Kubectl, Version, eventually};

const WEB: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, annotations: {mainstay.dev/rollout: budgeted}}
spec:
  replicas: 2
  progressDeadlineSeconds: 20
  strategy: {rollingUpdate: {maxUnavailable: 1, maxSurge: 0}}
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: c
        image: host
        command: [sh, -c, "sleep 1000000"]
        env: [{name: ZONE, valueFrom: {configMapKeyRef: {name: zones, key: zone}}}]
        envFrom: [{secretRef: {name: key}}]
        # Ready only with values that it knows, the same in its environment and in its volumes.
        readinessProbe:
          periodSeconds: 1
          exec: {command: [sh, -c, 'grep -q "^good" /zones/zone && test "$ZONE" = "$(cat /zones/zone)" && test "$KEY" = "$(cat /all/KEY)"']}
        volumeMounts: [{name: zones, mountPath: /zones}, {name: all, mountPath: /all}]
      volumes:
      - {name: zones, configMap: {name: zones}}
      - {name: all, projected: {sources: [{configMap: {name: zones}}, {secret: {name: key}}]}}
"#;

fn until_reads(k: &Kubectl, value: &str) {
    eventually(&format!("all pods read {value}"), || {
        let status =
            k.value("deployment web", "{.status.updatedReplicas}/{.status.availableReplicas}/{.status.replicas}");
        let pods = k.ok("get pods -l app=web -o name");
        let all = pods.lines().all(|pod| {
            let output = k.run(&format!("exec {pod} -- sh -c 'echo $ZONE; cat /zones/zone; echo; cat /all/zone'"));
            output.stdout.split_whitespace().all(|word| word == value) && output.stdout.lines().count() > 0
        });
        (status == "2/2/2" && all).then_some(())
    });
}

fn set_zone(k: &Kubectl, value: &str) {
    k.ok(&format!(r#"patch configmap zones --type=merge -p '{{"data":{{"zone":"{value}"}}}}'"#));
}

#[test]
fn a_bad_value_reaches_one_replica_and_is_taken_back_and_a_good_one_reaches_all() {
    let k = Kubectl::with_pods(Version::V1_32);
    k.ok("create configmap zones --from-literal=zone=good-1");
    k.ok("create secret generic key --from-literal=KEY=s3cret");
    k.create(WEB);
    until_reads(&k, "good-1");
    assert_eq!(k.ok("get replicasets -l app=web -o name").lines().count(), 1, "its first pods have versions already");

    set_zone(&k, "good-2");
    until_reads(&k, "good-2");
    k.ok("rollout undo deployment/web");
    until_reads(&k, "good-1");
    eventually("that it was taken back is said", || k.ok("get events").contains("ConfigRolloutUndone").then_some(()));

    set_zone(&k, "bad");
    eventually("it is said that the rollout failed", || {
        k.ok("get events").contains("ConfigRolloutFailed").then_some(())
    });
    until_reads(&k, "good-1");
    assert_eq!(k.value("configmap zones", "{.data.zone}"), "bad", "what people wrote is left alone");
    let restarts = k.value("pods -l app=web", "{.items[*].status.containerStatuses[*].restartCount}");
    assert_eq!(restarts, "0 0", "a rollout is no failure of a container");
    let events = k.ok("get events -o json");
    assert!(!events.contains("s3cret") && !events.contains("czNjcmV0"), "events show no values of Secrets");

    set_zone(&k, "good-3");
    until_reads(&k, "good-3");
}

#[test]
fn a_running_pod_follows_to_another_version_without_a_restart_and_reads_no_copy_of_what_it_does_not_name() {
    let k = Kubectl::with_pods(Version::V1_32);
    let copy = |name: &str, digit: &str, label: &str, value: &str| {
        let hash = digit.repeat(16);
        k.create(&format!(
            r#"
apiVersion: v1
kind: ConfigMap
metadata: {{name: {name}-{hash}, labels: {{mainstay.dev/copy-of: {label}}}}}
data: {{zone: {value}}}
"#
        ));
        format!("{name}-{hash}")
    };
    k.ok("create configmap zones --from-literal=zone=original");
    let (first, second) = (copy("zones", "1", "zones", "first"), copy("zones", "2", "zones", "second"));
    // Named like a copy, but of something else.
    let foreign = copy("zones", "3", "other", "foreign");
    let annotation = |copy: &str| format!(r#"{{"configmap/zones": "{copy}"}}"#);
    k.create(&format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: reader, annotations: {{mainstay.dev/config-versions: '{}'}}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {{name: c, image: host, command: [sh, -c, "sleep 1000000"], volumeMounts: [{{name: zones, mountPath: /zones}}]}}
  volumes: [{{name: zones, configMap: {{name: zones}}}}]
"#,
        annotation(&first)
    ));
    let reads = |value: &str| {
        eventually(&format!("it reads {value}"), || {
            (k.run("exec reader -- cat /zones/zone").stdout.trim() == value).then_some(())
        });
    };
    let set = |copy: &str| {
        k.ok(&format!("annotate --overwrite pod reader mainstay.dev/config-versions='{}'", annotation(copy)));
    };
    reads("first");
    k.ok(r#"patch configmap zones --type=merge -p '{"data":{"zone":"changed"}}'"#);
    set(&second);
    reads("second");
    set(&foreign);
    eventually("it is not given what is labelled as another's", || {
        k.ok("get events").contains("FailedMount").then_some(())
    });
    assert_eq!(k.run("exec reader -- cat /zones/zone").stdout.trim(), "second");
    set(&first);
    reads("first");
    assert_eq!(k.value("pod reader", "{.status.containerStatuses[0].restartCount}"), "0");
    let refused =
        k.refused(r#"annotate --overwrite pod reader mainstay.dev/config-versions='{"configmap/zones":"admin"}'"#);
    assert!(refused.contains("metadata.annotations[mainstay.dev/config-versions]: Invalid value"), "{refused}");
}
