//! The servers that this machine may call, and which of them it does.
//!
//! Those it was told of are known for good; others are learnt from the endpoints of `default/kubernetes`, as they come and go. A
//! connection is made to the server that last took one; when that one does not, to the next that does. Requests and watches then go on
//! there: servers of one cluster share a store, so versions mean the same at all of them.

use std::{
    fmt,
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::Uri;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use parking_lot::RwLock;
use tower::Service;

use crate::tls::TlsError;

/// Shared by all who call.
#[derive(Clone, Debug, Default)]
pub struct Servers(Arc<RwLock<Known>>);

#[derive(Debug, Default)]
struct Known {
    named: Vec<Uri>,
    learnt: Vec<Uri>,
    /// Who last took a connection.
    current: Option<Uri>,
}

impl Servers {
    /// Those at these URLs, of which there must be one at least.
    pub fn named<S: AsRef<str>>(urls: &[S]) -> Result<Self, TlsError> {
        let named: Vec<Uri> = urls.iter().map(|url| parse(url.as_ref())).collect::<Result<_, _>>()?;
        if named.is_empty() {
            return Err(TlsError::Url { url: String::new() });
        }
        Ok(Self(Arc::new(RwLock::new(Known { named, ..Known::default() }))))
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
    fn in_turn(&self) -> Vec<Uri> {
        let known = self.0.read();
        let mut all: Vec<Uri> = Vec::with_capacity(known.named.len() + known.learnt.len());
        for server in known.named.iter().chain(&known.learnt) {
            if !all.contains(server) {
                all.push(server.clone());
            }
        }
        let first = all.iter().position(|server| Some(server) == known.current.as_ref()).unwrap_or(0);
        all.rotate_left(first);
        all
    }

    fn took(&self, server: &Uri) {
        if self.0.read().current.as_ref() == Some(server) {
            return;
        }
        let before = self.0.write().current.replace(server.clone());
        if let Some(before) = before {
            tracing::info!(server = %server, before = %before, "calls another server from now on");
        }
    }
}

/// Those it was told of.
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

type Connection = <HttpsConnector<HttpConnector> as Service<Uri>>::Response;
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
                match transport.call(server.clone()).await {
                    Ok(connection) => {
                        servers.took(&server);
                        return Ok(connection);
                    }
                    Err(error) => {
                        tracing::debug!(%server, %error, "cannot connect");
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
    fn what_is_not_an_https_url_is_refused() {
        for url in ["http://10.0.0.1:6443", "10.0.0.1:6443", ""] {
            assert!(matches!(Servers::named(&["https://a", url]), Err(TlsError::Url { .. })), "{url}");
        }
        assert!(Servers::named::<&str>(&[]).is_err());
    }
}
