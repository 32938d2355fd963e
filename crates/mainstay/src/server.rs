//! A server: store, API and controllers, built, run, and stopped from the outside in.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr, UdpSocket},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, anyhow};
use mainstay_api::registry::Registry;
use mainstay_controllers::{Clients, ControllerMetrics, run_with_metrics};
use mainstay_files::create_private_dir;
use mainstay_server::{
    CONTROLLERS_USER,
    agent_tls::AgentTls,
    api::Api,
    audit::{Audit, Policy, Rotation},
    bootstrap, client,
    fence::Fence,
    handler::Handler,
    pki::{
        self, CertificateIssuer, Pki, PkiError,
        renewal::{CertificateRenewer, NodeCertificates},
    },
    serve::{self, Audience, BindError, Listener},
    settings::{BuildInfo, PodSecuritySettings, Settings},
    storage::{
        Writers,
        encryption::{self, Encryption},
        format::{StoreFormatError, check_store_format},
    },
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    authentication, authorities,
    cli::{AuditOptions, ServerOptions},
    cloud_manager::{self, CloudManager},
    cluster_settings::ClusterSettings,
    controller_ports::{ServerAuthority, ServerTokenSigner, StoreMigrator, StoreSweeper},
    exit::Exit,
    leader_gated,
    scheduler::Scheduler,
    store_dir,
    stores::{self, OpenStore},
    template_renderer::RenderPool,
};

/// How long requests under way may take to end once the server stops.
const DRAIN: Duration = Duration::from_secs(10);

/// The lease that the server holds whose controllers run.
const CONTROLLERS_LEASE: &str = "mainstay-controllers";

/// So long other servers have to be found by clients of one that stops.
const SHUTDOWN_DELAY: Duration = Duration::from_secs(2);

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
    encryption: Arc<Encryption>,
    audit: Option<Arc<Audit>>,
    handler: Arc<Handler>,
    controllers: mainstay_controllers::Settings,
    controller_metrics: ControllerMetrics,
    /// The controllers of the cloud, if there is one.
    cloud: Option<CloudManager>,
    scheduler: Scheduler,
    listener: Listener,
    /// Where pods reach this server, if the listener is for this machine alone.
    pod_listener: Option<Listener>,
    /// Between the failure of `/readyz` and the end of the listeners.
    shutdown_delay: Duration,
    /// Ends the listeners and with it the watches.
    stop_serving: CancellationToken,
    /// Ends what works in the background.
    stop_working: CancellationToken,
}

impl Server {
    /// `pods_at` is an address of this machine that its pods reach, if it is to run any.
    pub async fn build(options: &ServerOptions, pods_at: Option<IpAddr>) -> Result<Self, Exit> {
        let timing = options.node_loss.timing()?;
        let cluster = ClusterSettings::from_options(&options.common)?
            .with_node_pod_range_size(options.node_pod_range_size)?
            .with_timing(timing);
        let data_dir = options.data.path();
        create_private_dir(&data_dir).with_context(|| format!("create --data-dir {}", data_dir.display()))?;
        serve::raise_file_limit();
        let opened = stores::open(options, &data_dir).await?;
        check_store_format(&*opened.store()).await.map_err(|error| match error {
            StoreFormatError::Newer(_) => Exit::Refused(anyhow!(error).context(format!("--store {}", options.store))),
            StoreFormatError::Store(_) => Exit::Failed(anyhow!(error)),
        })?;
        let encryption = Arc::new(open_encryption(options, &data_dir, &opened).await?);
        let mut settings = settings(options);
        authentication::configure(&mut settings, options)?;
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
        if let Some(from) = &options.authorities {
            let adopted = authorities::adopt(from, &data_dir.join("pki"));
            adopted
                .map_err(|error| Exit::Refused(anyhow!(error).context(format!("--authorities {}", from.display()))))?;
        }
        if let OpenStore::Etcd(_) = &opened {
            pki::share(&*encryption.store(), &data_dir.join("pki")).await.map_err(|e| Exit::Refused(anyhow!(e)))?;
        }
        let pki = Arc::new(Pki::open(&data_dir.join("pki"), &names).map_err(|e| Exit::Refused(anyhow!(e)))?);
        let listener = Listener::bind(listen, &pki).await.map_err(|e| Exit::Refused(anyhow!(e).context("--listen")))?;
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
        let api = Api::new(Registry::builtin(), encryption.store(), settings);
        let agents = AgentTls::new(&pki).map_err(|e| Exit::Failed(anyhow!(e).context("prepare to reach machines")))?;
        let handler = Handler::new(api, stop_serving.clone()).with_backup(opened.backup()).with_ca(&pki.ca);
        let handler = handler.with_encryption(encryption.clone()).with_front_proxy(&pki);
        let (scheduler, mut registry) = Scheduler::new(scheduling);
        let audit = open_audit(&options.audit, &data_dir)?;
        let controller_metrics = ControllerMetrics::register(&mut registry);
        let cloud = CloudManager::from_options(&options.cloud, &mut registry)?;
        let handler = handler.with_agents(agents).with_metrics(registry).with_debug(scheduler.debug());
        let handler = handler.with_audit(audit.clone());
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
        let shutdown_delay = options.shutdown_delay_duration.unwrap_or(match &opened {
            OpenStore::Embedded(_) => Duration::ZERO,
            OpenStore::Etcd(_) => SHUTDOWN_DELAY,
        });
        let stop_working = CancellationToken::new();
        let controllers = mainstay_controllers::Settings {
            root_ca: pki.ca.clone(),
            timing,
            certificate_authority: Some(Arc::new(ServerAuthority(CertificateIssuer::new(&pki)))),
            expiry_sweeper: None, // one for each term
            storage_migrator: None,
            token_signer: Some(Arc::new(ServerTokenSigner(handler.clone()))),
            consumer_notifier: None,
            template_renderer: Some(Arc::new(RenderPool::default())),
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
            encryption,
            audit,
            handler,
            controllers,
            controller_metrics,
            cloud,
            scheduler,
            listener,
            pod_listener,
            shutdown_delay,
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
        work.spawn(self.encryption.run(self.stop_working.clone()));
        work.spawn(bootstrap::keep(self.handler.clone(), self.advertised, self.stop_working.clone()));
        let renewer = CertificateRenewer::new(self.pki.clone(), self.kubeconfig, self.url, self.local_node);
        work.spawn(renewer.run(self.stop_working.clone()));
        let identity = matches!(self.opened, OpenStore::Etcd(_)).then(|| self.advertised.to_string());
        let client = client::user(self.handler.clone(), CONTROLLERS_USER, None);
        let control = {
            let (handler, settings, metrics) = (self.handler.clone(), self.controllers, self.controller_metrics);
            let cloud = self.cloud;
            move |fence: Option<Arc<Fence>>, stop: CancellationToken| {
                let clients = fenced_clients(&handler, fence.as_ref());
                let cloud = cloud
                    .clone()
                    .map(|cloud| cloud.run(clients.for_account(cloud_manager::ACCOUNT), metrics.clone(), stop.clone()));
                let sweeper = StoreSweeper { handler: handler.clone(), fence: fence.clone() };
                let migrator = StoreMigrator { handler: handler.clone(), fence };
                let settings = mainstay_controllers::Settings {
                    expiry_sweeper: Some(Arc::new(sweeper)),
                    storage_migrator: Some(Arc::new(migrator)),
                    ..settings.clone()
                };
                let controllers = run_with_metrics(clients, settings, metrics.clone(), stop);
                async move {
                    tokio::join!(controllers, futures::future::OptionFuture::from(cloud));
                }
            }
        };
        let stop_working = self.stop_working.clone();
        work.spawn(leader_gated::run_leader_gated(
            client,
            CONTROLLERS_LEASE,
            identity.clone(),
            stop_working.clone(),
            control,
        ));
        work.spawn(self.scheduler.run(self.handler.clone(), identity, stop_working));
        let serving = tokio::spawn(self.listener.run(self.handler.clone(), self.stop_serving.clone(), DRAIN));
        let for_pods = self
            .pod_listener
            .map(|listener| tokio::spawn(listener.run(self.handler.clone(), self.stop_serving.clone(), DRAIN)));
        stop.cancelled().await;
        // Another server takes over what is decided, at once, while this one still answers.
        self.handler.begin_shutdown();
        self.stop_working.cancel();
        tokio::time::sleep(self.shutdown_delay).await;
        self.stop_serving.cancel();
        let _ = serving.await;
        if let Some(for_pods) = for_pods {
            let _ = for_pods.await;
        }
        work.close();
        if tokio::time::timeout(DRAIN, work.wait()).await.is_err() {
            tracing::warn!("background work did not end in time");
        }
        if let Some(audit) = self.audit {
            // A disk that hangs must not keep the store from being closed.
            let closed = tokio::time::timeout(DRAIN, tokio::task::spawn_blocking(move || audit.close())).await;
            if closed.is_err() {
                tracing::warn!("the audit log could not be written to its end");
            }
        }
        self.opened.close().await
    }
}

/// The clients of controllers, whose writes hold behind the fence alone.
fn fenced_clients(handler: &Arc<Handler>, fence: Option<&Arc<Fence>>) -> Clients {
    let shared = client::user(handler.clone(), CONTROLLERS_USER, fence.cloned());
    let (handler, fence) = (handler.clone(), fence.cloned());
    Clients::new(shared, move |account| client::controller(handler.clone(), account, fence.clone()))
}

fn open_audit(options: &AuditOptions, data_dir: &Path) -> Result<Option<Arc<Audit>>, Exit> {
    if options.no_audit {
        return Ok(None);
    }
    let policy = options.audit_policy_file.as_deref().map_or_else(|| Ok(Policy::built_in()), Policy::load);
    let policy = policy.map_err(|error| Exit::Refused(anyhow!(error).context("--audit-policy-file")))?;
    let file = options.audit_log_path.clone().unwrap_or_else(|| data_dir.join("audit/audit.log"));
    let rotation = Rotation {
        max_bytes: options.audit_log_maxsize << 20,
        max_backups: options.audit_log_maxbackup,
        max_age_days: options.audit_log_maxage,
    };
    match Audit::open(policy, file.clone(), rotation) {
        // There are pods to delete.
        Err(error) if error.kind() == io::ErrorKind::StorageFull => {
            tracing::warn!(file = %file.display(), "the disk is full: requests are not logged until the next start");
            Ok(None)
        }
        opened => Ok(Some(opened.with_context(|| format!("open the audit log {}", file.display()))?)),
    }
}

async fn open_encryption(options: &ServerOptions, data_dir: &Path, opened: &OpenStore) -> Result<Encryption, Exit> {
    let file = options.encryption_provider_config.clone().unwrap_or_else(|| data_dir.join(encryption::FILE));
    let writers = match opened {
        OpenStore::Embedded(_) => Writers::Ourselves,
        OpenStore::Etcd(_) => Writers::AnyServer,
    };
    let encryption = Encryption::open(opened.store(), file, Registry::builtin(), writers).await;
    encryption.map_err(|error| Exit::Refused(anyhow!(error).context("encryption of Secrets at rest")))
}

fn settings(options: &ServerOptions) -> Settings {
    let stock = PodSecuritySettings::default();
    Settings {
        build: BuildInfo {
            git_commit: env!("MAINSTAY_GIT_COMMIT"),
            git_tree_state: env!("MAINSTAY_GIT_TREE_STATE"),
            build_date: env!("MAINSTAY_BUILD_DATE"),
        },
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
        node_pod_bits: options.node_pod_range_size,
        service_range: (options.common.service_range.base(), options.common.service_range.bits()),
        toleration_seconds: i64::try_from(options.node_loss.unreachable_toleration.as_secs()).unwrap_or(i64::MAX),
        default_pod_roles: options.default_pod_roles.clone(),
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
