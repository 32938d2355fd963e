//! Variables of containers, from everywhere they can come from.

use serde_json::json;

use super::{container, manifest, once, printed, until_running};
use crate::{
    harness::{Kubectl, Version, eventually},
    restarts::until,
};

#[test]
fn variables_come_from_config_maps_secrets_the_pod_and_each_other() {
    let k = Kubectl::with_pods(Version::V1_32);
    k.ok("create configmap c --from-literal=COLOUR=blue --from-literal=SIZE=9");
    k.ok("create secret generic s --from-literal=PASSWORD=sesame");
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let resource = |name: &str, which: &str, divisor: &str| json!({"name": name, "valueFrom": {"resourceFieldRef": {"resource": which, "divisor": divisor}}});
    let variables = json!({
        "resources": {"requests": {"cpu": "250m", "memory": "32Mi"}, "limits": {"memory": "64Mi"}},
        "envFrom": [
            {"configMapRef": {"name": "c"}},
            {"prefix": "SECRET_", "secretRef": {"name": "s"}},
            {"configMapRef": {"name": "no-such-map", "optional": true}},
        ],
        "env": [
            {"name": "SIZE", "value": "10"},
            {"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "COLOUR"}}},
            {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "s", "key": "PASSWORD"}}},
            {"name": "NONE", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "no-such-key", "optional": true}}},
            {"name": "BOTH", "value": "$(KEY)-$(SIZE)-$(UNKNOWN)-$$(KEY)"},
            field("POD", "metadata.name"),
            field("NAMESPACE", "metadata.namespace"),
            field("NODE", "spec.nodeName"),
            field("ADDRESS", "status.podIP"),
            field("LABEL", "metadata.labels['app']"),
            field("ACCOUNT", "spec.serviceAccountName"),
            resource("CPU", "requests.cpu", "1m"),
            resource("MEMORY", "limits.memory", "1Mi"),
        ],
    });
    let script = "env | grep -E '^(COLOUR|SIZE|SECRET_PASSWORD|KEY|WORD|NONE|BOTH|POD|NAMESPACE|NODE|LABEL|ACCOUNT|CPU|MEMORY)=' | sort; \
                  echo address $ADDRESS; echo api $KUBERNETES_SERVICE_HOST; echo \"$0\" \"$1\"; exec sleep 1000";
    let mut pod: serde_json::Value = serde_json::from_str(&once("p", script, variables, json!({}))).unwrap();
    pod["metadata"]["labels"] = json!({"app": "web"});
    pod["spec"]["containers"][0]["args"] = json!(["of $(POD)", "$(WORD)"]);
    k.create(&pod.to_string());
    until_running(&k, "p");
    let log = eventually("all of its log", || Some(k.ok("logs p")).filter(|log| log.contains("of p")));
    let address = k.value("pod p", "{.status.podIP}");
    let api = k.value("service kubernetes", "{.spec.clusterIP}");
    let expected = format!(
        "ACCOUNT=default\nBOTH=blue-10-$(UNKNOWN)-$(KEY)\nCOLOUR=blue\nCPU=250\nKEY=blue\nLABEL=web\nMEMORY=64\n\
         NAMESPACE=default\nNODE=here\nPOD=p\nSECRET_PASSWORD=sesame\nSIZE=10\nWORD=sesame\n\
         address {address}\napi {api}\nof p sesame"
    );
    assert_eq!(log, expected);
    assert!(!address.is_empty() && !api.is_empty());
}

#[test]
fn variables_come_from_a_file_that_an_init_container_wrote() {
    let k = Kubectl::with_pods(Version::V1_32);
    let variable = |name: &str, path: &str, key: &str, optional: bool| {
        let reference = json!({"volumeName": "shared", "path": path, "key": key, "optional": optional});
        json!({"name": name, "valueFrom": {"fileKeyRef": reference}})
    };
    let pod = |name: &str, write: &str, variables: serde_json::Value| {
        let shared = json!({"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]});
        let script = r#"echo "$COLOUR|$SIZE|${NONE-unset}"; ls /shared 2>&1 | head -n 1"#;
        manifest(
            name,
            json!({
                "restartPolicy": "Never", "volumes": [{"name": "shared", "emptyDir": {}}],
                "initContainers": [container("write", write, shared)],
                "containers": [container("c", script, json!({"env": variables}))],
            }),
        )
    };
    let write = r##"mkdir /shared/app; printf "# by init\nCOLOUR='deep\nblue' # sky\n SIZE='9'\n" > /shared/app/env"##;
    let found = json!([
        variable("COLOUR", "app/env", "COLOUR", false),
        variable("SIZE", "app/env", "SIZE", false),
        variable("NONE", "app/env", "WEIGHT", true),
    ]);
    k.create(&pod("reads", write, found));
    k.create(&pod("lacks", write, json!([variable("COLOUR", "app/env", "WEIGHT", false)])));
    k.create(&pod("broken", "echo COLOUR=blue > /shared/env", json!([variable("COLOUR", "env", "COLOUR", true)])));
    let log = printed(&k, "reads");
    assert!(log.starts_with("deep\nblue|9|unset\n"), "{log}");
    assert!(log.contains("No such file"), "the volume need not be mounted: {log}");
    for (name, expected) in [
        ("lacks", r#"environment variable key "WEIGHT" not found in file "app/env" of volume "shared""#),
        (
            "broken",
            r#"couldn't parse env file "env": invalid environment variable format at line 1: value must be enclosed in single quotes"#,
        ),
    ] {
        let what = format!("pod {name}");
        until(&k, &what, "{.status.containerStatuses[0].state.waiting.reason}", "CreateContainerConfigError");
        assert_eq!(k.value(&what, "{.status.containerStatuses[0].state.waiting.message}"), expected);
    }
}
