//! Eviction: a machine short of memory, and a pod that fills more of the disk than it may.

use std::fs;

use serde_json::{Value, json};

use super::{container, manifest, until_running};
use crate::{
    harness::{Kubectl, Version, eventually},
    restarts::until,
};

#[test]
fn a_machine_short_of_memory_takes_no_new_pods_and_evicts_all_but_its_own() {
    let total = fs::read_to_string("/proc/meminfo").expect("the machine's memory");
    let total = total.lines().find_map(|line| line.strip_prefix("MemTotal:")).expect("a total");
    let total: u64 = total.trim().trim_end_matches(" kB").parse().expect("a number");
    // Something always runs: less than this is available from the first look on.
    let threshold = format!("{}Ki", total - 1);
    let manifests = tempfile::tempdir().expect("a directory");
    let sleeps = |fields: Value| json!({"nodeName": "here", "containers": [container("c", "exec sleep 1000", fields)]});
    fs::write(manifests.path().join("own.json"), manifest("own", sleeps(json!({})))).expect("write a manifest");
    let directory = manifests.path().display().to_string();
    let k = Kubectl::with_pods_and(Version::V1_32, &["--evict-memory", &threshold, "--static-pods", &directory]);
    until(&k, "node here", r#"{.status.conditions[?(@.type=="MemoryPressure")].status}"#, "True");
    eventually("nothing new is sent here", || {
        k.value("node here", "{.spec.taints[*].key}").contains("node.kubernetes.io/memory-pressure").then_some(())
    });
    k.create(&manifest("guest", sleeps(json!({}))));
    until(&k, "pod guest", "{.status.phase} {.status.reason}", "Failed Evicted");
    let message = k.value("pod guest", "{.status.message}");
    assert!(message.starts_with("The node was low on resource: memory."), "{message}");
    let output = k.ok("get events --field-selector involvedObject.name=guest");
    assert!(output.contains("Evicted"), "{output}");
    assert_eq!(
        k.value("pod guest", r#"{.status.conditions[?(@.type=="DisruptionTarget")].reason}"#),
        "TerminationByKubelet"
    );
    until_running(&k, "own-here");
    assert!(k.ok("get events --field-selector involvedObject.kind=Node").contains("EvictionThresholdMet"));
}

#[test]
fn a_pod_that_writes_more_than_its_volume_may_hold_is_evicted() {
    let k = Kubectl::with_pods(Version::V1_32);
    let fields = json!({"volumeMounts": [{"name": "d", "mountPath": "/d"}]});
    let pod = |name: &str, megabytes: u32| {
        let script = format!("head -c {megabytes}M /dev/zero > /d/file; exec sleep 1000");
        let volumes = json!([{"name": "d", "emptyDir": {"sizeLimit": "2Mi"}}]);
        k.create(&manifest(name, json!({"containers": [container("c", &script, fields.clone())], "volumes": volumes})));
    };
    pod("small", 1);
    pod("large", 4);
    until(&k, "pod large", "{.status.phase} {.status.reason}", "Failed Evicted");
    let message = k.value("pod large", "{.status.message}");
    assert_eq!(message, "Usage of EmptyDir volume \"d\" exceeds the limit \"2Mi\".");
    assert_eq!(k.value("pod small", "{.status.phase}"), "Running");
}

/// Directories within each other, more than a path can name and a stack can hold, and a file in the last one.
const DIG: &str = "import os, sys, time
os.chdir(sys.argv[1])
for _ in range(8000):
    os.mkdir('d')
    os.chdir('d')
open('file', 'wb').write(bytes(8 << 20))
time.sleep(1000)";

#[test]
fn deep_directories_neither_hide_what_a_pod_writes_nor_end_the_agent_that_removes_them() {
    let k = Kubectl::with_pods(Version::V1_32);
    let pod = |name: &str, place: &str, limits: Value, size_limit: Value| {
        let container = json!({
            "name": "c", "image": "host", "command": ["python3", "-c", DIG, place], "resources": {"limits": limits},
            "volumeMounts": [{"name": "d", "mountPath": "/d"}],
        });
        let volumes = json!([{"name": "d", "emptyDir": {"sizeLimit": size_limit}}]);
        k.create(&manifest(name, json!({"containers": [container], "volumes": volumes})));
    };
    pod("layer", "/home", json!({"ephemeral-storage": "4Mi"}), Value::Null);
    pod("volume", "/d", json!({}), json!("4Mi"));
    for name in ["layer", "volume"] {
        until(&k, &format!("pod {name}"), "{.status.phase} {.status.reason}", "Failed Evicted");
    }
    k.ok("delete pod layer volume");
    let after = json!({"containers": [container("c", "exec sleep 1000", json!({}))]});
    k.create(&manifest("after", after));
    until_running(&k, "after");
    let restarts = k.ok("get events --field-selector involvedObject.kind=Node,reason=Starting -o name");
    assert_eq!(restarts.lines().count(), 1, "the agent runs on: {restarts}");
}
