//! Groups that another API server serves: registered, found wanting, passed on to, and listed.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU16, Ordering},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use futures::{StreamExt, stream};
use http_body_util::{StreamBody, combinators::UnsyncBoxBody};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::server::WebPkiClientVerifier;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::{
    aggregator::{COLLECTION, availability, registration},
    fence::Fence,
    pki::Pki,
};

/// What the other server was asked: method, path with query, user, groups, whatever the client sent as its group.
type PassedRequest = (String, String, Vec<String>);

struct Extension {
    address: SocketAddr,
    certificate: String,
    asked: Arc<Mutex<Vec<PassedRequest>>>,
    /// What the next check is answered with, if not 0; each time another code.
    failure: Arc<AtomicU16>,
}

type ExtensionBody = UnsyncBoxBody<Bytes, Infallible>;

const RESOURCES: &str = r#"{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"shop.example.com/v1","resources":[
    {"name":"orders","singularName":"order","namespaced":true,"kind":"Order","verbs":["get","list","watch","create"]}]}"#;

impl Extension {
    /// Takes requests of this front proxy only.
    async fn start(front_proxy_ca: &str) -> Self {
        // As `openssl req -x509` makes it: it may issue others.
        let signing_key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["shop.default.svc".to_owned()]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let cert = params.self_signed(&signing_key).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
        let roots = Arc::new(mainstay_tls::root_store(front_proxy_ca).unwrap());
        let clients = WebPkiClientVerifier::builder_with_provider(roots, mainstay_tls::provider()).build().unwrap();
        let config = rustls::ServerConfig::builder_with_provider(mainstay_tls::provider());
        let config = config.with_safe_default_protocol_versions().unwrap().with_client_cert_verifier(clients);
        let config = config.with_single_cert(vec![cert.der().clone()], key).unwrap();
        let tls = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let extension = Self {
            address: listener.local_addr().unwrap(),
            certificate: BASE64_STANDARD.encode(cert.pem()),
            asked: Arc::default(),
            failure: Arc::default(),
        };
        let (asked, failure) = (extension.asked.clone(), extension.failure.clone());
        tokio::spawn(async move {
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                let (tls, asked, failure) = (tls.clone(), asked.clone(), failure.clone());
                tokio::spawn(async move {
                    let Ok(stream) = tls.accept(tcp).await else { return };
                    let serve = service_fn(|request: Request<hyper::body::Incoming>| {
                        let (asked, failure) = (asked.clone(), failure.clone());
                        async move { Ok::<_, Infallible>(Self::answer(request, &asked, &failure).await) }
                    });
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), serve).await;
                });
            }
        });
        extension
    }

    async fn answer(
        request: Request<hyper::body::Incoming>,
        asked: &Mutex<Vec<PassedRequest>>,
        failure: &AtomicU16,
    ) -> http::Response<ExtensionBody> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path_and_query().unwrap().to_string();
        let header =
            |name: &str| parts.headers.get_all(name).iter().map(|v| v.to_str().unwrap().to_owned()).collect::<Vec<_>>();
        let said = [header("x-remote-user"), header("x-remote-group"), header("x-remote-extra-scopes")].concat();
        let body = body.collect().await.unwrap().to_bytes();
        let plain = |code: u16, body: String| {
            http::Response::builder().status(code).body(Full::from(body).boxed_unsync()).unwrap()
        };
        match parts.uri.path().rsplit('/').next().unwrap() {
            "silent" => return std::future::pending().await,
            "half" => {
                let first = stream::iter([Ok(http_body::Frame::data(Bytes::from_static(b"{\"kind\":")))]);
                return http::Response::new(StreamBody::new(first.chain(stream::pending())).boxed_unsync());
            }
            "elsewhere" => {
                let mut answer = plain(302, String::new());
                answer.headers_mut().insert("location", "https://192.0.2.1/steal".parse().unwrap());
                return answer;
            }
            _ => {}
        }
        let (code, answer) = match (&parts.method, parts.uri.path()) {
            (&Method::GET, "/apis/shop.example.com/v1") if failure.load(Ordering::Relaxed) > 0 => {
                (failure.fetch_add(1, Ordering::Relaxed), String::new())
            }
            (&Method::GET, "/apis/shop.example.com/v1") => (200, RESOURCES.to_owned()),
            (_, path) if path.starts_with("/openapi") => (404, String::new()),
            (&Method::POST, _) => (201, String::from_utf8(body.to_vec()).unwrap()),
            _ => (200, json!({ "kind": "OrderList", "items": [] }).to_string()),
        };
        asked.lock().push((parts.method.to_string(), path, said));
        plain(code, answer)
    }

    fn api_service(&self, more: Value) -> Value {
        let mut spec = json!({
            "group": "shop.example.com", "version": "v1", "groupPriorityMinimum": 2000, "versionPriority": 15,
            "caBundle": self.certificate,
            "service": { "namespace": "default", "name": "shop", "port": self.address.port() },
        });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "metadata": { "name": "v1.shop.example.com" }, "spec": spec })
    }

    /// What was asked other than by checks.
    fn requests(&self) -> Vec<PassedRequest> {
        let asked = self.asked.lock().clone();
        asked.into_iter().filter(|(_, _, said)| said[0] != "system:kube-aggregator").collect()
    }
}

async fn start() -> (Server, Extension, tempfile::TempDir, tokio_util::sync::DropGuard) {
    start_with(Settings::default()).await
}

async fn start_with(settings: Settings) -> (Server, Extension, tempfile::TempDir, tokio_util::sync::DropGuard) {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::open(dir.path(), &["localhost".to_owned()]).unwrap();
    let api = Api::new(Registry::builtin(), Arc::new(Memory::new()), settings);
    let handler = Handler::new(api, CancellationToken::new()).with_ca(&pki.ca).with_front_proxy(&pki);
    let server = Server(Arc::new(handler));
    bootstrap(&server.0, "192.0.2.1:6443".parse().unwrap()).await.unwrap();
    let stop = CancellationToken::new();
    tokio::spawn(availability::follow(server.0.clone(), stop.clone()));
    tokio::spawn(registration::follow(server.0.clone(), stop.clone()));
    let extension = Extension::start(pki.front_proxy_authority.certificate()).await;
    (server, extension, dir, stop.drop_guard())
}

impl Server {
    async fn read(&self, user: &User, path: &str) -> (u16, Value) {
        self.send(user, Method::GET, path, &Value::Null).await
    }

    async fn make_service(&self, more: Value) {
        let is_named = more.as_object().unwrap().is_empty();
        let spec = if is_named { json!({ "type": "ExternalName", "externalName": "localhost" }) } else { more };
        let service = json!({ "metadata": { "name": "shop" }, "spec": spec });
        let path = "/api/v1/namespaces/default/services";
        let (code, made) = self.send(&administrator(), Method::POST, path, &service).await;
        assert_eq!(code, 201, "{made}");
    }

    /// Waits until the condition of an APIService has this reason.
    async fn await_reason(&self, name: &str, reason: &str) -> Value {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        loop {
            let (_, found) = self.read(&administrator(), &format!("{COLLECTION}/{name}")).await;
            if found["status"]["conditions"][0]["reason"] == reason {
                return found["status"]["conditions"][0].clone();
            }
            assert!(tokio::time::Instant::now() < deadline, "no {reason}: {found}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn discovery(&self) -> Vec<Value> {
        let request = Request::get("/apis")
            .header("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
            .body(Full::<Bytes>::default());
        let caller = Caller::Network { user: Some(Arc::new(administrator())), source: [127, 0, 0, 1].into() };
        let (_, list) = answer(self.0.clone().handle(request.unwrap(), caller).await).await;
        list["items"].as_array().unwrap().clone()
    }
}

const ORDERS: &str = "/apis/shop.example.com/v1/namespaces/default/orders";

#[tokio::test]
async fn requests_are_authorized_and_passed_on_as_whom_they_come_from() {
    let (server, extension, _dir, _stop) = start().await;
    server.make_service(json!({})).await;
    let admin = administrator();
    let (code, made) = server.send(&admin, Method::POST, COLLECTION, &extension.api_service(json!({}))).await;
    assert_eq!(code, 201, "{made}");
    let condition = server.await_reason("v1.shop.example.com", "Passed").await;
    assert_eq!((&condition["status"], &condition["message"]), (&json!("True"), &json!("all checks passed")));

    // Who may not is refused here, and the other server hears nothing of it.
    let (code, refused) = server.read(&service_account("pod"), ORDERS).await;
    assert_eq!((code, &refused["reason"]), (403, &json!("Forbidden")), "{refused}");
    assert!(refused["message"].as_str().unwrap().starts_with("orders.shop.example.com is forbidden"), "{refused}");
    assert_eq!(extension.requests(), []);

    // Nobody names himself.
    let request = Request::post(format!("{ORDERS}?dryRun=All&fieldManager=me"))
        .header("x-remote-user", "root")
        .header("x-remote-extra-scopes", "all")
        .body(Full::<Bytes>::from(r#"{"kind":"Order"}"#));
    let caller = Caller::Network { user: Some(Arc::new(admin.clone())), source: [127, 0, 0, 1].into() };
    let (code, created) = answer(server.0.clone().handle(request.unwrap(), caller).await).await;
    assert_eq!((code, created), (201, json!({ "kind": "Order" })));
    let path = format!("{ORDERS}?dryRun=All&fieldManager=me");
    let said = vec!["admin".to_owned(), MASTERS.to_owned(), "system:authenticated".to_owned()];
    assert_eq!(extension.requests(), [("POST".to_owned(), path, said)]);

    let (code, list) = server.read(&admin, &format!("{ORDERS}?limit=what")).await;
    assert_eq!((code, &list["kind"]), (200, &json!("OrderList")), "its options are its business");
    let (code, _) = server.read(&admin, &format!("{ORDERS}/a/connect/and/further")).await;
    assert_eq!(code, 200);

    let groups = server.discovery().await;
    let shop = groups.iter().find(|group| group["metadata"]["name"] == "shop.example.com").unwrap();
    assert_eq!(shop["versions"][0]["freshness"], "Current");
    assert_eq!(shop["versions"][0]["resources"][0]["responseKind"]["kind"], "Order");
    let (_, listed) = server.read(&admin, "/apis/shop.example.com").await;
    assert_eq!(listed["preferredVersion"]["groupVersion"], "shop.example.com/v1");
}

#[tokio::test]
async fn an_api_service_says_why_it_is_not_available_and_its_group_is_listed_as_stale() {
    let (server, extension, _dir, _stop) = start().await;
    let admin = administrator();
    let (code, _) = server.send(&admin, Method::POST, COLLECTION, &extension.api_service(json!({}))).await;
    assert_eq!(code, 201);
    let name = "v1.shop.example.com";
    let condition = server.await_reason(name, "ServiceNotFound").await;
    assert_eq!(condition["message"], "service/shop in \"default\" is not present");
    let refused = server.start(&admin, Method::GET, ORDERS, Full::<Bytes>::default()).await;
    assert_eq!(refused.status(), 503);
    let text = refused.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(text, "service unavailable\n");
    let groups = server.discovery().await;
    let shop = groups.iter().find(|group| group["metadata"]["name"] == "shop.example.com").unwrap();
    assert_eq!(shop["versions"], json!([{ "version": "v1", "freshness": "Stale", "resources": [] }]));

    server.make_service(json!({ "type": "ClusterIP", "ports": [{ "port": 1 }], "selector": { "a": "b" } })).await;
    server.await_reason(name, "ServicePortError").await;
    let path = "/api/v1/namespaces/default/services/shop";
    let (_, mut service) = server.read(&admin, path).await;
    service["spec"]["ports"] = json!([{ "port": extension.address.port() }]);
    assert_eq!(server.send(&admin, Method::PUT, path, &service).await.0, 200);
    server.await_reason(name, "EndpointsNotFound").await;
    assert_eq!(server.send(&admin, Method::DELETE, path, &Value::Null).await.0, 200);
    server.make_service(json!({})).await;
    server.await_reason(name, "Passed").await;

    // Another certificate than the bundle's.
    let other = rcgen::generate_simple_self_signed(vec!["shop.default.svc".to_owned()]).unwrap();
    let (_, mut found) = server.read(&admin, &format!("{COLLECTION}/{name}")).await;
    found["spec"]["caBundle"] = json!(BASE64_STANDARD.encode(other.cert.pem()));
    assert_eq!(server.send(&admin, Method::PUT, &format!("{COLLECTION}/{name}"), &found).await.0, 200);
    let condition = server.await_reason(name, "FailedDiscoveryCheck").await;
    assert!(
        condition["message"].as_str().unwrap().contains("failing or missing response from https://shop.default.svc")
    );
    let groups = server.discovery().await;
    let shop = groups.iter().find(|group| group["metadata"]["name"] == "shop.example.com").unwrap();
    assert_eq!(shop["versions"][0]["freshness"], "Stale");
    assert_eq!(shop["versions"][0]["resources"][0]["resource"], "orders", "as last known");

    assert_eq!(server.send(&admin, Method::DELETE, &format!("{COLLECTION}/{name}"), &Value::Null).await.0, 200);
    assert_eq!(server.read(&admin, ORDERS).await.0, 404);
}

#[tokio::test]
async fn what_this_server_serves_is_registered_and_cannot_be_taken_away() {
    let (server, extension, _dir, _stop) = start().await;
    let admin = administrator();
    server.await_reason("v1.apps", "Local").await;
    server.await_reason("v1.", "Local").await;
    let (_, mut apps) = server.read(&admin, &format!("{COLLECTION}/v1.apps")).await;
    assert_eq!(apps["metadata"]["labels"]["kube-aggregator.kubernetes.io/automanaged"], "onstart");
    apps["spec"]["service"] = json!({ "namespace": "default", "name": "shop", "port": extension.address.port() });
    assert_eq!(server.send(&admin, Method::PUT, &format!("{COLLECTION}/v1.apps"), &apps).await.0, 200);
    assert_eq!(server.read(&admin, "/apis/apps/v1/deployments").await.0, 200);
    let (_, trust) =
        server.read(&admin, "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication").await;
    assert_eq!(trust["data"]["requestheader-username-headers"], r#"["X-Remote-User"]"#);
    assert!(trust["data"]["requestheader-client-ca-file"].as_str().unwrap().contains("BEGIN CERTIFICATE"));

    // A definition is registered as well, and gives way to an APIService with a Service.
    let definition = json!({
        "metadata": { "name": "orders.shop.example.com" },
        "spec": {
            "group": "shop.example.com", "scope": "Namespaced",
            "names": { "plural": "orders", "singular": "order", "kind": "Order", "listKind": "OrderList" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": { "type": "object" } } }],
        },
    });
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(server.send(&admin, Method::POST, definitions, &definition).await.0, 201);
    server.await_reason("v1.shop.example.com", "Local").await;
    let (_, mut shop) = server.read(&admin, &format!("{COLLECTION}/v1.shop.example.com")).await;
    assert_eq!(shop["metadata"]["labels"]["kube-aggregator.kubernetes.io/automanaged"], "true");
    server.make_service(json!({})).await;
    shop["spec"] = extension.api_service(json!({}))["spec"].clone();
    let path = format!("{COLLECTION}/v1.shop.example.com");
    assert_eq!(server.send(&admin, Method::PUT, &path, &shop).await.0, 200);
    server.await_reason("v1.shop.example.com", "Passed").await;
    assert_eq!(server.read(&admin, ORDERS).await.0, 200);
    assert_eq!(extension.requests().len(), 1, "the Service goes first");
}

impl Server {
    async fn register(&self, extension: &Extension) {
        self.make_service(json!({})).await;
        let (code, made) =
            self.send(&administrator(), Method::POST, COLLECTION, &extension.api_service(json!({}))).await;
        assert_eq!(code, 201, "{made}");
        self.await_reason("v1.shop.example.com", "Passed").await;
    }
}

#[tokio::test]
async fn a_server_that_falls_silent_holds_up_nobody_for_longer_than_a_request_may_take() {
    let settings = Settings { request_timeout: Duration::from_millis(500), ..Settings::default() };
    let (server, extension, _dir, _stop) = start_with(settings).await;
    server.register(&extension).await;
    let within = Caller::Internal(Arc::new(administrator()));
    let network = Caller::Network { user: Some(Arc::new(administrator())), source: [127, 0, 0, 1].into() };
    for caller in [within, network] {
        let ask = |name: &str| {
            let request = Request::get(format!("{ORDERS}/{name}")).body(Full::<Bytes>::default()).unwrap();
            tokio::time::timeout(Duration::from_secs(20), server.0.clone().handle(request, caller.clone()))
        };
        assert_eq!(ask("silent").await.unwrap().status(), 504);
        let half = ask("half").await.unwrap();
        assert_eq!(half.status(), 200);
        let read = tokio::time::timeout(Duration::from_secs(20), half.into_body().collect()).await.unwrap();
        assert!(read.is_err(), "what is cut off must not look whole");
        // A watch lasts.
        let watch = ask("half?watch=true").await.unwrap();
        let read = tokio::time::timeout(Duration::from_secs(1), watch.into_body().collect()).await;
        assert!(read.is_err(), "a watch was cut off");
        assert_eq!(ask("working").await.unwrap().status(), 200);
    }
}

#[tokio::test]
async fn neither_redirects_nor_writes_of_a_deposed_leader_get_through() {
    let (server, extension, _dir, _stop) = start().await;
    server.register(&extension).await;
    let away =
        server.start(&administrator(), Method::GET, &format!("{ORDERS}/elsewhere"), Full::<Bytes>::default()).await;
    assert_eq!((away.status().as_u16(), away.headers().get("location")), (502, None));
    let text = away.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(text, "the backend attempted to redirect this request, which is not permitted");

    let deposed = Fence::new("kube-system", "a", mainstay_store::Revision(1), CancellationToken::new());
    let request = |method: Method| {
        let request = Request::builder().method(method).uri(format!("{ORDERS}/a")).extension(Arc::new(deposed.clone()));
        server
            .0
            .clone()
            .handle(request.body(Full::<Bytes>::default()).unwrap(), Caller::Internal(Arc::new(administrator())))
    };
    let (code, refused) = answer(request(Method::DELETE).await).await;
    assert_eq!((code, &refused["details"]["causes"][0]["reason"]), (409, &json!("LeaderTermEnded")), "{refused}");
    assert_eq!(extension.requests(), []);
    assert_eq!(request(Method::GET).await.status(), 200, "whoever only reads harms nobody");
}

#[tokio::test]
async fn a_watch_takes_the_right_to_watch_however_it_is_asked_for() {
    let (server, extension, _dir, _stop) = start().await;
    server.register(&extension).await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let rules = json!([{ "apiGroups": ["shop.example.com"], "resources": ["orders"], "verbs": ["list"] }]);
    let role = json!({ "metadata": { "name": "lists" }, "rules": rules });
    let path = format!("{rbac}/clusterroles");
    assert_eq!(server.send(&administrator(), Method::POST, &path, &role).await.0, 201);
    let binding = json!({
        "metadata": { "name": "lists" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "lists" },
        "subjects": [{ "kind": "ServiceAccount", "namespace": "default", "name": "pod" }],
    });
    let path = format!("{rbac}/clusterrolebindings");
    assert_eq!(server.send(&administrator(), Method::POST, &path, &binding).await.0, 201);
    let api = &server.0.api;
    api.rbac.load(&api.registry, &*api.store).await.unwrap(); // nobody follows the store here
    let pod = service_account("pod");
    for (query, expected) in [
        ("", 200),
        ("limit=abc", 200),
        ("watch=false&limit=abc", 200),
        ("watch=true", 403),
        ("watch=true&limit=abc", 403),
        ("watch=true&watch=false", 403),
        ("watch=f", 403),
        ("%77atch=1&limit=abc", 403),
    ] {
        let (code, answer) = server.read(&pod, &format!("{ORDERS}?{query}")).await;
        assert_eq!(code, expected, "{query}: {answer}");
    }
}

#[tokio::test]
async fn a_condition_whose_message_differs_each_time_is_not_written_in_a_loop() {
    let (server, extension, _dir, _stop) = start().await;
    server.register(&extension).await;
    extension.failure.store(500, Ordering::Relaxed);
    let (path, name) = ("/api/v1/namespaces/default/services/shop", "v1.shop.example.com");
    let (_, mut service) = server.read(&administrator(), path).await;
    service["metadata"]["labels"] = json!({ "looked": "at" });
    assert_eq!(server.send(&administrator(), Method::PUT, path, &service).await.0, 200);
    let mut message = server.await_reason(name, "FailedDiscoveryCheck").await["message"].clone();
    let began = tokio::time::Instant::now();
    for _ in 0..2 {
        loop {
            let found = server.await_reason(name, "FailedDiscoveryCheck").await["message"].clone();
            if std::mem::replace(&mut message, found.clone()) != found {
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(30), "{message}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    assert!(began.elapsed() >= Duration::from_secs(2), "written twice within {:?}", began.elapsed());
}
