//! Paths that are no resources: `/version`, `/metrics`, `/backup`, `/cacerts`, and the list of paths.

use std::future;

use futures::StreamExt;
use http::{Method, StatusCode, header, request::Parts};
use mainstay_api::registry::Registry;
use serde_json::json;
use tokio_util::io::ReaderStream;

use crate::{
    documents::{issuer, openapi::OpenApi},
    handler::Handler,
    http::{
        reply,
        response_body::{Body, Response},
        status::{ApiError, ApiResult},
    },
    settings::BuildInfo,
};

const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Where the server's own authority is published.
const CA: &str = "/cacerts";
/// The Kubernetes version whose API this is.
const MINOR: &str = "37";
const GIT_VERSION: &str = concat!("v1.37.0+mainstay-", env!("CARGO_PKG_VERSION"));
/// What of that version is served without effect, `<plural>.<group>`: objects are validated and stored, and nothing acts on them. So that a program
/// that depends on one of them can see it; `docs/features.md` has the details.
const STORED_WITHOUT_EFFECT: [&str; 6] = [
    "csidrivers.storage.k8s.io",
    "csinodes.storage.k8s.io",
    "csistoragecapacities.storage.k8s.io",
    "ingressclasses.networking.k8s.io",
    "ingresses.networking.k8s.io",
    "networkpolicies.networking.k8s.io",
];

pub async fn respond(handler: &Handler, parts: &Parts) -> ApiResult<Response> {
    if parts.method != Method::GET {
        return Err(ApiError::method_not_allowed());
    }
    let registry = &handler.api.served.current();
    let path = parts.uri.path().trim_end_matches('/');
    match path {
        "" => Ok(reply::json(StatusCode::OK, &json!({ "paths": paths(registry) }))),
        "/metrics" => Ok(reply::with_media_type(StatusCode::OK, METRICS, Body::full(handler.metrics.text()))),
        "/version" => Ok(version(&handler.api.settings.build)),
        "/backup" => backup(handler).await,
        CA => authority(handler),
        "/openid/v1/jwks" => issuer::keys(handler).await,
        "/.well-known/openid-configuration" => Ok(issuer::configuration(handler, parts)),
        "/openapi/v3" => Ok(handler.openapi().respond_index(parts, handler.api.aggregator.v3_urls(&handler.api))),
        path if OpenApi::serves(path) => handler.openapi().respond(parts).await,
        _ => Err(ApiError::no_such_path()),
    }
}

/// Whether a document is for anyone who can reach us: a node about to join has no name yet, and upstream's role
/// `system:public-info-viewer` shows the version to everyone. But a token that is presented must be a good one.
pub fn is_public(parts: &Parts) -> bool {
    match parts.uri.path() {
        CA => true,
        "/version" | "/version/" => !parts.headers.contains_key(header::AUTHORIZATION),
        _ => false,
    }
}

/// The certificate by which the server is recognised. It proves nothing by itself: whoever joins compares it
/// with the hash in its token.
fn authority(handler: &Handler) -> ApiResult<Response> {
    let ca = handler.ca.as_deref().ok_or_else(ApiError::no_such_path)?;
    Ok(reply::text(StatusCode::OK, ca.to_owned()))
}

/// A consistent copy of the store, as `mainstay backup` fetches it.
async fn backup(handler: &Handler) -> ApiResult<Response> {
    let Some(backup) = handler.backup.clone() else {
        return Err(ApiError::not_implemented("this store is not backed up through the API; use etcd's own snapshots"));
    };
    let fail = |error: &dyn std::fmt::Display| ApiError::internal(format!("backup failed: {error}"));
    let dir = tempfile::tempdir().map_err(|error| fail(&error))?;
    let path = dir.path().join("backup");
    let target = path.clone();
    let written = tokio::task::spawn_blocking(move || backup(&target)).await.map_err(|error| fail(&error))?;
    written.map_err(|error| fail(&error))?;
    let file = tokio::fs::File::open(&path).await.map_err(|error| fail(&error))?;
    drop(dir); // the open file stays readable, and nothing is left behind
    // A reader that fails ends the stream early; the client verifies what it got.
    let pieces = ReaderStream::with_capacity(file, 256 * 1024).scan((), |(), piece| future::ready(piece.ok())).boxed();
    Ok(reply::with_media_type(StatusCode::OK, "application/octet-stream", Body::Stream(pieces)))
}

fn version(build: &BuildInfo) -> Response {
    reply::json(
        StatusCode::OK,
        &json!({
            "major": "1",
            "minor": MINOR,
            "gitVersion": GIT_VERSION,
            "gitCommit": build.git_commit,
            "gitTreeState": build.git_tree_state,
            "buildDate": build.build_date,
            "goVersion": "none",
            "compiler": "rustc",
            "platform": format!("{}/{}", std::env::consts::OS, architecture()),
            "storedWithoutEffect": STORED_WITHOUT_EFFECT,
        }),
    )
}

/// As Go names it, because clients compare.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Documents are made when asked for: clients keep them, so memory for a copy would lie idle.
fn paths(registry: &Registry) -> Vec<String> {
    let mut paths: Vec<String> =
        ["/.well-known/openid-configuration", "/api", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v2"]
            .into_iter()
            .chain(["/openapi/v3", "/openid/v1/jwks", "/readyz", "/version"])
            .map(str::to_owned)
            .collect();
    for d in registry.iter() {
        paths.push(if d.group.is_empty() {
            format!("/api/{}", d.version)
        } else {
            format!("/apis/{}/{}", d.group, d.version)
        });
        if !d.group.is_empty() {
            paths.push(format!("/apis/{}", d.group));
        }
    }
    paths.sort();
    paths.dedup();
    paths
}
