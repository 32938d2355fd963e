//! Looks at the heartbeats of every Kluster's machines, and scales the Deployment of its controllers.
//!
//! The Deployment is `KLUSTER-ccmanager`, or `KLUSTER-cmanager`, or `KLUSTER-controller-manager`, whichever there is first. A Kluster whose server runs its controllers
//! itself has none, and is left alone: these evict nothing while all machines are silent.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{apps::v1::Deployment, coordination::v1::Lease, core::v1::Node};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use mainstay_api::{cloud::kluster::Kluster, wellknown::namespace::NODE_LEASES};
use mainstay_controllers::runtime::{
    ApiError, Change, Controller, Limits, ObjectKey, Outcomes, Plan, Runnable, metrics::Registry,
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
};
use serde_json::json;

use super::plan::{self, ANNOTATION, HammertimeWorld, POLL, Scale, ScaleReason};
use crate::{
    context::CloudContext,
    deorbit::{controller::tell, notice::Notice},
    kluster_access::KlusterAccess,
};

const COMPONENT: &str = "hammertime";
const SUFFIXES: [&str; 3] = ["-ccmanager", "-cmanager", "-controller-manager"];
const LIMITS: Limits = Limits { concurrent_reconciles: 10, longest_backoff: Duration::from_secs(15) };
/// How soon a Kluster without such a Deployment is looked at again.
const WITHOUT_DEPLOYMENT: SignedDuration = SignedDuration::from_mins(1);
/// How long a kluster may take to list its Nodes and Leases.
const DEADLINE: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KlusterLabel {
    kluster: String,
}

/// `kubernikus_hammertime_status`: 1 while the controllers of a Kluster are stopped.
#[derive(Clone, Default)]
pub struct HammertimeMetrics(Family<KlusterLabel, Gauge>);

impl HammertimeMetrics {
    /// Metrics that `registry` shows.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "Whether the controllers of a Kluster are stopped";
        registry.register("kubernikus_hammertime_status", help, metrics.0.clone());
        metrics
    }

    fn show(&self, kluster: &str, is_stopped: bool) {
        self.0.get_or_create(&KlusterLabel { kluster: kluster.to_owned() }).set(is_stopped.into());
    }

    fn forget(&self, kluster: &str) {
        self.0.remove(&KlusterLabel { kluster: kluster.to_owned() });
    }
}

pub struct HammertimeController {
    context: Arc<CloudContext>,
    access: Arc<KlusterAccess>,
    metrics: HammertimeMetrics,
}

pub struct World {
    facts: HammertimeWorld,
    deployment: Option<Deployment>,
}

#[derive(Debug)]
pub struct ScaleDeployment {
    scale: Scale,
    deployment: String,
    version: Option<String>,
}

pub fn controller(context: &Arc<CloudContext>) -> Runnable {
    let (access, metrics) = (context.kluster_parts.access.clone(), context.kluster_parts.hammertime.clone());
    let queue = context.queue::<HammertimeController>();
    context.caches.klusters.on_change({
        let (queue, metrics) = (queue.clone(), metrics.clone());
        move |change: Change<'_, Kluster>| match change.after {
            Some(_) => queue.add(change.key.clone()),
            None => metrics.forget(&change.key.name),
        }
    });
    let controller = HammertimeController { context: context.clone(), access, metrics };
    context.runnable(Arc::new(controller), queue, LIMITS)
}

impl Controller for HammertimeController {
    const NAME: &'static str = "hammertime";
    type Key = ObjectKey;
    type World = World;
    type Action = ScaleDeployment;
    type Outcome = i32;
    type Status = i32;

    async fn observe(&self, key: &ObjectKey) -> Result<Option<World>, ApiError> {
        let Some(kluster) = self.context.caches.klusters.get(key) else { return Ok(None) };
        let deployment = self.find_deployment(key).await?;
        let heartbeats = match &deployment {
            Some(_) => self.read_heartbeats(&kluster).await,
            None => None,
        };
        let objects = self.context.caches.node_pools.in_namespace(&key.namespace);
        let objects = objects.iter().filter(|pool| pool.spec.kluster == key.name).map(|pool| &pool.spec.pool);
        let wanted_nodes = kluster.spec.node_pools.iter().chain(objects).map(|pool| i64::from(pool.size)).sum();
        let replicas = deployment.as_ref().map(|found| found.spec.replicas.unwrap_or(1));
        let facts = HammertimeWorld {
            phase: kluster.phase(),
            annotation: kluster.metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION)).cloned(),
            wanted_nodes,
            heartbeats,
            replicas,
        };
        Ok(Some(World { facts, deployment }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<ScaleDeployment, i32> {
        let scale = plan::plan(&world.facts, now);
        let action = scale.zip(world.deployment.as_ref()).map(|(scale, deployment)| ScaleDeployment {
            scale,
            deployment: deployment.metadata.name.clone().unwrap_or_default(),
            version: deployment.metadata.resource_version.clone(),
        });
        let replicas = scale.map_or(world.facts.replicas.unwrap_or(1), |scale| scale.replicas);
        // Up to half as long again, so that not all Klusters are looked at together.
        let spread = SignedDuration::from_millis(i64::from(now.subsec_nanosecond()) % 5_000);
        let pause = if world.deployment.is_some() { POLL + spread } else { WITHOUT_DEPLOYMENT };
        Plan { actions: action.into_iter().collect(), status: Some(replicas), requeue_at: Some(now + pause) }
    }

    async fn apply(&self, key: &ObjectKey, action: ScaleDeployment) -> Result<i32, ApiError> {
        let ScaleDeployment { scale, deployment, version } = action;
        let api: Api<Deployment> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let patch = json!({ "metadata": { "resourceVersion": version }, "spec": { "replicas": scale.replicas } });
        let written = api.patch(&deployment, &PatchParams::default(), &Patch::Merge(patch)).await;
        written.map_err(ApiError::when(format!("scale deployment {deployment}")))?;
        if let Some(kluster) = self.context.caches.klusters.get(key) {
            let notice = match scale.why {
                ScaleReason::AllNodesSilent => Notice::warning(
                    "HammertimeBegan",
                    format!("No node was heard of for 20 seconds: stopped {deployment}, so that no pod is evicted"),
                ),
                ScaleReason::NodesHeard => {
                    Notice::normal("HammertimeEnded", format!("A node was heard of again: started {deployment}"))
                }
                ScaleReason::SwitchedOff => {
                    Notice::normal("HammertimeEnded", format!("Hammertime is off: started {deployment}"))
                }
            };
            tell(&self.context, COMPONENT, &kluster, &notice);
        }
        Ok(scale.replicas)
    }

    async fn report(&self, key: &ObjectKey, replicas: i32, _: &Outcomes<i32>) -> Result<(), ApiError> {
        self.metrics.show(&key.name, replicas == 0);
        Ok(())
    }
}

impl HammertimeController {
    async fn find_deployment(&self, key: &ObjectKey) -> Result<Option<Deployment>, ApiError> {
        let api: Api<Deployment> = Api::namespaced(self.context.client.clone(), &key.namespace);
        for suffix in SUFFIXES {
            let name = format!("{}{suffix}", key.name);
            let found = api.get_opt(&name).await.map_err(ApiError::when(format!("read deployment {name}")))?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The newest sign of life of every Node: its Lease, or the heartbeat of its Ready condition.
    async fn read_heartbeats(&self, kluster: &Kluster) -> Option<Vec<Timestamp>> {
        let began = Instant::now();
        let access = self.access.client(&self.context, kluster).await.ok()?;
        let (nodes, leases) =
            (Api::<Node>::all(access.client.clone()), Api::<Lease>::namespaced(access.client, NODE_LEASES));
        let everything = ListParams::default();
        let lists = futures::future::try_join(nodes.list(&everything), leases.list(&everything));
        let (nodes, leases) = tokio::time::timeout(DEADLINE, lists).await.ok()?.ok()?;
        tracing::trace!(kluster = kluster.name(), took = ?began.elapsed(), "read heartbeats");
        let renewal = |name: Option<&str>| {
            let lease = leases.iter().find(|lease| lease.metadata.name.as_deref() == name)?;
            lease.spec.as_ref()?.renew_time.as_ref().map(|time| time.0)
        };
        let heartbeat = |node: &Node| {
            let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
            let ready = conditions.find(|condition| condition.type_ == "Ready")?;
            ready.last_heartbeat_time.as_ref().map(|time| time.0)
        };
        let sign = |node: &Node| renewal(node.metadata.name.as_deref()).or_else(|| heartbeat(node)).unwrap_or_default();
        Some(nodes.iter().map(sign).collect())
    }
}
