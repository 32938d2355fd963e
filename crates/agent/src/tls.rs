//! The node's certificates: the client certificate for calls to servers, the serving certificate for its own port.
//!
//! Certificates end and are renewed while they are in use, so nothing here holds one for good: every
//! handshake takes the [`Current`] one.

use std::{fmt, sync::Arc, time::Duration};

use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::client::{Body, ConfigExt};
use parking_lot::RwLock;
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig, SignatureScheme,
    client::{ResolvesClientCert, danger::HandshakeSignatureValid},
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject},
    server::{
        ClientHello, ResolvesServerCert, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::servers::{CONNECT, Dial, Servers};

/// Whoever has one of these groups in a certificate of our CA may call an agent: servers, and administrators.
const CALLERS: [&str; 2] = ["mainstay:servers", "system:masters"];

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

/// Never shows the key.
impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// A certificate that can be replaced while it is in use.
#[derive(Debug)]
pub struct Current(RwLock<Arc<CertifiedKey>>);

impl Current {
    pub fn new(pair: &Pair) -> Result<Self, TlsError> {
        Ok(Self(RwLock::new(certified(pair)?)))
    }

    /// From the next handshake on, this one.
    pub fn replace(&self, pair: &Pair) -> Result<(), TlsError> {
        *self.0.write() = certified(pair)?;
        Ok(())
    }

    fn get(&self) -> Arc<CertifiedKey> {
        self.0.read().clone()
    }

    /// From when until when it is good, in seconds since 1970.
    pub fn validity(&self) -> Option<(i64, i64)> {
        let current = self.get();
        let (_, certificate) = X509Certificate::from_der(current.cert.first()?).ok()?;
        let validity = certificate.validity();
        Some((validity.not_before.timestamp(), validity.not_after.timestamp()))
    }
}

fn certified(pair: &Pair) -> Result<Arc<CertifiedKey>, TlsError> {
    let chain = CertificateDer::pem_slice_iter(pair.certificate.as_bytes()).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(unusable("the certificate"))?;
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).map_err(unusable("the key"))?;
    let key = CertifiedKey::from_der(chain, key, &ring::default_provider());
    Ok(Arc::new(key.map_err(unusable("the certificate with its key"))?))
}

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.get())
    }
}

impl ResolvesClientCert for Current {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.get())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Everything by which a machine is known, and knows the server.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The authority whose certificates servers and administrators have, as PEM.
    pub ca: String,
    pub client: Arc<Current>,
    pub serving: Arc<Current>,
}

impl Identity {
    pub fn new(ca: &str, client: &Pair, serving: &Pair) -> Result<Self, TlsError> {
        Ok(Self {
            ca: ca.to_owned(),
            client: Arc::new(Current::new(client)?),
            serving: Arc::new(Current::new(serving)?),
        })
    }

    /// For the HTTPS server of the agent. Only servers and administrators get through the handshake.
    pub fn server_config(&self) -> Result<ServerConfig, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let ours = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(&self.ca)?), provider.clone())
            .build()
            .map_err(unusable("the CA"))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(unusable("TLS"))?
            .with_client_cert_verifier(Arc::new(Callers { ours }))
            .with_cert_resolver(self.serving.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()]; // upgrades to streams need it
        Ok(config)
    }

    /// A client of the servers' API as this machine.
    pub fn client(&self, servers: &Servers) -> Result<kube::Client, TlsError> {
        let config = client_builder(&self.ca)?.with_client_cert_resolver(self.client.clone());
        Ok(client(servers, config))
    }
}

fn roots(ca: &str) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca.as_bytes()) {
        roots.add(certificate.map_err(unusable("the CA"))?).map_err(unusable("the CA"))?;
    }
    Ok(roots)
}

type Builder = rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>;

/// A client's TLS that trusts this authority alone.
pub(crate) fn client_builder(ca: &str) -> Result<Builder, TlsError> {
    let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Ok(builder.map_err(unusable("TLS"))?.with_root_certificates(roots(ca)?))
}

/// A client of the API that connects like this.
pub(crate) fn client(servers: &Servers, tls: ClientConfig) -> kube::Client {
    kube::client::ClientBuilder::new(transport(servers, tls), "default").with_layer(&base(servers)).build()
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
    Ok(kube::client::ClientBuilder::new(transport, "default").with_layer(&base(servers)).build())
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

/// Lets those through whom our CA says to be one of [`CALLERS`].
#[derive(Debug)]
struct Callers {
    ours: Arc<dyn ClientCertVerifier>,
}

impl ClientCertVerifier for Callers {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.ours.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.ours.verify_client_cert(own, others, now)?;
        let refused = || Error::General("only servers and administrators may call an agent".to_owned());
        let (_, certificate) = X509Certificate::from_der(own).map_err(|_| refused())?;
        let mut groups = certificate.subject().iter_organization().filter_map(|group| group.as_str().ok());
        if groups.any(|group| CALLERS.contains(&group)) { Ok(verified) } else { Err(refused()) }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.ours.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.ours.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.ours.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests;
