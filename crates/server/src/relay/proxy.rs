//! `pods/proxy`, `services/proxy`, `nodes/proxy`: HTTP to what runs in the cluster.
//!
//! The name may carry a scheme and a port: `web`, `web:8080`, `web:http`, `https:web:8443`. Pods are reached through
//! their agent, so it does not matter whether the server has a route to their addresses.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header};
use hyper::body::Incoming;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio_rustls::TlsConnector;

use super::{
    RelayRequest, RequestBody, agent,
    html_links::LinkRewriter,
    pipe,
    pod::{empty_body, object},
    service, tunnel,
};
use crate::http::{
    response_body::{Body, Response},
    status::{ApiError, ApiResult},
};

/// Whom a name means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyTarget {
    pub https: bool,
    pub name: String,
    /// A number or a name; empty for the first there is.
    pub port: String,
}

impl ProxyTarget {
    pub fn parse(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.split(':').collect();
        let (scheme, name, port) = match parts[..] {
            [name] => ("", name, ""),
            [name, port] => ("", name, port),
            [scheme, name, port] => (scheme, name, port),
            _ => return None,
        };
        if name.is_empty() || !matches!(scheme, "" | "http" | "https") {
            return None;
        }
        Some(Self { https: scheme == "https", name: name.to_owned(), port: port.to_owned() })
    }
}

fn take_proxy_target(relayed: &mut RelayRequest<'_>) -> ApiResult<ProxyTarget> {
    let kind = relayed.target.d.singular.clone();
    let text = &relayed.target.name;
    let name = ProxyTarget::parse(text);
    let name = name.ok_or_else(|| ApiError::bad_request(format!("invalid {kind} request {text:?}")))?;
    relayed.target.name = name.name.clone();
    Ok(name)
}

/// As upstream: a directory has a slash at its end.
fn redirect_to_slash(relayed: &RelayRequest<'_>) -> Option<Response> {
    let uri = &relayed.parts.uri;
    let bare = relayed.rest.is_empty() && matches!(relayed.parts.method, Method::GET | Method::HEAD);
    if !bare || pipe::wants_upgrade(&relayed.parts.headers) {
        return None;
    }
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let mut response = http::Response::new(Body::empty());
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    let location = HeaderValue::from_str(&format!("{}/{query}", uri.path())).ok()?;
    response.headers_mut().insert(header::LOCATION, location);
    Some(response)
}

pub async fn pod(mut relayed: RelayRequest<'_>) -> ApiResult<Response> {
    let redirect = redirect_to_slash(&relayed);
    let name = take_proxy_target(&mut relayed)?;
    let pod = object(relayed.api, &relayed.target).await?;
    if let Some(redirect) = redirect {
        return Ok(redirect);
    }
    let port = service::pod_port(&pod, &name.port)?;
    to_pod(relayed, &pod, port, name.https).await
}

pub async fn service(mut relayed: RelayRequest<'_>) -> ApiResult<Response> {
    let redirect = redirect_to_slash(&relayed);
    let name = take_proxy_target(&mut relayed)?;
    let service = object(relayed.api, &relayed.target).await?;
    if let Some(redirect) = redirect {
        return Ok(redirect);
    }
    let (pod, port) = service::endpoint(relayed.api, &service, &name.port).await?;
    to_pod(relayed, &pod, port, name.https).await
}

pub async fn node(mut relayed: RelayRequest<'_>) -> ApiResult<Response> {
    let redirect = redirect_to_slash(&relayed);
    let name = take_proxy_target(&mut relayed)?;
    let agent = relayed.agents.find(relayed.api, &name.name).await?;
    if let Some(redirect) = redirect {
        return Ok(redirect);
    }
    if !name.port.is_empty() && name.port != agent.port.to_string() {
        let text = format!("only port {} of node {:?} can be reached", agent.port, name.name);
        return Err(ApiError::bad_request(text));
    }
    let request = proxied_request(&mut relayed, "agent")?;
    let response = relayed.agents.send(&agent, request).await?;
    through_proxy(relayed, response, "agent")
}

/// The path at which the client reaches what is proxied.
fn prefix<'p>(relayed: &RelayRequest<'p>) -> &'p str {
    let path = relayed.parts.uri.path();
    path.strip_suffix(relayed.rest).unwrap_or(path)
}

/// The response as the client gets it: with links and redirects that lead back here, and without permission for the
/// scripts of other sites to read what the API serves.
fn through_proxy(relayed: RelayRequest<'_>, response: http::Response<Incoming>, host: &str) -> ApiResult<Response> {
    let parts = relayed.parts;
    let named = parts.uri.authority().map(|authority| authority.as_str());
    let named = named.or_else(|| parts.headers.get(header::HOST)?.to_str().ok());
    let own_hosts = named.into_iter().chain([host]).map(str::to_owned).collect();
    let rewriter = LinkRewriter::new(prefix(&relayed), own_hosts);
    let mut response = pipe::forward_response(parts, response, relayed.lifetime)?;
    let headers = response.headers_mut();
    for name in [
        header::ACCESS_CONTROL_ALLOW_CREDENTIALS,
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        header::ACCESS_CONTROL_ALLOW_METHODS,
        header::ACCESS_CONTROL_ALLOW_ORIGIN,
    ] {
        headers.remove(name);
    }
    if let Some(location) = headers.get(header::LOCATION).and_then(|location| location.to_str().ok()) {
        if let Some(location) = rewriter.rewrite_url(location).and_then(|url| HeaderValue::from_str(&url).ok()) {
            headers.insert(header::LOCATION, location);
        }
        return Ok(response);
    }
    if !is_plain_html(headers) || parts.method == Method::HEAD {
        return Ok(response);
    }
    headers.remove(header::CONTENT_LENGTH);
    Ok(response.map(|body| match body {
        Body::Relayed(stream) => Body::Relayed(rewriter.rewrite_body(stream)),
        other => other,
    }))
}

fn is_plain_html(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()).unwrap_or_default();
    let media_type = text(header::CONTENT_TYPE).split(';').next().unwrap_or_default().trim();
    media_type.eq_ignore_ascii_case("text/html") && matches!(text(header::CONTENT_ENCODING), "" | "identity")
}

/// The client's request as what it is meant for gets it.
fn proxied_request(relayed: &mut RelayRequest<'_>, host: &str) -> ApiResult<Request<RequestBody>> {
    let bad = |error: &dyn std::fmt::Display| ApiError::bad_request(error.to_string());
    let query = relayed.parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let rest = if relayed.rest.is_empty() { "/" } else { relayed.rest };
    let uri: Uri = format!("{rest}{query}").parse().map_err(|e| bad(&e))?;
    let mut request = Request::new(relayed.body.take().unwrap_or_else(empty_body));
    *request.method_mut() = relayed.parts.method.clone();
    *request.uri_mut() = uri;
    *request.headers_mut() = pipe::forwarded_headers(&relayed.parts.headers);
    let accepts_html = |value: &HeaderValue| value.to_str().is_ok_and(|types| types.contains("text/html"));
    if relayed.parts.headers.get_all(header::ACCEPT).iter().any(accepts_html) {
        request.headers_mut().remove(header::ACCEPT_ENCODING); // or its links could not be rewritten
    }
    if let Ok(uri) = HeaderValue::from_str(&format!("{}{rest}", prefix(relayed))) {
        request.headers_mut().insert("x-forwarded-uri", uri);
    }
    request.headers_mut().insert(header::HOST, HeaderValue::from_str(host).map_err(|e| bad(&e))?);
    Ok(request)
}

/// Through the agent of the pod's node, as if from within the pod.
async fn to_pod(mut relayed: RelayRequest<'_>, pod: &Value, port: u16, https: bool) -> ApiResult<Response> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = text(&pod["metadata"]["name"]);
    let io = tunnel::open(relayed.api, relayed.agents, pod, port).await?;
    let failed = |why: &dyn std::fmt::Display| ApiError::not_served(format!("error trying to reach service: {why}"));
    let address = text(&pod["status"]["podIP"]);
    let host = if address.is_empty() { format!("{name}:{port}") } else { format!("{address}:{port}") };
    let request = proxied_request(&mut relayed, &host)?;
    let response = if https {
        let tls = TlsConnector::from(Arc::new(mainstay_tls::insecure_client_config().map_err(|e| failed(&e))?));
        let server = ServerName::try_from(name).map_err(|e| failed(&e))?;
        agent::send(tls.connect(server, io).await.map_err(|e| failed(&e))?, request).await
    } else {
        agent::send(io, request).await
    };
    through_proxy(relayed, response.map_err(|e| failed(&e))?, &host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_carry_scheme_and_port() {
        let name = |https, name: &str, port: &str| Some(ProxyTarget { https, name: name.into(), port: port.into() });
        assert_eq!(ProxyTarget::parse("web"), name(false, "web", ""));
        assert_eq!(ProxyTarget::parse("web:http"), name(false, "web", "http"));
        assert_eq!(ProxyTarget::parse("https:web:"), name(true, "web", ""));
        assert_eq!(ProxyTarget::parse("https:web:8443"), name(true, "web", "8443"));
        assert_eq!(ProxyTarget::parse("ftp:web:21"), None);
        assert_eq!(ProxyTarget::parse("a:b:c:d"), None);
        assert_eq!(ProxyTarget::parse(":80"), None);
    }
}
