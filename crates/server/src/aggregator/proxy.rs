//! Passes requests on to the server that an APIService names: every verb, watches, and what leaves HTTP by an upgrade.
//!
//! An answer begins within `--request-timeout` and, unless it is a stream, also ends within it: a server that falls silent fails requests,
//! and holds up no controller. Redirects are not passed on, since clients would send their credentials wherever they lead; nor is
//! any upgrade but those that Kubernetes' clients speak, since on an HTTP connection of ours (`h2c`) a client could name itself.

use std::{net::IpAddr, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, StatusCode, Uri, header, request::Parts};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use rustls::pki_types::ServerName;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use super::{api_services::RemoteService, remote_headers};
use crate::{
    api::Api,
    audit::AuditContext,
    auth::User,
    fence::Fence,
    handler::Handler,
    http::{
        reply,
        request_body::RequestBody,
        request_limits::Seat,
        response_body::Response,
        route::Route,
        status::{ApiError, ApiResult},
    },
    relay::{Lifetime, RequestBody as RelayedBody, agent, pipe},
};

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(10);
/// What clients of Kubernetes leave HTTP for.
const UPGRADES: [&str; 2] = ["websocket", "SPDY/3.1"];
/// Subresources whose answers last as long as either side likes, as upstream has them.
const STREAMS: [&str; 5] = ["attach", "exec", "log", "portforward", "proxy"];
const FORWARDED_FOR: &str = "x-forwarded-for";

/// A request that another server answers.
#[derive(Clone, Copy)]
pub struct RemoteRequest<'a> {
    pub service: &'a RemoteService,
    /// Where it came from, if over the network.
    pub source: Option<IpAddr>,
    /// Its answer may last.
    pub is_long_running: bool,
}

/// Whether the client asks to leave HTTP for something that is passed on.
pub fn is_upgrade(headers: &HeaderMap) -> bool {
    let protocols = headers.get_all(header::UPGRADE).iter().flat_map(|value| value.to_str().unwrap_or("?").split(','));
    let mut protocols = protocols.map(str::trim).peekable();
    let is_known = |protocol: &str| UPGRADES.iter().any(|known| known.eq_ignore_ascii_case(protocol));
    pipe::wants_upgrade(headers) && protocols.peek().is_some() && protocols.all(is_known)
}

/// Whether the answer lasts, without being a watch.
pub fn is_stream(route: &Route<'_>) -> bool {
    matches!(route, Route::Resource(r) if r.subresource.as_deref().is_some_and(|name| STREAMS.contains(&name)))
}

impl Handler {
    /// Passes on a request that was authorized.
    pub(crate) async fn proxy_to_remote(
        &self,
        parts: &Parts,
        body: &mut RequestBody,
        user: &User,
        remote: RemoteRequest<'_>,
        seat: &mut Seat<'_>,
    ) -> ApiResult<Response> {
        if !remote.service.is_available {
            return Ok(unavailable("service unavailable"));
        }
        let deadline = Instant::now().checked_add(self.api.settings.request_timeout);
        let is_upgrade = is_upgrade(&parts.headers);
        let sent = if is_upgrade {
            body.take().unwrap_or_else(|| full(Bytes::new()))
        } else {
            let received = self.receive(body, seat).await?;
            if let Some(audit) = AuditContext::from_parts(parts) {
                audit.set_body(&parts.method, &received.bytes);
            }
            full(received.bytes.clone())
        };
        let request = proxied_request(parts, sent, user, remote)?;
        if let Some(fence) = Fence::from_request(parts).filter(|_| !parts.method.is_safe()) {
            self.api.check_term(fence).await?;
        }
        match self.with_timeout(async { Ok(send(&self.api, remote.service, request).await) }).await? {
            Ok(response) if is_redirect(&response) => {
                let why = "the backend attempted to redirect this request, which is not permitted";
                Ok(reply::text(StatusCode::BAD_GATEWAY, why))
            }
            Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS && !is_upgrade => {
                Ok(reply::text(StatusCode::BAD_GATEWAY, "the backend switched protocols without being asked to"))
            }
            Ok(response) => {
                let deadline = deadline.filter(|_| !remote.is_long_running);
                let lifetime = Lifetime { stop: self.stop.clone(), seat: seat.hand_over(), deadline };
                pipe::forward_response(parts, response, lifetime)
            }
            Err(why) => {
                tracing::debug!(api_service = remote.service.name, why, "cannot pass a request on");
                Ok(unavailable(&format!("error trying to reach service: {why}")))
            }
        }
    }
}

fn is_redirect<B>(response: &http::Response<B>) -> bool {
    response.status().is_redirection() && response.headers().contains_key(header::LOCATION)
}

/// As upstream answers for a server that does not.
fn unavailable(why: &str) -> Response {
    let mut response = reply::text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"));
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

pub fn full(bytes: Bytes) -> RelayedBody {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

fn proxied_request(
    parts: &Parts,
    body: RelayedBody,
    user: &User,
    remote: RemoteRequest<'_>,
) -> ApiResult<Request<RelayedBody>> {
    let bad = |error: &dyn std::fmt::Display| ApiError::bad_request(error.to_string());
    let uri: Uri = parts.uri.path_and_query().map_or("/", |path| path.as_str()).parse().map_err(|e| bad(&e))?;
    let mut request = Request::new(body);
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = uri;
    *request.headers_mut() = pipe::forwarded_headers(&parts.headers);
    // The whole body is at hand: its length is its own.
    request.headers_mut().remove(header::CONTENT_LENGTH);
    request.headers_mut().remove(header::EXPECT);
    request.headers_mut().remove(header::CONNECTION);
    if is_upgrade(&parts.headers) {
        // Nothing else: what a client lists there, somebody on the way may drop, and so who the client is.
        request.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    } else {
        request.headers_mut().remove(header::UPGRADE);
    }
    append_source(request.headers_mut(), remote.source);
    remote_headers::set(request.headers_mut(), user)?;
    let host = HeaderValue::from_str(&remote.service.host()).map_err(|e| bad(&e))?;
    request.headers_mut().insert(header::HOST, host);
    Ok(request)
}

/// Names where the request came from, after what the client says of proxies before it, as upstream does.
fn append_source(headers: &mut HeaderMap, source: Option<IpAddr>) {
    let Some(source) = source else { return };
    let before = headers.get_all(FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok());
    let own = source.to_string();
    let all: Vec<&str> = before.chain([own.as_str()]).collect();
    match HeaderValue::from_str(&all.join(", ")) {
        Ok(value) => drop(headers.insert(FORWARDED_FOR, value)),
        Err(_) => drop(headers.remove(FORWARDED_FOR)),
    }
}

/// Sends a request over a connection of its own, and returns the head of the answer.
pub async fn send(
    api: &Api,
    remote: &RemoteService,
    request: Request<RelayedBody>,
) -> Result<http::Response<Incoming>, String> {
    let tls = remote.tls.clone()?;
    let connecting = async {
        let io = api.webhooks.dial_service(api, &remote.namespace, &remote.service, remote.port).await?;
        let name = ServerName::try_from(remote.host()).map_err(|error| error.to_string())?;
        TlsConnector::from(tls).connect(name, io).await.map_err(|error| format!("tls: {error}"))
    };
    let io = tokio::time::timeout(CONNECT, connecting).await.map_err(|_| "dial: i/o timeout".to_owned())??;
    agent::send(io, request).await.map_err(|error| error.to_string())
}

/// Asks for a document as a part of this server; its status and no more of it than `most`.
pub async fn fetch(
    api: &Api,
    remote: &RemoteService,
    path: &str,
    accept: &'static str,
    etag: Option<&HeaderValue>,
    most: usize,
) -> Result<http::Response<Bytes>, String> {
    let mut request = Request::new(full(Bytes::new()));
    *request.uri_mut() = path.parse().map_err(|error: http::uri::InvalidUri| error.to_string())?;
    let asker = User {
        name: "system:kube-aggregator".to_owned(),
        groups: vec![crate::auth::MASTERS.to_owned()],
        ..User::default()
    };
    remote_headers::set(request.headers_mut(), &asker).map_err(|error| error.message().to_owned())?;
    let host = HeaderValue::from_str(&remote.host()).map_err(|error| error.to_string())?;
    request.headers_mut().insert(header::HOST, host);
    request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static(accept));
    if let Some(etag) = etag {
        request.headers_mut().insert(header::IF_NONE_MATCH, etag.clone());
    }
    let response = send(api, remote, request).await?;
    let (head, body) = response.into_parts();
    let body = Limited::new(body, most).collect().await.map_err(|error| error.to_string())?;
    Ok(http::Response::from_parts(head, body.to_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn only_what_clients_of_kubernetes_speak_is_an_upgrade() {
        for (protocol, expected) in [
            ("websocket", true),
            ("SPDY/3.1", true),
            ("WebSocket", true),
            ("h2c", false),
            ("websocket, h2c", false),
            ("", false),
        ] {
            let asked = headers(&[("connection", "Upgrade, HTTP2-Settings"), ("upgrade", protocol)]);
            assert_eq!(is_upgrade(&asked), expected, "{protocol:?}");
        }
        assert!(!is_upgrade(&headers(&[("connection", "Upgrade")])));
        assert!(!is_upgrade(&headers(&[("upgrade", "websocket")])));
        assert!(!is_upgrade(&headers(&[("connection", "Upgrade"), ("upgrade", "websocket"), ("upgrade", "h2c")])));
    }

    #[test]
    fn the_last_address_is_where_the_request_came_from() {
        let mut sent = headers(&[("x-forwarded-for", "9.9.9.9"), ("x-forwarded-for", "8.8.8.8")]);
        append_source(&mut sent, Some([10, 0, 0, 7].into()));
        let all: Vec<_> = sent.get_all(FORWARDED_FOR).iter().collect();
        assert_eq!(all, ["9.9.9.9, 8.8.8.8, 10.0.0.7"]);
    }
}
