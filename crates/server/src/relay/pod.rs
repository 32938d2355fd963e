//! `pods/log`, `pods/exec`, `pods/attach`, `pods/portforward`.

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::{RelayRequest, RequestBody, options, pipe};
use crate::{
    api::{Api, Target},
    http::{
        reply,
        response_body::{Body, Response},
        status::{ApiError, ApiResult},
        websocket,
    },
    objects::object,
};

/// One segment of a path.
pub fn segment(text: &str) -> impl std::fmt::Display + '_ {
    utf8_percent_encode(text, NON_ALPHANUMERIC)
}

pub fn empty_body() -> RequestBody {
    Full::new(Bytes::new()).map_err(|never| match never {}).boxed_unsync()
}

impl RelayRequest<'_> {
    fn query(&self) -> &str {
        self.parts.uri.query().unwrap_or_default()
    }

    /// The path of something of this pod at its agent.
    fn path(&self, kind: &str, rest: &[&str], query: &str) -> String {
        let namespace = self.target.namespace.as_deref().unwrap_or_default();
        let mut path = format!("/{kind}/{}/{}", segment(namespace), segment(&self.target.name));
        for part in rest {
            path += &format!("/{}", segment(part));
        }
        if query.is_empty() { path } else { format!("{path}?{query}") }
    }
}

/// The object that is meant.
pub async fn object(api: &Api, target: &Target) -> ApiResult<Value> {
    let entry = api.existing(target).await?;
    object::parse(&target.d, &entry)
}

/// The node a pod is on.
pub fn node(pod: &Value) -> Option<&str> {
    pod["spec"]["nodeName"].as_str().filter(|node| !node.is_empty())
}

fn host(pod: &Value) -> ApiResult<&str> {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    node(pod).ok_or_else(|| ApiError::bad_request(format!("pod {name} does not have a host assigned")))
}

fn request(method: &http::Method, path: &str, body: RequestBody) -> ApiResult<Request<RequestBody>> {
    let request = Request::builder().method(method).uri(path).header(http::header::HOST, "agent").body(body);
    request.map_err(|error| ApiError::bad_request(error.to_string()))
}

pub async fn log(relayed: RelayRequest<'_>) -> ApiResult<Response> {
    let pod = object(relayed.api, &relayed.target).await?;
    let (wanted, query) = options::log(&relayed.target.name, relayed.query())?;
    let container = options::container(&pod, &wanted)?;
    let Some(node) = node(&pod) else {
        return Ok(reply::with_media_type(StatusCode::OK, "text/plain", Body::empty())); // it cannot have said anything
    };
    let agent = relayed.agents.find(relayed.api, node).await?;
    let request = request(&http::Method::GET, &relayed.path("containerLogs", &[&container], &query), empty_body())?;
    let response = relayed.agents.send(&agent, request).await?;
    if !response.status().is_success() {
        return Err(pipe::refusal(response).await);
    }
    let response = pipe::forward_response(relayed.parts, response, relayed.lifetime)?;
    if websocket::is_requested(&relayed.parts.headers) { websocket::log(relayed.parts, response) } else { Ok(response) }
}

/// Exec or attach.
pub async fn stream(relayed: RelayRequest<'_>, kind: &str) -> ApiResult<Response> {
    let pod = object(relayed.api, &relayed.target).await?;
    let (wanted, query) = options::streams(relayed.query());
    let container = options::container(&pod, &wanted)?;
    let path = relayed.path(kind, &[&container], &query);
    stream_to_agent(relayed, host(&pod)?, &path).await
}

pub async fn forward(relayed: RelayRequest<'_>) -> ApiResult<Response> {
    let pod = object(relayed.api, &relayed.target).await?;
    let query = options::ports(relayed.query());
    let path = relayed.path("portForward", &[], &query);
    stream_to_agent(relayed, host(&pod)?, &path).await
}

/// Lets client and agent agree on a protocol, and then speak it.
async fn stream_to_agent(relayed: RelayRequest<'_>, node: &str, path: &str) -> ApiResult<Response> {
    let agent = relayed.agents.find(relayed.api, node).await?;
    pipe::upgrade_required(relayed.parts)?;
    let mut request = request(&relayed.parts.method, path, empty_body())?;
    let headers = pipe::forwarded_headers(&relayed.parts.headers);
    for (name, value) in &headers {
        if name != http::header::CONTENT_LENGTH {
            request.headers_mut().append(name, value.clone());
        }
    }
    let response = relayed.agents.send(&agent, request).await?;
    pipe::forward_response(relayed.parts, response, relayed.lifetime)
}
