//! Configuration of the etcd client: endpoints, TLS, user. Parsed once, at the edge.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use mainstay_errors::error_chain;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity, Uri};

const STOCK_PORT: u16 = 2379;

/// etcd closes connections that ping more often than every five seconds, or while nothing is
/// under way, so both stay clear of that.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEPALIVE_PATIENCE: Duration = Duration::from_secs(5);

/// A watch that nobody reads holds back its own window only: the connection's is as good as
/// unlimited, so that one slow reader never starves the others on the connection.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;

#[derive(Clone, Debug)]
pub struct EtcdConfig {
    /// `etcd://host:port,host:port`, `etcds://…` (with TLS), `http://…` or `https://…`. `etcd://`
    /// means TLS too if any TLS file is given; a part may name its own scheme; without a port it is 2379.
    pub endpoints: String,
    /// Files are read once, when the store is made.
    ///
    /// CA certificates (PEM) that etcd's certificate must descend from; the machine's if absent.
    pub ca_file: Option<PathBuf>,
    /// Client certificate and key (PEM); both or none.
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    /// User and password of etcd's own authentication; both or none.
    pub user: Option<String>,
    pub password: Option<String>,
    /// How long one call may take, all attempts together.
    pub call_deadline: Duration,
    /// How long [`Etcd::connect`](super::Etcd::connect) waits for etcd to answer at all.
    pub connect_deadline: Duration,
    /// A key that is only ever read, to ask for the newest revision. It need not exist, but the
    /// user must be allowed to read it.
    pub probe_key: String,
}

impl EtcdConfig {
    pub fn new(endpoints: impl Into<String>) -> Self {
        Self {
            endpoints: endpoints.into(),
            ca_file: None,
            cert_file: None,
            key_file: None,
            user: None,
            password: None,
            call_deadline: Duration::from_secs(5),
            connect_deadline: Duration::from_secs(20),
            probe_key: "/registry/health".into(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum EtcdConfigError {
    #[error("no etcd endpoint given")]
    NoEndpoint,
    #[error("etcd endpoint {endpoint:?}: {why}")]
    Endpoint { endpoint: String, why: String },
    #[error("{given} is given without {wanting}")]
    Half { given: &'static str, wanting: &'static str },
    #[error("TLS files are given, but etcd endpoint {endpoint:?} is not https")]
    TlsUnused { endpoint: String },
    #[error("read {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

/// An endpoint under the name that errors give it.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub name: Arc<str>,
    pub endpoint: Endpoint,
}

/// The endpoints of a configuration, ready to be connected to.
pub(super) fn targets(config: &EtcdConfig) -> Result<Vec<Target>, EtcdConfigError> {
    require_both("user", config.user.is_some(), "password", config.password.is_some())?;
    require_both("cert_file", config.cert_file.is_some(), "key_file", config.key_file.is_some())?;
    let with_tls = config.ca_file.is_some() || config.cert_file.is_some();
    let uris = uris(&config.endpoints, with_tls)?;
    // Every endpoint gets its turn within one call's deadline.
    let patience = config.call_deadline / (uris.len() as u32 + 1);
    let tls = match uris.iter().any(is_https) {
        true => Some(tls(config)?.timeout(patience)),
        false => None,
    };
    uris.into_iter()
        .map(|uri| {
            let name: Arc<str> = uri.authority().map_or("", |authority| authority.as_str()).into();
            let bad = |error: tonic::transport::Error| EtcdConfigError::Endpoint {
                endpoint: name.to_string(),
                why: error_chain(&error),
            };
            let mut endpoint = Endpoint::new(uri.clone()).map_err(bad)?;
            match &tls {
                Some(tls) if is_https(&uri) => endpoint = endpoint.tls_config(tls.clone()).map_err(bad)?,
                _ if with_tls => return Err(EtcdConfigError::TlsUnused { endpoint: name.to_string() }),
                _ => {}
            }
            let endpoint = endpoint
                .connect_timeout(patience)
                .tcp_nodelay(true)
                .tcp_keepalive(Some(KEEPALIVE_EVERY))
                .http2_keep_alive_interval(KEEPALIVE_EVERY)
                .keep_alive_timeout(KEEPALIVE_PATIENCE)
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW);
            Ok(Target { name, endpoint })
        })
        .collect()
}

fn is_https(uri: &Uri) -> bool {
    uri.scheme_str() == Some("https")
}

fn uris(endpoints: &str, with_tls: bool) -> Result<Vec<Uri>, EtcdConfigError> {
    let (mut scheme, mut uris) = ("etcd", Vec::new());
    for part in endpoints.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let bad = |why: String| EtcdConfigError::Endpoint { endpoint: part.into(), why };
        let mut address = part;
        if let Some((own, rest)) = part.split_once("://") {
            (scheme, address) = (own, rest);
        }
        let transport = match scheme {
            "https" | "etcds" => "https",
            "http" => "http",
            "etcd" if with_tls => "https",
            "etcd" => "http",
            other => return Err(bad(format!("unknown scheme {other:?}, want etcd, etcds, http or https"))),
        };
        let address = address.trim_end_matches('/');
        let uri: Uri = format!("{transport}://{address}").parse().map_err(|error| bad(format!("{error}")))?;
        if uri.path() != "/" || uri.query().is_some() || address.contains('@') {
            return Err(bad("want host or host:port".into()));
        }
        uris.push(match uri.port() {
            Some(_) => uri,
            None => format!("{transport}://{address}:{STOCK_PORT}").parse().map_err(|error| bad(format!("{error}")))?,
        });
    }
    if uris.is_empty() {
        return Err(EtcdConfigError::NoEndpoint);
    }
    Ok(uris)
}

fn tls(config: &EtcdConfig) -> Result<ClientTlsConfig, EtcdConfigError> {
    let mut tls = ClientTlsConfig::new();
    tls = match &config.ca_file {
        Some(file) => tls.ca_certificate(Certificate::from_pem(read(file)?)),
        None => tls.with_native_roots(),
    };
    if let (Some(cert), Some(key)) = (&config.cert_file, &config.key_file) {
        tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
    }
    Ok(tls)
}

fn read(path: &Path) -> Result<Vec<u8>, EtcdConfigError> {
    fs::read(path).map_err(|source| EtcdConfigError::File { path: path.into(), source })
}

fn require_both(a: &'static str, has_a: bool, b: &'static str, has_b: bool) -> Result<(), EtcdConfigError> {
    match (has_a, has_b) {
        (true, false) => Err(EtcdConfigError::Half { given: a, wanting: b }),
        (false, true) => Err(EtcdConfigError::Half { given: b, wanting: a }),
        (true, true) | (false, false) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(endpoints: &str, with_tls: bool) -> Vec<String> {
        uris(endpoints, with_tls).expect(endpoints).iter().map(Uri::to_string).collect()
    }

    #[test]
    fn a_scheme_holds_for_the_hosts_behind_it_and_the_port_has_a_stock_value() {
        assert_eq!(parsed("etcd://a:1,b", false), ["http://a:1/", "http://b:2379/"]);
        assert_eq!(parsed("etcd://a:1,b/", true), ["https://a:1/", "https://b:2379/"]);
        assert_eq!(parsed("https://a, [::1]:7", false), ["https://a:2379/", "https://[::1]:7/"]);
        assert_eq!(parsed("etcds://a,b:1", false), ["https://a:2379/", "https://b:1/"]);
        assert_eq!(parsed("127.0.0.1:2", false), ["http://127.0.0.1:2/"]);
    }

    #[test]
    fn an_endpoint_that_cannot_be_meant_is_refused_by_name() {
        for bad in ["ftp://a", "etcd://a/path", "etcd://u:p@a", "etcd://a b", "etcd://a:port"] {
            let error = uris(bad, false).expect_err(bad).to_string();
            assert!(error.starts_with("etcd endpoint"), "{error}");
        }
        assert!(matches!(uris(" , ", false), Err(EtcdConfigError::NoEndpoint)));
    }

    #[test]
    fn half_an_identity_is_refused() {
        let half = EtcdConfig { cert_file: Some("x".into()), ..EtcdConfig::new("https://a") };
        assert_eq!(targets(&half).expect_err("no key").to_string(), "cert_file is given without key_file");
        let half = EtcdConfig { password: Some("x".into()), ..EtcdConfig::new("https://a") };
        assert_eq!(targets(&half).expect_err("no user").to_string(), "password is given without user");
    }

    #[test]
    fn tls_files_never_go_unused_silently() {
        let odd = EtcdConfig { ca_file: Some("/dev/null".into()), ..EtcdConfig::new("http://a") };
        assert!(matches!(targets(&odd), Err(EtcdConfigError::TlsUnused { .. })));
    }
}
