//! What a pod can read about itself in files: the downward API and service account tokens.

use serde_json::json;

use super::{container, manifest, shell, until_running};
use crate::harness::{Kubectl, Version, eventually};

/// Whom the server takes the bearer of a token for.
fn reviewed(k: &Kubectl, token: &str, audience: Option<&str>) -> String {
    let audiences: Vec<&str> = audience.into_iter().collect();
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
        "spec": {"token": token, "audiences": audiences},
    });
    let path = "{.status.authenticated} {.status.user.username}";
    k.run_with(&format!("create --validate=false -f - -o 'jsonpath={path}'"), &review.to_string()).ok()
}

#[test]
fn the_downward_api_follows_the_pod_and_tokens_are_the_pods_own() {
    let k = Kubectl::with_pods(Version::V1_32);
    k.ok("create serviceaccount robot");
    let field = |path: &str, field: &str| json!({"path": path, "fieldRef": {"fieldPath": field}});
    let limit = json!({"path": "memory", "resourceFieldRef": {
        "containerName": "c", "resource": "limits.memory", "divisor": "1Mi",
    }});
    let fields = json!({
        "resources": {"limits": {"memory": "64Mi"}},
        "volumeMounts": [{"name": "about", "mountPath": "/about"}, {"name": "identity", "mountPath": "/identity"}],
    });
    let mut pod: serde_json::Value = serde_json::from_str(&manifest(
        "p",
        json!({
            "serviceAccountName": "robot",
            "containers": [container("c", "exec sleep 1000", fields)],
            "volumes": [
                {"name": "about", "downwardAPI": {"items": [
                    field("name", "metadata.name"), field("labels", "metadata.labels"), field("uid", "metadata.uid"), limit,
                ]}},
                {"name": "identity", "projected": {"sources": [
                    {"serviceAccountToken": {"path": "vault", "audience": "vault", "expirationSeconds": 600}},
                    {"downwardAPI": {"items": [field("namespace", "metadata.namespace")]}},
                ]}},
            ],
        }),
    ))
    .unwrap();
    pod["metadata"]["labels"] = json!({"app": "web"});
    k.create(&pod.to_string());
    k.create(&manifest(
        "without",
        json!({
            "automountServiceAccountToken": false,
            "containers": [container("c", "exec sleep 1000", json!({}))],
        }),
    ));
    until_running(&k, "p");
    assert_eq!(
        shell(&k, "p", "cat /about/name; echo; cat /about/labels; echo; cat /about/memory"),
        "p\napp=\"web\"\n64"
    );
    assert_eq!(shell(&k, "p", "cat /about/uid"), k.value("pod p", "{.metadata.uid}"));
    k.ok("label pod p tier=front");
    eventually("the new label", || {
        (shell(&k, "p", "cat /about/labels") == "app=\"web\"\ntier=\"front\"").then_some(())
    });

    let own = "/var/run/secrets/kubernetes.io/serviceaccount";
    assert_eq!(shell(&k, "p", &format!("cat {own}/namespace /identity/namespace")), "defaultdefault");
    assert!(shell(&k, "p", &format!("cat {own}/ca.crt")).starts_with("-----BEGIN CERTIFICATE-----"));
    let token = shell(&k, "p", &format!("cat {own}/token"));
    assert_eq!(reviewed(&k, &token, None), "true system:serviceaccount:default:robot");
    let vault = shell(&k, "p", "cat /identity/vault");
    assert_eq!(reviewed(&k, &vault, Some("vault")), "true system:serviceaccount:default:robot");
    assert!(!reviewed(&k, &vault, None).starts_with("true"), "a token for somebody else is not for the API");

    until_running(&k, "without");
    assert_eq!(shell(&k, "without", &format!("ls {own} 2>/dev/null || echo none")), "none");
    k.ok("delete pod p");
    assert!(!reviewed(&k, &token, None).starts_with("true"), "a token ends with its pod");
}
