//! The agent's HTTPS listener.

use std::{io, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use mainstay_runtime::Runtime;
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{configz, connection, handshakes::Handshakes, stats::Meter};
use crate::{fence::Fence, metrics::Metrics, pods::Pods, settings::Settings};

/// What answers are made from.
pub struct Parts {
    pub node_name: String,
    pub pods: Arc<Pods>,
    pub runtime: Arc<dyn Runtime>,
    /// `<data-dir>/logs`.
    pub log_directory: PathBuf,
    meter: Meter,
    pub metrics: Metrics,
    /// What `/configz` shows.
    pub configuration: serde_json::Value,
}

impl Parts {
    pub fn new(
        node_name: String,
        pods: Arc<Pods>,
        runtime: Arc<dyn Runtime>,
        log_directory: PathBuf,
        metrics: Metrics,
    ) -> Self {
        let meter = Meter::new(runtime.clone());
        let configuration = serde_json::Value::Null;
        Self { node_name, pods, runtime, log_directory, meter, metrics, configuration }
    }

    /// Shows these settings at `/configz`.
    pub fn showing(self, settings: &Settings) -> Self {
        Self { configuration: configz::configuration(settings), ..self }
    }

    pub fn meter(&self) -> &Meter {
        &self.meter
    }
}

/// A bound listener that has not started to answer.
pub struct Server {
    tcp: TcpListener,
    tls: AcceptedTls,
    parts: Arc<Parts>,
}

/// TLS of the agent's port: which side of it a connection gets, it says itself by its protocol.
#[derive(Clone)]
pub struct AcceptedTls {
    /// Servers and administrators.
    pub calls: Arc<rustls::ServerConfig>,
    /// Other nodes, who ask whether this one has contact and nothing else.
    pub peers: Option<(Arc<rustls::ServerConfig>, Arc<Fence>)>,
}

impl Server {
    /// `tls` must let in nobody but servers and administrators: nothing is asked of them here.
    pub async fn bind(address: SocketAddr, tls: Arc<rustls::ServerConfig>, parts: Parts) -> io::Result<Self> {
        let tcp = TcpListener::bind(address).await?;
        Ok(Self { tcp, tls: AcceptedTls { calls: tls, peers: None }, parts: Arc::new(parts) })
    }

    /// Answers other nodes as well. `tls` must let in nobody but nodes of the cluster.
    pub fn answering_peers(mut self, tls: Arc<rustls::ServerConfig>, fence: Arc<Fence>) -> Self {
        self.tls.peers = Some((tls, fence));
        self
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Answers until `stop`; streams end with it. What runs in containers does not notice.
    pub async fn run(self, stop: CancellationToken) {
        let (connections, handshakes) = (TaskTracker::new(), Arc::new(Handshakes::default()));
        while let Some(accepted) = stop.run_until_cancelled(self.tcp.accept()).await {
            match accepted {
                Ok((stream, source)) => {
                    let (tls, parts, stop) = (self.tls.clone(), self.parts.clone(), stop.clone());
                    let handshake = handshakes.admit(source.ip());
                    connections.spawn(async move {
                        stop.run_until_cancelled(connection::run(stream, handshake, tls, parts, stop.clone())).await;
                    });
                }
                Err(error) => {
                    // Out of file descriptors, mostly: wait for some to come back.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
        connections.close();
        connections.wait().await;
    }
}
