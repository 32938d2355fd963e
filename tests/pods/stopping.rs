//! How containers are asked to stop and made to, and what startup probes hold back.

use std::{fs, path::Path};

use serde_json::{Value, json};

use super::{container, manifest, merged, until_running};
use crate::{
    harness::{Kubectl, Version, eventually},
    restarts::until,
};

const EXIT_CODE: &str = "{.status.containerStatuses[0].state.terminated.exitCode}";

/// A pod that a finalizer keeps in the API after its end, with a directory of the machine at `/s`.
fn pod_with_finalizer(name: &str, shared: &Path, script: &str, fields: Value, grace: u32) -> String {
    let c = merged(container("c", script, json!({"volumeMounts": [{"name": "s", "mountPath": "/s"}]})), fields);
    let volumes = json!([{"name": "s", "hostPath": {"path": shared}}]);
    let spec = json!({"terminationGracePeriodSeconds": grace, "volumes": volumes, "containers": [c]});
    let mut pod: Value = serde_json::from_str(&manifest(name, spec)).unwrap();
    pod["metadata"]["finalizers"] = json!(["example.org/look"]);
    pod.to_string()
}

fn pre_stop(script: &str) -> Value {
    json!({"lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", script]}}}})
}

#[test]
fn a_pre_stop_hook_ends_before_the_signal_and_the_grace_bounds_both() {
    let k = Kubectl::with_pods(Version::V1_32);
    let shared = tempfile::tempdir().expect("a directory");
    let read = |name: &str| fs::read_to_string(shared.path().join(name)).unwrap_or_default();
    let wait = "while :; do sleep 0.05; done";
    let polite = format!("trap 'echo TERM >> /s/polite; exit 7' TERM; {wait}");
    let hook = "echo hook begins >> /s/polite; until test -e /s/go; do sleep 0.1; done; echo hook ends >> /s/polite";
    k.create(&pod_with_finalizer("polite", shared.path(), &polite, pre_stop(hook), 600));
    // Its hook never ends: the container is still asked, once the grace is over.
    let patient = format!("trap 'echo TERM >> /s/patient; exit 8' TERM; {wait}");
    k.create(&pod_with_finalizer("patient", shared.path(), &patient, pre_stop("exec sleep 1000"), 2));
    // Deletions may shorten the grace.
    k.create(&pod_with_finalizer("deaf", shared.path(), &format!("trap '' TERM; {wait}"), json!({}), 600));
    let names = ["polite", "patient", "deaf"];
    names.iter().for_each(|name| until_running(&k, name));

    k.ok("delete pod polite patient --wait=false");
    k.ok("delete pod deaf --wait=false --grace-period=1");
    eventually("the hook runs", || read("polite").contains("hook begins").then_some(()));
    until(&k, "pod deaf", EXIT_CODE, "137");
    until(&k, "pod patient", EXIT_CODE, "8");
    assert_eq!(read("patient"), "TERM\n");
    let output = k.ok("get events --field-selector involvedObject.name=patient");
    assert!(output.contains("FailedPreStopHook"), "{output}");

    assert_eq!(read("polite"), "hook begins\n", "no signal before the hook has ended");
    assert_ne!(k.value("pod polite", "{.status.containerStatuses[0].state.running.startedAt}"), "");
    fs::write(shared.path().join("go"), "").expect("let the hook go on");
    until(&k, "pod polite", EXIT_CODE, "7");
    assert_eq!(read("polite"), "hook begins\nhook ends\nTERM\n");
    k.ok(r#"patch pod polite patient deaf -p '{"metadata":{"finalizers":null}}'"#);
}

#[test]
fn a_startup_probe_holds_the_other_probes_back_and_a_probe_has_its_own_grace() {
    let k = Kubectl::with_pods(Version::V1_32);
    let asks = |script: &str, threshold: u32| json!({"exec": {"command": ["sh", "-c", script]}, "periodSeconds": 1, "failureThreshold": threshold});
    let slow = json!({
        "startupProbe": asks("echo >> /asked; test -e /up", 100),
        "livenessProbe": asks("touch /liveness", 1),
        "readinessProbe": asks("touch /readiness", 1),
    });
    k.create(&manifest("slow", json!({"containers": [container("c", "exec sleep 1000", slow)]})));
    let mut liveness = asks("exit 1", 1);
    liveness["terminationGracePeriodSeconds"] = json!(1);
    let deaf = container("c", "trap '' TERM; while :; do sleep 0.1; done", json!({"livenessProbe": liveness}));
    let mut deaf: Value =
        serde_json::from_str(&manifest("deaf", json!({"terminationGracePeriodSeconds": 600, "containers": [deaf]})))
            .unwrap();
    deaf["metadata"]["annotations"] = json!({"mainstay.dev/heal": "hold=0s"});
    k.create(&deaf.to_string());

    until_running(&k, "slow");
    eventually("the startup probe has asked often", || {
        (k.run("exec slow -- wc -l /asked").stdout.split(' ').next()?.parse::<u32>().ok()? >= 4).then_some(())
    });
    let asked = |name: &str| k.run(&format!("exec slow -- test -e /{name}")).code == 0;
    assert!(!asked("liveness") && !asked("readiness"), "nobody else asks before it has started");
    let status = "{.status.containerStatuses[0].started} {.status.containerStatuses[0].ready}";
    assert_eq!(k.value("pod slow", status), "false false");
    k.ok("exec slow -- touch /up");
    until(&k, "pod slow", status, "true true");
    eventually("the others ask now", || (asked("liveness") && asked("readiness")).then_some(()));

    eventually("deaf is killed after the probe's grace, not the pod's", || {
        (k.value("pod deaf", "{.status.containerStatuses[0].restartCount}") != "0").then_some(())
    });
    assert_eq!(k.value("pod deaf", "{.status.containerStatuses[0].lastState.terminated.exitCode}"), "137");
    k.ok("delete pod deaf --grace-period=1");
}
