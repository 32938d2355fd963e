//! The API servers of the cluster, and which of them this node calls.
//!
//! Those that it was configured with are known for good; others are learnt from the endpoints of `default/kubernetes`, as they come and go. A
//! connection is made to the server that last took one; when that one does not, or takes requests and does not do what they ask for,
//! to the next that does. All connections to the one before end then, and requests and watches go on there: servers of one cluster share
//! a store, so versions mean the same at all of them.

mod connection;

use std::{
    fmt,
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use mainstay_errors::error_chain;
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;
use tower::Service;

use self::connection::Connection;
use crate::tls::TlsError;

/// A server that takes longer for a connection with its handshake does not take it.
pub(crate) const CONNECT: Duration = Duration::from_secs(10);

/// Shared by all who call.
#[derive(Clone, Debug, Default)]
pub struct Servers(Arc<RwLock<ServerList>>);

#[derive(Debug, Default)]
struct ServerList {
    named: Vec<Uri>,
    learnt: Vec<Uri>,
    current: Option<CurrentServer>,
}

/// The one that all connections are made to.
#[derive(Clone, Debug)]
struct CurrentServer {
    server: Uri,
    left: CancellationToken,
}

impl Servers {
    /// Those at these URLs, of which there must be one at least.
    pub fn named<S: AsRef<str>>(urls: &[S]) -> Result<Self, TlsError> {
        let named: Vec<Uri> = urls.iter().map(|url| parse(url.as_ref())).collect::<Result<_, _>>()?;
        if named.is_empty() {
            return Err(TlsError::Url { url: String::new() });
        }
        Ok(Self(Arc::new(RwLock::new(ServerList { named, ..ServerList::default() }))))
    }

    /// The cluster's servers are these now.
    pub fn learn(&self, addresses: impl IntoIterator<Item = SocketAddr>) {
        let learnt = addresses.into_iter().filter_map(|address| parse(&format!("https://{address}")).ok()).collect();
        self.0.write().learnt = learnt;
    }

    /// Under which requests are written; they go to whoever is called.
    pub(crate) fn base(&self) -> Option<Uri> {
        self.0.read().named.first().cloned()
    }

    /// All of them, the one to call first at the front.
    pub(crate) fn in_turn(&self) -> Vec<Uri> {
        let known = self.0.read();
        let mut all: Vec<Uri> = Vec::with_capacity(known.named.len() + known.learnt.len());
        for server in known.named.iter().chain(&known.learnt) {
            if !all.contains(server) {
                all.push(server.clone());
            }
        }
        let current = known.current.as_ref().map(|called| &called.server);
        let first = all.iter().position(|server| Some(server) == current).unwrap_or(0);
        all.rotate_left(first);
        all
    }

    /// This one took a connection, which lasts until another is called.
    fn took(&self, server: &Uri) -> CancellationToken {
        let mut known = self.0.write();
        match &known.current {
            Some(called) if called.server == *server => called.left.clone(),
            _ => known.call(server.clone()),
        }
    }

    /// The one that is called takes requests and does not do what they ask for: the next is called, if there is one.
    pub fn leave(&self) {
        if let Some(next) = self.in_turn().into_iter().nth(1) {
            self.0.write().call(next);
        }
    }
}

impl ServerList {
    fn call(&mut self, server: Uri) -> CancellationToken {
        let called = CurrentServer { server, left: CancellationToken::new() };
        let left = called.left.clone();
        let before = self.current.replace(called.clone());
        if let Some(before) = before {
            tracing::info!(server = %called.server, before = %before.server, "switched to another server");
            before.left.cancel();
        }
        left
    }
}

/// Those that it was configured with.
impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, server) in self.0.read().named.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{}", server.to_string().trim_end_matches('/'))?;
        }
        Ok(())
    }
}

fn parse(url: &str) -> Result<Uri, TlsError> {
    let wrong = || TlsError::Url { url: url.to_owned() };
    let parsed: Uri = url.parse().map_err(|_| wrong())?;
    let is_server = parsed.scheme_str() == Some("https") && parsed.host().is_some();
    if is_server { Ok(parsed) } else { Err(wrong()) }
}

/// Connects to one of the servers, whatever the request is written under.
#[derive(Clone)]
pub(crate) struct Dial {
    pub servers: Servers,
    pub transport: HttpsConnector<HttpConnector>,
}

type DialError = <HttpsConnector<HttpConnector> as Service<Uri>>::Error;

impl Service<Uri> for Dial {
    type Response = Connection;
    type Error = DialError;
    type Future = Pin<Box<dyn Future<Output = Result<Connection, DialError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), DialError>> {
        self.transport.poll_ready(context)
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let (servers, mut transport) = (self.servers.clone(), self.transport.clone());
        Box::pin(async move {
            let mut failed: Option<DialError> = None;
            for server in servers.in_turn() {
                let connected = tokio::time::timeout(CONNECT, transport.call(server.clone())).await;
                match connected.unwrap_or_else(|_| Err("it does not answer".into())) {
                    Ok(connection) => {
                        return Ok(Connection::new(connection, servers.took(&server)));
                    }
                    Err(error) => {
                        tracing::debug!(%server, error = error_chain(error.as_ref()), "cannot connect");
                        failed.get_or_insert(error); // the one that was to be called
                    }
                }
            }
            Err(failed.unwrap_or_else(|| "no server is known".into()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_turn(servers: &Servers) -> Vec<String> {
        servers.in_turn().iter().map(|server| server.authority().unwrap().to_string()).collect()
    }

    #[test]
    fn the_one_that_took_a_connection_is_called_first_and_the_others_after_it_in_turn() {
        let servers = Servers::named(&["https://a:1", "https://b:1"]).unwrap();
        assert_eq!(in_turn(&servers), ["a:1", "b:1"]);
        servers.took(&parse("https://b:1").unwrap());
        assert_eq!(in_turn(&servers), ["b:1", "a:1"]);
        assert_eq!(servers.to_string(), "https://a:1, https://b:1");
    }

    #[test]
    fn servers_that_are_learnt_come_and_go_and_those_named_stay() {
        let servers = Servers::named(&["https://192.0.2.1:6443"]).unwrap();
        let learn = |addresses: &[&str]| servers.learn(addresses.iter().map(|address| address.parse().unwrap()));
        learn(&["192.0.2.1:6443", "192.0.2.2:6443"]);
        assert_eq!(in_turn(&servers), ["192.0.2.1:6443", "192.0.2.2:6443"], "each once");
        servers.took(&parse("https://192.0.2.2:6443").unwrap());
        learn(&["192.0.2.3:6443"]);
        assert_eq!(in_turn(&servers), ["192.0.2.1:6443", "192.0.2.3:6443"]);
        learn(&[]);
        assert_eq!(in_turn(&servers), ["192.0.2.1:6443"]);
    }

    #[test]
    fn connections_end_when_another_server_is_called() {
        let servers = Servers::named(&["https://a:1", "https://b:1"]).unwrap();
        let a = servers.took(&parse("https://a:1").unwrap());
        servers.took(&parse("https://a:1").unwrap());
        assert!(!a.is_cancelled(), "another connection to the same");
        servers.leave();
        assert!(a.is_cancelled());
        assert_eq!(in_turn(&servers), ["b:1", "a:1"]);
        let b = servers.took(&parse("https://b:1").unwrap());
        assert!(!b.is_cancelled());
        servers.took(&parse("https://a:1").unwrap());
        assert!(b.is_cancelled());

        let only = Servers::named(&["https://a:1"]).unwrap();
        let a = only.took(&parse("https://a:1").unwrap());
        only.leave();
        assert!(!a.is_cancelled(), "there is no other");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_says_nothing_is_passed_over() {
        let silent = [listen(), listen()];
        let urls = silent.each_ref().map(|listener| format!("https://{}", listener.local_addr().unwrap()));
        let tls = crate::tls::client_builder("").unwrap().with_no_client_auth();
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        let https = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls).https_only().enable_http1();
        let mut dial = Dial { servers: Servers::named(&urls).unwrap(), transport: https.wrap_connector(http) };
        let error = dial.call(Uri::from_static("https://somewhere")).await.err().unwrap();
        assert_eq!(error.to_string(), "it does not answer");
        assert!(silent.iter().all(|listener| listener.accept().is_ok()), "both were asked");
    }

    /// Accepts connections and never answers.
    fn listen() -> std::net::TcpListener {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        listener
    }

    #[test]
    fn what_is_not_an_https_url_is_refused() {
        for url in ["http://10.0.0.1:6443", "10.0.0.1:6443", ""] {
            assert!(matches!(Servers::named(&["https://a", url]), Err(TlsError::Url { .. })), "{url}");
        }
        assert!(Servers::named::<&str>(&[]).is_err());
    }
}
