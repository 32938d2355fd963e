//! A server: store, API and controllers, built, run, and stopped from the outside in.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr, UdpSocket},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, anyhow};
use mainstay_api::registry::Registry;
use mainstay_controllers::{ControllerMetrics, run_with_metrics};
use mainstay_files::create_private_dir;
use mainstay_server::{
    agent_tls::AgentTls,
    api::Api,
    bootstrap, client,
    handler::Handler,
    pki::{
        self, CertificateIssuer, Pki, PkiError,
        renewal::{CertificateRenewer, NodeCertificates},
    },
    serve::{self, Audience, BindError, Listener},
    settings::{PodSecuritySettings, Settings},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    cli::ServerOptions,
    cluster_settings::ClusterSettings,
    controller_ports::{ServerAuthority, StoreSweeper},
    exit::Exit,
    leader_gated,
    scheduler::Scheduler,
    store_dir,
    stores::{self, OpenStore},
};

/// How long requests under way may take to end once the server stops.
const DRAIN: Duration = Duration::from_secs(10);

/// The lease that the server holds whose controllers run.
const CONTROLLERS_LEASE: &str = "mainstay-controllers";

/// Everything of a server, built and bound but not yet running.
pub struct Server {
    pub data_dir: PathBuf,
    store_dir: PathBuf,
    pub kubeconfig: PathBuf,
    pub url: String,
    pub pki: Arc<Pki>,
    /// Of the agent in this process, if there is one.
    pub local_node: Option<NodeCertificates>,
    advertised: SocketAddr,
    opened: OpenStore,
    handler: Arc<Handler>,
    controllers: mainstay_controllers::Settings,
    controller_metrics: ControllerMetrics,
    scheduler: Scheduler,
    listener: Listener,
    /// Where pods reach this server, if the listener is for this machine alone.
    pod_listener: Option<Listener>,
    /// Ends the listeners and with it the watches.
    stop_serving: CancellationToken,
    /// Ends what works in the background.
    stop_working: CancellationToken,
}

impl Server {
    /// `pods_at` is an address of this machine that its pods reach, if it is to run any.
    pub async fn build(options: &ServerOptions, pods_at: Option<IpAddr>) -> Result<Self, Exit> {
        let cluster = ClusterSettings::from_options(&options.common)?;
        let data_dir = options.data.path();
        create_private_dir(&data_dir).with_context(|| format!("create --data-dir {}", data_dir.display()))?;
        serve::raise_file_limit();
        let opened = stores::open(options, &data_dir).await?;
        let settings = settings(options);
        let scheduling = options.scheduler.settings(options.common.offer_ttl)?;
        let listen = options.listen.ok_or_else(|| anyhow!("--listen is missing"))?;
        let advertised = options.advertise.unwrap_or_else(|| reachable(listen.ip()));
        let service_address = std::net::Ipv4Addr::from(u32::from(settings.service_range.0) + 1);
        // Servers that share an etcd find each other by what they advertise: that must be for everybody.
        let alone =
            listen.ip().is_loopback() && options.advertise.is_none() && matches!(opened, OpenStore::Embedded(_));
        let pods_at = pods_at.filter(|_| alone);
        let mut names = options.tls_san.clone();
        names.push(advertised.to_string());
        names.push(format!("kubernetes.default.svc.{}", cluster.cluster_domain));
        names.extend(pods_at.map(|address| address.to_string()));
        let names = serve::names(listen, &names, service_address);
        if let OpenStore::Etcd(store) = &opened {
            pki::share(&**store, &data_dir.join("pki")).await.map_err(|e| Exit::Refused(anyhow!(e)))?;
        }
        let pki = Arc::new(Pki::open(&data_dir.join("pki"), &names).map_err(|e| Exit::Refused(anyhow!(e)))?);
        let listener = Listener::bind(listen, &pki)
            .await
            .map_err(|e| Exit::Refused(anyhow!(e).context(format!("--listen {listen}"))))?;
        let bound = listener.address().context("ask for the address listened on")?;
        let pod_listener = match pods_at {
            Some(address) => {
                let pod_range = (options.common.pod_range.base(), options.common.pod_range.bits());
                let listener = listen_for_pods(SocketAddr::new(address, bound.port()), &pki).await;
                let listener = listener.map_err(|e| Exit::Refused(anyhow!(e).context("listen for pods")))?;
                Some(listener.confined_to(Audience::PodsAndThisMachine { pod_range }))
            }
            None => None,
        };
        let host = if listen.ip().is_unspecified() { advertised } else { listen.ip() };
        let url = format!("https://{}", SocketAddr::new(host, bound.port()));
        let kubeconfig = data_dir.join("admin.kubeconfig");
        let credentials = pki.kubeconfig(&url);
        // A restart on a full disk must not fail for the sake of a file that is as it should be.
        if !fs::read_to_string(&kubeconfig).is_ok_and(|written| written == credentials) {
            match pki::write_private(&kubeconfig, &credentials) {
                // Nor for the sake of a new address: pods are there to be deleted all the same.
                Err(PkiError::File { source, .. }) if source.kind() == io::ErrorKind::StorageFull => {
                    tracing::warn!(file = %kubeconfig.display(), "the disk is full: the kubeconfig is not written");
                }
                written => written.map_err(|e| Exit::Failed(anyhow!(e)))?,
            }
        }

        let stop_serving = CancellationToken::new();
        let api = Api::new(Registry::builtin(), opened.store(), settings);
        let agents = AgentTls::new(&pki).map_err(|e| Exit::Failed(anyhow!(e).context("prepare to reach machines")))?;
        let handler = Handler::new(api, stop_serving.clone()).with_backup(opened.backup()).with_ca(&pki.ca);
        let (scheduler, mut registry) = Scheduler::new(scheduling);
        let controller_metrics = ControllerMetrics::register(&mut registry);
        let handler = handler.with_agents(agents).with_metrics(registry).with_debug(scheduler.debug());
        let handler = Arc::new(handler);
        let advertised = match &pod_listener {
            Some(listener) => listener.address().context("ask for the address listened on")?,
            None => SocketAddr::new(advertised, bound.port()),
        };
        let own_client = client::internal(handler.clone(), "cluster-settings");
        // Before it announces itself to the others.
        cluster.check(&own_client).await?;
        bootstrap::bootstrap(&handler, advertised).await.map_err(|e| Exit::Failed(anyhow!(e)))?;
        cluster.record(&own_client).await?;
        let stop_working = CancellationToken::new();
        let controllers = mainstay_controllers::Settings {
            root_ca: pki.ca.clone(),
            certificate_authority: Some(Arc::new(ServerAuthority(CertificateIssuer::new(&pki)))),
            expiry_sweeper: Some(Arc::new(StoreSweeper(handler.clone()))),
        };
        Ok(Self {
            store_dir: store_dir::locate(&data_dir, options.place.store_dir.as_deref()),
            data_dir,
            kubeconfig,
            url,
            pki,
            local_node: None,
            advertised,
            opened,
            handler,
            controllers,
            controller_metrics,
            scheduler,
            listener,
            pod_listener,
            stop_serving,
            stop_working,
        })
    }

    /// Where pods reach the API, if not where everybody does.
    pub fn pods_reach(&self) -> Option<SocketAddr> {
        self.pod_listener.is_some().then_some(self.advertised)
    }

    /// Where objects are kept, for people.
    pub fn store(&self) -> String {
        match &self.opened {
            OpenStore::Embedded(_) => format!("{} (embedded)", self.store_dir.display()),
            OpenStore::Etcd(_) => "etcd".to_owned(),
        }
    }

    /// A client of this server, for a part of this program, that needs no socket.
    pub fn client(&self, part: &str) -> kube::Client {
        client::internal(self.handler.clone(), part)
    }

    /// A client for the agent in this process: it needs no socket, and may do no more than one on another machine.
    pub fn node_client(&self, node: &str) -> kube::Client {
        client::node(self.handler.clone(), node)
    }

    /// Such clients for any number of machines.
    pub fn node_clients(&self) -> impl Fn(&str) -> kube::Client + Send + Sync + use<> {
        let handler = self.handler.clone();
        move |node| client::node(handler.clone(), node)
    }

    /// Runs until asked to stop, then stops from the outside in: listener, background work, store.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let work = TaskTracker::new();
        let (opened, ended) = (self.opened.clone(), self.stop_working.clone());
        work.spawn(async move { opened.upkeep(ended).await });
        work.spawn(bootstrap::keep(self.handler.clone(), self.advertised, self.stop_working.clone()));
        let renewer = CertificateRenewer::new(self.pki.clone(), self.kubeconfig, self.url, self.local_node);
        work.spawn(renewer.run(self.stop_working.clone()));
        let identity = matches!(self.opened, OpenStore::Etcd(_)).then(|| self.advertised.to_string());
        let client = client::internal(self.handler.clone(), "controllers");
        let control = {
            let (client, settings, metrics) = (client.clone(), self.controllers, self.controller_metrics);
            move |stop| run_with_metrics(client.clone(), settings.clone(), metrics.clone(), stop)
        };
        let stop_working = self.stop_working.clone();
        work.spawn(leader_gated::run_leader_gated(
            client,
            CONTROLLERS_LEASE,
            identity.clone(),
            stop_working.clone(),
            control,
        ));
        let client = client::internal(self.handler.clone(), "scheduler");
        work.spawn(self.scheduler.run(client, identity, stop_working));
        let serving = tokio::spawn(self.listener.run(self.handler.clone(), self.stop_serving.clone(), DRAIN));
        let for_pods = self
            .pod_listener
            .map(|listener| tokio::spawn(listener.run(self.handler.clone(), self.stop_serving.clone(), DRAIN)));
        stop.cancelled().await;
        self.stop_serving.cancel();
        self.stop_working.cancel(); // at once: its watches have just ended
        let _ = serving.await;
        if let Some(for_pods) = for_pods {
            let _ = for_pods.await;
        }
        work.close();
        if tokio::time::timeout(DRAIN, work.wait()).await.is_err() {
            tracing::warn!("background work did not end in time");
        }
        self.opened.close().await
    }
}

fn settings(options: &ServerOptions) -> Settings {
    let stock = PodSecuritySettings::default();
    Settings {
        max_reads: options.max_reads as usize,
        max_writes: options.max_writes as usize,
        max_connections: options.max_connections as usize,
        request_timeout: Duration::from_secs(options.request_timeout),
        body_timeout: Duration::from_secs(options.body_timeout),
        handshake_timeout: Duration::from_secs(options.handshake_timeout),
        idle_timeout: Duration::from_secs(options.idle_timeout),
        stall_timeout: Duration::from_secs(options.stall_timeout),
        event_ttl: Duration::from_secs(options.event_ttl),
        pod_range: (options.common.pod_range.base(), options.common.pod_range.bits()),
        service_range: (options.common.service_range.base(), options.common.service_range.bits()),
        pod_security: PodSecuritySettings {
            enforce: options.pod_security_enforce.unwrap_or(stock.enforce),
            warn: options.pod_security_warn.unwrap_or(stock.warn),
            ..stock
        },
        ..Settings::default()
    }
}

/// The same port as everybody's if it is free, else any.
async fn listen_for_pods(address: SocketAddr, pki: &Pki) -> Result<Listener, BindError> {
    match Listener::bind(address, pki).await {
        Err(BindError::Listen { source, .. }) if source.kind() == io::ErrorKind::AddrInUse => {
            Listener::bind(SocketAddr::new(address.ip(), 0), pki).await
        }
        bound => bound,
    }
}

/// The address of this machine that others would use. Connecting a datagram socket sends nothing;
/// it only asks the kernel which way it would go.
pub fn reachable(listen: IpAddr) -> IpAddr {
    if !listen.is_unspecified() {
        return listen;
    }
    let outward = UdpSocket::bind(("0.0.0.0", 0)).and_then(|socket| {
        socket.connect(("192.0.2.1", 9))?;
        socket.local_addr()
    });
    outward.map_or(IpAddr::from([127, 0, 0, 1]), |address| address.ip())
}
