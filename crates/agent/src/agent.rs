//! The agent of one node: [`Agent::build`] makes all its parts, [`Agent::run`] starts them and ends them in order.

mod build;
mod engine;
mod run;
mod state;

use std::{io, path::PathBuf, sync::Arc};

use kube::Client;
use mainstay_events::EventWriter;
use mainstay_runtime::RuntimeError;

pub use self::{
    engine::{Engine, start_engine},
    state::AgentState,
};
use crate::{
    dependencies::Dependencies,
    devices::DeviceManager,
    fence::Fence,
    host_services::HostServices,
    leftovers::LeftoversError,
    logs::rotate::Rotation,
    machine_files::MachineFiles,
    machine_steps::{DrainOwnNode, MachineSteps},
    network::NodeWatch,
    node::NodeReporter,
    offers::OfferPublisher,
    route_check::RouteChecker,
    servers::Servers,
    services::{NamesSettings, Services},
    settings::Settings,
    sources::{directory::Directory, mirror::Mirrors, pod_watch::PodWatch},
    standalone, stream,
    task_scope::TaskScope,
    tls::{Identity, TlsError},
    volumes::{cinder::in_use::VolumesInUse, local_path::LocalPath},
    worker::Workers,
};

/// Whether this node belongs to a cluster.
#[derive(Clone)]
pub enum ControlPlane {
    Server {
        client: Client,
        /// Whom the client calls, if not its own process.
        servers: Servers,
    },
    /// There is none: only static pods run.
    Standalone,
}

impl ControlPlane {
    fn server(&self) -> Option<(&Client, &Servers)> {
        match self {
            Self::Server { client, servers } => Some((client, servers)),
            Self::Standalone => None,
        }
    }

    /// For parts that do not care whether anybody answers.
    fn client(&self) -> Client {
        self.server().map_or_else(standalone::client, |(client, _)| client.clone())
    }
}

pub struct Config {
    pub settings: Settings,
    pub engine: Engine,
    pub control_plane: ControlPlane,
    pub tls: Arc<rustls::ServerConfig>,
    /// By which other nodes are asked and answered; nothing without a cluster.
    pub peers: Option<Identity>,
    /// All nodes' pods.
    pub cluster_range: mainstay_network::Range,
    /// All Services.
    pub service_range: mainstay_network::Range,
    pub names: NamesSettings,
    /// How the machine evicts its own pods before it changes its version.
    pub drain: Arc<DrainOwnNode>,
}

#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("prepare {path}")]
    Directory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("listen on port {port} for servers")]
    Listen {
        port: u16,
        #[source]
        source: io::Error,
    },
    #[error("start the container runtime")]
    Runtime(#[from] RuntimeError),
    #[error("answer other nodes")]
    Peers(#[source] TlsError),
    #[error("set up the pod network: {0}")]
    Network(String),
    #[error("remove pods of which the data directory has no record")]
    Orphans(#[source] LeftoversError),
}

/// Everything built and bound, nothing running yet.
pub struct Agent {
    settings: Arc<Settings>,
    client: Client,
    event_writer: EventWriter,
    /// Serves logs, exec and the like.
    server: stream::Server,
    static_pods: Option<Directory>,
    /// Drivers of claimed devices.
    devices: Arc<DeviceManager>,
    volumes_in_use: Arc<VolumesInUse>,
    cluster: Option<ClusterParts>,
    workers: Workers,
    dependencies: Arc<Dependencies>,
    log_rotation: Rotation,
    /// Work of the parts that nobody waits for.
    background: TaskScope,
}

/// The parts that a node without a control plane does not have.
struct ClusterParts {
    pod_watch: PodWatch,
    mirrors: Arc<Mirrors>,
    keeper: Arc<NodeReporter>,
    offers: OfferPublisher,
    local_path: LocalPath,
    node_watch: NodeWatch,
    route_checker: RouteChecker,
    services: Services,
    host_services: HostServices,
    fence: Arc<Fence>,
    steps: Option<MachineSteps>,
    files: MachineFiles,
}

impl Agent {
    pub fn settings(&self) -> &Settings {
        &self.settings
    }
}
