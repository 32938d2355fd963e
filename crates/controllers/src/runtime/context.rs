//! What all controllers share: client, caches, event recorder, metrics and clock.

use std::{fmt::Debug, hash::Hash, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet, StatefulSet},
    autoscaling::v2::HorizontalPodAutoscaler,
    batch::v1::{CronJob, Job},
    certificates::v1::CertificateSigningRequest,
    coordination::v1::Lease,
    core::v1::{Endpoints, Namespace, Node, PersistentVolume, PersistentVolumeClaim, ResourceQuota},
    discovery::v1::EndpointSlice,
    networking::v1::ServiceCIDR,
    policy::v1::PodDisruptionBudget,
    rbac::v1::ClusterRole,
    resource::v1::{DeviceTaintRule, ResourceClaim, ResourceClaimTemplate, ResourceSlice},
    storage::v1::{StorageClass, VolumeAttributesClass},
    storagemigration::v1::StorageVersionMigration,
};
use kube::Client;
use mainstay_api::{
    config_template::ConfigTemplate, machine::Machine, machine_file::MachineFile, release::Release,
    service_table::ServiceTable, wellknown::namespace::NODE_LEASES,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Cache, Controller, ControllerMetrics, EventRecorder, Limits, WorkQueue, discovery::DiscoveryCache,
    metadata_watch::MetadataWatch, runner,
};
use crate::objects::{
    deployment::Deployment,
    pod::Pod,
    replica_set::{ReplicaSet, ReplicationController},
    service::Service,
};

macro_rules! caches {
    ($($name:ident: $kind:ty $(, in $namespace:expr)?;)*) => {
        /// The kinds that controllers look at, each listed and watched once.
        #[derive(Clone)]
        pub struct Caches { $(pub $name: Arc<Cache<$kind>>,)* }

        impl Default for Caches {
            fn default() -> Self {
                Self { $($name: Cache::new()$(.within($namespace))?.into(),)* }
            }
        }

        impl Caches {
            /// Lists and watches all kinds until asked to stop.
            pub fn run(&self, client: &Client, tasks: &TaskTracker, stop: &CancellationToken) {
                $(tasks.spawn(self.$name.clone().run(client.clone(), stop.clone()));)*
            }

            /// Returns once every cache has been filled.
            pub async fn synced(&self) {
                $(self.$name.synced().await;)*
            }
        }
    };
}

caches! {
    namespaces: Namespace;
    pods: Pod;
    nodes: Node;
    node_leases: Lease, in NODE_LEASES;
    replica_sets: ReplicaSet;
    replication_controllers: ReplicationController;
    deployments: Deployment;
    stateful_sets: StatefulSet;
    daemon_sets: DaemonSet;
    revisions: ControllerRevision;
    budgets: PodDisruptionBudget;
    claims: PersistentVolumeClaim;
    volumes: PersistentVolume;
    storage_classes: StorageClass;
    jobs: Job;
    cron_jobs: CronJob;
    services: Service;
    slices: EndpointSlice;
    endpoints: Endpoints;
    autoscalers: HorizontalPodAutoscaler;
    certificate_requests: CertificateSigningRequest;
    cluster_roles: ClusterRole;
    resource_quotas: ResourceQuota;
    migrations: StorageVersionMigration;
}

/// ResourceClaims, their templates and the devices' taints. Apart from the others: a server without these kinds must not keep every controller
/// from starting.
#[derive(Clone, Default)]
pub struct DeviceCaches {
    pub claims: Arc<Cache<ResourceClaim>>,
    pub templates: Arc<Cache<ResourceClaimTemplate>>,
    pub slices: Arc<Cache<ResourceSlice>>,
    pub taint_rules: Arc<Cache<DeviceTaintRule>>,
}

impl DeviceCaches {
    /// Lists and watches them until asked to stop.
    pub fn run(&self, client: &Client, tasks: &TaskTracker, stop: &CancellationToken) {
        tasks.spawn(self.claims.clone().run(client.clone(), stop.clone()));
        tasks.spawn(self.templates.clone().run(client.clone(), stop.clone()));
        tasks.spawn(self.slices.clone().run(client.clone(), stop.clone()));
        tasks.spawn(self.taint_rules.clone().run(client.clone(), stop.clone()));
    }
}

/// Machines and Releases; apart from the others for the same reason.
#[derive(Clone, Default)]
pub struct MachineCaches {
    pub machines: Arc<Cache<Machine>>,
    pub releases: Arc<Cache<Release>>,
}

impl MachineCaches {
    /// Lists and watches them until asked to stop.
    pub fn run(&self, client: &Client, tasks: &TaskTracker, stop: &CancellationToken) {
        tasks.spawn(self.machines.clone().run(client.clone(), stop.clone()));
        tasks.spawn(self.releases.clone().run(client.clone(), stop.clone()));
    }
}

/// Returns once Machines and Releases are known.
pub async fn synced_machines(context: Arc<Context>) {
    context.machine_caches.machines.synced().await;
    context.machine_caches.releases.synced().await;
}

/// Where the time comes from, so that tests can set it.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    pub fn now(&self) -> Timestamp {
        (self.0)()
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new(Timestamp::now)
    }
}

/// The clients of the controllers: one for the caches, events and leader election that all share, and one for each
/// controller's own requests, so that each has the rights it needs and no others.
#[derive(Clone)]
pub struct Clients {
    pub shared: Client,
    for_account: Arc<dyn Fn(&str) -> Client + Send + Sync>,
}

impl Clients {
    /// `for_account` makes the client of a service account of `kube-system`.
    pub fn new(shared: Client, for_account: impl Fn(&str) -> Client + Send + Sync + 'static) -> Self {
        Self { shared, for_account: Arc::new(for_account) }
    }

    pub fn for_account(&self, account: &str) -> Client {
        (self.for_account)(account)
    }
}

/// One client for everything: whoever it is has to have the rights of all controllers.
impl From<Client> for Clients {
    fn from(client: Client) -> Self {
        let shared = client.clone();
        Self::new(shared, move |_| client.clone())
    }
}

#[derive(Clone)]
pub struct Context {
    pub client: Client,
    pub caches: Caches,
    pub events: EventRecorder,
    pub metrics: ControllerMetrics,
    pub clock: Clock,
    /// Apart from the others: a server without this kind must not keep every controller from starting.
    pub service_tables: Arc<Cache<ServiceTable>>,
    /// Likewise.
    pub config_templates: Arc<Cache<ConfigTemplate>>,
    pub machine_files: Arc<Cache<MachineFile>>,
    pub attributes_classes: Arc<Cache<VolumeAttributesClass>>,
    pub service_cidrs: Arc<Cache<ServiceCIDR>>,
    pub device_caches: DeviceCaches,
    pub machine_caches: MachineCaches,
    /// Which resources the server has.
    pub discovery: Arc<DiscoveryCache>,
    /// Metadata of the objects of every resource, for controllers that deal with all kinds.
    pub metadata: Arc<MetadataWatch>,
}

impl Context {
    pub fn new(client: Client, events: EventRecorder, metrics: ControllerMetrics) -> Arc<Self> {
        let discovery = Arc::<DiscoveryCache>::default();
        let metadata = MetadataWatch::new(client.clone(), discovery.clone());
        let (caches, clock, service_tables) = (Caches::default(), Clock::default(), Arc::new(Cache::new()));
        let (device_caches, machine_caches) = (DeviceCaches::default(), MachineCaches::default());
        let config_templates = Arc::new(Cache::new());
        let machine_files = Arc::new(Cache::new());
        let attributes_classes = Arc::new(Cache::new());
        let service_cidrs = Arc::new(Cache::new());
        Arc::new(Self {
            client,
            caches,
            events,
            metrics,
            clock,
            service_tables,
            config_templates,
            machine_files,
            attributes_classes,
            service_cidrs,
            device_caches,
            machine_caches,
            discovery,
            metadata,
        })
    }

    /// The same for one controller: its requests are made with this client.
    pub fn with_client(&self, client: Client) -> Arc<Self> {
        Arc::new(Self { client, ..self.clone() })
    }

    /// The work queue of a controller, shown in metrics under the controller's name.
    pub fn queue<C: Controller>(&self) -> Arc<WorkQueue<C::Key>>
    where
        C::Key: 'static,
    {
        WorkQueue::new(C::NAME, &self.metrics)
    }

    /// The controller, ready to be started once the caches are filled.
    pub fn runnable<C: Controller>(
        self: &Arc<Self>,
        controller: Arc<C>,
        queue: Arc<WorkQueue<C::Key>>,
        limits: Limits,
    ) -> Runnable
    where
        C::Key: Clone + Ord + Hash + Debug,
    {
        Runnable::new(controller, queue, limits, self.metrics.clone(), self.clock.clone())
    }
}

/// A controller that already receives changes of the caches and reconciles once it is started.
pub struct Runnable {
    pub name: &'static str,
    run: Box<dyn FnOnce(CancellationToken) -> BoxFuture<'static, ()> + Send>,
}

impl Runnable {
    /// A controller of another crate, which has a context of its own.
    pub fn new<C: Controller>(
        controller: Arc<C>,
        queue: Arc<WorkQueue<C::Key>>,
        limits: Limits,
        metrics: ControllerMetrics,
        clock: Clock,
    ) -> Self
    where
        C::Key: Clone + Ord + Hash + Debug,
    {
        let run = move |stop| -> BoxFuture<'static, ()> {
            Box::pin(async move { runner::run(&metrics, &clock, controller, queue, limits, stop).await })
        };
        Self { name: C::NAME, run: Box::new(run) }
    }

    /// Runs until asked to stop; the reconciles under way are let end.
    pub async fn run(self, stop: CancellationToken) {
        (self.run)(stop).await;
    }

    /// The same controller with a task beside it that ends with it.
    pub fn alongside(self, task: impl Future<Output = ()> + Send + 'static) -> Self {
        let Self { name, run } = self;
        let run = move |stop: CancellationToken| -> BoxFuture<'static, ()> {
            Box::pin(async move {
                tokio::join!(stop.clone().run_until_cancelled_owned(task), run(stop));
            })
        };
        Self { name, run: Box::new(run) }
    }

    /// The same controller, started only when `ready` says so.
    pub fn after(self, ready: impl Future<Output = ()> + Send + 'static) -> Self {
        let Self { name, run } = self;
        let run = move |stop: CancellationToken| -> BoxFuture<'static, ()> {
            Box::pin(async move {
                if stop.run_until_cancelled(ready).await.is_some() {
                    run(stop).await;
                }
            })
        };
        Self { name, run: Box::new(run) }
    }
}

/// Calls `resync` again and again, for controllers that look at everything now and then even if nothing changes.
pub async fn resync_every(period: Duration, resync: impl Fn()) {
    loop {
        tokio::time::sleep(period).await;
        resync();
    }
}
