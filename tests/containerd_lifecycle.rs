//! With containerd in place of the built-in runtime: the order of starts and stops, hooks, probes, and pods that outlive
//! the process that runs them.

use std::fs;

use mainstay_runtime::suite::{containerd::Containerd, image};
use mainstay_testing::eventually;
use serde_json::{Value, json};

use crate::{
    harness::{Kubectl, Version},
    restarts::until,
};

/// Writes to `/s/order` when it begins and, asked to stop, when it ends.
fn narrator(name: &str, more: Value) -> Value {
    let script = format!(
        "trap 'echo {name} ends >> /s/order; exit 0' TERM; sleep 0.3; echo {name} begins >> /s/order; \
         while :; do sleep 0.05; done"
    );
    let mut container = json!({
        "name": name, "image": image::PLAIN, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", script],
        "volumeMounts": [{ "name": "s", "mountPath": "/s" }],
    });
    container.as_object_mut().expect("an object").extend(more.as_object().expect("fields").clone());
    container
}

fn sh(script: &str) -> Value {
    json!({ "exec": { "command": ["sh", "-c", script] } })
}

#[test]
fn sidecars_hooks_and_startup_probes_keep_their_order_and_pods_outlive_the_agent() {
    let containerd = Containerd::start();
    let runtime = format!("cri://{}", containerd.socket().display());
    let mut k = Kubectl::with_pods_and(Version::V1_32, &["--runtime", &runtime]);
    let shared = tempfile::tempdir().expect("make a directory");
    let order = || fs::read_to_string(shared.path().join("order")).unwrap_or_default();
    let started = json!({ "exec": sh("grep 'side begins' /s/order")["exec"], "periodSeconds": 1 });
    let hooks = json!({ "postStart": sh("echo hook begins >> /s/order"), "preStop": sh("echo hook ends >> /s/order") });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web" },
        "spec": {
            "terminationGracePeriodSeconds": 60,
            "volumes": [{ "name": "s", "hostPath": { "path": shared.path() } }],
            "initContainers": [narrator("side", json!({ "restartPolicy": "Always", "startupProbe": started }))],
            "containers": [narrator("main", json!({ "lifecycle": hooks }))],
        },
    });
    k.create(&pod.to_string());
    eventually("all have begun", || order().contains("main begins"));
    until(&k, "pod web", "{.status.containerStatuses[0].ready}", "true");
    let begun = order();
    let lines: Vec<&str> = begun.lines().collect();
    assert_eq!(lines[0], "side begins", "the sidecar's probe held the others back: {begun}");
    assert!(lines[1..].contains(&"hook begins") && lines[1..].contains(&"main begins"), "{begun}");

    let ids = |k: &Kubectl| {
        let of = |field: &str| k.value("pod web", &format!("{{.status.{field}[*].containerID}}"));
        (of("initContainerStatuses"), of("containerStatuses"))
    };
    let before = ids(&k);
    k.cluster.kill();
    assert_eq!(order(), begun, "nothing ends with the agent");
    k.cluster.start_again();
    until(&k, "pod web", "{.status.containerStatuses[0].ready}", "true");
    assert_eq!(k.ok("exec web -c main -- cat /s/order"), begun.trim_end());
    assert_eq!(ids(&k), before, "the same containers run");

    k.ok("delete pod web --timeout=30s");
    let ended = order();
    assert_eq!(ended.strip_prefix(&begun), Some("hook ends\nmain ends\nside ends\n"), "{ended}");
    eventually("nothing is left in containerd", || containerd.ctr(&["containers", "ls", "-q"]).trim().is_empty());
}
