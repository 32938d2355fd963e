//! Services the machines of Klusters: cordons, drains, and has them replaced or rebooted.
//!
//! Pods are evicted, so that budgets are honoured; pods of DaemonSets and static pods stay. Which system is stable is read from the ConfigMap
//! `kube-system/flatcar-stable` (keys `version` and `released`), which whoever mirrors releases writes; without it nothing is rebooted.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::{
    Api, Client,
    api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, Preconditions},
};
use mainstay_api::{
    cloud::{kluster::Kluster, node_pool::PoolSpec},
    wellknown::{kubernetes::MIRROR_POD, namespace::SYSTEM},
};
use mainstay_controllers::runtime::{
    ApiError, Change, Controller, Limits, ObjectKey, Plan, Runnable, context::resync_every, error,
};
use serde_json::json;

use super::{
    metrics::ServicingMetrics,
    plan::{
        self, REBOOT_TIMESTAMP, SERVICING_TIMESTAMP, ServicedNode, ServicingAction, ServicingWorld, UPDATE_TIMESTAMP,
        UpdateResult, ZONE,
    },
    version::grown_up,
};
use crate::{
    context::CloudContext,
    deorbit::{controller::tell, notice::Notice},
    openstack::compute::{RebootType, ServerFilter},
    pools::{
        controller::{PoolSettings, short_name},
        launcher::Launcher,
        members::is_member,
        observatory::is_ready,
    },
};

const COMPONENT: &str = "servicing";
const STABLE_RELEASE: &str = "flatcar-stable";
/// A release is waited with this long.
pub const HOLDOFF: SignedDuration = SignedDuration::from_hours(7 * 24);
const RESYNC: Duration = Duration::from_mins(5);
const LIMITS: Limits = Limits { concurrent_reconciles: 10, longest_backoff: RESYNC };
const DEADLINE: Duration = Duration::from_secs(20);

pub struct ServicingController {
    context: Arc<CloudContext>,
    launcher: Launcher,
    metrics: ServicingMetrics,
}

pub fn controller(context: &Arc<CloudContext>) -> Runnable {
    let (queue, metrics) = (context.queue::<ServicingController>(), context.kluster_parts.servicing.clone());
    context.caches.klusters.on_change({
        let (queue, metrics) = (queue.clone(), metrics.clone());
        move |change: Change<'_, Kluster>| match change.after {
            Some(_) => queue.add(change.key.clone()),
            None => metrics.forget(&change.key.name),
        }
    });
    let resync = {
        let (queue, klusters) = (queue.clone(), context.caches.klusters.clone());
        resync_every(RESYNC, move || {
            klusters.all().iter().for_each(|kluster| queue.add(ObjectKey::from_meta(&kluster.metadata)));
        })
    };
    let access = context.kluster_parts.access.clone();
    let launcher = Launcher { context: context.clone(), access, settings: PoolSettings::default() };
    let controller = ServicingController { context: context.clone(), launcher, metrics };
    context.runnable(Arc::new(controller), queue, LIMITS).alongside(resync)
}

impl Controller for ServicingController {
    const NAME: &'static str = "servicing";
    type Key = ObjectKey;
    type World = ServicingWorld;
    type Action = ServicingAction;
    type Outcome = ();
    type Status = ();

    async fn observe(&self, key: &ObjectKey) -> Result<Option<ServicingWorld>, ApiError> {
        let Some(kluster) = self.context.caches.klusters.get(key) else { return Ok(None) };
        if kluster.phase() != mainstay_api::cloud::kluster::KlusterPhase::Running
            || kluster.metadata.deletion_timestamp.is_some()
            || kluster.spec.no_cloud
        {
            self.metrics.forget(&key.name);
            return Ok(None);
        }
        let access = self.launcher.access.client(&self.context, &kluster).await?;
        let zone = TimeZone::get(ZONE).map_err(|error| ApiError::other("find the time zone", error))?;
        let (nodes, pods) = read_nodes(&access.client).await?;
        let mut pools: Vec<PoolSpec> = kluster.spec.node_pools.clone();
        let objects = self.context.caches.node_pools.in_namespace(&key.namespace);
        pools.extend(objects.iter().filter(|pool| pool.spec.kluster == key.name).map(|pool| pool.spec.pool.clone()));
        let serviced = |node: &Node| {
            let name = node.metadata.name.as_deref()?;
            let pool = pools.iter().find(|pool| is_member(name, short_name(&kluster), &pool.name))?;
            Some(view_node(node, pool, &pods))
        };
        let world = ServicingWorld {
            phase: kluster.phase(),
            annotations: kluster.metadata.annotations.clone().unwrap_or_default(),
            labels: kluster.metadata.labels.clone().unwrap_or_default(),
            zone,
            api_version: kluster.status.as_ref().map(|status| status.apiserver_version.clone()).unwrap_or_default(),
            stable_system: self.read_stable_release().await?,
            nodes: nodes.iter().filter_map(serviced).collect(),
        };
        self.metrics.show(&key.name, &world);
        Ok(Some(world))
    }

    fn plan(world: &ServicingWorld, now: Timestamp) -> Plan<ServicingAction, ()> {
        let plan = plan::plan(world, now);
        if let Some(gate) = plan.gate {
            tracing::trace!(?gate, "no machine is serviced now");
        }
        Plan { actions: plan.actions, status: None, requeue_at: Some(plan.next_look) }
    }

    async fn apply(&self, key: &ObjectKey, action: ServicingAction) -> Result<(), ApiError> {
        let Some(kluster) = self.context.caches.klusters.get(key) else { return Ok(()) };
        let client = self.launcher.access.client(&self.context, &kluster).await?.client;
        let now = self.context.clock.now().to_string();
        match &action {
            ServicingAction::Begin { node, update } => {
                // First the Kluster: should we stop here, the next machine waits for its turn all the same.
                self.annotate_kluster(&kluster, &now).await?;
                tracing::info!(kluster = kluster.name(), node, ?update, "service a machine");
                annotate_node(&client, node, json!({ UPDATE_TIMESTAMP: now }), Some(true)).await
            }
            ServicingAction::Evict { node } => evict_pods(&client, node).await,
            ServicingAction::Replace { node } => {
                self.tell(&kluster, Ok(()), "Drain", node);
                let servers = self.launcher.list_servers(&kluster).await?;
                let server = servers.into_iter().find(|server| server.name == *node);
                let result = match server {
                    Some(server) => self.launcher.delete(&kluster, &server.id, node).await,
                    None => Ok(()),
                };
                self.tell(&kluster, result.as_ref().copied(), "Replace", node);
                result
            }
            ServicingAction::Reboot { node } => {
                self.tell(&kluster, Ok(()), "Drain", node);
                // Written down first: a machine is rebooted once.
                annotate_node(&client, node, json!({ REBOOT_TIMESTAMP: now }), None).await?;
                let result = self.reboot(&kluster, node).await;
                self.tell(&kluster, result.as_ref().copied(), "Reboot", node);
                result
            }
            ServicingAction::Release { node, result } => {
                if *result == UpdateResult::DrainFailed {
                    let message = format!(
                        "Failed to drain node {node}: pods are left after 5 minutes, as their budgets keep them"
                    );
                    tell(&self.context, COMPONENT, &kluster, &Notice::warning("FailedDrainNode", message));
                }
                let annotations = json!({ UPDATE_TIMESTAMP: null, REBOOT_TIMESTAMP: null });
                annotate_node(&client, node, annotations, Some(false)).await
            }
        }
    }
}

impl ServicingController {
    fn tell(&self, kluster: &Kluster, result: Result<(), &ApiError>, operation: &str, node: &str) {
        let (successful, failed) = match operation {
            "Drain" => ("SuccessfulDrainNode", "FailedDrainNode"),
            "Reboot" => ("SuccessfulRebootNode", "FailedRebootNode"),
            _ => ("SuccessfulReplaceNode", "FailedReplaceNode"),
        };
        let what = operation.to_lowercase();
        let notice = match result {
            Ok(()) => Notice::normal(successful, format!("{operation} of node {node} succeeded")),
            Err(error) => Notice::warning(failed, format!("Failed to {what} node {node}: {}", error.message())),
        };
        tell(&self.context, COMPONENT, kluster, &notice);
    }

    async fn reboot(&self, kluster: &Kluster, node: &str) -> Result<(), ApiError> {
        let session = self.launcher.access.session(&self.context, kluster).await?;
        let servers = session.compute().list_servers(&ServerFilter::default()).await;
        let servers = servers.map_err(|error| ApiError::other("list servers", error))?;
        let Some(server) = servers.into_iter().find(|server| server.name == node) else { return Ok(()) };
        let result = session.compute().reboot_server(&server.id, RebootType::Soft).await;
        result.map_err(|error| ApiError::other(format!("reboot server {node}"), error))
    }

    async fn annotate_kluster(&self, kluster: &Kluster, now: &str) -> Result<(), ApiError> {
        let namespace = kluster.metadata.namespace.as_deref().unwrap_or_default();
        let api: Api<Kluster> = Api::namespaced(self.context.client.clone(), namespace);
        let annotations = json!({ SERVICING_TIMESTAMP: now });
        let metadata = json!({ "resourceVersion": kluster.metadata.resource_version, "annotations": annotations });
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        let written = api.patch(kluster.name(), &PatchParams::default(), &patch).await;
        let written = written.map_err(ApiError::when(format!("annotate kluster {}", kluster.name())))?;
        self.context.caches.klusters.wrote(written);
        Ok(())
    }

    async fn read_stable_release(&self) -> Result<Option<String>, ApiError> {
        let maps: Api<ConfigMap> = Api::namespaced(self.context.client.clone(), SYSTEM);
        let found = maps.get_opt(STABLE_RELEASE).await;
        let Some(map) = found.map_err(ApiError::when("read configmap flatcar-stable"))? else { return Ok(None) };
        let value =
            |key: &str| map.data.as_ref().and_then(|data| data.get(key)).map(String::as_str).unwrap_or_default();
        Ok(grown_up(value("version"), value("released"), HOLDOFF, self.context.clock.now()))
    }
}

async fn read_nodes(client: &Client) -> Result<(Vec<Node>, BTreeMap<String, usize>), ApiError> {
    let everything = ListParams::default();
    let (nodes, pods) = (Api::<Node>::all(client.clone()), Api::<Pod>::all(client.clone()));
    let lists = futures::future::try_join(nodes.list(&everything), pods.list(&everything));
    let lists = tokio::time::timeout(DEADLINE, lists).await;
    let lists = lists.unwrap_or_else(|_| Err(kube::Error::Service("no answer in time".into())));
    let (nodes, pods) = lists.map_err(ApiError::when("list nodes and pods of the kluster"))?;
    let mut left = BTreeMap::new();
    for pod in pods.iter().filter(|pod| is_evicted(pod)) {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
        *left.entry(node).or_default() += 1;
    }
    let mut nodes = nodes.items;
    nodes.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    Ok((nodes, left))
}

fn view_node(node: &Node, pool: &PoolSpec, pods: &BTreeMap<String, usize>) -> ServicedNode {
    let name = node.metadata.name.clone().unwrap_or_default();
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    let allows = |allow: fn(&mainstay_api::cloud::node_pool::PoolConfig) -> Option<bool>| {
        pool.config.as_ref().and_then(allow).unwrap_or(true)
    };
    ServicedNode {
        uid: node.metadata.uid.clone().unwrap_or_default(),
        kubelet_version: info.map(|info| info.kubelet_version.clone()).unwrap_or_default(),
        os_image: info.map(|info| info.os_image.clone()).unwrap_or_default(),
        ready: is_ready(node),
        unschedulable: node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false),
        annotations: node.metadata.annotations.clone().unwrap_or_default(),
        allow_reboot: allows(|config| config.allow_reboot),
        allow_replace: allows(|config| config.allow_replace),
        pods_left: pods.get(&name).copied().unwrap_or(0),
        name,
    }
}

/// Whether a drain moves a pod: neither one of a DaemonSet, nor a static one, nor one that has ended.
fn is_evicted(pod: &Pod) -> bool {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    let is_of_set = owners.any(|owner| owner.controller == Some(true) && owner.kind == "DaemonSet");
    let is_static = pod.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(MIRROR_POD));
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
    !is_of_set && !is_static && !matches!(phase, "Succeeded" | "Failed")
}

/// Asks for the eviction of every pod of a node. One that its budget keeps is asked for again at the next look.
async fn evict_pods(client: &Client, node: &str) -> Result<(), ApiError> {
    let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let pods = Api::<Pod>::all(client.clone()).list(&of_node).await;
    for pod in pods.map_err(ApiError::when(format!("list pods of node {node}")))?.iter().filter(|pod| is_evicted(pod)) {
        let (namespace, name) = (pod.metadata.namespace.as_deref().unwrap_or_default(), pod.metadata.name.as_deref());
        let name = name.unwrap_or_default();
        let preconditions = Some(Preconditions { uid: pod.metadata.uid.clone(), resource_version: None });
        let delete = DeleteParams { preconditions, ..DeleteParams::default() };
        let params = EvictParams { delete_options: Some(delete), ..EvictParams::default() };
        match Api::<Pod>::namespaced(client.clone(), namespace).evict(name, &params).await {
            Ok(_) => {}
            Err(failure) if [404, 409, 429].iter().any(|code| error::has_code(&failure, *code)) => {
                tracing::debug!(pod = name, error = error::message(&failure), "pod is not evicted yet");
            }
            Err(failure) => return Err(ApiError::new(format!("evict pod {namespace}/{name}"), failure)),
        }
    }
    Ok(())
}

async fn annotate_node(
    client: &Client,
    node: &str,
    annotations: serde_json::Value,
    unschedulable: Option<bool>,
) -> Result<(), ApiError> {
    let mut patch = json!({ "metadata": { "annotations": annotations } });
    if let Some(unschedulable) = unschedulable {
        patch["spec"] = json!({ "unschedulable": unschedulable });
    }
    let nodes: Api<Node> = Api::all(client.clone());
    match nodes.patch(node, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(_) => Ok(()),
        Err(failure) if error::has_code(&failure, 404) => Ok(()),
        Err(failure) => Err(ApiError::new(format!("write node {node}"), failure)),
    }
}
