//! Klusters as clients meet them: two groups over the same objects, and what is refused because of others.

use super::*;

const KLUSTERS: &str = "/apis/mainstay.dev/v1/namespaces/default/klusters";
const OLD: &str = "/apis/kubernikus.sap.cc/v1/namespaces/default/klusters";
const POOLS: &str = "/apis/mainstay.dev/v1/namespaces/default/nodepools";

fn kluster(name: &str, spec: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": spec})
}

#[tokio::test]
async fn a_manifest_of_kubernikus_is_the_same_object() {
    let server = Server::new(Settings::default()).await;
    let admin = administrator();
    let pool = json!({"name": "small", "size": 1, "flavor": "m1", "labels": ["a=b"], "taints": ["x=y:NoSchedule"]});
    let mut old = kluster("berlin", json!({"nodePools": [pool]}));
    old["apiVersion"] = "kubernikus.sap.cc/v1".into();
    old["kind"] = "Kluster".into();
    let (code, created) = server.send(&admin, Method::POST, OLD, &old).await;
    assert_eq!(code, 201, "{created}");
    assert_eq!(created["apiVersion"], "kubernikus.sap.cc/v1");
    assert_eq!(created["status"]["phase"], "Pending");
    assert_eq!(created["spec"]["nodePools"][0]["labels"], json!(["a=b"]));
    let (code, mut served) = server.send(&admin, Method::GET, &format!("{KLUSTERS}/berlin"), &Value::Null).await;
    assert_eq!((code, &served["apiVersion"]), (200, &json!("mainstay.dev/v1")), "{served}");
    assert_eq!(served["metadata"]["uid"], created["metadata"]["uid"]);
    assert_eq!(served["spec"]["nodePools"][0]["labels"], json!({"a": "b"}));
    assert_eq!(served["spec"]["serviceCIDR"], "198.18.128.0/17");
    served["status"] = json!({"phase": "Running", "apiserver": "https://x"});
    let (code, updated) = server.send(&admin, Method::PUT, &format!("{KLUSTERS}/berlin/status"), &served).await;
    assert_eq!(code, 200, "{updated}");
    let (code, listed) = server.send(&admin, Method::GET, OLD, &Value::Null).await;
    assert_eq!((code, listed["items"].as_array().map(Vec::len)), (200, Some(1)), "{listed}");
    assert_eq!(listed["items"][0]["status"]["phase"], "Running");
    let (code, status) =
        server.send(&admin, Method::POST, OLD, &kluster("x", json!({"nodePools": [{"name": "A"}]}))).await;
    assert_eq!((code, &status["details"]["causes"][0]["field"]), (422, &json!("spec.nodePools[0].name")), "{status}");
}

#[tokio::test]
async fn ranges_that_overlap_are_a_conflict_that_names_the_other() {
    let server = Server::new(Settings::default()).await;
    let admin = administrator();
    let on = |range: &str, router: &str| json!({"clusterCIDR": range, "openstack": {"routerID": router}});
    let send = async |path: &str, object: Value| server.send(&admin, Method::POST, path, &object).await;
    assert_eq!(send(KLUSTERS, kluster("a", on("100.64.0.0/16", "r1"))).await.0, 201);
    for path in [KLUSTERS, OLD] {
        let (code, status) = send(path, kluster("b", on("100.64.1.0/24", "r1"))).await;
        assert_eq!((code, &status["reason"]), (409, &json!("Conflict")), "{status}");
        assert!(status["message"].as_str().unwrap().contains("Kluster default/a on the same router"), "{status}");
    }
    assert_eq!(send(KLUSTERS, kluster("b", on("100.64.1.0/24", "r2"))).await.0, 201);
    let (code, status) = send(KLUSTERS, kluster("c", on("10.96.0.0/16", "r3"))).await;
    assert_eq!(code, 409, "{status}");
    let (code, status) = send(KLUSTERS, kluster("c", json!({"clusterCIDR": ""}))).await;
    assert_eq!((code, &status["details"]["causes"][0]["field"]), (422, &json!("spec.clusterCIDR")), "{status}");
    // Of many at once on one router, one is admitted.
    let many = (0..6).map(|n| {
        let object = kluster(&format!("m{n}"), on("100.70.0.0/16", "r7"));
        let server = &server;
        let admin = &admin;
        async move { server.send(admin, Method::POST, KLUSTERS, &object).await.0 }
    });
    let mut codes = futures::future::join_all(many).await;
    codes.sort_unstable();
    assert_eq!(codes, [201, 409, 409, 409, 409, 409]);
}

#[tokio::test]
async fn a_protected_kluster_and_a_pool_with_machines_are_not_deleted() {
    let server = Server::new(Settings::default()).await;
    let admin = administrator();
    let mut protected = kluster("a", json!({}));
    protected["metadata"]["annotations"] = json!({"kubernikus.cloud.sap/termination-protection": "yes"});
    protected["metadata"]["finalizers"] = json!(["groundctl"]);
    assert_eq!(server.send(&admin, Method::POST, KLUSTERS, &protected).await.0, 201);
    for path in [KLUSTERS, OLD] {
        let (code, status) = server.send(&admin, Method::DELETE, &format!("{path}/a"), &Value::Null).await;
        assert_eq!((code, &status["reason"]), (403, &json!("Forbidden")), "{status}");
    }
    let (code, status) = server.send(&admin, Method::DELETE, KLUSTERS, &Value::Null).await;
    assert_eq!(code, 403, "a collection is no way around: {status}");
    let pool = json!({"metadata": {"name": "p"}, "spec": {"kluster": "a", "flavor": "m1", "size": 2}});
    assert_eq!(server.send(&admin, Method::POST, POOLS, &pool).await.0, 201);
    let (code, status) = server.send(&admin, Method::DELETE, &format!("{POOLS}/p"), &Value::Null).await;
    assert_eq!(code, 403, "{status}");
    let (_, mut object) = server.send(&admin, Method::GET, &format!("{KLUSTERS}/a"), &Value::Null).await;
    object["metadata"]["annotations"] = json!({});
    assert_eq!(server.send(&admin, Method::PUT, &format!("{KLUSTERS}/a"), &object).await.0, 200);
    let (code, deleted) = server.send(&admin, Method::DELETE, &format!("{OLD}/a"), &Value::Null).await;
    assert_eq!(code, 200, "{deleted}");
    assert!(deleted["metadata"]["deletionTimestamp"].is_string(), "{deleted}");
    assert_eq!(server.send(&admin, Method::DELETE, &format!("{POOLS}/p"), &Value::Null).await.0, 200);
}
