//! One HTTPS request with a review to a webhook, by URL or by Service; admission and conversion use the same.
//!
//! Guarantees: the answer comes within the timeout or is an error; no more than [`MAX_RESPONSE`] of it is read; the
//! certificate is verified against the webhook's `caBundle`; a backend that is known to be dead fails at once
//! ([`CircuitBreaker`]). Connections are used again. A Service's pod is reached through the agent of its node, like by
//! `services/proxy`, so the server needs no route to pods; a Service without a selector by its EndpointSlices.
//! Neither requests nor answers are logged.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    net::IpAddr,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use mainstay_store::List;
use mainstay_tls::ServerVerifier;
use parking_lot::Mutex;
use rustls::{ClientConfig, pki_types::ServerName};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::Semaphore,
};
use tokio_rustls::TlsConnector;

use super::circuit_breaker::CircuitBreaker;
use crate::{
    api::Api,
    custom_resources::webhook_conversion::MAX_WAITING_THREADS,
    objects::{keys, object},
    relay::{Agents, agent::KEEPALIVE, service, tunnel},
};

/// The most of an answer that is read.
const MAX_RESPONSE: usize = 3 << 20;
/// Connections without a request that are held for each backend, and in all.
const IDLE_PER_BACKEND: usize = 4;
const IDLE_BACKENDS: usize = 128;
/// How long such a connection is held.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// How much of an error's body is passed on.
const SHOWN: usize = 200;
/// The authorities of the machine, for webhooks without a `caBundle`.
pub const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Why a webhook gave no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// The backend cannot be reached, or does not answer in time.
    #[error("failed to call webhook: {0}")]
    Unreachable(String),
    /// It answers, and what it says cannot be used.
    #[error("failed to call webhook: {0}")]
    BadAnswer(String),
    #[error("{0}")]
    BadConfiguration(String),
}

/// Where a webhook is.
#[derive(Debug, PartialEq, Eq)]
pub struct Backend {
    /// As errors name it, without the query.
    url: String,
    /// The name in the certificate, and of the `Host` header.
    host: String,
    port: u16,
    path: String,
    service: Option<(String, String)>,
}

impl Backend {
    /// From a `clientConfig`.
    pub fn parse(config: &Value) -> Result<Self, WebhookError> {
        let bad = |why: String| WebhookError::BadConfiguration(why);
        if let Some(url) = config["url"].as_str() {
            let uri: Uri = url.parse().map_err(|error| bad(format!("parse {url:?}: {error}")))?;
            let host = uri.host().ok_or_else(|| bad(format!("{url:?} names no host")))?;
            let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
            return Ok(Self { url: url.to_owned(), host, port: uri.port_u16().unwrap_or(443), path, service: None });
        }
        let service = &config["service"];
        let text = |field: &str| service[field].as_str().unwrap_or_default().to_owned();
        let (namespace, name) = (text("namespace"), text("name"));
        if name.is_empty() {
            return Err(bad("webhook configuration must have either service or URL".to_owned()));
        }
        let port = service["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(443);
        let path = if text("path").is_empty() { "/".to_owned() } else { text("path") };
        let host = format!("{name}.{namespace}.svc");
        let url = format!("https://{host}:{port}{path}");
        Ok(Self { url, host, port, path, service: Some((namespace, name)) })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The namespace and name of its Service, if it has one.
    pub fn service(&self) -> Option<(&str, &str)> {
        self.service.as_ref().map(|(namespace, name)| (namespace.as_str(), name.as_str()))
    }
}

struct IdleConnection {
    sender: SendRequest<Full<Bytes>>,
    since: Instant,
}

pub struct WebhookClient {
    /// A permit for each thread that waits for a conversion.
    pub waiting_threads: Semaphore,
    breaker: CircuitBreaker,
    idle: Mutex<HashMap<String, Vec<IdleConnection>>>,
    /// The way to pods, where there are any.
    agents: OnceLock<Arc<Agents>>,
    hasher: RandomState,
}

impl Default for WebhookClient {
    fn default() -> Self {
        Self {
            waiting_threads: Semaphore::new(MAX_WAITING_THREADS),
            breaker: CircuitBreaker::default(),
            idle: Mutex::default(),
            agents: OnceLock::default(),
            hasher: RandomState::default(),
        }
    }
}

impl WebhookClient {
    pub fn set_agents(&self, agents: Arc<Agents>) {
        let _ = self.agents.set(agents);
    }

    /// Sends a review and returns the answer, which may be of another type.
    pub async fn call<Q: Serialize, A: DeserializeOwned>(
        &self,
        api: &Api,
        config: &Value,
        timeout: Duration,
        review: &Q,
    ) -> Result<A, WebhookError> {
        let backend = Backend::parse(config)?;
        let ca_bundle = config["caBundle"].as_str().unwrap_or_default();
        let key = format!("{} {:x}", backend.url, self.hasher.hash_one(ca_bundle));
        if let Some(reason) = self.breaker.open_reason(&key, Instant::now()) {
            return Err(WebhookError::Unreachable(reason));
        }
        let body = serde_json::to_vec(review).map_err(|error| WebhookError::BadConfiguration(error.to_string()))?;
        let separator = if backend.path.contains('?') { '&' } else { '?' };
        let query = format!("{separator}timeout={}s", timeout.as_secs());
        let post = |why: &dyn std::fmt::Display| format!("Post \"{}{query}\": {why}", backend.url);
        let sending = self.send(api, &backend, ca_bundle, &key, &query, body.into());
        let answered = match tokio::time::timeout(timeout, sending).await {
            Ok(answered) => answered,
            Err(_) => Err(WebhookError::Unreachable("context deadline exceeded".to_owned())),
        };
        match &answered {
            Err(WebhookError::Unreachable(why)) => self.breaker.record_failure(&key, &post(why), Instant::now()),
            _ => self.breaker.record_success(&key),
        }
        let answer = answered.map_err(|error| match error {
            WebhookError::Unreachable(why) => WebhookError::Unreachable(post(&why)),
            other => other,
        })?;
        serde_json::from_slice(&answer)
            .map_err(|error| WebhookError::BadAnswer(format!("couldn't get version/kind; json parse error: {error}")))
    }

    async fn send(
        &self,
        api: &Api,
        backend: &Backend,
        ca_bundle: &str,
        key: &str,
        query: &str,
        body: Bytes,
    ) -> Result<Bytes, WebhookError> {
        // An idle connection may have been closed while the request was on its way: then a new one is tried.
        while let Some(mut sender) = self.take_idle(key) {
            if sender.ready().await.is_ok()
                && let Ok(response) = sender.send_request(request(backend, query, body.clone())?).await
            {
                return self.finish(key, sender, response).await;
            }
        }
        let tls = client_config(ca_bundle)?;
        let mut sender = self.connect(api, backend, tls).await?;
        let sent = sender.send_request(request(backend, query, body)?).await;
        let response = sent.map_err(|error| WebhookError::Unreachable(describe(&error)))?;
        self.finish(key, sender, response).await
    }

    async fn finish(
        &self,
        key: &str,
        sender: SendRequest<Full<Bytes>>,
        response: http::Response<hyper::body::Incoming>,
    ) -> Result<Bytes, WebhookError> {
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_RESPONSE).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                return WebhookError::BadAnswer(format!("response body is larger than {MAX_RESPONSE} bytes"));
            }
            WebhookError::Unreachable(error.to_string())
        })?;
        let body = body.to_bytes();
        self.put_idle(key, sender);
        if status.is_success() {
            return Ok(body);
        }
        Err(WebhookError::BadAnswer(describe_status(status, &body)))
    }

    fn take_idle(&self, key: &str) -> Option<SendRequest<Full<Bytes>>> {
        let mut idle = self.idle.lock();
        let connections = idle.get_mut(key)?;
        connections.retain(|connection| !connection.sender.is_closed() && connection.since.elapsed() < IDLE_TIMEOUT);
        let taken = connections.pop();
        if connections.is_empty() {
            idle.remove(key);
        }
        taken.map(|connection| connection.sender)
    }

    fn put_idle(&self, key: &str, sender: SendRequest<Full<Bytes>>) {
        let mut idle = self.idle.lock();
        if idle.len() >= IDLE_BACKENDS {
            idle.retain(|_, connections| connections.iter().any(|c| c.since.elapsed() < IDLE_TIMEOUT));
        }
        let has_room = idle.len() < IDLE_BACKENDS || idle.contains_key(key);
        if !sender.is_closed() && has_room {
            let connections = idle.entry(key.to_owned()).or_default();
            if connections.len() < IDLE_PER_BACKEND {
                connections.push(IdleConnection { sender, since: Instant::now() });
            }
        }
    }

    async fn connect(
        &self,
        api: &Api,
        backend: &Backend,
        tls: Arc<ClientConfig>,
    ) -> Result<SendRequest<Full<Bytes>>, WebhookError> {
        let unreachable = |why: String| WebhookError::Unreachable(why);
        match backend.service() {
            None => handshake(dial(&backend.host, backend.port).await.map_err(unreachable)?, backend, tls).await,
            Some((namespace, name)) => {
                let io = self.dial_service(api, namespace, name, backend.port).await.map_err(unreachable)?;
                handshake(io, backend, tls).await
            }
        }
    }

    /// A connection to who serves a port of a Service.
    pub async fn dial_service(&self, api: &Api, namespace: &str, name: &str, port: u16) -> Result<Connection, String> {
        match self.resolve(api, namespace, name, port).await? {
            ServiceEndpoint::Host(host, port) => Ok(Box::new(dial(&host, port).await?)),
            ServiceEndpoint::Address(address, port) => Ok(Box::new(dial(&address.to_string(), port).await?)),
            ServiceEndpoint::Pod(pod, port) => {
                let Some(agents) = self.agents.get() else {
                    return Err(format!("no way to the pods of service {name:?}"));
                };
                let io = tunnel::open(api, agents, &pod, port).await;
                Ok(Box::new(io.map_err(|error| error.message().to_owned())?))
            }
        }
    }

    /// An endpoint of a Service that is ready to serve.
    async fn resolve(&self, api: &Api, namespace: &str, name: &str, port: u16) -> Result<ServiceEndpoint, String> {
        let text = |error: Box<crate::http::status::ApiError>| error.message().to_owned();
        let service = api.core_object("services", Some(namespace), name).await.map_err(text)?;
        let service = service.ok_or_else(|| format!("service {name:?} not found"))?;
        if service["spec"]["type"] == "ExternalName" {
            return Ok(ServiceEndpoint::Host(
                service["spec"]["externalName"].as_str().unwrap_or_default().to_owned(),
                port,
            ));
        }
        if service["spec"]["selector"].as_object().is_some_and(|selector| !selector.is_empty()) {
            let (pod, port) = service::endpoint(api, &service, &port.to_string()).await.map_err(text)?;
            return Ok(ServiceEndpoint::Pod(Box::new(pod), port));
        }
        let found = slice_endpoint(api, namespace, name, &service, port).await.map_err(text)?;
        found.ok_or_else(|| format!("no endpoints available for service {name:?}"))
    }

    /// Whether nobody serves a Service now.
    pub async fn has_no_endpoint(&self, api: &Api, namespace: &str, name: &str, port: u16) -> bool {
        self.resolve(api, namespace, name, port).await.is_err()
    }
}

/// A connection, however it was made.
pub type Connection = Box<dyn Io>;

pub trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Io for S {}

enum ServiceEndpoint {
    Host(String, u16),
    Pod(Box<Value>, u16),
    Address(IpAddr, u16),
}

/// An address of the EndpointSlices of a Service without selector.
async fn slice_endpoint(
    api: &Api,
    namespace: &str,
    name: &str,
    service: &Value,
    port: u16,
) -> crate::http::status::ApiResult<Option<ServiceEndpoint>> {
    let Some(d) = api.registry.find("discovery.k8s.io", "v1", "endpointslices") else { return Ok(None) };
    let ports = service["spec"]["ports"].as_array().into_iter().flatten();
    let Some(named) = ports.into_iter().find(|own| own["port"] == port).map(|own| own["name"].clone()) else {
        return Ok(None);
    };
    let listing = api.store.list(List { prefix: &keys::prefix(d, Some(namespace)), ..List::default() }).await?;
    let mut found = Vec::new();
    for entry in &listing.entries {
        let slice = object::parse(d, entry)?;
        if slice["metadata"]["labels"]["kubernetes.io/service-name"] != name {
            continue;
        }
        let same_name = |own: &Value| own.as_str().unwrap_or_default() == named.as_str().unwrap_or_default();
        let mut ports = slice["ports"].as_array().into_iter().flatten();
        let port = ports.find(|own| same_name(&own["name"])).and_then(|own| own["port"].as_u64());
        let Some(port) = port.and_then(|port| u16::try_from(port).ok()) else { continue };
        let endpoints = slice["endpoints"].as_array().into_iter().flatten();
        let ready = endpoints.filter(|endpoint| endpoint["conditions"]["ready"] != false);
        let addresses = ready.flat_map(|endpoint| endpoint["addresses"].as_array().into_iter().flatten());
        found.extend(addresses.filter_map(|address| Some((address.as_str()?.parse::<IpAddr>().ok()?, port))));
    }
    let chosen = (!found.is_empty()).then(|| found.swap_remove(fastrand::usize(..found.len())));
    Ok(chosen.map(|(address, port)| ServiceEndpoint::Address(address, port)))
}

async fn dial(host: &str, port: u16) -> Result<TcpStream, String> {
    let tcp = TcpStream::connect((host, port)).await.map_err(|error| {
        let why = match error.kind() {
            std::io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
            _ => error.to_string(),
        };
        format!("dial tcp {host}:{port}: connect: {why}")
    })?;
    let _ = tcp.set_nodelay(true);
    let _ = SockRef::from(&tcp).set_tcp_keepalive(&KEEPALIVE);
    Ok(tcp)
}

async fn handshake<S>(
    io: S,
    backend: &Backend,
    tls: Arc<ClientConfig>,
) -> Result<SendRequest<Full<Bytes>>, WebhookError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let name = ServerName::try_from(backend.host.clone())
        .map_err(|error| WebhookError::BadConfiguration(format!("{:?}: {error}", backend.host)))?;
    let stream = TlsConnector::from(tls).connect(name, io).await;
    let stream = stream.map_err(|error| WebhookError::Unreachable(format!("tls: {error}")))?;
    let (sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| WebhookError::Unreachable(describe(&error)))?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection to a webhook ended badly");
        }
    });
    Ok(sender)
}

fn request(backend: &Backend, query: &str, body: Bytes) -> Result<Request<Full<Bytes>>, WebhookError> {
    Request::post(format!("{}{query}", backend.path))
        .header(header::HOST, format!("{}:{}", backend.host, backend.port))
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "application/json")
        .body(Full::new(body))
        .map_err(|error| WebhookError::BadConfiguration(error.to_string()))
}

fn client_config(ca_bundle: &str) -> Result<Arc<ClientConfig>, WebhookError> {
    let bad = |why: String| WebhookError::BadConfiguration(format!("unable to load root certificates: {why}"));
    let pem = if ca_bundle.is_empty() {
        std::fs::read_to_string(SYSTEM_AUTHORITIES).map_err(|error| bad(format!("{SYSTEM_AUTHORITIES}: {error}")))?
    } else {
        let pem = BASE64_STANDARD.decode(ca_bundle).map_err(|error| bad(error.to_string()))?;
        String::from_utf8(pem).map_err(|error| bad(error.to_string()))?
    };
    let verifier = ServerVerifier::bundle(&pem).map_err(|error| bad(error.to_string()))?;
    let builder = ClientConfig::builder_with_provider(mainstay_tls::provider()).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| bad(error.to_string()))?;
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    Ok(Arc::new(builder.with_no_client_auth()))
}

fn describe(error: &hyper::Error) -> String {
    if error.is_incomplete_message() { "EOF".to_owned() } else { error.to_string() }
}

/// Upstream's words for answers that are no success.
fn describe_status(status: StatusCode, body: &[u8]) -> String {
    match status {
        StatusCode::NOT_FOUND => "the server could not find the requested resource".to_owned(),
        status if status.is_server_error() => {
            let shown = String::from_utf8_lossy(&body[..body.len().min(SHOWN)]).trim().to_owned();
            format!("an error on the server ({shown:?}) has prevented the request from succeeding")
        }
        status => {
            let code = status.as_u16();
            format!("the server responded with the status code {code} but did not return more information")
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_webhook_is_at_a_url_or_a_service() {
        let url = Backend::parse(&json!({ "url": "https://hooks.example.com:8443/check?a=b" })).unwrap();
        assert_eq!((url.host.as_str(), url.port, url.path.as_str()), ("hooks.example.com", 8443, "/check?a=b"));
        let service = json!({ "service": { "namespace": "n", "name": "s", "path": "/p" } });
        let service = Backend::parse(&service).unwrap();
        assert_eq!((service.url.as_str(), service.host.as_str()), ("https://s.n.svc:443/p", "s.n.svc"));
        assert_eq!(service.service(), Some(("n", "s")));
        assert!(Backend::parse(&json!({})).is_err());
    }

    #[test]
    fn answers_that_are_no_success_are_described_as_upstream_does() {
        assert!(describe_status(StatusCode::NOT_FOUND, b"").contains("could not find the requested resource"));
        let text = describe_status(StatusCode::BAD_GATEWAY, &vec![b'x'; 10_000]);
        assert!(text.starts_with("an error on the server (\"xxx") && text.len() < 400, "{text}");
    }
}
