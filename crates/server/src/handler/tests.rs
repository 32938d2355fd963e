//! Clients that misbehave, and what everybody else notices of it.

mod aggregation;
mod apply;
mod audit;
mod custom_resources;
mod fence;
mod flow_control;
mod klusters;
mod limit_ranges;
mod log;
mod mutating_policies;
mod pod_security;
mod policies;
mod quotas;
mod storage_migration;
mod upstream;
mod webhooks;

use std::{convert::Infallible, time::Duration};

use http_body_util::{Full, StreamBody};
use hyper::body::Frame;
use mainstay_api::registry::Registry;
use mainstay_store::Memory;
use serde_json::{Value, json};

use super::*;
use crate::{
    auth::{MASTERS, SERVICE_ACCOUNTS},
    background::bootstrap::bootstrap,
    settings::Settings,
};

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";

struct Server(Arc<Handler>);

fn service_account(name: &str) -> User {
    User::authenticated(format!("system:serviceaccount:default:{name}"), vec![SERVICE_ACCOUNTS.to_owned()])
}

fn administrator() -> User {
    User::authenticated("admin".to_owned(), vec![MASTERS.to_owned()])
}

fn config_map(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

/// The beginning of a body whose rest never comes.
fn half_a_body(beginning: &'static [u8]) -> StreamBody<impl futures::Stream<Item = Result<Frame<Bytes>, Infallible>>> {
    let first = futures::stream::once(async move { Ok(Frame::data(Bytes::from_static(beginning))) });
    StreamBody::new(futures::StreamExt::chain(first, futures::stream::pending()))
}

impl Server {
    async fn new(settings: Settings) -> Self {
        Self::with_store(Arc::new(Memory::new()), settings).await
    }

    /// A server over a store that others may have too.
    async fn over(store: Arc<dyn Store>) -> Self {
        Self::with_store(store, Settings::default()).await
    }

    async fn with_store(store: Arc<dyn Store>, settings: Settings) -> Self {
        let api = Api::new(Registry::builtin(), store, settings);
        let server = Self(Arc::new(Handler::new(api, CancellationToken::new())));
        bootstrap(&server.0, "192.0.2.1:6443".parse().unwrap()).await.unwrap();
        server
    }

    fn start<B>(&self, user: &User, method: Method, path: &str, body: B) -> BoxFuture<'static, Response>
    where
        B: http_body::Body<Data = Bytes, Error = Infallible> + Send + 'static,
    {
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let caller = Caller::Network { user: Some(Arc::new(user.clone())), source: [127, 0, 0, 1].into() };
        self.0.clone().handle(request.body(body).unwrap(), caller)
    }

    async fn send(&self, user: &User, method: Method, path: &str, body: &Value) -> (u16, Value) {
        answer(self.start(user, method, path, Full::from(body.to_string())).await).await
    }
}

async fn answer(response: Response) -> (u16, Value) {
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap())
}

#[tokio::test]
async fn a_stored_object_that_cannot_be_parsed_is_an_internal_error() {
    let server = Server::new(Settings::default()).await;
    let admin = administrator();
    assert_eq!(server.send(&admin, Method::POST, CONFIG_MAPS, &config_map("whole")).await.0, 201);
    let (entry, _) = server.0.store().get("/registry/configmaps/default/whole").await.unwrap();
    let whole = entry.unwrap().value.clone();
    // Torn in the middle, empty, and what upstream would write for the same object.
    for value in [whole.slice(..whole.len() - 3), Bytes::new(), Bytes::from_static(b"k8s\0\n\x0f\n\x02v1")] {
        let op = mainstay_store::Op::Put { key: "/registry/configmaps/default/torn".into(), value };
        server.0.store().commit(mainstay_store::Txn { compares: Vec::new(), ops: vec![op] }).await.unwrap();
        let torn = format!("{CONFIG_MAPS}/torn");
        let labelled = json!({"metadata": {"labels": {"a": "b"}}});
        for (method, path) in [
            (Method::GET, torn.as_str()),
            (Method::GET, CONFIG_MAPS),
            (Method::GET, "/api/v1/namespaces/default/configmaps?labelSelector=a%3Db"),
            (Method::PUT, torn.as_str()),
            (Method::DELETE, torn.as_str()),
        ] {
            let mut body = labelled.clone();
            body["metadata"]["name"] = json!("torn");
            let body = if method == Method::PUT { body } else { Value::Null };
            let (code, status) = server.send(&admin, method.clone(), path, &body).await;
            assert_eq!((code, &status["reason"]), (500, &json!("InternalError")), "{method} {path}: {status}");
            let message = status["message"].as_str().unwrap();
            assert!(message.contains("\"/registry/configmaps/default/torn\" cannot be parsed"), "{message}");
        }
        let watched = server.start(&admin, Method::GET, &format!("{CONFIG_MAPS}?watch=1"), Full::default()).await;
        let events = watched.into_body().collect().await.unwrap().to_bytes();
        let last = events.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty()).unwrap();
        let last: Value = serde_json::from_slice(last).unwrap();
        assert_eq!((&last["type"], &last["object"]["code"]), (&json!("ERROR"), &json!(500)), "{last}");
        let (code, object) = server.send(&admin, Method::GET, &format!("{CONFIG_MAPS}/whole"), &Value::Null).await;
        assert_eq!((code, &object["metadata"]["name"]), (200, &json!("whole")), "others are served");
    }
}

#[tokio::test(start_paused = true)]
async fn half_sent_bodies_of_one_token_keep_nobody_from_writing() {
    let server = Server::new(Settings::default()).await;
    let pod = service_account("default");
    let halves: Vec<_> =
        (0..230).map(|_| tokio::spawn(server.start(&pod, Method::POST, REVIEWS, half_a_body(b"{")))).collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let written = server.send(&administrator(), Method::POST, CONFIG_MAPS, &config_map("a")).await;
    assert_eq!(written.0, 201, "{}", written.1);
    let node = json!({"metadata": {"name": "n1"}});
    let registered = server.send(&User::node("n1"), Method::POST, "/api/v1/nodes", &node).await;
    assert_eq!(registered.0, 201, "{}", registered.1);
    let reviewed = server.send(&pod, Method::POST, REVIEWS, &json!({})).await;
    assert_eq!(reviewed.0, 201, "{}", reviewed.1);
    for half in halves {
        let response = half.await.unwrap();
        assert_eq!(response.headers()["connection"], "close");
        let (code, status) = answer(response).await;
        assert_eq!((code, &status["reason"]), (408, &json!("Timeout")), "{status}");
        assert_eq!(status["message"], "Timeout: the request body did not arrive within 10s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_body_that_keeps_coming_is_waited_for() {
    let server = Server::new(Settings::default()).await;
    let object = json!({"metadata": {"name": "slow"}, "data": {"key": "x".repeat(500_000)}}).to_string();
    let pieces: Vec<Bytes> = object.as_bytes().chunks(20_000).map(Bytes::copy_from_slice).collect();
    let pieces = futures::stream::unfold(pieces.into_iter(), |mut pieces| async move {
        tokio::time::sleep(Duration::from_secs(1)).await; // 20 kB/s: 25 s in all
        pieces.next().map(|piece| (Ok(Frame::data(piece)), pieces))
    });
    let response = server.start(&administrator(), Method::POST, CONFIG_MAPS, StreamBody::new(pieces)).await;
    assert_eq!(response.status(), StatusCode::CREATED);
}

#[tokio::test(start_paused = true)]
async fn bodies_of_one_user_take_a_part_of_the_memory() {
    let server = Server::new(Settings { max_body_memory: 400_000, ..Settings::default() }).await;
    let pod = service_account("default");
    static LARGE: [u8; 30_000] = [b' '; 30_000];
    let half = tokio::spawn(server.start(&pod, Method::POST, REVIEWS, half_a_body(&LARGE)));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let body = Full::from(&LARGE[..]);
    let (code, status) = answer(server.start(&pod, Method::POST, REVIEWS, body.clone()).await).await;
    assert_eq!((code, &status["details"]["retryAfterSeconds"]), (429, &json!(1)), "{status}");
    let other = answer(server.start(&service_account("other"), Method::POST, REVIEWS, body.clone()).await).await;
    assert_eq!(other.0, 400, "{}", other.1); // read, and not JSON
    drop(half.await);
    assert_eq!(server.start(&pod, Method::POST, REVIEWS, body).await.status(), 400);
}

#[tokio::test]
async fn one_user_has_at_most_a_part_of_the_watches() {
    let server = Server::new(Settings { max_long_running: 100, ..Settings::default() }).await;
    let path = format!("{CONFIG_MAPS}?watch=1");
    let watch = |user: User| server.start(&user, Method::GET, &path, Full::default());
    let node = User::authenticated("system:node:n1".to_owned(), vec!["system:nodes".to_owned()]);
    let services = "/api/v1/services?watch=1";
    let mut open = Vec::new();
    for _ in 0..10 {
        let response = server.start(&node, Method::GET, services, Full::default()).await;
        assert_eq!(response.status(), 200);
        open.push(response);
    }
    let (code, status) = answer(server.start(&node, Method::GET, services, Full::default()).await).await;
    assert_eq!((code, &status["message"]), (429, &json!("too many requests, please try again later")));
    let other = User::node("n2");
    assert_eq!(server.start(&other, Method::GET, services, Full::default()).await.status(), 200);
    assert_eq!(watch(administrator()).await.status(), 200);
    open.pop();
    assert_eq!(server.start(&node, Method::GET, services, Full::default()).await.status(), 200);
    let text = server.0.metrics.text();
    let line = r#"mainstay_rejected_streams_total{priority_level="system",reason="flow-limit"} 1"#;
    assert!(text.contains(line), "{text}");
}

#[tokio::test]
async fn lists_no_object_can_have_are_refused_before_they_are_looked_at() {
    let server = Server::new(Settings::default()).await;
    let items = vec!["{}"; 900_000].join(",");
    let spec = format!(r#"{{"metadata":{{"name":"x"}},"spec":{{"containers":[{items}]}}}}"#);
    let owners = format!(r#"{{"metadata":{{"name":"x","ownerReferences":[{items}]}}}}"#);
    for (path, body, field) in [(PODS, spec, "spec.containers"), (CONFIG_MAPS, owners, "metadata.ownerReferences")] {
        let (code, status) = answer(server.start(&administrator(), Method::POST, path, Full::from(body)).await).await;
        assert_eq!((code, &status["reason"]), (422, &json!("Invalid")), "{status}");
        let cause = json!([{
            "reason": "FieldValueTooMany", "field": field,
            "message": "Too many: 900000: must have at most 20000 items",
        }]);
        assert_eq!(status["details"]["causes"], cause);
    }
}

#[tokio::test]
async fn of_very_many_errors_some_are_answered_and_the_rest_counted() {
    let server = Server::new(Settings::default()).await;
    let pod = json!({"metadata": {"name": "x"}, "spec": {"containers": vec![json!({}); 10_000]}});
    let (code, status) = server.send(&administrator(), Method::POST, PODS, &pod).await;
    assert_eq!((code, status["details"]["causes"].as_array().map(Vec::len)), (422, Some(500)));
    let message = status["message"].as_str().unwrap();
    assert!(message.ends_with(" more]") && message.len() < 100_000, "{}", &message[message.len() - 200..]);
}

#[tokio::test]
async fn a_json_patch_of_too_many_operations_is_too_large() {
    let server = Server::new(Settings::default()).await;
    assert_eq!(server.send(&administrator(), Method::POST, CONFIG_MAPS, &config_map("c")).await.0, 201);
    let operations = Value::Array(vec![json!({}); 900_000]).to_string();
    let request = Request::builder().method(Method::PATCH).uri(format!("{CONFIG_MAPS}/c"));
    let request = request.header("content-type", "application/json-patch+json").body(Full::from(operations)).unwrap();
    let caller = Caller::Network { user: Some(Arc::new(administrator())), source: [127, 0, 0, 1].into() };
    let (code, status) = answer(server.0.clone().handle(request, caller).await).await;
    assert_eq!((code, &status["reason"]), (413, &json!("RequestEntityTooLarge")), "{status}");
}

#[tokio::test]
async fn the_version_is_for_everyone_who_presents_no_bad_token() {
    let server = Server::new(Settings::default()).await;
    let ask = |token: Option<&str>| {
        let mut request = Request::builder().uri("/version");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let caller = Caller::Network { user: None, source: [127, 0, 0, 1].into() };
        server.0.clone().handle(request.body(Full::<Bytes>::default()).unwrap(), caller)
    };
    let (code, version) = answer(ask(None).await).await;
    assert_eq!((code, &version["major"]), (200, &json!("1")));
    assert_eq!(ask(Some("garbage")).await.status(), 401);
}

#[tokio::test]
async fn keys_are_rotated_by_administrators_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (file, registry) = (dir.path().join("keys.yaml"), Registry::builtin());
    let store = Arc::new(Memory::new());
    let encryption = Encryption::open(store, file.clone(), registry.clone(), crate::storage::Writers::Ourselves).await;
    let encryption = Arc::new(encryption.unwrap());
    let api = Api::new(registry, encryption.store(), Settings::default());
    let handler = Handler::new(api, CancellationToken::new()).with_encryption(encryption);
    let server = Server(Arc::new(handler));
    bootstrap(&server.0, "192.0.2.1:6443".parse().unwrap()).await.unwrap();
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"k": "v"}});
    assert_eq!(server.send(&administrator(), Method::POST, "/api/v1/namespaces/default/secrets", &secret).await.0, 201);
    let before = std::fs::read(&file).unwrap();
    let (path, body) = ("/secrets/rotate-key", Value::Null);
    assert_eq!(server.send(&service_account("a"), Method::POST, path, &body).await.0, 403);
    assert_eq!(server.send(&administrator(), Method::GET, path, &body).await.0, 405);
    assert_eq!(std::fs::read(&file).unwrap(), before);
    let (code, done) = server.send(&administrator(), Method::POST, path, &body).await;
    assert_eq!((code, &done["reencrypted"]), (200, &json!(2)), "{done}");
    assert_ne!(std::fs::read(&file).unwrap(), before);
    let (code, read) = server.send(&administrator(), Method::GET, "/api/v1/namespaces/default/secrets/s", &body).await;
    assert_eq!((code, &read["data"]["k"]), (200, &json!("dg==")));
}
