//! Admission webhooks: what they are asked, what they can do, and what becomes of writes when they are down, hang or
//! answer garbage.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;

type Answer = Arc<dyn Fn(&str, &Value) -> Reply + Send + Sync>;

enum Reply {
    Text(u16, String),
    Never,
}

/// An HTTPS server that answers reviews.
struct Backend {
    address: SocketAddr,
    certificate: String,
    connections: Arc<AtomicUsize>,
    asked: Arc<Mutex<Vec<Value>>>,
}

impl Backend {
    async fn start(answer: impl Fn(&str, &Value) -> Reply + Send + Sync + 'static) -> Self {
        let issued = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::try_from(issued.signing_key.serialize_der()).unwrap();
        let config = rustls::ServerConfig::builder_with_provider(mainstay_tls::provider());
        let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let config = config.with_single_cert(vec![issued.cert.der().clone()], key).unwrap();
        let tls = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let backend = Self {
            address: listener.local_addr().unwrap(),
            certificate: BASE64_STANDARD.encode(issued.cert.pem()),
            connections: Arc::default(),
            asked: Arc::default(),
        };
        let (connections, asked, answer) =
            (backend.connections.clone(), backend.asked.clone(), Arc::new(answer) as Answer);
        tokio::spawn(async move {
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                connections.fetch_add(1, Ordering::SeqCst);
                let (tls, asked, answer) = (tls.clone(), asked.clone(), answer.clone());
                tokio::spawn(async move {
                    let Ok(stream) = tls.accept(tcp).await else { return };
                    let serve = service_fn(|request: Request<hyper::body::Incoming>| {
                        let (asked, answer) = (asked.clone(), answer.clone());
                        async move {
                            let path = request.uri().path().to_owned();
                            let body = request.into_body().collect().await.unwrap().to_bytes();
                            let review: Value = serde_json::from_slice(&body).unwrap();
                            asked.lock().push(review.clone());
                            match answer(&path, &review) {
                                Reply::Text(code, text) => Ok::<_, Infallible>(
                                    http::Response::builder().status(code).body(Full::<Bytes>::from(text)).unwrap(),
                                ),
                                Reply::Never => std::future::pending().await,
                            }
                        }
                    });
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), serve).await;
                });
            }
        });
        backend
    }

    fn hook(&self, name: &str, path: &str, more: Value) -> Value {
        let url = format!("https://{}{path}", self.address);
        hook(name, json!({ "url": url, "caBundle": self.certificate }), more)
    }
}

fn hook(name: &str, client_config: Value, more: Value) -> Value {
    let mut hook = json!({
        "name": format!("{name}.example.com"), "clientConfig": client_config, "timeoutSeconds": 1,
        "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "rules": [{ "operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["configmaps", "pods"] }],
    });
    hook.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    hook
}

fn allow(review: &Value, more: Value) -> Reply {
    let mut response = json!({ "uid": review["request"]["uid"], "allowed": true });
    response.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Reply::Text(
        200,
        json!({ "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response }).to_string(),
    )
}

fn patch(operations: Value) -> Value {
    json!({ "patchType": "JSONPatch", "patch": BASE64_STANDARD.encode(operations.to_string()) })
}

async fn configure(server: &Server, plural: &str, hooks: Vec<Value>) {
    let path = format!("/apis/admissionregistration.k8s.io/v1/{plural}");
    let configuration = json!({ "metadata": { "name": "test" }, "webhooks": hooks });
    let (code, created) = server.send(&administrator(), Method::POST, &path, &configuration).await;
    assert_eq!(code, 201, "{created}");
}

async fn create_map(server: &Server, name: &str) -> (u16, Value) {
    server.send(&administrator(), Method::POST, CONFIG_MAPS, &config_map(name)).await
}

async fn failure(server: &Server) -> String {
    let (code, status) = create_map(server, "refused").await;
    assert_eq!((code, &status["reason"]), (500, &json!("InternalError")), "{status}");
    status["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn webhooks_change_and_judge_what_is_written() {
    let server = Server::new(Settings::default()).await;
    let backend = Backend::start(|path, review| match (path, review["request"]["name"].as_str()) {
        ("/mutate", _) if review["request"]["operation"] == "CREATE" => {
            allow(review, patch(json!([{ "op": "add", "path": "/data", "value": { "by": "webhook" } }])))
        }
        ("/validate", Some("bad")) => allow(
            review,
            json!({ "allowed": false, "status": { "code": 403, "reason": "Forbidden", "message": "no bad maps" } }),
        ),
        _ => allow(review, json!({ "warnings": ["seen"] })),
    })
    .await;
    configure(&server, "mutatingwebhookconfigurations", vec![backend.hook("m", "/mutate", json!({}))]).await;
    configure(&server, "validatingwebhookconfigurations", vec![backend.hook("v", "/validate", json!({}))]).await;

    let response = server
        .start(
            &administrator(),
            Method::POST,
            &format!("{CONFIG_MAPS}?fieldManager=me"),
            Full::from(config_map("good").to_string()),
        )
        .await;
    assert_eq!(response.headers()["warning"], "299 - \"seen\"");
    let (code, created) = answer(response).await;
    assert_eq!((code, &created["data"]), (201, &json!({ "by": "webhook" })), "{created}");
    let reviews = backend.asked.lock().clone();
    assert_eq!(reviews.len(), 2);
    let request = &reviews[1]["request"];
    let kind = json!({ "group": "", "version": "v1", "kind": "ConfigMap" });
    let resource = json!({ "group": "", "version": "v1", "resource": "configmaps" });
    assert_eq!((&request["kind"], &request["requestKind"], &request["resource"]), (&kind, &kind, &resource));
    assert_eq!(
        (&request["operation"], &request["namespace"], &request["name"]),
        (&json!("CREATE"), &json!("default"), &json!("good"))
    );
    assert_eq!((&request["dryRun"], &request["oldObject"]), (&json!(false), &Value::Null));
    assert_eq!(request["object"]["data"]["by"], "webhook", "validating webhooks see what mutating ones made");
    assert_eq!(
        request["userInfo"],
        json!({ "username": "admin", "groups": ["system:masters", "system:authenticated"] })
    );
    let options = json!({ "kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "me", "fieldValidation": "Warn" });
    assert_eq!(request["options"], options);

    let (code, status) = create_map(&server, "bad").await;
    assert_eq!((code, &status["reason"]), (403, &json!("Forbidden")), "{status}");
    assert_eq!(status["message"], "admission webhook \"v.example.com\" denied the request: no bad maps");
    let deleted = server.send(&administrator(), Method::DELETE, &format!("{CONFIG_MAPS}/good"), &Value::Null).await;
    assert_eq!(deleted.0, 200, "{}", deleted.1);
    let last = backend.asked.lock().last().unwrap()["request"].clone();
    assert_eq!((&last["operation"], &last["object"]), (&json!("DELETE"), &Value::Null));
    assert_eq!(last["oldObject"]["metadata"]["name"], "good");
    assert!(backend.connections.load(Ordering::SeqCst) <= 2, "connections are used again");
}

#[tokio::test]
async fn what_a_webhook_adds_gets_defaults_and_is_validated() {
    let server = Server::new(Settings::default()).await;
    let backend = Backend::start(|_, review| {
        let image = if review["request"]["name"] == "good" { json!("i") } else { json!("") };
        let container = json!({ "name": "more", "image": image });
        allow(review, patch(json!([{ "op": "add", "path": "/spec/containers/-", "value": container }])))
    })
    .await;
    configure(&server, "mutatingwebhookconfigurations", vec![backend.hook("m", "/", json!({}))]).await;
    let pod =
        |name: &str| json!({ "metadata": { "name": name }, "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    let (code, created) = server.send(&administrator(), Method::POST, PODS, &pod("good")).await;
    assert_eq!(code, 201, "{created}");
    assert_eq!(created["spec"]["containers"][1]["terminationMessagePolicy"], "File", "defaults run again");
    let (code, status) = server.send(&administrator(), Method::POST, PODS, &pod("bad")).await;
    assert_eq!((code, &status["details"]["causes"][0]["field"]), (422, &json!("spec.containers[1].image")), "{status}");
}

#[tokio::test]
async fn what_a_webhook_adds_to_a_custom_object_is_pruned() {
    let server = Server::new(Settings::default()).await;
    let schema = json!({ "type": "object", "properties": { "data": { "type": "object", "properties": { "known": { "type": "string" } } } } });
    let definition = json!({
        "metadata": { "name": "maps.example.com" },
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": { "plural": "maps", "kind": "Map" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } }],
        },
    });
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let (code, created) = server.send(&administrator(), Method::POST, crds, &definition).await;
    assert_eq!(code, 201, "{created}");
    let backend = Backend::start(|_, review| {
        allow(review, patch(json!([{ "op": "add", "path": "/data", "value": { "known": "yes", "unknown": "yes" } }])))
    })
    .await;
    let rules =
        json!([{ "operations": ["*"], "apiGroups": ["example.com"], "apiVersions": ["*"], "resources": ["*"] }]);
    let hook = backend.hook("m", "/", json!({ "rules": rules }));
    configure(&server, "mutatingwebhookconfigurations", vec![hook]).await;
    let object = json!({ "apiVersion": "example.com/v1", "kind": "Map", "metadata": { "name": "a" } });
    let maps = "/apis/example.com/v1/namespaces/default/maps";
    let (code, created) = server.send(&administrator(), Method::POST, maps, &object).await;
    assert_eq!((code, &created["data"]), (201, &json!({ "known": "yes" })), "{created}");
}

#[tokio::test]
async fn a_webhook_may_refuse_streams_into_pods() {
    let server = Server::new(Settings::default()).await;
    let backend = Backend::start(|_, review| {
        let is_secret = review["request"]["object"]["command"] == json!(["cat", "/secret"]);
        allow(review, json!({ "allowed": !is_secret, "status": { "message": "not that file" } }))
    })
    .await;
    let rules =
        json!([{ "operations": ["CONNECT"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/exec"] }]);
    let hook = backend.hook("v", "/", json!({ "rules": rules }));
    configure(&server, "validatingwebhookconfigurations", vec![hook]).await;
    let exec = async |query: &str| {
        let path = format!("{PODS}/p/exec?container=c&stdout=true&{query}");
        server.send(&administrator(), Method::POST, &path, &Value::Null).await.1["message"].as_str().unwrap().to_owned()
    };
    let denied = "admission webhook \"v.example.com\" denied the request: not that file";
    assert_eq!(exec("command=cat&command=/secret").await, denied);
    assert_ne!(exec("command=ls").await, denied, "it goes on, and there is no such pod");
    let asked = backend.asked.lock()[0]["request"].clone();
    assert_eq!(
        (&asked["operation"], &asked["subResource"], &asked["name"]),
        (&json!("CONNECT"), &json!("exec"), &json!("p"))
    );
    assert_eq!(asked["kind"]["kind"], "PodExecOptions");
    let options = json!({ "kind": "PodExecOptions", "apiVersion": "v1", "container": "c", "stdout": true, "command": ["cat", "/secret"] });
    assert_eq!((&asked["object"], &asked["options"]), (&options, &Value::Null));
}

#[tokio::test]
async fn webhooks_are_shown_a_write_to_scale_as_a_scale() {
    let server = Server::new(Settings::default()).await;
    let backend = Backend::start(|path, review| match path {
        "/mutate" => allow(review, patch(json!([{ "op": "replace", "path": "/spec/replicas", "value": 4 }]))),
        _ => allow(review, json!({})),
    })
    .await;
    let rules = |resource: &str| json!({ "rules": [{ "operations": ["UPDATE"], "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": [resource] }] });
    let mutating = backend.hook("m", "/mutate", rules("deployments/scale"));
    configure(&server, "mutatingwebhookconfigurations", vec![mutating]).await;
    let whole = backend.hook("whole", "/whole", rules("deployments"));
    configure(&server, "validatingwebhookconfigurations", vec![backend.hook("v", "/", rules("*/scale")), whole]).await;
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let template =
        json!({ "metadata": { "labels": { "app": "a" } }, "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    let deployment = json!({ "metadata": { "name": "d" }, "spec": { "selector": { "matchLabels": { "app": "a" } }, "template": template } });
    let admin = administrator();
    assert_eq!(server.send(&admin, Method::POST, deployments, &deployment).await.0, 201);
    let path = format!("{deployments}/d/scale");
    let scale = json!({ "apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": { "name": "d", "namespace": "default" }, "spec": { "replicas": 3 } });
    let (code, scaled) = server.send(&admin, Method::PUT, &path, &scale).await;
    assert_eq!((code, &scaled["spec"]["replicas"]), (200, &json!(4)), "{scaled}");
    let reviews = backend.asked.lock().clone();
    assert_eq!(reviews.len(), 2, "webhooks for the Deployment itself are not asked");
    let kind = json!({ "group": "autoscaling", "version": "v1", "kind": "Scale" });
    for (review, replicas) in reviews.iter().zip([3, 4]) {
        let asked = &review["request"];
        assert_eq!((&asked["kind"], &asked["requestKind"]), (&kind, &kind));
        assert_eq!(asked["resource"], json!({ "group": "apps", "version": "v1", "resource": "deployments" }));
        assert_eq!((&asked["subResource"], &asked["operation"]), (&json!("scale"), &json!("UPDATE")));
        let (object, old) = (&asked["object"], &asked["oldObject"]);
        assert_eq!((&object["kind"], &object["spec"]), (&json!("Scale"), &json!({ "replicas": replicas })), "{asked}");
        assert_eq!((&old["kind"], &old["spec"]), (&json!("Scale"), &json!({ "replicas": 1 })), "{asked}");
        assert_eq!(object["status"]["selector"], "app=a");
    }
    let (_, stored) = server.send(&admin, Method::GET, &format!("{deployments}/d"), &Value::Null).await;
    assert_eq!((&stored["spec"]["replicas"], &stored["metadata"]["generation"]), (&json!(4), &json!(2)), "{stored}");
}

#[tokio::test]
async fn match_conditions_leave_writes_out_and_fail_as_the_policy_says() {
    let server = Server::new(Settings::default()).await;
    let denial = json!({ "allowed": false, "status": { "code": 400, "message": "never" } });
    let backend = Backend::start(move |_, review| allow(review, denial.clone())).await;
    let condition = |expression: &str| json!([{ "name": "c", "expression": expression }]);
    let not_free = json!({ "matchConditions": condition("request.name != 'free'") });
    configure(&server, "validatingwebhookconfigurations", vec![backend.hook("v", "/", not_free)]).await;
    assert_eq!(create_map(&server, "free").await.0, 201);
    let (code, status) = create_map(&server, "bound").await;
    assert_eq!(code, 400, "{status}");
    assert!(status["message"].as_str().unwrap().contains("denied the request: never"), "{status}");
}

#[tokio::test]
async fn a_match_condition_that_fails_is_for_the_failure_policy() {
    for (policy, wanted) in [("Fail", 403), ("Ignore", 201)] {
        let server = Server::new(Settings::default()).await;
        let more = json!({
            "failurePolicy": policy,
            "matchConditions": [{ "name": "c", "expression": "object.data.nobody == 'x'" }],
        });
        let dead = hook("v", json!({ "url": "https://127.0.0.1:1/" }), more);
        configure(&server, "validatingwebhookconfigurations", vec![dead]).await;
        let (code, status) = create_map(&server, "a").await;
        assert_eq!(code, wanted, "{status}");
    }
}

#[tokio::test]
async fn a_webhook_is_invoked_again_if_a_later_one_changed_the_object() {
    let server = Server::new(Settings::default()).await;
    let backend = Backend::start(|path, review| {
        let data = &review["request"]["object"]["data"];
        match path {
            "/first" if data["second"].is_null() => allow(review, json!({})),
            "/first" => allow(review, patch(json!([{ "op": "add", "path": "/data/first", "value": "saw second" }]))),
            _ => allow(review, patch(json!([{ "op": "add", "path": "/data", "value": { "second": "x" } }]))),
        }
    })
    .await;
    let first = backend.hook("first", "/first", json!({ "reinvocationPolicy": "IfNeeded" }));
    configure(&server, "mutatingwebhookconfigurations", vec![first, backend.hook("second", "/second", json!({}))])
        .await;
    let (_, created) = create_map(&server, "a").await;
    assert_eq!(created["data"], json!({ "second": "x", "first": "saw second" }));
    assert_eq!(backend.asked.lock().len(), 3);
}

#[tokio::test]
async fn garbage_hangs_and_outages_fail_the_write_or_are_ignored_as_the_policy_says() {
    let backend = Backend::start(|path, review| match path {
        "/garbage" => Reply::Text(200, "<html>".to_owned()),
        "/error" => Reply::Text(500, "boom".to_owned()),
        "/uid" => allow(review, json!({ "uid": "another" })),
        "/large" => Reply::Text(200, "x".repeat(4 << 20)),
        "/patch" => allow(review, json!({ "patchType": "JSONPatch", "patch": "bm8=" })),
        "/kind" => allow(review, patch(json!([{ "op": "replace", "path": "/kind", "value": "Secret" }]))),
        "/version" => allow(review, patch(json!([{ "op": "replace", "path": "/apiVersion", "value": "v2" }]))),
        _ => Reply::Never,
    })
    .await;
    let closed = { std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap() };
    let down = json!({ "url": format!("https://{closed}/x"), "caBundle": backend.certificate });
    for (hook, words) in [
        (backend.hook("w", "/garbage", json!({})), "couldn't get version/kind; json parse error"),
        (
            backend.hook("w", "/error", json!({})),
            "an error on the server (\"boom\") has prevented the request from succeeding",
        ),
        (backend.hook("w", "/uid", json!({})), "got \"another\""),
        (backend.hook("w", "/large", json!({})), "response body is larger than"),
        (backend.hook("w", "/patch", json!({})), "response.patch: expected ident"),
        (backend.hook("w", "/kind", json!({})), "the webhook changed kind"),
        (backend.hook("w", "/version", json!({})), "the webhook changed apiVersion"),
        (backend.hook("w", "/hang", json!({})), "/hang?timeout=1s\": context deadline exceeded"),
        (hook("w", down, json!({})), "connect: connection refused"),
    ] {
        let server = Server::new(Settings::default()).await;
        configure(&server, "mutatingwebhookconfigurations", vec![hook.clone()]).await;
        let message = failure(&server).await;
        let beginning = "Internal error occurred: failed calling webhook \"w.example.com\": ";
        assert!(message.starts_with(beginning) && message.contains(words), "{message}");
        let server = Server::new(Settings::default()).await;
        let mut ignored = hook;
        ignored["failurePolicy"] = json!("Ignore");
        configure(&server, "mutatingwebhookconfigurations", vec![ignored]).await;
        let (code, created) = create_map(&server, "ignored").await;
        assert_eq!(code, 201, "{created}");
    }
}

#[tokio::test]
async fn a_backend_that_is_known_to_be_dead_is_not_waited_for() {
    let server = Server::new(Settings::default()).await;
    let backend = Backend::start(|_, _| Reply::Never).await;
    configure(&server, "validatingwebhookconfigurations", vec![backend.hook("dead", "/", json!({}))]).await;
    let all = futures::future::join_all((0..5).map(|_| failure(&server))).await;
    let connections = backend.connections.load(Ordering::SeqCst);
    assert_eq!((all.len(), connections), (5, 5));
    assert!(failure(&server).await.contains("context deadline exceeded"), "the last reason");
    assert_eq!(backend.connections.load(Ordering::SeqCst), connections, "nobody was asked");
}

#[tokio::test]
async fn a_dead_webhook_does_not_lock_out_its_own_repair() {
    let server = Server::new(Settings::default()).await;
    let admin = administrator();
    let service = json!({ "metadata": { "name": "hook" }, "spec": { "selector": { "app": "hook" }, "ports": [{ "port": 443 }] } });
    let (code, created) = server.send(&admin, Method::POST, "/api/v1/namespaces/default/services", &service).await;
    assert_eq!(code, 201, "{created}");
    let config = json!({ "service": { "namespace": "default", "name": "hook", "path": "/" } });
    let everything = json!([{ "operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"] }]);
    configure(&server, "validatingwebhookconfigurations", vec![hook("own", config, json!({ "rules": everything }))])
        .await;
    let pod = |app: &str| {
        json!({
            "metadata": { "name": app, "labels": { "app": app } }, "spec": { "containers": [{ "name": "c", "image": "i" }] },
        })
    };
    let (code, status) = server.send(&admin, Method::POST, PODS, &pod("web")).await;
    assert_eq!(code, 500, "{status}");
    let words = "Internal error occurred: failed calling webhook \"own.example.com\": failed to call webhook: Post \
                 \"https://hook.default.svc:443/?timeout=1s\": no endpoints available for service \"hook\"";
    assert_eq!(status["message"], words);
    let response = server.start(&admin, Method::POST, PODS, Full::from(pod("hook").to_string())).await;
    let warnings: Vec<String> =
        response.headers().get_all("warning").iter().map(|w| w.to_str().unwrap().to_owned()).collect();
    assert_eq!(response.status(), 201);
    assert!(warnings.iter().any(|warning| warning.contains("is down and was not asked")), "{warnings:?}");
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/test";
    assert_eq!(server.send(&admin, Method::DELETE, path, &Value::Null).await.0, 200, "the configuration itself");
    assert_eq!(server.send(&admin, Method::POST, PODS, &pod("web")).await.0, 201);
}

#[tokio::test]
async fn a_dead_webhook_for_everything_does_not_keep_a_server_from_starting() {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let server = Server::over(store.clone()).await;
    let everything = json!([{ "operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"] }]);
    let nowhere = json!({ "service": { "namespace": "default", "name": "nowhere" } });
    let all = hook("all", nowhere, json!({ "rules": everything }));
    configure(&server, "mutatingwebhookconfigurations", vec![all]).await;
    let delete = mainstay_store::Op::Delete { key: "/registry/storageclasses/local-path".into() };
    store.commit(mainstay_store::Txn { compares: Vec::new(), ops: vec![delete] }).await.unwrap();
    let restarted = Server::over(store).await;
    assert!(failure(&restarted).await.contains("service \"nowhere\" not found"), "the webhook is asked all the same");
}
