//! An API of a few objects in memory, for tests: lists, watches, tokens, and being unreachable.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc};

use bytes::Bytes;
use futures::StreamExt;
use http::{Method, Request, Response, request::Parts};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use kube::Client;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

#[derive(Clone, Default)]
pub(crate) struct FakeApi {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    down: bool,
    revision: u64,
    /// By collection (`/api/v1/namespaces/x/secrets`) and name.
    objects: BTreeMap<(String, String), Value>,
    watchers: Vec<Watcher>,
    tokens: u64,
    token_life: i64,
}

struct Watcher {
    collection: String,
    name: Option<String>,
    events: mpsc::UnboundedSender<Bytes>,
}

type FakeResponse = Response<UnsyncBoxBody<Bytes, Infallible>>;

impl FakeApi {
    pub(crate) fn client(&self) -> Client {
        let own = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let own = own.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                own.answer(&parts, &body).ok_or_else(|| std::io::Error::other("connection refused"))
            }
        });
        Client::new(service, "default")
    }

    /// Creates or replaces an object.
    pub(crate) fn set_object(&self, collection: &str, name: &str, mut object: Value) {
        let mut inner = self.inner.lock();
        inner.revision += 1;
        object["metadata"]["name"] = name.into();
        object["metadata"]["resourceVersion"] = inner.revision.to_string().into();
        let before = inner.objects.insert((collection.to_owned(), name.to_owned()), object.clone());
        inner.send_event(collection, name, if before.is_some() { "MODIFIED" } else { "ADDED" }, &object);
    }

    pub(crate) fn delete(&self, collection: &str, name: &str) {
        let mut inner = self.inner.lock();
        inner.revision += 1;
        if let Some(object) = inner.objects.remove(&(collection.to_owned(), name.to_owned())) {
            inner.send_event(collection, name, "DELETED", &object);
        }
    }

    /// Nothing is answered any more, and open watches end.
    pub(crate) fn set_down(&self, down: bool) {
        let mut inner = self.inner.lock();
        inner.down = down;
        if down {
            inner.watchers.clear();
        }
    }

    pub(crate) fn set_token_life(&self, seconds: i64) {
        self.inner.lock().token_life = seconds;
    }

    /// How many watches are open.
    pub(crate) fn watches(&self) -> usize {
        let mut inner = self.inner.lock();
        inner.watchers.retain(|watcher| !watcher.events.is_closed());
        inner.watchers.len()
    }

    /// The names of all objects of a collection.
    pub(crate) fn names(&self, collection: &str) -> Vec<String> {
        let inner = self.inner.lock();
        inner.objects.keys().filter(|(own, _)| own == collection).map(|(_, name)| name.clone()).collect()
    }

    /// An object as it is now.
    pub(crate) fn get(&self, collection: &str, name: &str) -> Option<Value> {
        self.inner.lock().objects.get(&(collection.to_owned(), name.to_owned())).cloned()
    }

    fn answer(&self, request: &Parts, body: &[u8]) -> Option<FakeResponse> {
        let (collection, name) = request.uri.path().rsplit_once('/').unwrap_or_default();
        if !self.inner.lock().down
            && let Some(mut object) = self.get(collection, name)
        {
            if request.method == Method::PATCH {
                merge(&mut object, &serde_json::from_slice(body).unwrap());
                self.set_object(collection, name, object.clone());
            }
            return Some(whole(&object));
        }
        let mut inner = self.inner.lock();
        if inner.down {
            return None;
        }
        let path = request.uri.path().to_owned();
        if request.method == Method::POST && path.ends_with("/token") {
            inner.tokens += 1;
            let life = if inner.token_life == 0 { 3600 } else { inner.token_life };
            let expires = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(life);
            return Some(whole(&json!({
                "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {}, "spec": {"audiences": []},
                "status": {"token": format!("token-{}", inner.tokens), "expirationTimestamp": expires.to_string()},
            })));
        }
        if request.method == Method::POST {
            let mut object: Value = serde_json::from_slice(body).unwrap();
            let prefix = object["metadata"]["generateName"].as_str().unwrap_or_default();
            let name = match object["metadata"]["name"].as_str() {
                Some(name) => name.to_owned(),
                None => format!("{prefix}{}", inner.revision),
            };
            drop(inner);
            object["metadata"]["name"] = name.clone().into();
            self.set_object(&path, &name, object);
            return self.get(&path, &name).map(|made| whole(&made));
        }
        let query: BTreeMap<_, _> =
            form_urlencoded::parse(request.uri.query().unwrap_or_default().as_bytes()).into_owned().collect();
        let name =
            query.get("fieldSelector").and_then(|selector| selector.strip_prefix("metadata.name=")).map(str::to_owned);
        if query.contains_key("watch") {
            let (events, received) = mpsc::unbounded_channel();
            let since: u64 = query.get("resourceVersion").and_then(|version| version.parse().ok()).unwrap_or_default();
            for ((collection, own), object) in &inner.objects {
                let version = object["metadata"]["resourceVersion"].as_str().and_then(|version| version.parse().ok());
                if *collection == path && name.as_ref().is_none_or(|name| name == own) && version > Some(since) {
                    _ = events.send(line("MODIFIED", object));
                }
            }
            inner.watchers.push(Watcher { collection: path, name, events });
            let frames = UnboundedReceiverStream::new(received).map(|line| Ok(Frame::data(line)));
            return Some(Response::new(StreamBody::new(frames).boxed_unsync()));
        }
        let items: Vec<&Value> = inner
            .objects
            .iter()
            .filter(|((collection, own), _)| *collection == path && name.as_ref().is_none_or(|name| name == own))
            .map(|(_, object)| object)
            .collect();
        let meta = json!({"resourceVersion": inner.revision.to_string()});
        Some(whole(&json!({"kind": "List", "apiVersion": "v1", "metadata": meta, "items": items})))
    }
}

impl Inner {
    fn send_event(&self, collection: &str, name: &str, event: &str, object: &Value) {
        let line = line(event, object);
        for watcher in &self.watchers {
            if watcher.collection == collection && watcher.name.as_ref().is_none_or(|own| own == name) {
                _ = watcher.events.send(line.clone());
            }
        }
    }
}

fn line(event: &str, object: &Value) -> Bytes {
    Bytes::from(format!("{}\n", json!({"type": event, "object": object})))
}

fn merge(to: &mut Value, from: &Value) {
    match (to, from) {
        (Value::Object(to), Value::Object(from)) => {
            for (key, value) in from {
                merge(to.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (to, from) => *to = from.clone(),
    }
}

fn whole(value: &Value) -> FakeResponse {
    Response::new(Full::new(Bytes::from(value.to_string())).boxed_unsync())
}
