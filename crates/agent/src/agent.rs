//! All parts of an agent, built and run together.

use std::{
    ffi::OsString,
    io,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
};

use kube::Client;
use mainstay_network::Bridge;
use mainstay_runtime::{
    Runtime, RuntimeError,
    builtin::{Builtin, BuiltinSettings},
    cri::{Cri, CriSettings},
    images::{ImageStore, Options as ImageOptions},
    spec::LogLimit,
};
use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    events::{Events, Said, Writer},
    heal::{Healer, Policies},
    hook::Hooks,
    leftovers::{Instance, LeftoversError, orphans::remove_orphans},
    logs::rotate::Rotation,
    metrics::Metrics,
    network::{BridgeNetwork, Machines},
    node::{
        Keeper, Parts, PodsAfterStop,
        ended::{DownNotice, mark_pods_ended},
    },
    objects::{self, Objects},
    offers::{Gate, Publisher},
    pods::{Pods, Source},
    probe::Probes,
    servers::Servers,
    services::{NamesSettings, Services, ServicesSettings},
    settings::Settings,
    sources::{api::FromApi, directory::Directory, mirror::Mirrors},
    spec::Specs,
    stream,
    volumes::{Volumes, local_path::LocalPath},
    wake::Wake,
    worker::{Tools, Workers},
};

/// What runs containers.
#[derive(Clone, Debug)]
pub enum Engine {
    Builtin {
        /// The program and its arguments that become a shim.
        shim: Vec<OsString>,
        /// Registries spoken to without TLS.
        insecure: Vec<String>,
    },
    Cri {
        socket: PathBuf,
    },
}

pub struct Config {
    pub settings: Settings,
    pub engine: Engine,
    pub client: Client,
    /// Whom the client calls, if not its own process.
    pub servers: Servers,
    /// There is a server; without one, only static pods run.
    pub has_server: bool,
    pub tls: Arc<rustls::ServerConfig>,
    /// All machines' pods.
    pub cluster_range: mainstay_network::Range,
    /// All Services.
    pub service_range: mainstay_network::Range,
    pub names: NamesSettings,
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
    #[error("set up the pod network: {0}")]
    Network(String),
    #[error("remove pods of which the data directory has no record")]
    Orphans(#[source] LeftoversError),
}

/// Everything built and bound, nothing running yet.
pub struct Agent {
    settings: Arc<Settings>,
    runtime: Arc<dyn Runtime>,
    tools: Arc<Tools>,
    keeper: Arc<Keeper>,
    from_api: Option<FromApi>,
    from_directory: Option<Directory>,
    said: mpsc::Receiver<Said>,
    server: stream::Server,
    bridge: Option<Arc<Bridge>>,
    /// None without a server.
    services: Option<Services>,
}

impl Agent {
    pub async fn build(config: Config) -> Result<Self, AgentError> {
        let Config { mut settings, engine, client, servers, has_server, tls, cluster_range, service_range, names } =
            config;
        for directory in [&settings.directory, &settings.log_directory] {
            make_directory(directory)?;
        }
        let (runtime, bridge) = start_engine(&settings, &engine, cluster_range).await?;
        let about = runtime.about().await?;
        let wake = Wake::default();
        let pods = Arc::new(Pods::new(wake.clone()).with_network(settings.network));
        let metrics = Metrics::default();
        let listener = stream::Parts::new(
            settings.node_name.clone(),
            pods.clone(),
            runtime.clone(),
            settings.log_directory.clone(),
            metrics.clone(),
        );
        let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, settings.port));
        let port = settings.port;
        let listen = |source| AgentError::Listen { port, source };
        let server = stream::Server::bind(address, tls, listener).await.map_err(listen)?;
        settings.port = server.address().map_err(listen)?.port();

        let services = ServicesSettings {
            instance: settings.instance.clone(),
            node_name: settings.node_name.clone(),
            directory: settings.directory.join("services"),
            services: service_range,
            pods: cluster_range,
            names,
        };
        let services =
            has_server.then(|| Services::build(services, client.clone(), servers.clone(), metrics.clone())).transpose();
        let services = services.map_err(|error| AgentError::Network(error.chain()))?;
        let settings = Arc::new(settings);
        let (events, said) = Events::channel();
        let reachable = has_server.then(|| client.clone());
        let policies = Arc::new(Policies::new(reachable.clone()));
        let directory = settings.directory.clone();
        let healer = Healer::new(reachable, policies.clone(), pods.clone(), events.clone(), directory, metrics.clone());
        let healer = Arc::new(healer);
        let objects = Objects::new(client.clone(), wake.clone()).keeping(&objects::kept_in(&settings));
        let objects = Arc::new(objects);
        let volumes = Arc::new(Volumes::new(&settings, objects.clone()));
        let suspicion = healer.clone();
        let keeper = Keeper::new(Parts {
            client: client.clone(),
            servers,
            settings: settings.clone(),
            runtime: runtime.clone(),
            pods: pods.clone(),
            events: events.clone(),
            wake: wake.clone(),
            suspect: Box::new(move || suspicion.suspect()),
        });
        let node_name = settings.node_name.clone();
        let mirrors = Mirrors::new(client.clone(), node_name.clone(), pods.clone(), wake.clone(), keeper.node());
        let from_api = if has_server {
            let kept = |source| AgentError::Directory { path: settings.directory.clone(), source };
            let ports = (settings.offering.automatic.clone(), settings.offering.explicit.clone());
            let (node, evictions) = (keeper.node(), keeper.evictions());
            let gate = Gate::new(client.clone(), pods.clone(), node, evictions, events.clone(), ports);
            let node_name = node_name.clone();
            Some(FromApi::new(client.clone(), node_name, pods.clone(), gate, &settings.directory).map_err(kept)?)
        } else {
            pods.replace(Source::Api, vec![]);
            None
        };
        let from_directory = match &settings.static_pods {
            Some(path) => Some(Directory::new(path.clone(), node_name, pods.clone(), mirrors.changed.clone())),
            None => {
                pods.replace(Source::File, vec![]);
                None
            }
        };
        let tools = Arc::new(Tools {
            runtime_name: about.name,
            specs: Specs::new(settings.clone(), objects.clone(), volumes.clone(), events.clone()),
            probes: Probes::new(runtime.clone(), events.clone(), wake.clone(), policies),
            hooks: Hooks::new(runtime.clone()),
            settings: settings.clone(),
            client,
            runtime: runtime.clone(),
            pods,
            wake,
            events,
            objects,
            volumes,
            healer,
            evictions: keeper.evictions(),
            traffic: services.as_ref().map(|services| services.traffic.clone()).unwrap_or_default(),
            metrics,
            mirrors,
            user_ids: crate::user_ids::UserIds::of_machine(&settings.instance),
            is_cri: matches!(engine, Engine::Cri { .. }),
        });
        Ok(Self { from_directory, settings, runtime, tools, keeper, from_api, said, server, bridge, services })
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Works until asked to stop. Containers run on.
    pub async fn run(self, stop: CancellationToken) {
        let tasks = TaskTracker::new();
        // The last things said are about stopping.
        let quiet = CancellationToken::new();
        let writer = Writer::new(self.tools.client.clone(), &self.settings.node_name, self.said);
        let speaking = tokio::spawn(writer.run(quiet.clone()));
        tasks.spawn(self.server.run(stop.clone()));
        if let Some(source) = self.from_directory {
            tasks.spawn(source.run(stop.clone()));
        }
        if let Some(source) = self.from_api {
            tasks.spawn(source.run(stop.clone()));
            tasks.spawn(self.tools.mirrors.clone().run(stop.clone()));
            tasks.spawn(self.keeper.clone().run(stop.clone()));
            let (client, node_name) = (self.tools.client.clone(), self.settings.node_name.clone());
            let (pods, node) = (self.tools.pods.clone(), self.keeper.node());
            let publisher = Publisher::new(client, node_name, pods, node, &self.settings.offering);
            tasks.spawn(publisher.run(stop.clone()));
            let volumes = LocalPath::new(self.tools.client.clone(), &self.settings);
            tasks.spawn(volumes.run(stop.clone()));
        }
        let has_server = self.services.is_some();
        let client = self.tools.client.clone();
        if let Some(services) = self.services {
            let machines = Machines {
                node_name: self.settings.node_name.clone(),
                file: self.settings.directory.join("services/nodes"),
                bridge: self.bridge,
                catalogue: services.catalogue.clone(),
                in_force: services.in_force.clone(),
            };
            tasks.spawn(machines.run(self.tools.client.clone(), stop.clone()));
            tasks.spawn(services.run(stop.clone()));
        }
        let rotation = Rotation { runtime: self.runtime, limit: LogLimit::default() };
        tasks.spawn(rotation.run(stop.clone()));
        tasks.spawn(Workers::new(self.tools).run(stop.clone()));
        tasks.close();
        stop.cancelled().await;
        tasks.wait().await;
        if has_server {
            let ends = self.settings.instance.parse().is_ok_and(|instance| DownNotice::is_there(&instance));
            if ends {
                mark_pods_ended(&client, &self.settings.node_name).await;
            }
            self.keeper.retire(if ends { PodsAfterStop::End } else { PodsAfterStop::KeepRunning }).await;
        }
        quiet.cancel();
        let _ = speaking.await;
    }
}

fn make_directory(path: &Path) -> Result<(), AgentError> {
    let created = mainstay_files::create_private_dir(path).map(drop);
    created.map_err(|source| AgentError::Directory { path: path.to_owned(), source })
}

/// The runtime, and the pod network if it is ours.
pub async fn start_engine(
    settings: &Settings,
    engine: &Engine,
    cluster: mainstay_network::Range,
) -> Result<(Arc<dyn Runtime>, Option<Arc<Bridge>>), AgentError> {
    match engine {
        Engine::Builtin { shim, insecure } => {
            if let Ok(instance) = settings.instance.parse::<Instance>() {
                remove_orphans(&instance, &settings.runtime_directory).await.map_err(AgentError::Orphans)?;
            }
            let bridge = Bridge::new(mainstay_network::Settings {
                instance: settings.instance.clone(),
                directory: settings.directory.join("network"),
                cluster,
            })
            .map_err(|error| AgentError::Network(error.chain()))?;
            let directory = settings.runtime_directory.clone();
            let mut options = ImageOptions { insecure: insecure.clone(), ..ImageOptions::default() };
            options.hidden.extend(settings.store_directory.clone());
            let images = ImageStore::open_with(&directory.join("images"), options)?;
            let builtin = Builtin::open(BuiltinSettings {
                directory,
                run_dir: settings.run_directory(),
                cgroup_parent: settings.instance.clone(),
                shim: shim.clone(),
                network: Arc::new(BridgeNetwork(bridge.clone())),
                images: Arc::new(images),
            })
            .await?;
            Ok((Arc::new(builtin), Some(bridge)))
        }
        Engine::Cri { socket } => {
            let cri = Cri::connect(&socket.display().to_string(), CriSettings::new(&settings.instance))?;
            Ok((Arc::new(cri), None))
        }
    }
}
