//! `POST /secrets/rotate-key`: re-encrypts all Secrets under a new key, as `mainstay secrets rotate-key` asks for it.
//!
//! Administrators may: like every path that is no resource, it needs a role that names it.

use http::{Method, StatusCode, request::Parts};
use serde_json::json;

use crate::{
    handler::Handler,
    http::{
        reply,
        response_body::Response,
        status::{ApiError, ApiResult},
    },
    storage::encryption::RotateError,
};

pub fn serves(path: &str) -> bool {
    path == "/secrets/rotate-key"
}

/// A client that leaves, or a request that takes too long, does not end a rotation that has begun.
pub async fn respond(handler: &Handler, parts: &Parts) -> ApiResult<Response> {
    if parts.method != Method::POST {
        return Err(ApiError::method_not_allowed());
    }
    let encryption = handler.encryption.clone().ok_or_else(ApiError::no_such_path)?;
    let rotated = tokio::spawn(async move { encryption.rotate().await }).await;
    let rotated = rotated.map_err(|error| ApiError::internal(format!("the rotation ended early: {error}")))?;
    match rotated {
        Ok(rotation) => {
            tracing::info!(key = rotation.key, count = rotation.reencrypted, "Secrets are encrypted by a new key");
            let done = json!({ "key": rotation.key, "reencrypted": rotation.reencrypted });
            Ok(reply::json(StatusCode::OK, &done))
        }
        Err(RotateError::Encryption(error)) => {
            let why = mainstay_errors::error_chain(&error);
            tracing::error!(error = why, "the keys are not rotated; both remain in use");
            Err(ApiError::internal(format!("the keys are not rotated, both remain in use: {why}")))
        }
        Err(refused) => Err(ApiError::bad_request(refused.to_string())),
    }
}
