//! What all controllers of the cloud share: client, caches, clouds, ledger, event recorder, metrics and clock.

use std::{collections::BTreeMap, fmt::Debug, hash::Hash, path::Path, sync::Arc};

use jiff::SignedDuration;
use k8s_openapi::api::{
    core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Service},
    storage::v1::{StorageClass, VolumeAttachment},
};
use kube::{Api, Client};
use mainstay_api::cloud::{cloud_resource::CloudResource, kluster::Kluster, node_pool::NodePool};
use mainstay_controllers::runtime::{
    ApiError, Cache, Clock, Controller, ControllerMetrics, EventRecorder, Limits, Runnable, WorkQueue,
};
use parking_lot::Mutex;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    kluster_parts::KlusterParts,
    klusters::{KlusterMetrics, KlusterSettings, cloud_authorities_path},
    ledger::{ClusterId, Ledger},
    metrics::CloudMetrics,
    observatory::NodeObservatory,
    openstack::{CallRecorder, CloudConfig, CloudError, CloudsFile, ConfigError, Session, session::Deadlines},
    volumes::{attachments::pod_claims::PodClaims, snapshots::SnapshotCaches},
};

/// The kinds that controllers of the cloud look at, each listed and watched once.
#[derive(Clone)]
pub struct CloudCaches {
    pub klusters: Arc<Cache<Kluster>>,
    pub node_pools: Arc<Cache<NodePool>>,
    pub resources: Arc<Cache<CloudResource>>,
    pub nodes: Arc<Cache<Node>>,
    pub services: Arc<Cache<Service>>,
    pub claims: Arc<Cache<PersistentVolumeClaim>>,
    pub volumes: Arc<Cache<PersistentVolume>>,
    pub storage_classes: Arc<Cache<StorageClass>>,
    pub attachments: Arc<Cache<VolumeAttachment>>,
    pub pods: Arc<Cache<PodClaims>>,
}

impl Default for CloudCaches {
    fn default() -> Self {
        Self {
            klusters: Cache::new().into(),
            node_pools: Cache::new().into(),
            resources: Cache::new().into(),
            nodes: Cache::new().into(),
            services: Cache::new().into(),
            claims: Cache::new().into(),
            volumes: Cache::new().into(),
            storage_classes: Cache::new().into(),
            attachments: Cache::new().into(),
            pods: Cache::new().into(),
        }
    }
}

impl CloudCaches {
    /// Lists and watches all kinds until asked to stop.
    pub fn run(&self, client: &Client, tasks: &TaskTracker, stop: &CancellationToken) {
        tasks.spawn(self.klusters.clone().run(client.clone(), stop.clone()));
        tasks.spawn(self.node_pools.clone().run(client.clone(), stop.clone()));
        tasks.spawn(self.resources.clone().run(client.clone(), stop.clone()));
        tasks.spawn(self.nodes.clone().run(client.clone(), stop.clone()));
        tasks.spawn(self.services.clone().run(client.clone(), stop.clone()));
        tasks.spawn(self.claims.clone().run(client.clone(), stop.clone()));
        tasks.spawn(self.volumes.clone().run(client.clone(), stop.clone()));
        tasks.spawn(self.storage_classes.clone().run(client.clone(), stop.clone()));
        tasks.spawn(self.attachments.clone().run(client.clone(), stop.clone()));
        tasks.spawn(self.pods.clone().run(client.clone(), stop.clone()));
    }

    /// Returns once every cache has been filled.
    pub async fn synced(&self) {
        self.klusters.synced().await;
        self.node_pools.synced().await;
        self.resources.synced().await;
        self.nodes.synced().await;
        self.services.synced().await;
        self.claims.synced().await;
        self.volumes.synced().await;
        self.storage_classes.synced().await;
        self.attachments.synced().await;
        self.pods.synced().await;
    }
}

/// The clouds of the configuration, each with one session that all share.
pub struct Clouds {
    file: CloudsFile,
    /// The cloud that this cluster's own volumes, load balancers and routes are in.
    own: String,
    deadlines: Deadlines,
    recorder: Arc<dyn CallRecorder>,
    /// By the cloud's name, and the id of the project if it is not that of the configuration.
    sessions: Mutex<BTreeMap<(String, String), Session>>,
}

/// Why there is no session in a project.
#[derive(Debug, thiserror::Error)]
pub enum ProjectError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("log in to cloud {cloud}")]
    Login {
        cloud: String,
        #[source]
        source: CloudError,
    },
    #[error("the login of cloud {cloud} is of project {own} alone, and not of {wanted}")]
    OtherProject { cloud: String, own: String, wanted: String },
}

impl Clouds {
    /// `own` names this cluster's own cloud; without a name, the file has to have one only.
    pub fn new(
        file: CloudsFile,
        own: Option<&str>,
        deadlines: Deadlines,
        recorder: Arc<dyn CallRecorder>,
    ) -> Result<Self, ConfigError> {
        let own = file.cloud(own)?.name;
        Ok(Self { file, own, deadlines, recorder, sessions: Mutex::default() })
    }

    /// The session with a cloud. Nothing is sent yet.
    pub fn session(&self, name: &str) -> Result<Session, ConfigError> {
        let key = (name.to_owned(), String::new());
        if let Some(session) = self.sessions.lock().get(&key) {
            return Ok(session.clone());
        }
        self.keep(key, self.file.cloud(Some(name))?)
    }

    fn keep(&self, key: (String, String), config: CloudConfig) -> Result<Session, ConfigError> {
        let session = Session::with(config, self.deadlines, self.recorder.clone())?;
        Ok(self.sessions.lock().entry(key).or_insert(session).clone())
    }

    /// The session with a cloud in a project, by its id: what is made there is that project's and no other's. A credential that is of one project
    /// alone has to be of this one.
    pub async fn project_session(&self, name: &str, project: &str) -> Result<Session, ProjectError> {
        let key = (name.to_owned(), project.to_owned());
        if let Some(session) = self.sessions.lock().get(&key) {
            return Ok(session.clone());
        }
        if let Some(config) = self.file.cloud(Some(name))?.in_project(project) {
            return Ok(self.keep(key, config)?);
        }
        let (session, cloud) = (self.session(name)?, name.to_owned());
        let own = session.project_id().await.map_err(|source| ProjectError::Login { cloud: cloud.clone(), source })?;
        if own != project {
            return Err(ProjectError::OtherProject { cloud, own, wanted: project.to_owned() });
        }
        Ok(self.sessions.lock().entry(key).or_insert(session).clone())
    }

    /// The operator's session for a Kluster: with the cloud that it names, or this cluster's own, and in its project.
    pub async fn kluster_session(&self, kluster: &Kluster) -> Result<Session, ProjectError> {
        let openstack = &kluster.spec.openstack;
        let name = if openstack.cloud.is_empty() { &self.own } else { &openstack.cloud };
        match openstack.project_id.as_str() {
            "" => Ok(self.session(name)?),
            project => self.project_session(name, project).await,
        }
    }

    /// A session with a cloud that a Secret describes: the text of its `clouds.yaml`.
    pub fn session_from_text(&self, origin: &str, text: &str) -> Result<Session, ConfigError> {
        let elsewhere = cloud_authorities_path();
        let mut config = CloudsFile::parse_secret(origin, text, Path::new(&elsewhere))?.cloud(None)?;
        config.authorities = self.authorities_of(&config.auth_url);
        Session::with(config, self.deadlines, self.recorder.clone())
    }

    /// The authorities that the operator's configuration names for the cloud at this address.
    fn authorities_of(&self, auth_url: &str) -> Option<String> {
        let mut clouds = self.file.names().filter_map(|name| self.file.cloud(Some(name)).ok());
        clouds.find(|cloud| cloud.auth_url == auth_url)?.authorities
    }

    /// The session with this cluster's own cloud.
    pub fn own_session(&self) -> Result<Session, ConfigError> {
        self.session(&self.own)
    }

    pub fn own_name(&self) -> &str {
        &self.own
    }

    pub fn deadlines(&self) -> Deadlines {
        self.deadlines
    }
}

/// Where this cluster's load balancers and routes are; what load balancers leave out is discovered.
#[derive(Clone, Debug, Default)]
pub struct ClusterNetwork {
    /// The id of the subnet that their addresses are of; otherwise the subnet of the nodes.
    pub load_balancer_subnet: Option<String>,
    /// The id of the network that floating IPs are of; otherwise the external network of the subnet's router.
    pub floating_network: Option<String>,
    /// The id of the router that routes to nodes' pods are on; nodes get no routes if not set.
    pub router: Option<String>,
}

/// How soon the cloud is asked again what became of something.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// While the cloud is at work.
    pub poll: SignedDuration,
    /// When all is as it should be: somebody may have changed it in the cloud.
    pub resync: SignedDuration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { poll: SignedDuration::from_secs(2), resync: SignedDuration::from_mins(5) }
    }
}

#[derive(Clone)]
pub struct CloudContext {
    pub client: Client,
    pub caches: CloudCaches,
    pub snapshots: SnapshotCaches,
    pub events: EventRecorder,
    pub metrics: ControllerMetrics,
    pub clock: Clock,
    pub clouds: Arc<Clouds>,
    pub ledger: Arc<Ledger>,
    pub network: ClusterNetwork,
    /// The stock StorageClass of Cinder is the cluster's default one.
    pub has_default_storage: bool,
    pub pace: Pace,
    pub klusters: Arc<KlusterSettings>,
    pub kluster_metrics: KlusterMetrics,
    /// Nodes of Klusters.
    pub observatory: Arc<NodeObservatory>,
    pub cloud_metrics: CloudMetrics,
    pub kluster_parts: KlusterParts,
}

impl CloudContext {
    /// Asks the API which cluster this is, since that is part of every tag.
    pub async fn new(
        client: Client,
        clouds: Clouds,
        network: ClusterNetwork,
        pace: Pace,
        events: EventRecorder,
        metrics: ControllerMetrics,
        clock: Clock,
    ) -> Result<Arc<Self>, ApiError> {
        let cluster = read_cluster_id(&client).await?;
        let caches = CloudCaches::default();
        let settle = clouds.deadlines().attempt;
        let ledger = Arc::new(Ledger::new(client.clone(), caches.resources.clone(), cluster, clock.clone(), settle));
        let (clouds, observatory) = (Arc::new(clouds), Arc::default());
        let (klusters, kluster_metrics) = (Arc::default(), KlusterMetrics::default());
        Ok(Arc::new(Self {
            client,
            caches,
            snapshots: SnapshotCaches::default(),
            events,
            metrics,
            clock,
            clouds,
            ledger,
            network,
            has_default_storage: false,
            pace,
            klusters,
            kluster_metrics,
            observatory,
            cloud_metrics: CloudMetrics::default(),
            kluster_parts: KlusterParts::default(),
        }))
    }

    /// The same, counting what its controllers do in these metrics.
    pub fn with_metrics(&self, cloud_metrics: CloudMetrics) -> Arc<Self> {
        Arc::new(Self { cloud_metrics, ..self.clone() })
    }

    /// The same, with claims that name no class in Cinder, or not.
    pub fn with_default_storage(&self, has_default_storage: bool) -> Arc<Self> {
        Arc::new(Self { has_default_storage, ..self.clone() })
    }

    /// The same, with these parts of the controllers of Klusters.
    pub fn with_kluster_parts(&self, kluster_parts: KlusterParts) -> Arc<Self> {
        Arc::new(Self { kluster_parts, ..self.clone() })
    }

    /// The same, with these settings of Klusters; no version of them is on offer otherwise.
    pub fn with_klusters(&self, settings: KlusterSettings, metrics: KlusterMetrics) -> Arc<Self> {
        Arc::new(Self { klusters: Arc::new(settings), kluster_metrics: metrics, ..self.clone() })
    }

    /// The work queue of a controller, shown in metrics under the controller's name.
    pub fn queue<C: Controller>(&self) -> Arc<WorkQueue<C::Key>>
    where
        C::Key: 'static,
    {
        WorkQueue::new(C::NAME, &self.metrics)
    }

    /// The controller, ready to be started once the caches are filled.
    pub fn runnable<C: Controller>(&self, controller: Arc<C>, queue: Arc<WorkQueue<C::Key>>, limits: Limits) -> Runnable
    where
        C::Key: Clone + Ord + Hash + Debug,
    {
        Runnable::new(controller, queue, limits, self.metrics.clone(), self.clock.clone())
    }
}

/// Which cluster this is: the uid of `kube-system`, as everybody takes it.
pub async fn read_cluster_id(client: &Client) -> Result<ClusterId, ApiError> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace =
        namespaces.get_metadata("kube-system").await.map_err(ApiError::when("get namespace kube-system"))?;
    Ok(ClusterId::from_uid(namespace.metadata.uid.as_deref().unwrap_or_default()))
}
