//! Ephemeral containers, as `kubectl debug` adds them to a running pod.

use serde_json::json;

use super::{container, manifest, until_running};
use crate::{
    harness::{Kubectl, Version, eventually},
    restarts::until,
};

#[test]
fn a_debug_container_runs_beside_the_others_and_sees_its_targets_processes() {
    let k = Kubectl::with_pods(Version::V1_32);
    let mark = format!("400000.{}", std::process::id());
    k.create(&manifest("p", json!({"containers": [container("c", &format!("exec sleep {mark}"), json!({}))]})));
    until_running(&k, "p");
    let before = k.value("pod p", "{.status.containerStatuses[0].containerID}");
    let look = "cat /proc/1/cmdline | tr \"\\0\" \" \"; echo; exit 3";
    k.ok(&format!("debug p --image=host -c spy --target=c --profile=general -- sh -c '{look}'"));
    k.ok("debug p --image=host -c alone --profile=general -- sh -c 'cat /proc/1/comm'");
    let ended = |name: &str| {
        k.value(
            "pod p",
            &format!("{{.status.ephemeralContainerStatuses[?(@.name==\"{name}\")].state.terminated.exitCode}}"),
        )
    };
    eventually("both end", || (ended("spy") == "3" && ended("alone") == "0").then_some(()));
    assert_eq!(k.ok("logs p -c spy").trim(), format!("sleep {mark}"));
    assert_eq!(k.ok("logs p -c alone"), "sh");
    k.ok("debug p --image=host -c stays --target=c --profile=general -- sleep 1000");
    let running = "{.status.ephemeralContainerStatuses[?(@.name==\"stays\")].state.running.startedAt}";
    eventually("one that stays", || (!k.value("pod p", running).is_empty()).then_some(()));
    assert_eq!(k.ok("exec p -c stays -- echo within"), "within");
    assert_eq!(k.value("pod p", "{.status.containerStatuses[0].containerID}"), before);
    assert_eq!(k.value("pod p", "{.status.phase} {.status.containerStatuses[0].restartCount}"), "Running 0");
    until(&k, "pod p", r#"{.status.conditions[?(@.type=="Ready")].status}"#, "True");
    k.ok("delete pod p --timeout=20s");
}
