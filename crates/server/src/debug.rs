//! `/debug/…`: what parts of the process tell administrators, and do for them.
//!
//! Who answers is plugged in where the process is put together, so that the server knows nothing about schedulers.
//! Authorization has already made sure that an administrator asks.

use std::sync::Arc;

use futures::future::BoxFuture;
use http::{Method, StatusCode, request::Parts};

use crate::{
    body::Response,
    handler::Handler,
    reply,
    status::{ApiError, ApiResult},
};

const ROOT: &str = "/debug/";

/// An answer to something asked below `/debug`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
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
pub type Debug = Arc<dyn Fn(String) -> BoxFuture<'static, Told> + Send + Sync>;

pub fn concerns(path: &str) -> bool {
    path.starts_with(ROOT)
}

pub async fn answer(handler: &Handler, parts: &Parts) -> ApiResult<Response> {
    if !matches!(parts.method, Method::GET | Method::POST) {
        return Err(ApiError::method_not_allowed());
    }
    let asked = parts.uri.path().trim_start_matches(ROOT).trim_end_matches('/').to_owned();
    let told = match &handler.debug {
        Some(debug) => debug(asked).await,
        None => Told::Unavailable("no scheduler runs here".to_owned()),
    };
    match told {
        Told::Text(text) => Ok(reply::text(StatusCode::OK, text)),
        Told::Done => Ok(reply::text(StatusCode::NO_CONTENT, "")),
        Told::Unknown => Err(ApiError::no_such_path()),
        Told::Unavailable(why) => Err(ApiError::unavailable(why)),
    }
}
