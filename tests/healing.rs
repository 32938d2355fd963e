//! Probes decide who is ready and who is restarted, and a set's budget how many at once.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::{
    harness::{Kubectl, Version, eventually},
    restarts::{pod, until},
};

const RESTARTS: &str = "{.status.containerStatuses[0].restartCount}";
const READY: &str = "{.status.containerStatuses[0].ready}";

fn annotated(manifest: &str, heal: &str) -> String {
    manifest.replace("metadata: {", &format!("metadata: {{annotations: {{mainstay.dev/heal: '{heal}'}}, "))
}

#[test]
fn the_third_failure_in_a_row_restarts_and_one_in_between_does_not() {
    let k = Kubectl::with_pods(Version::V1_32);
    let probe = |command: &str| {
        format!(
            "livenessProbe: {{exec: {{command: [sh, -c, {command:?}]}}, periodSeconds: 1, timeoutSeconds: 1, initialDelaySeconds: 2}}"
        )
    };
    let ill = pod("ill", "exec sleep 1000", "", &probe("exit 1"));
    let slow = pod("slow", "exec sleep 1000", "", &probe("sleep 5"));
    // Fails every other time: never twice in a row.
    let moody = pod("moody", "exec sleep 1000", "", &probe("test -e /odd && rm /odd || { touch /odd; exit 1; }"));
    for manifest in [ill, slow, moody] {
        k.create(&annotated(&manifest, "hold=0s"));
    }
    for name in ["ill", "slow"] {
        eventually(&format!("{name} is restarted"), || {
            (k.value(&format!("pod {name}"), RESTARTS) != "0").then_some(())
        });
        let events = k.ok(&format!("get events --field-selector involvedObject.name={name}"));
        assert!(events.contains("Liveness probe failed"), "{events}");
        assert!(events.contains("failed liveness probe, will be restarted"), "{events}");
    }
    assert!(k.ok("get events").contains(r#"command timed out: "sh -c sleep 5" timed out after 1s"#));
    eventually("moody has failed often", || {
        let count = k.value("events --field-selector involvedObject.name=moody,reason=Unhealthy", "{.items[*].count}");
        (count.split_whitespace().filter_map(|n| n.parse::<u32>().ok()).sum::<u32>() >= 4).then_some(())
    });
    assert_eq!(k.value("pod moody", RESTARTS), "0");
}

#[test]
fn fifteen_seconds_of_reconfiguration_restart_nothing() {
    let k = Kubectl::with_pods(Version::V1_32);
    let script = "touch /ok; sleep 12; rm /ok; sleep 15; touch /ok; exec sleep 1000";
    let check = "exec: {command: [test, -e, /ok]}";
    let probes =
        format!("livenessProbe: {{{check}}}\n    readinessProbe: {{{check}, periodSeconds: 1, failureThreshold: 1}}");
    k.create(&pod("p", script, "", &probes));
    until(&k, "pod p", READY, "true");
    until(&k, "pod p", READY, "false"); // out of endpoints, but running
    until(&k, "pod p", READY, "true");
    let until = Instant::now() + Duration::from_secs(15); // had it been condemned, it would be restarted by then
    while Instant::now() < until {
        assert_eq!(k.value("pod p", RESTARTS), "0");
        thread::sleep(Duration::from_secs(1));
    }
    let events = k.ok("get events --field-selector involvedObject.name=p,reason=Unhealthy");
    assert!(events.contains("Liveness probe failed") && events.contains("Readiness probe failed"), "{events}");
}

#[test]
fn pods_that_fail_together_are_not_all_restarted() {
    let k = Kubectl::with_pods(Version::V1_32);
    let shared = tempfile::tempdir().expect("a directory");
    std::fs::write(shared.path().join("up"), "").expect("the dependency");
    let set = format!(
        "
apiVersion: apps/v1
kind: ReplicaSet
metadata: {{name: web, annotations: {{mainstay.dev/heal: 'hold=0s'}}}}
spec:
  replicas: 8
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      terminationGracePeriodSeconds: 1
      volumes: [{{name: d, hostPath: {{path: {}}}}}]
      containers:
      - name: c
        image: host
        command: [sh, -c, exec sleep 1000]
        volumeMounts: [{{name: d, mountPath: /dependency}}]
        livenessProbe: {{exec: {{command: [test, -e, /dependency/up]}}, periodSeconds: 1, failureThreshold: 2}}
",
        shared.path().display()
    );
    k.create(&set);
    let counts = || {
        let all = k.value("pods -l app=web", "{.items[*].status.containerStatuses[0].restartCount}");
        all.split_whitespace().map(|n| n.parse::<u32>().unwrap()).collect::<Vec<_>>()
    };
    let degraded = || {
        let path = r#"{.items[*].status.conditions[?(@.type=="Degraded")].status}"#;
        k.value("pods -l app=web", path).split_whitespace().filter(|status| *status == "True").count()
    };
    eventually("all run", || {
        let phases = k.value("pods -l app=web", "{.items[*].status.phase}");
        (phases.split_whitespace().filter(|phase| *phase == "Running").count() == 8).then_some(())
    });
    std::fs::remove_file(shared.path().join("up")).expect("take the dependency away");
    eventually("some are restarted, the others marked", || {
        (counts().iter().filter(|n| **n > 0).count() == 2 && degraded() >= 5).then_some(())
    });
    let why = k.value("pods -l app=web", r#"{.items[*].status.conditions[?(@.type=="Degraded")].message}"#);
    assert!(why.contains("ReplicaSet web") && why.contains("restart budget is 2"), "{why}");
    let until = Instant::now() + Duration::from_secs(8);
    while Instant::now() < until {
        let restarted = counts().iter().filter(|n| **n > 0).count();
        assert_eq!(restarted, 2, "a quarter of eight, however long it lasts");
        thread::sleep(Duration::from_secs(1));
    }
    std::fs::write(shared.path().join("up"), "").expect("give the dependency back");
    eventually("nobody is degraded any more", || (degraded() == 0).then_some(()));
    assert_eq!(counts().iter().filter(|n| **n == 0).count(), 6);
    let events = k.ok("get events");
    assert!(events.contains("Degraded") && events.contains("HealRestart"), "{events}");
}

#[test]
fn a_pod_climbs_the_ladder_as_its_annotation_says() {
    let k = Kubectl::with_pods(Version::V1_32);
    let manifest = pod("p", "sleep 0.2; exit 1", "", "");
    k.create(&annotated(&manifest, "restarts=1/10m, recreate=1/1h, move=off"));
    let output = |reason: &str| {
        eventually(&format!("an event {reason}"), || {
            let path = format!("events --field-selector involvedObject.name=p,reason={reason}");
            let message = k.value(&path, "{.items[*].message}");
            (!message.is_empty()).then_some(message)
        })
    };
    assert_eq!(output("HealRestart"), "Restarting container c: ended with exit code 1");
    let recreate = output("HealRecreate");
    assert!(
        recreate.starts_with("Recreating the pod on this machine (1 of 1 in 1h): container c ended with exit code 1"),
        "{recreate}"
    );
    k.ok("delete pod p --force --grace-period=0");
}

#[test]
fn of_a_container_that_is_never_restarted_no_event_says_that_it_is() {
    let k = Kubectl::with_pods(Version::V1_32);
    k.create(&pod("p", "exit 3", "restartPolicy: Never", ""));
    until(&k, "pod p", "{.status.phase}", "Failed");
    let reasons = eventually("its events", || {
        let reasons = k.value("events --field-selector involvedObject.name=p", "{.items[*].reason}");
        reasons.contains("Started").then_some(reasons)
    });
    for reason in ["HealRestart", "HealRecreate", "BackOff"] {
        assert!(!reasons.contains(reason), "{reasons}");
    }
    assert_eq!(k.value("pod p", RESTARTS), "0");
}
