//! `/openapi/v2` and `/openapi/v3`: what `kubectl explain` and client-side validation read.
//!
//! Old clients fetch the whole of v2 for every command that checks a manifest, so its protobuf form
//! is kept once made. Documents of v3 are addressed by their hash and kept by the clients, for good.
//!
//! A document of a megabyte is made in tens of milliseconds, and everybody with a name may ask for it. So one is made at a time,
//! and whoever asks while others still read it shares theirs: many requests cost neither all processors nor much memory.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock, Weak},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts};
use mainstay_api::{
    openapi::{self, ExtraDefinitions},
    registry::Registry,
};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use xxhash_rust::xxh3::xxh3_128;

use crate::http::{
    reply,
    response_body::{Body, Response},
    status::{ApiError, ApiResult},
};

const FOR_GOOD: &str = "public, immutable";

/// The largest document that is kept: with many custom kinds it would take more memory than their objects.
const MAX_KEPT: usize = 8 << 20;

/// The documents of one registry.
pub struct OpenApi {
    registry: Arc<Registry>,
    /// What other API servers add to v2.
    extra: Vec<Arc<ExtraDefinitions>>,
    v2: OnceLock<Arc<Vec<u8>>>,
    /// Small, but made from all of the schema.
    v3_index: OnceLock<Value>,
    /// Documents that responses still hold, by what makes them. The lock is held while one is made.
    shared: Mutex<HashMap<Document, Weak<Vec<u8>>>>,
}

/// What is made when it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Document {
    V2Json,
    V2Protobuf,
    V3 { group: String, version: String },
}

/// Bytes that all responses share.
struct SharedDocument(Arc<Vec<u8>>);

impl AsRef<[u8]> for SharedDocument {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl OpenApi {
    pub fn new(registry: impl Into<Arc<Registry>>, extra: Vec<Arc<ExtraDefinitions>>) -> Arc<Self> {
        Arc::new(Self {
            registry: registry.into(),
            extra,
            v2: OnceLock::new(),
            v3_index: OnceLock::new(),
            shared: Mutex::default(),
        })
    }

    /// Whether the documents are those of this registry and of these other servers.
    pub fn is_of(&self, registry: &Arc<Registry>, extra: &[Arc<ExtraDefinitions>]) -> bool {
        let is_same = |(own, other): (&Arc<_>, &Arc<_>)| Arc::ptr_eq(own, other);
        Arc::ptr_eq(&self.registry, registry)
            && self.extra.len() == extra.len()
            && self.extra.iter().zip(extra).all(is_same)
    }

    pub fn serves(path: &str) -> bool {
        path == "/openapi/v2" || path == "/openapi/v3" || path.starts_with("/openapi/v3/")
    }

    /// The index of v3 with the documents of other servers: `(path, URL)`.
    pub fn respond_index(&self, parts: &Parts, others: Vec<(String, String)>) -> Response {
        let mut index = self.v3_index().clone();
        for (path, url) in others {
            index["paths"][path] = json!({ "serverRelativeURL": url });
        }
        with_etag(&parts.headers, "application/json", index.to_string().into())
    }

    pub async fn respond(self: Arc<Self>, parts: &Parts) -> ApiResult<Response> {
        self.document(parts.uri.path(), parts.uri.query().unwrap_or_default(), &parts.headers).await
    }

    async fn document(self: Arc<Self>, path: &str, query: &str, headers: &HeaderMap) -> ApiResult<Response> {
        match path {
            "/openapi/v2" if wants_protobuf(headers) => {
                let bytes = match self.v2.get() {
                    Some(kept) => Bytes::from_owner(SharedDocument(kept.clone())),
                    None => self.make(Document::V2Protobuf).await?,
                };
                Ok(with_etag(headers, openapi::V2_PROTOBUF_CONTENT_TYPE, bytes))
            }
            "/openapi/v2" => {
                let bytes = self.make(Document::V2Json).await?;
                Ok(with_etag(headers, "application/json", bytes))
            }
            "/openapi/v3" => Ok(with_etag(headers, "application/json", self.v3_index().to_string().into())),
            _ => self.v3(path, query, headers).await,
        }
    }

    fn v3_index(&self) -> &Value {
        self.v3_index.get_or_init(|| openapi::v3_index(&self.registry))
    }

    async fn v3(self: Arc<Self>, path: &str, query: &str, headers: &HeaderMap) -> ApiResult<Response> {
        let name = path.trim_start_matches("/openapi/v3/");
        let current = &self.v3_index()["paths"][name]["serverRelativeURL"];
        let Value::String(current) = current else { return Err(ApiError::no_such_path()) };
        let asked = form_urlencoded::parse(query.as_bytes()).find(|(key, _)| key == "hash");
        let fresh = asked.as_ref().is_some_and(|(_, hash)| current.ends_with(&format!("={hash}")));
        if asked.is_some() && !fresh {
            return Ok(redirect(current));
        }
        let (group, version) = match name.split('/').collect::<Vec<_>>()[..] {
            ["api", version] => ("", version),
            ["apis", group, version] => (group, version),
            _ => return Err(ApiError::no_such_path()),
        };
        let document = Document::V3 { group: group.to_owned(), version: version.to_owned() };
        let mut response = with_etag(headers, "application/json", self.clone().make(document).await?);
        if fresh {
            response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static(FOR_GOOD));
        }
        Ok(response)
    }

    /// The document, as others have it or made now, when it is its turn.
    async fn make(self: Arc<Self>, document: Document) -> ApiResult<Bytes> {
        let mut shared = self.shared.lock().await;
        if let Some(held) = shared.get(&document).and_then(Weak::upgrade) {
            return Ok(Bytes::from_owner(SharedDocument(held)));
        }
        let wanted = document.clone();
        let made = self.clone().off_thread(move |this| match &wanted {
            Document::V2Json => Some(openapi::v2_json(&this.registry, &this.extra)),
            Document::V2Protobuf => Some(openapi::v2_protobuf(&this.registry, &this.extra)),
            Document::V3 { group, version } => openapi::v3(&this.registry, group, version),
        });
        let made = Arc::new(made.await?.ok_or_else(ApiError::no_such_path)?);
        if document == Document::V2Protobuf && made.len() <= MAX_KEPT {
            let _ = self.v2.set(made.clone()); // only one is made at a time
        }
        shared.retain(|_, held| held.strong_count() > 0);
        shared.insert(document, Arc::downgrade(&made));
        Ok(Bytes::from_owner(SharedDocument(made)))
    }

    /// Writing a document takes tens of milliseconds: not on a thread that serves connections.
    async fn off_thread<T: Send + 'static>(
        self: Arc<Self>,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> ApiResult<T> {
        let done = tokio::task::spawn_blocking(move || work(&self)).await;
        done.map_err(|error| ApiError::internal(error.to_string()))
    }
}

fn wants_protobuf(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let first = accept.split(',').map(|range| range.split(';').next().unwrap_or_default().trim()).next();
    first == Some(openapi::V2_PROTOBUF_ACCEPT) || first == Some(openapi::V2_PROTOBUF_CONTENT_TYPE)
}

/// A document with its fingerprint, or the news that the client has it already.
fn with_etag(headers: &HeaderMap, media_type: &'static str, bytes: Bytes) -> Response {
    let tag = format!("\"{:032X}\"", xxh3_128(&bytes));
    let known = headers.get(header::IF_NONE_MATCH).is_some_and(|given| given.as_bytes() == tag.as_bytes());
    let mut response = match known {
        true => reply::with_media_type(StatusCode::NOT_MODIFIED, media_type, Body::empty()),
        false => reply::with_media_type(StatusCode::OK, media_type, Body::full(bytes)),
    };
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
    response
}

fn redirect(to: &str) -> Response {
    let mut response =
        reply::with_media_type(StatusCode::MOVED_PERMANENTLY, "text/plain; charset=utf-8", Body::empty());
    if let Ok(to) = HeaderValue::from_str(to) {
        response.headers_mut().insert(header::LOCATION, to);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ask(url: &str, header: Option<(header::HeaderName, &str)>) -> ApiResult<Response> {
        let mut headers = HeaderMap::new();
        if let Some((name, value)) = header {
            headers.insert(name, value.parse().unwrap());
        }
        let (path, query) = url.split_once('?').unwrap_or((url, ""));
        OpenApi::new(Registry::builtin(), Vec::new()).document(path, query, &headers).await
    }

    #[tokio::test]
    async fn whoever_asks_while_others_read_a_document_shares_theirs() {
        let openapi = OpenApi::new(Registry::builtin(), Vec::new());
        let v3 = |version: &str| Document::V3 { group: "apps".into(), version: version.into() };
        for document in [Document::V2Json, v3("v1")] {
            let first = openapi.clone().make(document.clone()).await.unwrap();
            let second = openapi.clone().make(document.clone()).await.unwrap();
            assert_eq!(first.as_ptr(), second.as_ptr(), "{document:?}");
        }
        assert!(openapi.clone().make(v3("v9")).await.is_err());
        let held = openapi.shared.lock().await;
        assert!(held.values().all(|document| document.strong_count() == 0), "nothing lies idle");
    }

    #[tokio::test]
    async fn a_document_under_its_hash_may_be_kept_and_an_outdated_hash_is_led_to_the_new_one() {
        let index = openapi::v3_index(&Registry::builtin());
        let url = index["paths"]["apis/apps/v1"]["serverRelativeURL"].as_str().unwrap();
        let response = ask(url, None).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["cache-control"], FOR_GOOD);
        let outdated = ask("/openapi/v3/apis/apps/v1?hash=0", None).await.unwrap();
        assert_eq!((outdated.status().as_u16(), outdated.headers()["location"].to_str().unwrap()), (301, url));
        assert_eq!(ask("/openapi/v3/apis/wheels/v1", None).await.err().unwrap().code(), 404);
    }

    #[tokio::test]
    async fn a_client_that_has_the_document_is_told_so() {
        let tag = ask("/openapi/v3", None).await.unwrap().headers()["etag"].to_str().unwrap().to_owned();
        assert_eq!(ask("/openapi/v3", Some((header::IF_NONE_MATCH, &tag))).await.unwrap().status(), 304);
    }

    #[tokio::test]
    async fn protobuf_is_given_under_the_name_clients_can_parse() {
        let response = ask("/openapi/v2", Some((header::ACCEPT, openapi::V2_PROTOBUF_ACCEPT))).await.unwrap();
        assert_eq!(response.headers()["content-type"], openapi::V2_PROTOBUF_CONTENT_TYPE);
    }
}
