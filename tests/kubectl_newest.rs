//! The newest kubectl that Debian has: what people do with it first. All that kubectl does is tested with 1.20 and 1.32.

use serde_json::json;

use crate::harness::{Kubectl, Version};

fn deployment(image: &str) -> String {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {
            "replicas": 2, "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "image": image, "ports": [{"containerPort": 80}]}]},
            },
        },
    })
    .to_string()
}

#[test]
fn the_newest_kubectl_creates_applies_explains_and_deletes() {
    let k = Kubectl::start(Version::Newest);
    assert_eq!(k.json("version -o json")["serverVersion"]["minor"], "37");
    assert_eq!(k.apply(&deployment("web:1")), "deployment.apps/web created");
    assert_eq!(k.apply(&deployment("web:1")), "deployment.apps/web unchanged");
    assert_eq!(k.run_with("diff -f -", &deployment("web:1")).ok(), "");
    assert_eq!(k.apply(&deployment("web:2")), "deployment.apps/web configured");
    for _ in 0..2 {
        let applied = k.run_with("apply --server-side --force-conflicts -f -", &deployment("web:3")).ok();
        assert_eq!(applied.trim_end(), "deployment.apps/web serverside-applied");
    }
    assert_eq!(k.run_with("diff --server-side --force-conflicts -f -", &deployment("web:3")).ok(), "");
    let conflict = deployment("web:4");
    let conflict = k.run_with("apply --server-side --field-manager=other -f -", &conflict).refused();
    assert!(conflict.contains("conflict with \"kubectl\"") && conflict.contains(".image"), "{conflict}");

    k.ok("scale deployment web --replicas=3");
    assert_eq!(k.ok("get deployment web --subresource=scale -o jsonpath={.spec.replicas}"), "3");
    k.ok("set image deployment/web web=web:5");
    assert!(k.ok("get deployments -o wide").contains("web:5"));
    assert!(k.ok("describe deployment web").contains("web:5"));
    assert!(k.ok("explain deployment.spec.strategy.rollingUpdate").contains("maxSurge"));
    assert!(k.ok("api-resources --api-group=apps").contains("statefulsets"));
    k.ok("create configmap settings --from-literal=a=1");
    k.ok("wait --for=create configmap/settings --timeout=60s");
    k.ok("wait --for=jsonpath={.data.a}=1 configmap/settings --timeout=60s");
    k.ok("patch configmap settings --type=merge -p '{\"data\":{\"b\":\"2\"}}'");
    assert!(k.ok("get configmap settings -o yaml").contains("b: \"2\""));
    assert_eq!(k.ok("auth can-i create pods"), "yes");
    assert!(k.ok("auth whoami").contains("system:masters"));
    k.ok("create serviceaccount bot");
    assert_eq!(k.ok("create token bot").split('.').count(), 3);
    k.ok("delete deployment,configmap web settings --ignore-not-found");
    assert_eq!(k.ok("get deployments"), "");
}
