//! ConfigMaps and Secrets as files: content, modes, single keys, and changes that reach a running pod.

use serde_json::json;

use super::{container, manifest, once, printed, shell, until_running};
use crate::{
    harness::{Kubectl, Version, eventually},
    restarts::until,
};

#[test]
fn config_maps_and_secrets_are_files_with_the_content_names_and_modes_asked_for() {
    let k = Kubectl::with_pods(Version::V1_32);
    k.ok("create configmap c --from-literal=a=alpha --from-literal=b=beta");
    k.ok("create secret generic s --from-literal=password=sesame");
    let script = "
        cat /all/a; echo; cat /all/b; echo; ls /some /nothing; cat /some/deep/er/a; echo
        stat -L -c %a /all/a /some/deep/er/a /secret/password; cat /secret/password; echo
        cat /etc/one.conf; echo; cat /projected/a; echo; cat /projected/hidden/password; echo
        touch /all/new 2>/dev/null || echo read-only
        findmnt -n -o FSTYPE -T /secret";
    let mounts = json!({"volumeMounts": [
        {"name": "all", "mountPath": "/all"},
        {"name": "some", "mountPath": "/some"},
        {"name": "nothing", "mountPath": "/nothing"},
        {"name": "secret", "mountPath": "/secret"},
        {"name": "projected", "mountPath": "/projected"},
        {"name": "all", "mountPath": "/etc/one.conf", "subPath": "b"},
    ]});
    let volumes = json!({"volumes": [
        {"name": "all", "configMap": {"name": "c"}},
        {"name": "some", "configMap": {"name": "c", "items": [{"key": "a", "path": "deep/er/a", "mode": 0o440}]}},
        {"name": "nothing", "configMap": {"name": "no-such-map", "optional": true}},
        {"name": "secret", "secret": {"secretName": "s", "defaultMode": 0o400}},
        {"name": "projected", "projected": {"sources": [
            {"configMap": {"name": "c"}},
            {"secret": {"name": "s", "items": [{"key": "password", "path": "hidden/password"}]}},
            {"secret": {"name": "no-such-secret", "optional": true}},
        ]}},
    ]});
    k.create(&once("p", script, mounts, volumes));
    let expected =
        "alpha\nbeta\n/nothing:\n\n/some:\ndeep\nalpha\n644\n440\n400\nsesame\nbeta\nalpha\nsesame\nread-only\ntmpfs";
    assert_eq!(printed(&k, "p"), expected, "secrets are never on the disk");

    let missing = json!({"volumes": [{"name": "v", "configMap": {"name": "c", "items": [{"key": "z", "path": "z"}]}}]});
    k.create(&once("no-key", "true", json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}), missing));
    eventually("the missing key is named", || {
        let output = k.ok("get events --field-selector involvedObject.name=no-key,reason=FailedMount");
        output.contains("references non-existent config key: z").then_some(())
    });
}

#[test]
fn a_change_reaches_the_running_pod_whole_and_a_missing_config_map_is_waited_for() {
    let k = Kubectl::with_pods(Version::V1_32);
    let map = |name: &str, value: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": value, "b": value}})
            .to_string()
    };
    k.create(&map("c", "1"));
    k.ok("create secret generic s --from-literal=password=old");
    // Both keys are read through one resolved directory, over and over: they are of one version.
    let torn = "
        while :; do
            d=$(readlink /c/..data) && a=$(cat /c/$d/a 2>/dev/null) && b=$(cat /c/$d/b 2>/dev/null) || continue
            test \"$a\" = \"$b\" || echo torn: $a $b
            sleep 0.01
        done";
    let mounts = json!({"volumeMounts": [
        {"name": "c", "mountPath": "/c"},
        {"name": "c", "mountPath": "/fixed", "subPath": "a"},
        {"name": "s", "mountPath": "/s"},
        {"name": "later", "mountPath": "/later"},
    ]});
    k.create(&manifest(
        "reader",
        json!({
            "containers": [container("c", torn, mounts)],
            "volumes": [
                {"name": "c", "configMap": {"name": "c"}},
                {"name": "s", "secret": {"secretName": "s"}},
                {"name": "later", "configMap": {"name": "later", "optional": true}},
            ],
        }),
    ));
    let waits = |name: &str, spec: serde_json::Value, fields: serde_json::Value| {
        let script = "cat /late/a 2>/dev/null; echo $FROM_LATE; exec sleep 1000";
        let spec = json!({"containers": [container("c", script, fields)], "volumes": spec});
        k.create(&manifest(name, spec));
    };
    let volume = json!([{"name": "late", "configMap": {"name": "late"}}]);
    waits("files", volume, json!({"volumeMounts": [{"name": "late", "mountPath": "/late"}]}));
    let from = json!({"name": "FROM_LATE", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "a"}}});
    waits("variables", json!([]), json!({"env": [from]}));

    until_running(&k, "reader");
    for value in ["2", "3"] {
        k.apply(&map("c", value));
        eventually("the new content", || {
            (shell(&k, "reader", "cat /c/a /c/b") == format!("{value}{value}")).then_some(())
        });
    }
    assert_eq!(shell(&k, "reader", "cat /fixed"), "1", "a subPath stays what it was when the container started");
    k.ok(r#"patch secret s -p '{"stringData":{"password":"new"}}'"#);
    eventually("the new secret", || (shell(&k, "reader", "cat /s/password") == "new").then_some(()));
    k.create(&map("later", "here"));
    eventually("what was optional appears", || (k.run("exec reader -- cat /later/a").stdout == "here").then_some(()));
    k.ok("delete configmap later");
    eventually("and goes", || (k.run("exec reader -- ls /later").stdout.is_empty()).then_some(()));
    assert_eq!(k.ok("logs reader"), "");
    assert_eq!(k.value("pod reader", "{.status.containerStatuses[0].restartCount}"), "0");

    until(&k, "pod variables", "{.status.containerStatuses[0].state.waiting.reason}", "CreateContainerConfigError");
    until(&k, "pod files", "{.status.containerStatuses[0].state.waiting.reason}", "ContainerCreating");
    eventually("its volume is said to be missing", || {
        let output = k.ok("get events --field-selector involvedObject.name=files,reason=FailedMount");
        output.contains(r#"configmap "late" not found"#).then_some(())
    });
    k.create(&map("late", "found"));
    for name in ["files", "variables"] {
        until_running(&k, name);
        eventually("what it read", || k.ok(&format!("logs {name}")).contains("found").then_some(()));
        assert_eq!(k.value(&format!("pod {name}"), "{.status.containerStatuses[0].restartCount}"), "0");
    }
}
