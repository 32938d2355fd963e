//! Starts the controllers of routes: for this cluster, if its router is named, and for every Kluster.

use std::sync::Arc;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::Api;
use mainstay_api::{
    cloud::{
        cloud_resource::ResourceOwner,
        kluster::{DEORBIT_FINALIZER, Kluster, KlusterPhase},
    },
    wellknown::cluster_config,
};
use mainstay_controllers::runtime::{ApiError, Change, Limits, ObjectKey, Runnable, WorkQueue};
use tokio::sync::OnceCell;

use super::{
    cluster::{ClusterDirectory, ClusterKey, RoutedCluster},
    collection::RouteCollector,
    node_routes::RouteController,
    records::RouteRecords,
};
use crate::{context::CloudContext, kluster_observer::KlusterObserver};

/// As many clusters at once, and the longest pause between tries.
const LIMITS: Limits = Limits { concurrent_reconciles: 10, longest_backoff: std::time::Duration::from_secs(300) };

/// The key of the pod range among the settings that all servers of a cluster share.
const POD_RANGE: &str = "podRange";

pub struct ContextDirectory {
    context: Arc<CloudContext>,
    access: Arc<KlusterObserver>,
    own_range: OnceCell<IpNet>,
}

#[derive(Debug, thiserror::Error)]
enum DirectoryError {
    #[error("{field} is no range: {text:?}")]
    Range { field: &'static str, text: String },
}

impl ContextDirectory {
    fn new(context: &Arc<CloudContext>) -> Arc<Self> {
        let access = KlusterObserver::new(context);
        Arc::new(Self { context: context.clone(), access, own_range: OnceCell::new() })
    }

    async fn own_cluster(&self) -> Result<Option<RoutedCluster>, ApiError> {
        let context = &self.context;
        let Some(router) = context.network.router.clone() else { return Ok(None) };
        let session = context.clouds.own_session();
        let session = session.map_err(|error| ApiError::other("log in to this cluster's cloud", error))?;
        let owner = ResourceOwner {
            api_version: "v1".to_owned(),
            kind: "Namespace".to_owned(),
            name: "kube-system".to_owned(),
            ..ResourceOwner::default()
        };
        let range = *self.own_range.get_or_try_init(|| self.read_own_range()).await?;
        let cloud = context.clouds.own_name().to_owned();
        Ok(Some(RoutedCluster {
            session,
            range,
            client: context.client.clone(),
            nodes: context.caches.nodes.clone(),
            events: context.events.clone(),
            records: RouteRecords { client: context.client.clone(), cloud, router: router.clone(), owner },
            router,
            all_in_cloud: false,
            collects_orphans: true,
        }))
    }

    /// The pod range that the servers of this cluster share.
    async fn read_own_range(&self) -> Result<IpNet, ApiError> {
        let maps: Api<ConfigMap> = Api::namespaced(self.context.client.clone(), cluster_config::NAMESPACE);
        let map = maps.get(cluster_config::NAME).await.map_err(ApiError::when("read the cluster's settings"))?;
        let text = map.data.unwrap_or_default().remove(POD_RANGE).unwrap_or_default();
        parse_range("the cluster's pod range", &text)
    }

    async fn kluster(&self, key: &ObjectKey) -> Result<Option<RoutedCluster>, ApiError> {
        let Some(kluster) = self.access.find(key) else { return Ok(None) };
        // From the end of deorbit on, machines and their routes go: none is added behind the back of whoever removes them.
        if kluster.metadata.deletion_timestamp.is_some() && !kluster.has_finalizer(DEORBIT_FINALIZER) {
            return Ok(None);
        }
        let spec = &kluster.spec;
        let (Some(cidr), false) = (&spec.cluster_cidr, spec.openstack.router_id.is_empty()) else { return Ok(None) };
        let range = parse_range("spec.clusterCIDR", cidr)?;
        let Some(observed) = self.access.observe(key).await? else { return Ok(None) };
        let router = spec.openstack.router_id.clone();
        let owner = ResourceOwner {
            api_version: kluster.api_version.clone(),
            kind: "Kluster".to_owned(),
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            uid: kluster.metadata.uid.clone().unwrap_or_default(),
        };
        let client = self.context.client.clone();
        let cloud = self.access.cloud_name(&kluster);
        let status = kluster.status.as_ref();
        let is_disabled = status.is_some_and(|status| status.migrations_pending);
        Ok(Some(RoutedCluster {
            session: self.access.session(key, &kluster).await?,
            range,
            client: observed.client,
            nodes: observed.nodes,
            events: observed.events,
            records: RouteRecords { client, cloud, router: router.clone(), owner },
            router,
            all_in_cloud: true,
            collects_orphans: kluster.phase() == KlusterPhase::Running && !is_disabled,
        }))
    }
}

fn parse_range(field: &'static str, text: &str) -> Result<IpNet, ApiError> {
    text.parse().map_err(|_| {
        let error = DirectoryError::Range { field, text: text.to_owned() };
        ApiError::other("keep routes", error)
    })
}

impl ClusterDirectory for ContextDirectory {
    async fn find(&self, key: &ClusterKey) -> Result<Option<RoutedCluster>, ApiError> {
        match key {
            ClusterKey::Own => self.own_cluster().await,
            ClusterKey::Kluster(key) => self.kluster(key).await,
        }
    }
}

/// What about a Node its route depends on.
fn route_facts(node: &Node) -> impl PartialEq + use<> {
    let status = node.status.clone().unwrap_or_default();
    let mut conditions = status.conditions.unwrap_or_default();
    conditions.retain(|condition| matches!(condition.type_.as_str(), "NetworkUnavailable" | "RouteBroken"));
    let conditions: Vec<_> = conditions.into_iter().map(|c| (c.type_, c.status, c.reason, c.message)).collect();
    let range = node.spec.clone().unwrap_or_default().pod_cidr;
    (node.metadata.uid.clone(), range, status.addresses, conditions)
}

/// What about a Kluster it depends on whether it has routes.
pub(crate) fn kluster_facts(kluster: &Kluster) -> impl PartialEq + use<> {
    let is_disabled = kluster.status.as_ref().is_some_and(|status| status.migrations_pending);
    (kluster.metadata.uid.clone(), kluster.phase(), is_disabled, kluster.spec.clone())
}

/// Wakes a Kluster's key when it changes.
fn follow_klusters(context: &CloudContext, queue: &Arc<WorkQueue<ClusterKey>>) {
    let queue = queue.clone();
    context.caches.klusters.on_change(move |change: Change<'_, Kluster>| {
        if change.before.map(kluster_facts) != change.after.map(kluster_facts) {
            queue.add(ClusterKey::Kluster(change.key.clone()));
        }
    });
}

/// The route controller.
pub fn controller(context: &Arc<CloudContext>) -> Runnable {
    let directory = ContextDirectory::new(context);
    let queue = context.queue::<RouteController<ContextDirectory>>();
    follow_klusters(context, &queue);
    context.caches.nodes.on_change({
        let queue = queue.clone();
        move |change: Change<'_, Node>| {
            if change.before.map(route_facts) != change.after.map(route_facts) {
                queue.add(ClusterKey::Own);
            }
        }
    });
    context.observatory.on_change({
        let queue = queue.clone();
        move |key| queue.add(ClusterKey::Kluster(key.clone()))
    });
    queue.add(ClusterKey::Own);
    let controller = RouteController::new(directory, context.cloud_metrics.routes.clone(), context.clock.clone());
    context.runnable(Arc::new(controller), queue, LIMITS)
}

/// Route collection.
pub fn collection_controller(context: &Arc<CloudContext>) -> Runnable {
    let directory = ContextDirectory::new(context);
    let queue = context.queue::<RouteCollector<ContextDirectory>>();
    follow_klusters(context, &queue);
    queue.add(ClusterKey::Own);
    let collector = RouteCollector { directory, metrics: context.cloud_metrics.routes.clone() };
    context.runnable(Arc::new(collector), queue, LIMITS)
}
