//! Whole requests, to an API over a store in memory in this process.
//!
//! An input is a list of `[method, path, content type, body]`. Whatever is asked, nothing panics, and every refusal is a
//! Status. The API lives on from input to input; its objects are deleted now and then.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use mainstay_api::registry::Registry;
use mainstay_server::{
    api::Api,
    auth::User,
    bootstrap,
    handler::{Caller, Handler},
    settings::Settings,
};
use mainstay_store::{Memory, Op, Store, Txn};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use super::credentials::{KEY, TOKEN_KEY};

pub const WORDS: &[&str] = &[
    "GET",
    "POST",
    "PUT",
    "PATCH",
    "DELETE",
    "/api/v1/namespaces/default/configmaps",
    "/apis/apps/v1/namespaces/default/deployments",
    "/status",
    "/scale",
    "?dryRun=All",
    "?fieldManager=m&force=true",
    "?limit=1",
    "?watch=1&timeoutSeconds=1",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "?propagationPolicy=Orphan",
    "?labelSelector=a%20in%20(b)",
    "/binding",
    "/eviction",
    "/token",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "?fieldValidation=Strict",
    "/exec",
    "/proxy/",
    "/log",
];

/// After so many requests the API is made anew, so that objects of old inputs do not pile up.
const REQUESTS_PER_API: u64 = 500;

/// No answer takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a request is answered whose handler panicked. Other answers with 500 are upstream's own: an apply of a field that is not declared.
const FAULT: &[u8] = b"the server met a fault of its own";

/// What a watch sends is read for so long.
const WATCHED: Duration = Duration::from_millis(50);

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
});

static HANDLER: Mutex<Option<Arc<Handler>>> = Mutex::new(None);
static SERVED: AtomicU64 = AtomicU64::new(0);

fn handler() -> Arc<Handler> {
    let mut current = HANDLER.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if SERVED.fetch_add(1, Ordering::Relaxed).is_multiple_of(REQUESTS_PER_API) {
        *current = None;
    }
    current.get_or_insert_with(start).clone()
}

fn start() -> Arc<Handler> {
    RUNTIME.block_on(async {
        let store = Memory::new();
        let key = Op::Put { key: TOKEN_KEY.into(), value: KEY.clone().into() };
        store.commit(Txn { compares: Vec::new(), ops: vec![key] }).await.expect("a key");
        let api = Api::new(Registry::builtin(), Arc::new(store), Settings::default());
        let handler = Arc::new(Handler::new(api, CancellationToken::new()));
        let address = (IpAddr::from(Ipv4Addr::LOCALHOST), 6443).into();
        bootstrap::bootstrap(&handler, address).await.expect("a new cluster");
        handler
    })
}

fn administrator() -> Caller {
    Caller::Internal(Arc::new(User::authenticated("admin".into(), vec!["system:masters".into()])))
}

fn send(request: Request<Full<Bytes>>, caller: Caller) -> (StatusCode, Bytes) {
    let handler = handler();
    RUNTIME.block_on(async {
        // On a worker of the runtime, which has the stack that a server's has.
        let answered = tokio::spawn(async move {
            let response = handler.handle(request, caller).await;
            let (status, body) = (response.status(), response.into_body());
            let body = tokio::time::timeout(WATCHED, body.collect()).await;
            let body = body.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default();
            (status, body)
        });
        tokio::time::timeout(PATIENCE, answered).await.expect("an answer in time").expect("no panic")
    })
}

/// Sends a request that may be nonsense, if it is one at all.
fn ask(method: &str, path: &str, content_type: &str, body: Bytes) {
    let Ok(verb) = Method::from_bytes(method.as_bytes()) else { return };
    let request = Request::builder().method(verb).uri(path).header(header::ACCEPT, "application/json");
    let Ok(request) = request.header(header::CONTENT_TYPE, content_type).body(Full::new(body)) else { return };
    let (status, answer) = send(request, administrator());
    assert!(!answer.windows(FAULT.len()).any(|words| words == FAULT), "{method} {path}: a panic");
    if !status.is_success() && !answer.is_empty() {
        let parsed: Value = serde_json::from_slice(&answer).unwrap_or_default();
        assert!(parsed["kind"] == "Status" || path.starts_with("/healthz"), "{}", String::from_utf8_lossy(&answer));
    }
}

pub fn requests(input: &[u8]) {
    let Ok(Value::Array(steps)) = serde_json::from_slice(input) else { return };
    for step in steps.iter().take(6) {
        let text = |at: usize| step[at].as_str().unwrap_or_default();
        let body = match &step[3] {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            tree => tree.to_string(),
        };
        ask(text(0), text(1), text(2), body.into());
    }
}

/// As JSON that is encoded here, or as it is.
pub fn continue_token(input: &[u8]) {
    let token = match input.starts_with(b"{") {
        true => BASE64.encode(input),
        false => escape(input),
    };
    for path in ["/api/v1/namespaces/kube-system/serviceaccounts", "/api/v1/namespaces"] {
        ask("GET", &format!("{path}?limit=1&continue={token}"), "", Bytes::new());
    }
}

pub fn query_string(input: &[u8]) {
    let query: String = input.iter().map(|byte| char::from(*byte)).filter(|c| c.is_ascii_graphic()).collect();
    for method in ["POST", "PATCH", "DELETE"] {
        ask(method, &format!("/api/v1/namespaces/default/configmaps/a?{query}"), "", Bytes::new());
    }
    if !query.contains("watch") {
        // A watch would have to be waited for.
        ask("GET", &format!("/api/v1/namespaces/default/configmaps?{query}"), "", Bytes::new());
    }
}

pub fn path(input: &[u8]) {
    let path: String = input.iter().map(|byte| char::from(*byte)).filter(|c| c.is_ascii_graphic()).collect();
    if path.contains("watch") {
        return; // it would have to be waited for
    }
    for method in ["GET", "PUT", "DELETE"] {
        ask(method, &format!("/{}", path.trim_start_matches('/')), "", Bytes::new());
    }
}

/// What somebody is answered who shows nothing but this token.
pub fn with_token(token: &str) -> StatusCode {
    let caller = Caller::Network { user: None, source: Ipv4Addr::LOCALHOST.into() };
    let request = Request::builder().uri("/api/v1/namespaces").header(header::AUTHORIZATION, format!("Bearer {token}"));
    match request.body(Full::new(Bytes::new())) {
        Ok(request) => send(request, caller).0,
        Err(_) => StatusCode::BAD_REQUEST,
    }
}

/// What an administrator is answered who posts this object.
pub fn post(path: &str, object: &Value) -> (StatusCode, Value) {
    let request = Request::builder().method(Method::POST).uri(path).header(header::CONTENT_TYPE, "application/json");
    let request = request.body(Full::new(Bytes::from(object.to_string()))).expect("a request");
    let (status, answer) = send(request, administrator());
    (status, serde_json::from_slice(&answer).unwrap_or(json!(null)))
}

fn escape(input: &[u8]) -> String {
    input.iter().map(|byte| format!("%{byte:02x}")).collect()
}
