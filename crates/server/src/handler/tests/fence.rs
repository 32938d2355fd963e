//! Writes of a leader whose term is over.

use mainstay_store::Revision;

use super::*;

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/mainstay-test";
const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";

fn lease(holder: &str, transitions: i32, renewed: &str) -> Value {
    json!({
        "metadata": {"name": "mainstay-test"},
        "spec": {
            "holderIdentity": holder, "leaseTransitions": transitions, "leaseDurationSeconds": 4,
            "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": renewed,
        },
    })
}

/// A write of each kind, and what it answers while the term lasts.
fn writes(node: &str, uid: &str) -> Vec<(Method, String, &'static str, Value, u16)> {
    let map = |name: &str| format!("{CONFIG_MAPS}/{name}");
    let pod = |name: &str, rest: &str| format!("{PODS}/{name}{rest}");
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    let applied = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": {"k": "v"}});
    let placement =
        json!({"items": [{"metadata": {"namespace": "default", "name": "placed", "uid": uid}, "node": node}]});
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    vec![
        (Method::POST, CONFIG_MAPS.into(), JSON, config_map("new"), 201),
        (Method::POST, CONFIG_MAPS.into(), JSON, json!({"metadata": {"generateName": "new-"}}), 201),
        (Method::PUT, map("old"), JSON, json!({"metadata": {"name": "old"}, "data": {"k": "v"}}), 200),
        (Method::PATCH, map("old"), MERGE, labels.clone(), 200),
        (Method::PATCH, map("old"), "application/strategic-merge-patch+json", json!({"data": {"k": "w"}}), 200),
        (
            Method::PATCH,
            map("old"),
            "application/json-patch+json",
            json!([{"op": "add", "path": "/data", "value": {"k": "x"}}]),
            200,
        ),
        (Method::PATCH, map("applied?fieldManager=m"), "application/apply-patch+yaml", applied.clone(), 201),
        (
            Method::PATCH,
            map("old?fieldManager=m&force=true"),
            "application/apply-patch+yaml",
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "old"}, "data": {"k": "y"}}),
            200,
        ),
        (Method::DELETE, map("old"), JSON, json!({}), 200),
        (Method::DELETE, CONFIG_MAPS.into(), JSON, json!({}), 200),
        (Method::PATCH, pod("p", "/status"), MERGE, json!({"status": {"message": "seen"}}), 200),
        (
            Method::POST,
            pod("p", "/binding"),
            JSON,
            json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": node}}),
            201,
        ),
        (Method::POST, "/apis/mainstay.dev/v1/placements".into(), JSON, placement, 200),
        (
            Method::POST,
            pod("evicted", "/eviction"),
            JSON,
            json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "evicted"}}),
            201,
        ),
        (Method::PATCH, format!("{deployments}/d/scale"), MERGE, json!({"spec": {"replicas": 3}}), 200),
        (
            Method::PUT,
            "/api/v1/namespaces/going/finalize".into(),
            JSON,
            json!({"metadata": {"name": "going"}, "spec": {"finalizers": []}}),
            200,
        ),
        (Method::DELETE, pod("p", "?gracePeriodSeconds=0"), JSON, json!({}), 200),
    ]
}

impl Server {
    async fn must_create(&self, path: &str, body: Value) -> Value {
        let (code, answer) = self.send(&administrator(), Method::POST, path, &body).await;
        assert_eq!(code, 201, "{answer:#}");
        answer
    }

    /// Makes what the writes are about; the uid of the pod that is placed.
    async fn make_objects(&self) -> String {
        self.must_create("/api/v1/nodes", json!({"metadata": {"name": "n"}})).await;
        self.must_create("/api/v1/namespaces", json!({"metadata": {"name": "going"}})).await;
        self.must_create(CONFIG_MAPS, config_map("old")).await;
        let accounts = "/api/v1/namespaces/default/serviceaccounts";
        let _ = self.send(&administrator(), Method::POST, accounts, &json!({"metadata": {"name": "default"}})).await;
        let mut uid = Value::Null;
        for name in ["p", "evicted", "placed"] {
            let spec = json!({"containers": [{"name": "c", "image": "i"}]});
            let made = self.must_create(PODS, json!({"metadata": {"name": name}, "spec": spec})).await;
            uid = made["metadata"]["uid"].clone();
        }
        let template =
            json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
        self.must_create(
            "/apis/apps/v1/namespaces/default/deployments",
            json!({"metadata": {"name": "d"}, "spec": spec}),
        )
        .await;
        uid.as_str().unwrap().to_owned()
    }

    /// The term that begins when the Lease is written like this.
    async fn begin_term(&self, method: Method, path: &str, lease: &Value) -> Revision {
        let (code, written) = self.send(&administrator(), method, path, lease).await;
        assert!(code == 200 || code == 201, "{written:#}");
        Revision(written["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap())
    }

    async fn acquire(&self, method: Method, path: &str, lease: &Value) -> Fence {
        let term = self.begin_term(method, path, lease).await;
        Fence::new("kube-system", "mainstay-test", term, CancellationToken::new())
    }

    async fn write(&self, fence: &Fence, method: Method, path: &str, content: &str, body: &Value) -> (u16, Value) {
        let request = Request::builder().method(method).uri(path).header("content-type", content);
        let mut request = request.body(Full::from(body.to_string())).unwrap();
        request.extensions_mut().insert(Arc::new(fence.clone()));
        answer(self.0.clone().handle(request, Caller::Internal(Arc::new(User::internal("leader")))).await).await
    }
}

fn result(answer: &Value) -> (u64, &str) {
    let item = if answer["kind"] == "PlacementResultList" { &answer["items"][0] } else { answer };
    (item["code"].as_u64().unwrap_or_default(), item["message"].as_str().unwrap_or_default())
}

#[tokio::test]
async fn every_write_holds_during_its_term_whatever_is_renewed() {
    let server = Server::new(Settings::default()).await;
    let uid = server.make_objects().await;
    let fence = server.acquire(Method::POST, LEASES, &lease("a", 0, "2026-01-01T00:00:00.000000Z")).await;
    for (second, (method, path, content, body, expected)) in writes("n", &uid).into_iter().enumerate() {
        let renewed = lease("a", 0, &format!("2026-01-01T00:01:{second:02}.000000Z"));
        assert_eq!(server.send(&administrator(), Method::PUT, LEASE, &renewed).await.0, 200);
        let (code, answer) = server.write(&fence, method.clone(), &path, content, &body).await;
        assert_eq!(code, expected, "{method} {path}: {answer:#}");
        if answer["kind"] == "PlacementResultList" {
            assert_eq!(result(&answer).0, 201, "{answer:#}");
        }
    }
}

#[tokio::test]
async fn no_write_of_a_deposed_leader_gets_through() {
    let server = Server::new(Settings::default()).await;
    let uid = server.make_objects().await;
    let first = lease("a", 0, "2026-01-01T00:00:00.000000Z");
    let deposed = server.begin_term(Method::POST, LEASES, &first).await;
    // Another holder; the same one in a process of the same name; nobody; and no Lease at all.
    for next in [Some(lease("b", 1, "t")), Some(lease("b", 2, "t")), Some(lease("", 2, "t")), None] {
        match &next {
            Some(next) => {
                let mut next = next.clone();
                next["spec"]["renewTime"] = json!("2026-01-01T00:02:00.000000Z");
                server.acquire(Method::PUT, LEASE, &next).await;
            }
            None => assert_eq!(server.send(&administrator(), Method::DELETE, LEASE, &json!({})).await.0, 200),
        }
        let before = server.0.store().revision().await.unwrap();
        for (method, path, content, body, _) in writes("n", &uid) {
            // It does not know yet: the store itself has to refuse.
            let ended = CancellationToken::new();
            let fence = Fence::new("kube-system", "mainstay-test", deposed, ended.clone());
            let (_, answer) = server.write(&fence, method.clone(), &path, content, &body).await;
            let (code, message) = result(&answer);
            assert_eq!(code, 409, "{method} {path}: {answer:#}");
            assert!(message.contains("no longer holds Lease \"kube-system/mainstay-test\""), "{message}");
            assert!(ended.is_cancelled(), "{method} {path}: the leader learns that it lost");
            let (_, again) = server.write(&fence, method, &path, content, &body).await;
            assert_eq!(result(&again).0, 409, "and is refused at once from then on");
        }
        assert_eq!(server.0.store().revision().await.unwrap(), before, "nothing was written");
    }
    // Others write as before, and the next leader does.
    assert_eq!(server.send(&administrator(), Method::POST, CONFIG_MAPS, &config_map("free")).await.0, 201);
    let next = server.acquire(Method::POST, LEASES, &first).await;
    assert_eq!(server.write(&next, Method::POST, CONFIG_MAPS, JSON, &config_map("next")).await.0, 201);
}

#[tokio::test]
async fn expiry_is_the_leaders_too() {
    use crate::background::event_expiry::{sweep_bootstrap_tokens, sweep_events};

    let server = Server::new(Settings { event_ttl: Duration::from_secs(1), ..Settings::default() }).await;
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}});
    server.must_create("/api/v1/namespaces/default/events", event).await;
    let token = json!({
        "metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token",
        "stringData": {"token-id": "abcdef", "token-secret": "0123456789abcdef", "expiration": "2020-01-02T00:00:00Z"},
    });
    server.must_create("/api/v1/namespaces/kube-system/secrets", token).await;
    let deposed = server.acquire(Method::POST, LEASES, &lease("a", 0, "2026-01-01T00:00:00.000000Z")).await;
    let next = server.acquire(Method::PUT, LEASE, &lease("b", 1, "2026-01-01T00:00:00.000000Z")).await;
    let later = Timestamp::now() + Duration::from_secs(3600);
    let before = server.0.store().revision().await.unwrap();
    assert!(sweep_events(&server.0, later, Some(&deposed)).await.is_err());
    assert!(sweep_bootstrap_tokens(&server.0, later, Some(&deposed)).await.is_err());
    assert_eq!(server.0.store().revision().await.unwrap(), before);
    sweep_events(&server.0, later, Some(&next)).await.unwrap();
    sweep_bootstrap_tokens(&server.0, later, Some(&next)).await.unwrap();
    for path in ["/api/v1/namespaces/default/events/e", "/api/v1/namespaces/kube-system/secrets/bootstrap-token-abcdef"]
    {
        assert_eq!(server.send(&administrator(), Method::GET, path, &json!(null)).await.0, 404, "{path}");
    }
}
