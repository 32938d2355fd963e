//! HTTP responses of the agent, and errors as plain text.

use bytes::Bytes;
use futures::{StreamExt, TryStream, TryStreamExt};
use http::{StatusCode, header};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;

pub type Body = UnsyncBoxBody<Bytes, std::io::Error>;
pub type Response = http::Response<Body>;

#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct RequestError {
    pub code: StatusCode,
    pub text: String,
}

pub type HandlerResult = Result<Response, RequestError>;

impl RequestError {
    pub fn new(code: StatusCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    pub fn bad_request(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    pub fn not_found(text: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, text)
    }

    pub fn internal(text: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, text)
    }

    pub fn into_response(self) -> Response {
        typed(self.code, "text/plain; charset=utf-8", self.text)
    }
}

pub fn typed(code: StatusCode, media_type: &'static str, body: impl Into<Bytes>) -> Response {
    let body = Full::new(body.into()).map_err(|never| match never {}).boxed_unsync();
    let mut response = http::Response::new(body);
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(media_type));
    response
}

pub fn json(value: &impl serde::Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(bytes) => typed(StatusCode::OK, "application/json", bytes),
        Err(error) => RequestError::internal(error.to_string()).into_response(),
    }
}

pub fn stream<S>(media_type: &'static str, pieces: S) -> Response
where
    S: TryStream<Ok = Bytes, Error = std::io::Error> + Send + 'static,
{
    let body = StreamBody::new(pieces.into_stream().map(|piece| piece.map(Frame::data)));
    let mut response = http::Response::new(BodyExt::boxed_unsync(body));
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(media_type));
    response
}

pub fn empty() -> Body {
    Full::new(Bytes::new()).map_err(|never| match never {}).boxed_unsync()
}
