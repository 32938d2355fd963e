//! A server with its store in a directory, scheduler and controllers, and a fleet of hollow nodes.

use std::{
    collections::BTreeMap,
    future::Future,
    path::Path,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use kube::{Api, Client, api::ListParams};
use mainstay_api::registry::Registry as Kinds;
use mainstay_scheduler::{Handle, Metrics, Settings as Scheduling, metrics::Registry};
use mainstay_server::{api, client, handler::Handler, settings, volatile_prefixes};
use mainstay_sim::{
    fleet::{Access, Fleet, Settings},
    load::{self, Batch},
    pod::Pod,
    pod_times::PodTimes,
};
use mainstay_store::{Embedded, embedded};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::killed_store::KilledStore;

pub const NAMESPACE: &str = "sim";
const TIMEOUT: Duration = Duration::from_secs(60);

pub struct Cluster {
    pub client: Client,
    pub store: Arc<KilledStore>,
    handler: Arc<Handler>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Cluster {
    /// Opens the store in `dir`, which ends after so many binds.
    pub async fn start(dir: &Path, binds: usize) -> Self {
        let log = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into());
        let _ = tracing_subscriber::fmt().with_env_filter(log).with_test_writer().try_init();
        let options = embedded::Options { volatile: volatile_prefixes(&Kinds::builtin()), ..Default::default() };
        let store = KilledStore::after(Arc::new(Embedded::open(dir, options).expect("open the store")), binds);
        let settings = settings::Settings { pod_range: ([10, 128, 0, 0].into(), 10), ..Default::default() };
        let api = api::Api::new(Kinds::builtin(), store.clone(), settings);
        let stop = CancellationToken::new();
        let handler = Arc::new(Handler::new(api, stop.clone()));
        let (tasks, client) = (TaskTracker::new(), client::internal(handler.clone(), "test"));
        let controllers = mainstay_controllers::Settings { root_ca: String::new(), ..Default::default() };
        let own = client::internal(handler.clone(), "controllers");
        tasks.spawn(mainstay_controllers::run(own, controllers, stop.clone()));
        let scheduler = client::internal(handler.clone(), "scheduler");
        let metrics = Metrics::register(&mut Registry::default());
        tasks.spawn(mainstay_scheduler::run(
            scheduler,
            Scheduling::default(),
            metrics,
            Handle::default(),
            stop.clone(),
        ));
        tasks.close();
        let cluster = Self { client, store, handler, stop, tasks };
        for namespace in ["default", "kube-node-lease", NAMESPACE] {
            load::create_namespace(&cluster.client, namespace).await.expect("create a namespace");
        }
        cluster
    }

    /// Stops everything, and lets go of the directory.
    pub async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(TIMEOUT, self.tasks.wait()).await.expect("everything stops");
        self.store.inner.close().await.expect("close the store");
    }

    pub async fn start_fleet(&self, settings: Settings) -> RunningFleet {
        let handler = self.handler.clone();
        let node_client = Arc::new(move |name: &str| client::node(handler.clone(), name));
        let access = Access { admin: self.client.clone(), node_client };
        let registered = AtomicUsize::new(0);
        let fleet = Fleet::register(access, settings, Arc::new(PodTimes::default()), &registered).await;
        let fleet = fleet.expect("register nodes");
        let stop = CancellationToken::new();
        let task = tokio::spawn(fleet.clone().run(stop.clone()));
        RunningFleet { fleet, stop, task }
    }

    pub async fn create(&self, prefix: &str, count: usize, pod_times: &Arc<PodTimes>) {
        let batch = Batch { namespace: NAMESPACE.to_owned(), prefix: prefix.to_owned(), count };
        let clients = vec![self.client.clone(); 8];
        load::create_pods(&clients, &batch, pod_times, &Arc::default()).await.expect("create pods");
    }

    pub async fn pods(&self) -> BTreeMap<String, Pod> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let pods = api.list(&ListParams::default()).await.expect("list pods");
        pods.items.into_iter().map(|pod| (pod.name().to_owned(), pod)).collect()
    }
}

pub struct RunningFleet {
    pub fleet: Arc<Fleet>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl RunningFleet {
    pub async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(TIMEOUT, self.task).await.expect("the nodes stop").expect("without panic");
    }
}

/// Waits for something, a bounded time.
pub async fn with_timeout<T>(what: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(TIMEOUT, work).await {
        Ok(done) => done,
        Err(_) => panic!("timed out waiting for {what}"),
    }
}
