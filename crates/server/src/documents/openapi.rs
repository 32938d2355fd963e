//! `/openapi/v2` and `/openapi/v3`: what `kubectl explain` and client-side validation read.
//!
//! Old clients fetch the whole of v2 for every command that checks a manifest, so its protobuf form
//! is kept once made. Documents of v3 are addressed by their hash and kept by the clients, for good.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts};
use mainstay_api::{openapi, registry::Registry};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_128;

use crate::http::{
    reply,
    response_body::{Body, Response},
    status::{ApiError, ApiResult},
};

const FOR_GOOD: &str = "public, immutable";

/// The documents of one registry.
pub struct OpenApi {
    registry: Registry,
    v2: OnceLock<Bytes>,
}

impl OpenApi {
    pub fn new(registry: Registry) -> Arc<Self> {
        Arc::new(Self { registry, v2: OnceLock::new() })
    }

    pub fn serves(path: &str) -> bool {
        path == "/openapi/v2" || path == "/openapi/v3" || path.starts_with("/openapi/v3/")
    }

    /// Answers off the async threads: writing a document takes tens of milliseconds.
    pub async fn respond(self: Arc<Self>, parts: &Parts) -> ApiResult<Response> {
        let (path, query) = (parts.uri.path().to_owned(), parts.uri.query().unwrap_or_default().to_owned());
        let headers = parts.headers.clone();
        tokio::task::spawn_blocking(move || self.document(&path, &query, &headers))
            .await
            .map_err(|error| ApiError::internal(error.to_string()))?
    }

    fn document(&self, path: &str, query: &str, headers: &HeaderMap) -> ApiResult<Response> {
        match path {
            "/openapi/v2" if wants_protobuf(headers) => {
                let bytes = self.v2.get_or_init(|| openapi::v2_protobuf(&self.registry).into()).clone();
                Ok(tagged(headers, openapi::V2_PROTOBUF_CONTENT_TYPE, bytes))
            }
            "/openapi/v2" => Ok(tagged(headers, "application/json", openapi::v2_json(&self.registry).into())),
            "/openapi/v3" => {
                Ok(tagged(headers, "application/json", openapi::v3_index(&self.registry).to_string().into()))
            }
            _ => self.v3(path, query, headers),
        }
    }

    fn v3(&self, path: &str, query: &str, headers: &HeaderMap) -> ApiResult<Response> {
        let name = path.trim_start_matches("/openapi/v3/");
        let current = &openapi::v3_index(&self.registry)["paths"][name]["serverRelativeURL"];
        let Value::String(current) = current else { return Err(ApiError::no_such_path()) };
        let asked = form_urlencoded::parse(query.as_bytes()).find(|(key, _)| key == "hash");
        let fresh = asked.as_ref().is_some_and(|(_, hash)| current.ends_with(&format!("={hash}")));
        if asked.is_some() && !fresh {
            return Ok(moved(current));
        }
        let (group, version) = match name.split('/').collect::<Vec<_>>()[..] {
            ["api", version] => ("", version),
            ["apis", group, version] => (group, version),
            _ => return Err(ApiError::no_such_path()),
        };
        let document = openapi::v3(&self.registry, group, version).ok_or_else(ApiError::no_such_path)?;
        let mut response = tagged(headers, "application/json", document.into());
        if fresh {
            response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static(FOR_GOOD));
        }
        Ok(response)
    }
}

fn wants_protobuf(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let first = accept.split(',').map(|range| range.split(';').next().unwrap_or_default().trim()).next();
    first == Some(openapi::V2_PROTOBUF_ACCEPT) || first == Some(openapi::V2_PROTOBUF_CONTENT_TYPE)
}

/// A document with its fingerprint, or the news that the client has it already.
fn tagged(headers: &HeaderMap, media_type: &'static str, bytes: Bytes) -> Response {
    let tag = format!("\"{:032X}\"", xxh3_128(&bytes));
    let known = headers.get(header::IF_NONE_MATCH).is_some_and(|given| given.as_bytes() == tag.as_bytes());
    let mut response = match known {
        true => reply::typed(StatusCode::NOT_MODIFIED, media_type, Body::empty()),
        false => reply::typed(StatusCode::OK, media_type, Body::full(bytes)),
    };
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
    response
}

fn moved(to: &str) -> Response {
    let mut response = reply::typed(StatusCode::MOVED_PERMANENTLY, "text/plain; charset=utf-8", Body::empty());
    if let Ok(to) = HeaderValue::from_str(to) {
        response.headers_mut().insert(header::LOCATION, to);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(url: &str, header: Option<(header::HeaderName, &str)>) -> ApiResult<Response> {
        let mut headers = HeaderMap::new();
        if let Some((name, value)) = header {
            headers.insert(name, value.parse().unwrap());
        }
        let (path, query) = url.split_once('?').unwrap_or((url, ""));
        OpenApi::new(Registry::builtin()).document(path, query, &headers)
    }

    #[test]
    fn a_document_under_its_hash_may_be_kept_and_an_outdated_hash_is_led_to_the_new_one() {
        let index = openapi::v3_index(&Registry::builtin());
        let url = index["paths"]["apis/apps/v1"]["serverRelativeURL"].as_str().unwrap();
        let response = ask(url, None).unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["cache-control"], FOR_GOOD);
        let outdated = ask("/openapi/v3/apis/apps/v1?hash=0", None).unwrap();
        assert_eq!((outdated.status().as_u16(), outdated.headers()["location"].to_str().unwrap()), (301, url));
        assert_eq!(ask("/openapi/v3/apis/wheels/v1", None).err().unwrap().code(), 404);
    }

    #[test]
    fn a_client_that_has_the_document_is_told_so() {
        let tag = ask("/openapi/v3", None).unwrap().headers()["etag"].to_str().unwrap().to_owned();
        assert_eq!(ask("/openapi/v3", Some((header::IF_NONE_MATCH, &tag))).unwrap().status(), 304);
    }

    #[test]
    fn protobuf_is_given_under_the_name_clients_can_parse() {
        let response = ask("/openapi/v2", Some((header::ACCEPT, openapi::V2_PROTOBUF_ACCEPT))).unwrap();
        assert_eq!(response.headers()["content-type"], openapi::V2_PROTOBUF_CONTENT_TYPE);
    }
}
