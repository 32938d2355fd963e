//! `/livez`, `/readyz`, `/healthz`: whether the server and its store work. Open to everyone.

use http::{Method, StatusCode, request::Parts};
use mainstay_store::StoreError;

use crate::{
    handler::Handler,
    http::{
        reply,
        response_body::Response,
        status::{ApiError, ApiResult},
    },
};

const ROOTS: [&str; 3] = ["/livez", "/readyz", "/healthz"];

pub fn serves(path: &str) -> bool {
    ROOTS.iter().any(|root| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

/// Alive means that we answer; ready means that the store answers too and takes writes, that plugins which protect its keys
/// answer, and that we do not stop in a moment.
pub async fn respond(handler: &Handler, parts: &Parts) -> ApiResult<Response> {
    if !matches!(parts.method, Method::GET | Method::HEAD) {
        return Err(ApiError::method_not_allowed());
    }
    let path = parts.uri.path().trim_end_matches('/');
    let (root, check) = match path.split('/').collect::<Vec<_>>().as_slice() {
        ["", root] => (root.to_string(), None),
        ["", root, check] => (root.to_string(), Some(check.to_string())),
        _ => return Err(ApiError::no_such_path()),
    };
    let mut checks = vec![("ping", Ok(()))];
    if root != "livez" {
        let (store, full) = match handler.store().health().await {
            Ok(()) => (Ok(()), false),
            Err(StoreError::NoSpace) => (Ok(()), true),
            Err(error) => (Err(error.to_string()), false),
        };
        let space = match full || handler.api.space.is_exhausted() {
            true => Err("no space left on the store's disk: writes that need more are refused".to_owned()),
            false => Ok(()),
        };
        checks.extend([("store", store), ("store-space", space)]);
        let plugins = handler.encryption.as_ref().map(|encryption| encryption.plugins()).unwrap_or_default();
        if !plugins.is_empty() {
            let problems =
                plugins.iter().filter_map(|plugin| Some(format!("{}: {}", plugin.name(), plugin.problem()?)));
            let problems: Vec<String> = problems.collect();
            let kms = if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) };
            checks.push(("kms-providers", kms));
        }
    }
    if root == "readyz" {
        let stops = handler.shutting_down.is_cancelled();
        checks.push(("shutdown", if stops { Err("process is shutting down".to_owned()) } else { Ok(()) }));
    }
    if let Some(wanted) = &check {
        checks.retain(|(name, _)| name == wanted);
        if checks.is_empty() {
            return Err(ApiError::no_such_path());
        }
    }
    let failed = checks.iter().any(|(_, result)| result.is_err());
    let verbose = parts.uri.query().is_some_and(|q| q.split('&').any(|p| p == "verbose" || p.starts_with("verbose=")));
    let code = if failed { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::OK };
    if !failed && !verbose {
        return Ok(reply::text(code, "ok"));
    }
    let mut text = String::new();
    for (name, result) in &checks {
        match result {
            Ok(()) => text.push_str(&format!("[+]{name} ok\n")),
            Err(why) => text.push_str(&format!("[-]{name} failed: {why}\n")),
        }
    }
    text.push_str(&format!("{root} check {}\n", if failed { "failed" } else { "passed" }));
    Ok(reply::text(code, text))
}
