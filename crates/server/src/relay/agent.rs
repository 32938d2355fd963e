//! Connections to the agent of a node.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::Value;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{RequestBody, metrics::UsageCache};
use crate::{
    api::{Api, Target},
    http::{
        outages::Outages,
        status::{ApiError, ApiResult},
    },
    objects::object,
    relay::agent_tls::AgentTls,
};

/// Where agents listen that do not say otherwise.
const PORT: u16 = 10_250;
/// A machine that vanished without a word is noticed within about a minute.
pub const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(30)).with_interval(Duration::from_secs(10));
const CONNECT: Duration = Duration::from_secs(10);

/// All agents, as the server reaches them.
pub struct Agents {
    tls: AgentTls,
    pub(super) usage: UsageCache,
    /// Agents that cannot be reached now, by node.
    outages: Outages,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    pub node: String,
    pub host: IpAddr,
    pub port: u16,
}

impl Agent {
    /// How messages name it.
    fn address(&self) -> String {
        std::net::SocketAddr::new(self.host, self.port).to_string()
    }

    /// From the Node's status.
    fn from_node(node: &Value) -> Option<Self> {
        let name = node["metadata"]["name"].as_str()?;
        let addresses = node["status"]["addresses"].as_array()?;
        let address = |kind: &str| {
            let mut of_kind = addresses.iter().filter(|a| a["type"] == kind);
            of_kind.find_map(|a| a["address"].as_str()?.parse().ok())
        };
        let host = address("InternalIP").or_else(|| address("ExternalIP"))?;
        let told = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64();
        let port = told.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0).unwrap_or(PORT);
        Some(Self { node: name.to_owned(), host, port })
    }
}

impl Agents {
    pub fn new(tls: AgentTls) -> Self {
        Self { tls, usage: UsageCache::default(), outages: Outages::default() }
    }

    /// Where the agent of this node listens.
    pub async fn find(&self, api: &Api, node: &str) -> ApiResult<Agent> {
        let d = api.registry.find("", "v1", "nodes").ok_or_else(ApiError::no_such_path)?.clone();
        let target = Target { d, namespace: None, name: node.to_owned() };
        let entry = api.existing(&target).await?;
        let found = Agent::from_node(&object::parse(&target.d, &entry)?);
        found.ok_or_else(|| ApiError::unreachable(format!("node {node:?} has no address yet")))
    }

    /// A connection to an agent.
    pub async fn dial(&self, agent: &Agent) -> ApiResult<TlsStream<TcpStream>> {
        let failed = |why: String| ApiError::unreachable(format!("error dialing backend: {why}"));
        let address = agent.address();
        let tls = self.tls.to_node(&agent.node).map_err(|e| failed(e.to_string()))?;
        let dialled = tokio::time::timeout(CONNECT, async {
            let tcp = TcpStream::connect((agent.host, agent.port)).await;
            let tcp = tcp.map_err(|e| format!("dial tcp {address}: connect: {}", describe_io_error(&e)))?;
            let _ = tcp.set_nodelay(true);
            let _ = SockRef::from(&tcp).set_tcp_keepalive(&KEEPALIVE);
            let connected = TlsConnector::from(tls).connect(ServerName::IpAddress(agent.host.into()), tcp).await;
            connected.map_err(|e| format!("tls: {address} (node {}): {e}", agent.node))
        });
        let connected = dialled.await.unwrap_or_else(|_| Err(format!("dial tcp {address}: i/o timeout")));
        self.observe(&agent.node, connected.as_ref().map(drop).map_err(String::as_str));
        connected.map_err(failed)
    }

    /// Logs when an agent stops to answer, and when it answers again.
    pub(super) fn observe(&self, node: &str, contact: Result<(), &str>) {
        let now = Instant::now();
        match contact {
            Err(error) if self.outages.begins(node, now) => {
                tracing::warn!(node, error, "cannot reach the agent of a node; its logs, exec and metrics fail");
            }
            Ok(()) => {
                if let Some(outage) = self.outages.ends(node, now) {
                    tracing::info!(node, ?outage, "the agent of a node is reached again");
                }
            }
            Err(_) => {}
        }
    }

    /// Sends a request to an agent over a connection of its own.
    pub async fn send(
        &self,
        agent: &Agent,
        request: http::Request<RequestBody>,
    ) -> ApiResult<http::Response<Incoming>> {
        let io = self.dial(agent).await?;
        send(io, request).await.map_err(|e| {
            ApiError::unreachable(format!("error talking to backend {} (node {}): {e}", agent.address(), agent.node))
        })
    }
}

/// Sends one request over a connection that is used for nothing else.
pub async fn send<S>(io: S, request: http::Request<RequestBody>) -> Result<http::Response<Incoming>, hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(io)).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a connection to an agent or another API server ended badly");
        }
    });
    sender.send_request(request).await
}

/// `connection refused` instead of `Connection refused (os error 111)`.
fn describe_io_error(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        std::io::ErrorKind::HostUnreachable => "no route to host".to_owned(),
        std::io::ErrorKind::NetworkUnreachable => "network is unreachable".to_owned(),
        _ => error.to_string(),
    }
}

impl From<AgentTls> for Arc<Agents> {
    fn from(tls: AgentTls) -> Self {
        Self::new(Agents::new(tls))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_agent_listens_where_its_node_says() {
        let mut node = json!({
            "metadata": { "name": "a" },
            "status": {
                "addresses": [
                    { "type": "Hostname", "address": "a" },
                    { "type": "ExternalIP", "address": "192.0.2.1" },
                    { "type": "InternalIP", "address": "10.0.0.1" },
                ],
                "daemonEndpoints": { "kubeletEndpoint": { "Port": 1234 } },
            },
        });
        let at = |node: &Value| Agent::from_node(node).map(|agent| agent.address());
        assert_eq!(at(&node).as_deref(), Some("10.0.0.1:1234"));
        node["status"]["daemonEndpoints"] = json!({});
        assert_eq!(at(&node).as_deref(), Some("10.0.0.1:10250"));
        node["status"]["addresses"] = json!([{ "type": "Hostname", "address": "a" }]);
        assert_eq!(at(&node), None);
    }
}
