//! Sidecars: init containers that run as long as the pod.

use serde_json::{Value, json};

use super::{container, manifest, merged, printed, until_running};
use crate::{
    harness::{Kubectl, Version, eventually},
    restarts::until,
};

/// Says in `/s/order` when it begins and, asked to stop, when it ends; is started once that is written.
fn narrator(name: &str, more: Value) -> Value {
    let script = format!(
        "trap 'echo {name} ends >> /s/order; exit 0' TERM; sleep 0.3; echo {name} begins >> /s/order; \
         while :; do sleep 0.05; done"
    );
    merged(container(name, &script, json!({"volumeMounts": [{"name": "s", "mountPath": "/s"}]})), more)
}

fn sidecar(name: &str) -> Value {
    let check = json!({"exec": {"command": ["grep", format!("{name} begins"), "/s/order"]}, "periodSeconds": 1});
    narrator(name, json!({"restartPolicy": "Always", "startupProbe": check}))
}

#[test]
fn sidecars_start_before_the_main_containers_and_stop_after_them_in_reverse_order() {
    let k = Kubectl::with_pods(Version::V1_32);
    let shared = tempfile::tempdir().expect("a directory");
    let order = || std::fs::read_to_string(shared.path().join("order")).unwrap_or_default();
    k.create(&manifest(
        "web",
        json!({
            "terminationGracePeriodSeconds": 60,
            "volumes": [{"name": "s", "hostPath": {"path": shared.path()}}],
            "initContainers": [sidecar("one"), sidecar("two")],
            "containers": [narrator("main", json!({}))],
        }),
    ));
    let restarted = "test -e /s/again && exec sleep 1000; touch /s/again; exit 1";
    k.create(&manifest(
        "work",
        json!({
            "restartPolicy": "Never",
            "volumes": [{"name": "s", "emptyDir": {}}],
            "initContainers": [container(
                "helper",
                restarted,
                json!({"restartPolicy": "Always", "volumeMounts": [{"name": "s", "mountPath": "/s"}]}),
            )],
            // Ends once its sidecar has been started a second time.
            "containers": [container(
                "c",
                "until test -e /s/go; do sleep 0.1; done; echo done",
                json!({"volumeMounts": [{"name": "s", "mountPath": "/s"}]}),
            )],
        }),
    ));

    eventually("all have begun", || order().contains("main begins").then_some(()));
    until(&k, "pod web", "{.status.containerStatuses[0].ready}", "true");
    assert_eq!(k.value("pod web", "{.status.initContainerStatuses[*].started}"), "true true");
    k.ok("delete pod web");
    assert_eq!(order(), "one begins\ntwo begins\nmain begins\nmain ends\ntwo ends\none ends\n");

    until(&k, "pod work", "{.status.initContainerStatuses[0].restartCount}", "1");
    until_running(&k, "work");
    k.ok("exec work -- touch /s/go");
    assert_eq!(printed(&k, "work"), "done", "a sidecar that runs on does not keep the pod from succeeding");
    assert_eq!(k.value("pod work", "{.status.containerStatuses[0].restartCount}"), "0");
    eventually("the sidecar is stopped", || {
        (!k.value("pod work", "{.status.initContainerStatuses[0].state.terminated}").is_empty()).then_some(())
    });
}
