//! The node's certificates: the client certificate for calls to servers, the serving certificate for its own port.
//!
//! Certificates end and are renewed while they are in use, so nothing here holds one for good: every
//! handshake takes the current one of a [`RotatingCertificate`].

use std::{fmt, sync::Arc, time::Duration};

use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::client::{Body, ConfigExt};
use mainstay_api::wellknown;
use mainstay_tls::{ClientVerifier, RotatingCertificate, ServerVerifier};
use rustls::{ClientConfig, ServerConfig};

use crate::{
    fence::peers::CONTACT_PROTOCOL,
    servers::{CONNECT, Dial, Servers},
};

/// Whoever has one of these groups in a certificate of our CA may call an agent: servers, and administrators.
const CALLERS: [&str; 2] = ["mainstay:servers", wellknown::user::MASTERS_GROUP];

/// Whoever has this group may ask whether a node has contact.
const NODES: [&str; 1] = [wellknown::user::NODES_GROUP];

const KEEP_ALIVE: Duration = Duration::from_secs(15);
const KEEP_ALIVES: u32 = 3;

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{what} is not usable")]
    Unusable {
        what: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("{url:?} is not the URL of a server")]
    Url { url: String },
    #[error(transparent)]
    Tls(#[from] mainstay_tls::TlsError),
}

fn unusable<E: Into<Box<dyn std::error::Error + Send + Sync>>>(what: &'static str) -> impl Fn(E) -> TlsError {
    move |source| TlsError::Unusable { what, source: source.into() }
}

/// A certificate and its key, as PEM.
#[derive(Clone)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

impl Pair {
    fn rotating(&self) -> Result<RotatingCertificate, TlsError> {
        Ok(RotatingCertificate::new(&self.certificate, &self.key)?)
    }
}

/// Never shows the key.
impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// Everything by which a machine is known, and knows the server.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The authority whose certificates servers and administrators have, as PEM.
    pub ca: String,
    pub client: Arc<RotatingCertificate>,
    pub serving: Arc<RotatingCertificate>,
}

impl Identity {
    pub fn new(ca: &str, client: &Pair, serving: &Pair) -> Result<Self, TlsError> {
        Ok(Self { ca: ca.to_owned(), client: Arc::new(client.rotating()?), serving: Arc::new(serving.rotating()?) })
    }

    /// For the HTTPS server of the agent. Only servers and administrators get through the handshake.
    pub fn server_config(&self) -> Result<ServerConfig, TlsError> {
        let mut config = ServerConfig::builder_with_provider(mainstay_tls::provider())
            .with_safe_default_protocol_versions()
            .map_err(unusable("TLS"))?
            .with_client_cert_verifier(Arc::new(ClientVerifier::members_of(&self.ca, &CALLERS)?))
            .with_cert_resolver(self.serving.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()]; // upgrades to streams need it
        Ok(config)
    }

    /// For other nodes that ask whether this one has contact. Only nodes of the cluster get through the handshake; they are shown
    /// the node's client certificate, whose authority they know.
    pub fn peer_server_config(&self) -> Result<ServerConfig, TlsError> {
        let mut config = ServerConfig::builder_with_provider(mainstay_tls::provider())
            .with_safe_default_protocol_versions()
            .map_err(unusable("TLS"))?
            .with_client_cert_verifier(Arc::new(ClientVerifier::members_of(&self.ca, &NODES)?))
            .with_cert_resolver(self.client.clone());
        config.alpn_protocols = vec![CONTACT_PROTOCOL.to_vec()];
        Ok(config)
    }

    /// For asking the node of this name, and nobody else.
    pub fn peer_client_config(&self, node_name: &str) -> Result<Arc<ClientConfig>, TlsError> {
        let name = format!("{}{node_name}", wellknown::user::NODE_PREFIX);
        let verifier = ServerVerifier::client_certificate(&self.ca, name, wellknown::user::NODES_GROUP)?;
        let mut config = ClientConfig::builder_with_provider(mainstay_tls::provider())
            .with_safe_default_protocol_versions()
            .map_err(unusable("TLS"))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_cert_resolver(self.client.clone());
        config.alpn_protocols = vec![CONTACT_PROTOCOL.to_vec()];
        Ok(Arc::new(config))
    }

    /// A client of the servers' API as this machine.
    pub fn client(&self, servers: &Servers) -> Result<kube::Client, TlsError> {
        let config = client_builder(&self.ca)?.with_client_cert_resolver(self.client.clone());
        Ok(client(servers, config))
    }
}

type Builder = rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>;

/// A client's TLS that trusts this authority alone.
pub(crate) fn client_builder(ca: &str) -> Result<Builder, TlsError> {
    let builder = ClientConfig::builder_with_provider(mainstay_tls::provider()).with_safe_default_protocol_versions();
    Ok(builder.map_err(unusable("TLS"))?.with_root_certificates(mainstay_tls::root_store(ca)?))
}

/// A client of the API that connects like this.
pub(crate) fn client(servers: &Servers, tls: ClientConfig) -> kube::Client {
    kube::client::ClientBuilder::new(transport(servers, tls), wellknown::namespace::DEFAULT)
        .with_layer(&base(servers))
        .build()
}

/// The same, with a token in every request.
pub(crate) fn client_with_bearer(servers: &Servers, tls: ClientConfig, token: &str) -> Result<kube::Client, TlsError> {
    let mut value = http::HeaderValue::from_str(&format!("Bearer {token}")).map_err(unusable("the token"))?;
    value.set_sensitive(true);
    let transport = tower::ServiceBuilder::new()
        .map_request(move |mut request: http::Request<Body>| {
            request.headers_mut().insert(http::header::AUTHORIZATION, value.clone());
            request
        })
        .service(transport(servers, tls));
    Ok(kube::client::ClientBuilder::new(transport, wellknown::namespace::DEFAULT).with_layer(&base(servers)).build())
}

fn transport(servers: &Servers, tls: ClientConfig) -> HttpClient<Dial, Body> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_connect_timeout(Some(CONNECT));
    http.set_nodelay(true);
    // A server that is gone without a word is noticed, whether it owes us something or we it.
    http.set_keepalive(Some(KEEP_ALIVE));
    http.set_keepalive_interval(Some(KEEP_ALIVE / KEEP_ALIVES));
    http.set_keepalive_retries(Some(KEEP_ALIVES));
    http.set_tcp_user_timeout(Some(KEEP_ALIVE * 2));
    let https = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls).https_only().enable_http1();
    let transport = https.wrap_connector(http);
    HttpClient::builder(TokioExecutor::new()).build(Dial { servers: servers.clone(), transport })
}

fn base(servers: &Servers) -> kube::client::middleware::BaseUriLayer {
    kube::Config::new(servers.base().unwrap_or_default()).base_uri_layer()
}

#[cfg(test)]
mod tests;
