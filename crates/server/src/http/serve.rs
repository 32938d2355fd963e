//! The TLS listener: accepts connections, each served by a task of its own, within limits per source address.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use mainstay_tls::ClientVerifier;
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    handler::{BoxError, Handler},
    http::{
        connection::{self, ConnectionContext, ConnectionLimits},
        outages::Outages,
    },
    pki::Pki,
};

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("listen on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("set up TLS")]
    Tls(#[source] BoxError),
}

/// Whom a listener answers; others' connections are closed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    Everybody,
    /// Pods, whose addresses are in this range (base and prefix length), and processes of this machine.
    PodsAndThisMachine {
        pod_range: (Ipv4Addr, u8),
    },
}

impl Audience {
    /// `is_own` tells whether an address is one of this machine's.
    fn includes(self, source: IpAddr, is_own: impl FnOnce(IpAddr) -> bool) -> bool {
        let Self::PodsAndThisMachine { pod_range: (base, bits) } = self else { return true };
        let is_pod = match source.to_canonical() {
            IpAddr::V4(source) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
                u32::from(source) & mask == u32::from(base) & mask
            }
            IpAddr::V6(_) => false,
        };
        is_pod || is_own(source)
    }
}

/// Whether an address is one of this machine's: only such can be bound.
fn is_own_address(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// The listener's part in outages.
const ACCEPT: &str = "accept";

/// A bound listener that has not started to answer.
pub struct Listener {
    tcp: TcpListener,
    audience: Audience,
    tls: TlsAcceptor,
    verifier: Arc<ClientVerifier>,
}

impl Listener {
    pub async fn bind(address: SocketAddr, pki: &Pki) -> Result<Self, BindError> {
        let (config, verifier) = server_config(pki).map_err(BindError::Tls)?;
        let tcp = TcpListener::bind(address).await.map_err(|source| BindError::Listen { address, source })?;
        Ok(Self { tcp, audience: Audience::Everybody, tls: TlsAcceptor::from(Arc::new(config)), verifier })
    }

    pub fn confined_to(self, audience: Audience) -> Self {
        Self { audience, ..self }
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Answers until `stop`, then lets requests under way end, but not for longer than `grace`.
    pub async fn run(self, handler: Arc<Handler>, stop: CancellationToken, grace: Duration) {
        let limits = ConnectionLimits::new(&handler.api.settings);
        let http = connection::http(&handler.api.settings);
        let (tls, verifier) = (self.tls, self.verifier);
        let shared = Arc::new(ConnectionContext { handler, tls, verifier, http, limits, stop: stop.clone() });
        let connections = TaskTracker::new();
        let outages = Outages::default();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = self.tcp.accept() => accepted,
            };
            let (stream, source) = match accepted {
                Ok((stream, source)) => {
                    if let Some(outage) = outages.ends(ACCEPT, Instant::now()) {
                        tracing::info!(?outage, "connections are accepted again");
                    }
                    (stream, source.ip())
                }
                Err(error) => {
                    // Out of file descriptors, mostly: wait for some to come back.
                    if outages.begins(ACCEPT, Instant::now()) {
                        tracing::warn!(%error, "cannot accept connections; will try again until it works");
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            if !self.audience.includes(source, is_own_address) {
                tracing::debug!(%source, "closed a connection that is neither a pod's nor this machine's");
                continue;
            }
            let Some(handshake) = shared.limits.admit(source) else {
                drop(stream); // full: closing at once is the cheapest answer
                continue;
            };
            connections.spawn(connection::run(stream, source, handshake, shared.clone()));
        }
        drop(self.tcp);
        connections.close();
        if tokio::time::timeout(grace, connections.wait()).await.is_err() {
            tracing::warn!(?grace, "connections still busy at the end of the grace period are cut");
        }
    }
}

fn server_config(pki: &Pki) -> Result<(ServerConfig, Arc<ClientVerifier>), BoxError> {
    let verifier = Arc::new(ClientVerifier::optional(&pki.ca)?);
    let mut config = ServerConfig::builder_with_provider(mainstay_tls::provider())
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier.clone())
        .with_cert_resolver(pki.serving.clone());
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((config, verifier))
}

/// Lets the process have as many files open as it may; each connection is one.
pub fn raise_file_limit() {
    if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

/// Names the server must answer to, however it is reached.
pub fn names(listen: SocketAddr, more: &[String], service_address: std::net::Ipv4Addr) -> Vec<String> {
    let mut names: Vec<String> =
        ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"].map(str::to_owned).into();
    names.push("kubernetes.default.svc.cluster.local".to_owned());
    names.extend(["127.0.0.1".to_owned(), "::1".to_owned(), service_address.to_string()]);
    if !listen.ip().is_unspecified() {
        names.push(listen.ip().to_string());
    }
    if let Ok(host) = std::fs::read_to_string(Path::new("/proc/sys/kernel/hostname")) {
        names.push(host.trim().to_owned());
    }
    names.extend(more.iter().cloned());
    names.retain(|name| !name.is_empty());
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use mainstay_api::registry::Registry;
    use mainstay_store::Memory;
    use rustls::{
        ClientConfig,
        pki_types::{CertificateDer, ServerName},
    };
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
    };
    use tokio_rustls::{TlsConnector, client::TlsStream};

    use super::*;
    use crate::{api::Api, pki::renewal::CertificateRenewer, settings::Settings};

    #[test]
    fn a_confined_listener_answers_pods_and_this_machine_alone() {
        let audience = Audience::PodsAndThisMachine { pod_range: ([10, 244, 0, 0].into(), 16) };
        let answers = |source: &str, own: bool| audience.includes(source.parse().unwrap(), |_| own);
        assert!(answers("10.244.3.7", false));
        assert!(answers("::ffff:10.244.3.7", false));
        assert!(answers("192.0.2.2", true));
        for stranger in ["192.0.2.3", "10.245.0.1", "2001:db8::1"] {
            assert!(!answers(stranger, false), "{stranger}");
            assert!(Audience::Everybody.includes(stranger.parse().unwrap(), |_| false));
        }
        let all = Audience::PodsAndThisMachine { pod_range: ([0, 0, 0, 0].into(), 0) };
        assert!(all.includes([192, 0, 2, 3].into(), |_| false));
    }

    #[test]
    fn own_addresses_are_told_from_others() {
        assert!(is_own_address([127, 0, 0, 1].into()));
        assert!(!is_own_address([192, 0, 2, 99].into()));
    }

    /// A connection to this address, and the certificate that was presented on it.
    async fn connect(address: SocketAddr, pki: &Pki) -> (TlsStream<TcpStream>, CertificateDer<'static>) {
        let config = ClientConfig::builder_with_provider(mainstay_tls::provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(mainstay_tls::root_store(&pki.ca).unwrap())
            .with_no_client_auth();
        let tcp = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, tcp).await.unwrap();
        let presented = stream.get_ref().1.peer_certificates().unwrap()[0].clone();
        (stream, presented)
    }

    async fn is_answered(stream: &mut TlsStream<TcpStream>) -> bool {
        stream.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        &answer == b"HTTP/1.1 200"
    }

    #[tokio::test]
    async fn a_running_listener_presents_the_renewed_certificate_and_keeps_its_connections() {
        let (dir, now) = (tempfile::tempdir().unwrap(), time::OffsetDateTime::now_utc());
        let long_ago = now - time::Duration::days(300);
        let pki = Arc::new(Pki::open_at(dir.path(), &["localhost".to_owned()], long_ago).unwrap());
        let api = Api::new(Registry::builtin(), Arc::new(Memory::new()), Settings::default());
        let stop = CancellationToken::new();
        let listener = Listener::bind(([127, 0, 0, 1], 0).into(), &pki).await.unwrap();
        let address = listener.address().unwrap();
        let handler = Arc::new(Handler::new(api, stop.clone()));
        let serving = tokio::spawn(listener.run(handler, stop.clone(), Duration::from_secs(1)));
        let (mut old, first) = connect(address, &pki).await;
        let mut renewer =
            CertificateRenewer::new(pki.clone(), dir.path().join("kubeconfig"), format!("https://{address}"), None);
        assert_eq!(renewer.renew_due(now).unwrap(), ["server", "agent-client", "front-proxy-client", "admin"]);
        let (mut new, second) = connect(address, &pki).await;
        assert_ne!(first, second);
        assert!(is_answered(&mut new).await);
        assert!(is_answered(&mut old).await);
        stop.cancel();
        serving.await.unwrap();
    }
}
