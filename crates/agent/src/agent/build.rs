//! Builds all parts of an agent: directories made, the runtime started, ports bound, nothing running yet.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use mainstay_network::Bridge;
use mainstay_runtime::{builtin::paths::fence_file, spec::LogLimit};
use tokio::sync::watch;

use super::{Agent, AgentError, ClusterParts, Config, Engine, engine::start_engine};
use crate::{
    dependencies::Dependencies,
    devices::DeviceManager,
    events::Events,
    fence::{Fence, FenceParts},
    heal::{Healer, OwnerPolicies},
    hook::Hooks,
    host_network,
    host_services::HostServices,
    logs::rotate::Rotation,
    machine_files::MachineFiles,
    machine_steps::{DrainOwnNode, MachineSteps},
    metrics::Metrics,
    network::NodeWatch,
    node::{NodeReporter, Parts},
    objects::{self, Objects},
    offers::{OfferAdmission, OfferPublisher},
    pod_routes::RouteProblem,
    pods::{Pods, Source},
    probe::Probes,
    route_check::{RouteCheckResult, RouteChecker},
    services::{Services, ServicesSettings},
    settings::{Network, Settings},
    sources::{directory::Directory, mirror::Mirrors, pod_watch::PodWatch},
    spec::Specs,
    stream,
    task_scope::TaskScope,
    volumes::{Volumes, local_path::LocalPath},
    wake::Wake,
    worker::{WorkerContext, Workers, drain_turns::DrainTurns},
};

impl Agent {
    pub async fn build(config: Config) -> Result<Self, AgentError> {
        let Config { mut settings, engine, control_plane, tls, peers, cluster_range, service_range, names, drain } =
            config;
        let server = control_plane.server();
        let client = control_plane.client();
        for directory in [&settings.directory, &settings.log_directory] {
            make_directory(directory)?;
        }
        let (runtime, bridge) = start_engine(&settings, &engine, cluster_range).await?;
        let version = runtime.version().await?;
        let wake = Wake::default();
        let pods = Arc::new(Pods::new(wake.clone()).adapting(match settings.network {
            Network::Bridge => |_| {},
            Network::Host => host_network::settle,
        }));
        let metrics = Metrics::default();
        let listener = stream::Parts::new(
            settings.node_name.clone(),
            pods.clone(),
            runtime.clone(),
            settings.log_directory.clone(),
            metrics.clone(),
        )
        .showing(&settings);
        let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, settings.port));
        let port = settings.port;
        let listen = |source| AgentError::Listen { port, source };
        let stream_server = stream::Server::bind(address, tls, listener).await.map_err(listen)?;
        settings.port = stream_server.address().map_err(listen)?.port();

        let settings = Arc::new(settings);
        let (events, event_writer) = Events::new(&settings.node_name);
        let api_client = server.map(|(client, _)| client.clone());
        let background = TaskScope::default();
        let policies = OwnerPolicies::new(api_client.clone(), background.clone());
        let healer = Arc::new(Healer::new(
            api_client,
            policies.clone(),
            pods.clone(),
            events.clone(),
            settings.directory.clone(),
            metrics.clone(),
            background.clone(),
        ));
        let objects = Objects::new(client.clone(), wake.clone()).for_node(&settings.node_name);
        let objects = objects.with_checkpoints(&objects::checkpoint_directory(&settings));
        let objects = Arc::new(objects);
        let fence = Fence::new(FenceParts {
            node_name: settings.node_name.clone(),
            timing: settings.timing,
            limit_file: fence_file(&settings.run_directory()),
            directory: settings.directory.clone(),
            client: client.clone(),
            runtime: runtime.clone(),
            pods: pods.clone(),
            objects: objects.clone(),
            events: events.clone(),
            wake: wake.clone(),
            identity: peers.clone(),
        });
        let stream_server = match &peers {
            Some(identity) => {
                let peer_tls = identity.peer_server_config().map_err(AgentError::Peers)?;
                stream_server.answering_peers(Arc::new(peer_tls), fence.clone())
            }
            None => stream_server,
        };
        let volumes = Arc::new(Volumes::new(&settings, objects.clone()).with_images(runtime.clone()));
        let volumes_in_use = volumes.volumes_in_use();
        let (suspicion, route_problem) = (healer.clone(), RouteProblem::default());
        let route_check = RouteCheckResult::default();
        let keeper = NodeReporter::new(Parts {
            client: client.clone(),
            servers: server.map(|(_, servers)| servers.clone()).unwrap_or_default(),
            settings: settings.clone(),
            runtime: runtime.clone(),
            pods: pods.clone(),
            events: events.clone(),
            wake: wake.clone(),
            fence: fence.clone(),
            suspect: Box::new(move || suspicion.suspect()),
            route_problem: route_problem.clone(),
            route_check: route_check.clone(),
        });
        let mirrors = Mirrors::new(client.clone(), pods.clone(), wake.clone(), keeper.node());
        let cluster = match server {
            Some((client, servers)) => {
                let services = ServicesSettings {
                    instance: settings.instance.clone(),
                    node_name: settings.node_name.clone(),
                    directory: settings.directory.join("services"),
                    services: service_range,
                    pods: cluster_range,
                    names,
                };
                let services = Services::build(services, client.clone(), servers.clone(), metrics.clone())
                    .map_err(|error| AgentError::Network(error.chain()))?;
                let shared = Shared {
                    settings: &settings,
                    pods: &pods,
                    events: &events,
                    keeper: &keeper,
                    healer: &healer,
                    fence: &fence,
                    route_problem: &route_problem,
                    route_check: &route_check,
                    drain: &drain,
                };
                Some(ClusterParts::build(client, &shared, mirrors.clone(), services, bridge)?)
            }
            None => {
                pods.replace(Source::Api, vec![]);
                None
            }
        };
        let static_pods = match &settings.static_pods {
            Some(path) => {
                let (node_name, changed) = (settings.node_name.clone(), mirrors.changed.clone());
                Some(Directory::new(path.clone(), node_name, settings.termination_grace, pods.clone(), changed))
            }
            None => {
                pods.replace(Source::File, vec![]);
                None
            }
        };
        let is_cri = matches!(engine, Engine::Cri { .. });
        let devices = DeviceManager::new(&settings, client.clone(), pods.clone(), wake.clone(), is_cri);
        let traffic = cluster.as_ref().map(|cluster| cluster.services.traffic.clone()).unwrap_or_default();
        let catalogue = cluster.as_ref().map(|cluster| cluster.services.catalogue.clone());
        let dependencies = Dependencies::new(catalogue, wake.clone());
        let context = WorkerContext {
            dependencies: dependencies.clone(),
            turns: DrainTurns::new(client.clone(), background.clone()),
            runtime_name: version.name,
            specs: Specs::new(settings.clone(), objects.clone(), volumes.clone(), events.clone()),
            probes: Probes::new(runtime.clone(), events.clone(), wake.clone(), policies),
            hooks: Hooks::new(runtime.clone()),
            settings: settings.clone(),
            client: client.clone(),
            runtime: runtime.clone(),
            pods,
            wake,
            events,
            objects,
            volumes,
            devices: devices.clone(),
            healer,
            evictions: keeper.evictions(),
            fence,
            traffic,
            metrics,
            mirrors,
            node: keeper.node(),
            user_ids: crate::user_ids::UserIds::of_machine(&settings.instance),
            is_cri,
        };
        Ok(Self {
            event_writer,
            log_rotation: Rotation { runtime, limit: LogLimit::default() },
            workers: Workers::new(Arc::new(context)),
            client,
            settings,
            server: stream_server,
            static_pods,
            devices,
            volumes_in_use,
            cluster,
            dependencies,
            background,
        })
    }
}

/// What the parts of the cluster are built from.
struct Shared<'a> {
    settings: &'a Arc<Settings>,
    pods: &'a Arc<Pods>,
    events: &'a Events,
    keeper: &'a Arc<NodeReporter>,
    healer: &'a Arc<Healer>,
    fence: &'a Arc<Fence>,
    route_problem: &'a RouteProblem,
    route_check: &'a RouteCheckResult,
    drain: &'a Arc<DrainOwnNode>,
}

impl ClusterParts {
    fn build(
        client: &Client,
        shared: &Shared<'_>,
        mirrors: Arc<Mirrors>,
        services: Services,
        bridge: Option<Arc<Bridge>>,
    ) -> Result<Self, AgentError> {
        let Shared { settings, pods, events, keeper, .. } = *shared;
        let node_name = settings.node_name.clone();
        let (node, evictions) = (keeper.node(), keeper.evictions());
        let avoids = {
            let healer = shared.healer.clone();
            Box::new(move |pod: &Pod| healer.reason_to_avoid(pod, Timestamp::now()))
        };
        let admission = OfferAdmission::new(
            client.clone(),
            pods.clone(),
            node,
            evictions,
            events.clone(),
            settings.offering.clone(),
            avoids,
        );
        let directory = &settings.directory;
        let pod_watch =
            PodWatch::new(client.clone(), node_name.clone(), pods.clone(), admission, directory, mirrors.clone())
                .map_err(|source| AgentError::Directory { path: directory.clone(), source })?;
        let (takes_no_pods, closed) = watch::channel(false);
        let offers = OfferPublisher::new(
            client.clone(),
            node_name.clone(),
            pods.clone(),
            keeper.node(),
            keeper.renewed_offer(),
            &settings.offering,
            closed,
        );
        let host_services = HostServices {
            client: client.clone(),
            settings: settings.clone(),
            events: events.clone(),
            node: keeper.node(),
            local: services.local.clone(),
        };
        let steps = settings.machine.clone().map(|commands| MachineSteps {
            client: client.clone(),
            settings: settings.clone(),
            commands,
            events: events.clone(),
            node: keeper.node(),
            drain: shared.drain.clone(),
            takes_no_pods,
        });
        let (ranges, node_ranges) = watch::channel(Default::default());
        let route_checker = RouteChecker::new(settings, node_ranges, shared.route_check.clone(), keeper.clone());
        let node_watch = NodeWatch {
            node_name,
            file: directory.join("services/nodes"),
            bridge,
            catalogue: services.catalogue.clone(),
            in_force: services.in_force.clone(),
            fence: shared.fence.clone(),
            route_problem: shared.route_problem.clone(),
            ranges,
        };
        let local_path = LocalPath::new(client.clone(), settings);
        let fence = shared.fence.clone();
        let files = MachineFiles { client: client.clone(), settings: settings.clone() };
        Ok(Self {
            pod_watch,
            mirrors,
            keeper: keeper.clone(),
            offers,
            local_path,
            node_watch,
            route_checker,
            services,
            host_services,
            fence,
            steps,
            files,
        })
    }
}

fn make_directory(path: &Path) -> Result<(), AgentError> {
    let created = mainstay_files::create_private_dir(path).map(drop);
    created.map_err(|source| AgentError::Directory { path: path.to_owned(), source })
}
