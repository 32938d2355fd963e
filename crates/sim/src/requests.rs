//! HTTP requests to the API by their bytes: bodies are encoded once, and responses are not decoded unless needed.

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use serde::{Deserialize, Serialize};

pub const JSON: &str = "application/json";
pub const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub const MERGE: &str = "application/merge-patch+json";

/// A request that was not answered, or not with success.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("{method} {path}")]
    Unanswered {
        method: Method,
        path: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("{method} {path}: {code}: {message}")]
    Refused { method: Method, path: String, code: u16, message: String },
}

impl CallError {
    /// The HTTP status, if there was an answer.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Unanswered { .. } => None,
            Self::Refused { code, .. } => Some(*code),
        }
    }
}

/// Sends a request and returns the bytes of the response.
pub async fn call(
    client: &Client,
    method: Method,
    path: &str,
    content: &str,
    body: Vec<u8>,
) -> Result<Bytes, CallError> {
    let unanswered =
        |source| CallError::Unanswered { method: method.clone(), path: path.to_owned(), source: Box::new(source) };
    let request = Request::builder()
        .method(method.clone())
        .uri(path)
        .header(header::CONTENT_TYPE, content)
        .header(header::ACCEPT, JSON)
        .body(Body::from(body))
        .map_err(|error| unanswered(kube::Error::HttpError(error)))?;
    let answer = client.send(request).await.map_err(unanswered)?;
    let code = answer.status();
    let bytes = answer.into_body().collect().await.map_err(unanswered)?.to_bytes();
    if code.is_success() {
        return Ok(bytes);
    }
    Err(CallError::Refused { method, path: path.to_owned(), code: code.as_u16(), message: message(code, &bytes) })
}

/// Replaces an object, and creates it if there is none. Returns its version.
pub async fn create_or_replace(
    client: &Client,
    all: &str,
    name: &str,
    object: &impl Serialize,
) -> Result<u64, CallError> {
    let body = serde_json::to_vec(object).unwrap_or_default();
    let stored = match call(client, Method::PUT, &format!("{all}/{name}"), JSON, body.clone()).await {
        Err(error) if error.code() == Some(404) => call(client, Method::POST, all, JSON, body).await?,
        other => other?,
    };
    Ok(version(&stored))
}

/// The `resourceVersion` of an object; 0 if it cannot be read.
pub fn version(object: &[u8]) -> u64 {
    #[derive(Deserialize)]
    struct Head {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        resource_version: String,
    }
    let head: Option<Head> = serde_json::from_slice(object).ok();
    head.and_then(|head| head.metadata.resource_version.parse().ok()).unwrap_or(0)
}

fn message(code: StatusCode, bytes: &[u8]) -> String {
    let status: Option<serde_json::Value> = serde_json::from_slice(bytes).ok();
    let message = status.as_ref().and_then(|status| status["message"].as_str());
    message.or(code.canonical_reason()).unwrap_or_default().to_owned()
}
