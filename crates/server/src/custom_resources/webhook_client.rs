//! Calls a webhook: POST of JSON over TLS to a URL or to a Service of the cluster.
//!
//! A Service is reached through the agent of a pod that is ready for it, so it does not matter whether the server has a route to pods. The
//! certificate must be signed by `caBundle` (without one, by an authority that the machine trusts) for the URL's host or for `<service>.<namespace>.svc`. What a
//! webhook may send back is bounded, and so is the time it may take.

use std::{sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use rustls::{ClientConfig, RootCertStore, pki_types::ServerName};
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use crate::{
    api::Target,
    handler::Handler,
    objects::object,
    relay::{agent, proxy, service},
};

/// Most bytes of a response.
const MAX_RESPONSE: usize = 64 << 20;

#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    #[error("the client configuration is not usable: {0}")]
    Config(String),
    #[error("Post {url:?}: {why}")]
    Unreachable { url: String, why: String },
    #[error("Post {url:?}: context deadline exceeded (timeout {}s)", timeout.as_secs())]
    Timeout { url: String, timeout: Duration },
    #[error("the server responded with status {0}")]
    Status(http::StatusCode),
    #[error("the response is not a JSON object: {0}")]
    Response(String),
}

/// Where a `clientConfig` leads.
struct Endpoint {
    url: Uri,
    /// The name that the certificate must have.
    name: String,
    service: Option<(String, String, u16)>,
}

impl Endpoint {
    fn parse(config: &Value) -> Result<Self, WebhookError> {
        let bad = |why: &dyn std::fmt::Display| WebhookError::Config(why.to_string());
        let text = |value: &Value, name: &str| value[name].as_str().unwrap_or_default().to_owned();
        let service = &config["service"];
        if service.is_object() {
            let (namespace, name) = (text(service, "namespace"), text(service, "name"));
            let port = service["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(443);
            let host = format!("{name}.{namespace}.svc");
            let path = text(service, "path");
            let slash = if path.starts_with('/') { "" } else { "/" };
            let url = format!("https://{host}:{port}{slash}{path}").parse().map_err(|e| bad(&e))?;
            return Ok(Self { url, name: host, service: Some((namespace, name, port)) });
        }
        let url: Uri = text(config, "url").parse().map_err(|e| bad(&e))?;
        let name = url.host().ok_or_else(|| bad(&"the URL has no host"))?.trim_matches(['[', ']']).to_owned();
        Ok(Self { url, name, service: None })
    }
}

/// Sends `body` and returns what the webhook answers.
pub async fn post(handler: &Handler, config: &Value, body: &Value, timeout: Duration) -> Result<Value, WebhookError> {
    let endpoint = Endpoint::parse(config)?;
    let url = endpoint.url.to_string();
    match tokio::time::timeout(timeout, post_to(handler, &endpoint, config, body)).await {
        Ok(answer) => answer,
        Err(_) => Err(WebhookError::Timeout { url, timeout }),
    }
}

async fn post_to(handler: &Handler, endpoint: &Endpoint, config: &Value, body: &Value) -> Result<Value, WebhookError> {
    let unreachable =
        |why: &dyn std::fmt::Display| WebhookError::Unreachable { url: endpoint.url.to_string(), why: why.to_string() };
    let tls = TlsConnector::from(Arc::new(tls_config(config)?));
    let server = ServerName::try_from(endpoint.name.clone()).map_err(|e| WebhookError::Config(e.to_string()))?;
    let io: Box<dyn Stream> = match &endpoint.service {
        None => {
            let port = endpoint.url.port_u16().unwrap_or(443);
            Box::new(TcpStream::connect((endpoint.name.as_str(), port)).await.map_err(|e| unreachable(&e))?)
        }
        Some((namespace, name, port)) => {
            let opened = connect_to_service(handler, namespace, name, *port).await;
            opened.map_err(|error| unreachable(&error.message()))?
        }
    };
    let io = tls.connect(server, io).await.map_err(|e| unreachable(&format!("tls: {e}")))?;
    let path = endpoint.url.path_and_query().map_or("/", |path| path.as_str());
    let host = endpoint.url.authority().map_or("", |authority| authority.as_str());
    let content = Full::new(Bytes::from(body.to_string())).map_err(|never| match never {}).boxed_unsync();
    let mut request = Request::new(content);
    *request.method_mut() = Method::POST;
    *request.uri_mut() = path.parse().map_err(|e: http::uri::InvalidUri| WebhookError::Config(e.to_string()))?;
    let headers = request.headers_mut();
    headers.insert(header::HOST, HeaderValue::from_str(host).map_err(|e| WebhookError::Config(e.to_string()))?);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
    let response = agent::send(io, request).await.map_err(|e| unreachable(&e))?;
    if !response.status().is_success() {
        return Err(WebhookError::Status(response.status()));
    }
    let bytes = Limited::new(response.into_body(), MAX_RESPONSE).collect().await;
    let bytes = bytes.map_err(|error| WebhookError::Response(error.to_string()))?.to_bytes();
    let answer: Value = serde_json::from_slice(&bytes).map_err(|error| WebhookError::Response(error.to_string()))?;
    if answer.is_object() { Ok(answer) } else { Err(WebhookError::Response("it is something else".to_owned())) }
}

/// A connection, whatever it goes through.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A connection to a pod that is ready for a Service, through its agent.
pub async fn connect_to_service(
    handler: &Handler,
    namespace: &str,
    name: &str,
    port: u16,
) -> crate::http::status::ApiResult<Box<dyn Stream>> {
    let api = &handler.api;
    let d = api.registry.find("", "v1", "services").cloned();
    let d = d.ok_or_else(crate::http::status::ApiError::no_such_path)?;
    let target = Target { d, namespace: Some(namespace.to_owned()), name: name.to_owned() };
    let entry = api.existing(&target).await?;
    let found = object::parse(&target.d, &entry)?;
    let (pod, port) = service::endpoint(api, &found, &port.to_string()).await?;
    Ok(Box::new(proxy::open_tunnel(api, handler.agents()?, &pod, port).await?))
}

fn tls_config(config: &Value) -> Result<ClientConfig, WebhookError> {
    let bad = |why: String| WebhookError::Config(why);
    let roots = match config["caBundle"].as_str().filter(|bundle| !bundle.is_empty()) {
        Some(bundle) => {
            let pem = BASE64_STANDARD.decode(bundle).map_err(|error| bad(format!("caBundle: {error}")))?;
            let pem = String::from_utf8(pem).map_err(|error| bad(format!("caBundle: {error}")))?;
            mainstay_tls::root_store(&pem).map_err(|error| bad(format!("caBundle: {error}")))?
        }
        None => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            roots
        }
    };
    let builder = ClientConfig::builder_with_provider(mainstay_tls::provider()).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| bad(error.to_string()))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_webhook_is_a_url_or_a_service() {
        let service = json!({"service": {"namespace": "shop", "name": "hook", "path": "/convert"}});
        let endpoint = Endpoint::parse(&service).unwrap();
        assert_eq!(endpoint.url.to_string(), "https://hook.shop.svc:443/convert");
        assert_eq!(endpoint.service, Some(("shop".to_owned(), "hook".to_owned(), 443)));
        let endpoint = Endpoint::parse(&json!({"url": "https://[::1]:9443/x"})).unwrap();
        assert_eq!((endpoint.name.as_str(), endpoint.url.port_u16()), ("::1", Some(9443)));
        assert!(Endpoint::parse(&json!({"url": "/x"})).is_err());
    }
}
