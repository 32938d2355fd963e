//! The same pods with containerd in place of the built-in runtime.

use mainstay_runtime::suite::{containerd::Containerd, image};
use serde_json::{Value, json};

use super::{manifest, merged, printed, shell, until_running};
use crate::{
    harness::{Kubectl, Version, eventually},
    restarts::until,
};

fn container(name: &str, script: &str, more: Value) -> Value {
    merged(super::container(name, script, json!({"image": image::PLAIN, "imagePullPolicy": "IfNotPresent"})), more)
}

#[test]
fn pods_run_in_containerd_as_they_do_in_the_built_in_runtime() {
    let containerd = Containerd::start();
    let runtime = format!("cri://{}", containerd.socket().display());
    let k = Kubectl::with_pods_and(Version::V1_32, &["--runtime", &runtime]);
    k.ok("create configmap c --from-literal=a=alpha");
    let shared = || json!({"volumeMounts": [{"name": "s", "mountPath": "/s"}, {"name": "c", "mountPath": "/c"}]});
    let volumes = json!([{"name": "s", "emptyDir": {}}, {"name": "c", "configMap": {"name": "c"}}]);
    k.create(&manifest(
        "work",
        json!({
            "restartPolicy": "Never", "volumes": volumes,
            "initContainers": [container("i", "echo prepared > /s/file", shared())],
            "containers": [container("c", "cat /s/file /c/a; echo; id -u; grep NoNewPrivs /proc/self/status", merged(shared(), json!({
                "securityContext": {"runAsUser": 1234, "allowPrivilegeEscalation": false},
            })))],
        }),
    ));
    let web = json!({"volumes": volumes, "containers": [container("c", "trap 'exit 0' TERM; while :; do sleep 0.1; done", shared())]});
    k.create(&manifest("web", web));
    k.create(&manifest("ill", json!({"containers": [container("c", "exit 3", json!({}))]})));

    assert_eq!(printed(&k, "work"), "prepared\nalpha\n1234\nNoNewPrivs:\t1");
    until_running(&k, "web");
    assert_eq!(shell(&k, "web", "echo within; cat /c/a"), "within\nalpha");
    k.ok(r#"patch configmap c -p '{"data":{"a":"beta"}}'"#);
    eventually("the new content", || (shell(&k, "web", "cat /c/a") == "beta").then_some(()));
    until(&k, "pod ill", "{.status.containerStatuses[0].lastState.terminated.exitCode}", "3");
    eventually("ill is started again", || {
        (k.value("pod ill", "{.status.containerStatuses[0].restartCount}").parse::<u32>().ok()? >= 2).then_some(())
    });
    let id = k.value("pod web", "{.status.containerStatuses[0].containerID}");
    let id = id.strip_prefix("containerd://").unwrap_or_else(|| panic!("{id} is not containerd's"));
    assert!(containerd.ctr(&["containers", "ls", "-q"]).lines().any(|line| line == id), "{id}");
    assert!(k.value("node here", "{.status.nodeInfo.containerRuntimeVersion}").starts_with("containerd://"));
    k.ok("delete pod --all --timeout=30s");
    eventually("nothing is left in containerd", || {
        containerd.ctr(&["containers", "ls", "-q"]).trim().is_empty().then_some(())
    });
}
