//! Sets of which only one pod is stopped at a time.

use std::fs;

use crate::harness::{Kubectl, Version, eventually};

#[test]
fn only_one_pod_of_a_set_is_in_its_pre_stop_hook_at_a_time() {
    let k = Kubectl::with_pods(Version::V1_32);
    let directory = tempfile::tempdir().expect("a directory");
    let log = directory.path().join("log");
    fs::write(&log, "").expect("a file");
    k.create(&format!(
        r#"
apiVersion: apps/v1
kind: Deployment
metadata: {{name: dea}}
spec:
  replicas: 3
  selector: {{matchLabels: {{app: dea}}}}
  template:
    metadata: {{labels: {{app: dea}}, annotations: {{mainstay.dev/exclusive: drain}}}}
    spec:
      terminationGracePeriodSeconds: 10
      containers:
      - name: c
        image: host
        command: [sh, -c, "trap 'exit 0' TERM; while true; do sleep 0.2; done"]
        lifecycle: {{preStop: {{exec: {{command: [sh, -c, "echo begin >> /drain/log; sleep 1; echo end >> /drain/log"]}}}}}}
        volumeMounts: [{{name: drain, mountPath: /drain}}]
      volumes: [{{name: drain, hostPath: {{path: {}}}}}]
"#,
        directory.path().display()
    ));
    eventually("all run", || (k.value("deployment dea", "{.status.readyReplicas}") == "3").then_some(()));
    k.ok("scale deployment dea --replicas=0");
    eventually("all are gone", || k.ok("get pods -o name").is_empty().then_some(()));
    let lines = fs::read_to_string(&log).expect("what the hooks wrote");
    let expected = ["begin", "end"].repeat(3);
    assert_eq!(lines.lines().collect::<Vec<_>>(), expected, "no two hooks overlap, and all of them ran");
    eventually("the turn was given back", || {
        k.ok("get leases -o name").lines().all(|lease| !lease.contains("drain-")).then_some(())
    });
    assert!(k.ok("get events").contains("WaitingForTurn"));
}
