//! `RestartAllContainers`: the end of one container has all of them started anew, in place.

use serde_json::json;

use super::{container, manifest, until_running};
use crate::{
    harness::{Kubectl, Version, eventually},
    restarts::until,
};

#[test]
fn the_end_of_one_container_restarts_all_of_them_in_the_same_sandbox_with_the_same_volumes() {
    let k = Kubectl::with_pods(Version::V1_32);
    let shared = || json!({"volumeMounts": [{"name": "s", "mountPath": "/s"}]});
    let with = |name: &str, script: &str, more: serde_json::Value| {
        let mut made = container(name, script, shared());
        made.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        made
    };
    let rule = json!({"restartPolicy": "Never", "restartPolicyRules": [
        {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}},
    ]});
    // Ends with 42 the first time, when it is asked to.
    let watcher = "echo watcher >> /s/log; test -e /s/again || { while ! test -e /s/go; do sleep 0.1; done; \
                   touch /s/again; exit 42; }; exec sleep 1000";
    k.create(&manifest(
        "p",
        json!({
            "restartPolicy": "Never", "volumes": [{"name": "s", "emptyDir": {}}],
            "initContainers": [
                with("prepare", "echo prepare >> /s/log", json!({})),
                with("sidecar", "echo sidecar >> /s/log; exec sleep 1000", json!({"restartPolicy": "Always"})),
            ],
            "containers": [
                with("done", "echo done >> /s/log", json!({})),
                with("work", "echo work >> /s/log; exec sleep 1000", json!({})),
                with("watcher", watcher, rule),
            ],
        }),
    ));
    until_running(&k, "p");
    let codes = "{.status.containerStatuses[?(@.name==\"done\")].state.terminated.exitCode}";
    until(&k, "pod p", codes, "0");
    let restarting = r#"{.status.conditions[?(@.type=="AllContainersRestarting")].status}"#;
    assert_eq!(k.value("pod p", restarting), "False");
    let (address, uid) = (k.value("pod p", "{.status.podIP}"), k.value("pod p", "{.metadata.uid}"));
    k.ok("exec p -c work -- touch /s/go");
    let counts = "{.status.initContainerStatuses[*].restartCount} {.status.containerStatuses[*].restartCount}";
    until(&k, "pod p", counts, "1 1 1 1 1");
    let since = r#"{.status.containerStatuses[?(@.name=="watcher")].state.running.startedAt}"#;
    eventually("the watcher runs again", || (!k.value("pod p", since).is_empty()).then_some(()));
    assert_eq!(k.value("pod p", "{.status.podIP} {.metadata.uid}"), format!("{address} {uid}"));
    assert_eq!(k.value("pod p", "{.status.phase}"), "Running");
    assert_eq!(k.value("pod p", restarting), "False");
    let last = r#"{.status.containerStatuses[?(@.name=="watcher")].lastState.terminated.exitCode}"#;
    assert_eq!(k.value("pod p", last), "42");
    let log = k.ok("exec p -c work -- cat /s/log");
    let lines: Vec<&str> = log.lines().collect();
    let (first, again) = lines.split_at(5);
    for run in [first, again] {
        assert_eq!(run[0], "prepare", "{log}");
        assert_eq!(run[1], "sidecar", "{log}");
        let mut others = run[2..].to_vec();
        others.sort_unstable();
        assert_eq!(others, ["done", "watcher", "work"], "{log}");
    }
    let event = k.ok("get events --field-selector reason=Killing -o jsonpath={.items[*].message}");
    assert!(event.contains("container watcher ended, and all containers are restarted"), "{event}");
}
