//! Init containers: their order, and what a failing one means for the pod.

use serde_json::json;

use super::{container, manifest, printed, until_running};
use crate::{
    harness::{Kubectl, Version, eventually},
    restarts::until,
};

#[test]
fn init_containers_run_in_order_and_the_restart_policy_decides_about_one_that_fails() {
    let k = Kubectl::with_pods(Version::V1_32);
    let volumes = json!([{"name": "s", "emptyDir": {}}]);
    let shared = || json!({"volumeMounts": [{"name": "s", "mountPath": "/s"}]});
    let step = |name: &str| {
        let script = format!("echo {name} begins >> /s/order; sleep 0.3; echo {name} ends >> /s/order");
        container(name, &script, shared())
    };
    k.create(&manifest(
        "ordered",
        json!({
            "restartPolicy": "Never", "volumes": volumes,
            "initContainers": [step("first"), step("second"), step("third")],
            "containers": [container("c", "cat /s/order", shared())],
        }),
    ));
    k.create(&manifest(
        "retried",
        json!({
            "volumes": volumes,
            "initContainers": [
                step("first"),
                container("second", "echo second tries >> /s/order; test $(wc -l < /s/order) -ge 5", shared()),
            ],
            "containers": [container("c", "cat /s/order; exec sleep 1000", shared())],
        }),
    ));
    k.create(&manifest(
        "failed",
        json!({
            "restartPolicy": "Never",
            "initContainers": [container("first", "exit 4", json!({})), container("second", "true", json!({}))],
            "containers": [container("c", "true", json!({}))],
        }),
    ));
    k.create(&manifest(
        "hopeless",
        json!({
            "restartPolicy": "OnFailure",
            "initContainers": [container("first", "exit 5", json!({}))],
            "containers": [container("c", "true", json!({}))],
        }),
    ));

    let order = "first begins\nfirst ends\nsecond begins\nsecond ends\nthird begins\nthird ends";
    assert_eq!(printed(&k, "ordered"), order);
    let ends = "{.status.initContainerStatuses[*].state.terminated.reason}";
    assert_eq!(k.value("pod ordered", ends), "Completed Completed Completed");

    until(&k, "pod failed", "{.status.phase}", "Failed");
    let codes = "{.status.initContainerStatuses[*].state.terminated.exitCode}";
    assert_eq!(k.value("pod failed", codes), "4", "the second never ran");
    assert_eq!(k.value("pod failed", "{.status.initContainerStatuses[0].restartCount}"), "0");
    let waiting = "{.status.containerStatuses[0].state.waiting.reason}";
    assert_eq!(k.value("pod failed", waiting), "PodInitializing");
    let columns = k.ok("get pod failed --no-headers");
    assert!(columns.contains("Init:Error"), "{columns}");

    until_running(&k, "retried");
    assert_eq!(k.value("pod retried", "{.status.initContainerStatuses[*].restartCount}"), "0 2");
    let order = "first begins\nfirst ends\nsecond tries\nsecond tries\nsecond tries";
    eventually("all of its log", || (k.ok("logs retried") == order).then_some(()));
    assert_eq!(k.value("pod retried", r#"{.status.conditions[?(@.type=="Initialized")].status}"#), "True");

    eventually("hopeless is tried again and again", || {
        (k.value("pod hopeless", "{.status.initContainerStatuses[0].restartCount}").parse::<u32>().ok()? >= 2)
            .then_some(())
    });
    assert_eq!(k.value("pod hopeless", "{.status.phase}"), "Pending");
    assert_eq!(k.value("pod hopeless", r#"{.status.conditions[?(@.type=="Initialized")].status}"#), "False");
    eventually("hopeless is said to wait", || {
        k.ok("get pod hopeless --no-headers").contains("Init:CrashLoopBackOff").then_some(())
    });
}
