//! `/debug/…`: diagnostics for administrators, from the parts of the process that register here.
//!
//! Who answers is plugged in where the process is put together, so that the server knows nothing about schedulers.
//! Authorization has already made sure that an administrator asks.

use std::sync::Arc;

use futures::future::BoxFuture;
use http::{Method, StatusCode, request::Parts};

use crate::{
    handler::Handler,
    http::{
        reply,
        response_body::Response,
        status::{ApiError, ApiResult},
    },
};

const ROOT: &str = "/debug/";

/// The response to a request below `/debug`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DebugResponse {
    /// Text for people.
    Text(String),
    /// It was done, and there is nothing to tell.
    Done,
    /// There is no such thing.
    Unknown,
    /// Nobody here can answer at the moment, and why.
    Unavailable(String),
}

/// Answers what is asked below `/debug`, given the path after that.
pub type Debug = Arc<dyn Fn(String) -> BoxFuture<'static, DebugResponse> + Send + Sync>;

pub fn serves(path: &str) -> bool {
    path.starts_with(ROOT)
}

pub async fn respond(handler: &Handler, parts: &Parts) -> ApiResult<Response> {
    if !matches!(parts.method, Method::GET | Method::POST) {
        return Err(ApiError::method_not_allowed());
    }
    let asked = parts.uri.path().trim_start_matches(ROOT).trim_end_matches('/').to_owned();
    let flow_control = &handler.api.flow_control;
    match asked.as_str() {
        "api_priority_and_fairness/dump_priority_levels" => {
            return Ok(reply::text(StatusCode::OK, flow_control.dump_priority_levels()));
        }
        "api_priority_and_fairness/dump_queues" => return Ok(reply::text(StatusCode::OK, flow_control.dump_queues())),
        _ => {}
    }
    let response = match &handler.debug {
        Some(debug) => debug(asked).await,
        None => DebugResponse::Unavailable("no scheduler runs here".to_owned()),
    };
    match response {
        DebugResponse::Text(text) => Ok(reply::text(StatusCode::OK, text)),
        DebugResponse::Done => Ok(reply::text(StatusCode::NO_CONTENT, "")),
        DebugResponse::Unknown => Err(ApiError::no_such_path()),
        DebugResponse::Unavailable(why) => Err(ApiError::unavailable(why)),
    }
}
