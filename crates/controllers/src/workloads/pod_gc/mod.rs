//! Pod garbage collection: removes pods that nobody else will; [`plan`] says which.

mod plan;

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::Time};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use parking_lot::Mutex;
use serde_json::json;

use self::plan::{FINISHED_KEPT, NodeState, Remove, Why, World};
use crate::{
    objects::pod::Pod,
    runtime::{ApiError, Change, Context, Controller, Limits, ObjectKey as Name, Plan, Runnable, error},
};

/// How often pods that ended are counted, as long as more do.
const COUNTING: Duration = Duration::from_secs(20);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    Pod(Name),
    /// All that ended.
    Finished,
}

pub struct PodGc {
    context: Arc<Context>,
    /// Nodes that pods are on and that are not there, and since when we know.
    gone: Arc<Mutex<HashMap<String, Timestamp>>>,
}

pub fn controller(context: &Arc<Context>) -> Runnable {
    let (queue, caches) = (context.queue::<PodGc>(), &context.caches);
    let garbage = PodGc { context: context.clone(), gone: Arc::default() };
    caches.pods.on_change({
        let (queue, nodes) = (queue.clone(), caches.nodes.clone());
        move |change: Change<'_, Pod>| {
            let Some(pod) = change.after else { return };
            let node = &pod.spec.node_name;
            let lost = !node.is_empty() && nodes.get(&Name::new("", node)).is_none();
            if pod.is_being_deleted() || lost {
                queue.add(Key::Pod(change.key.clone()));
            }
            if pod.is_finished() && change.before.is_none_or(|before| !before.is_finished()) {
                queue.add_after(Key::Finished, COUNTING);
            }
        }
    });
    caches.nodes.on_change({
        let (queue, pods, gone) = (queue.clone(), Arc::downgrade(&caches.pods), garbage.gone.clone());
        move |change| {
            if change.after.is_some() {
                gone.lock().remove(&change.key.name);
            }
            if change.before.map(NodeState::from_node) == change.after.map(NodeState::from_node) {
                return;
            }
            let Some(pods) = pods.upgrade().map(|pods| pods.all()) else { return };
            let there = pods.iter().filter(|pod| pod.spec.node_name == change.key.name);
            let concerned = there.filter(|pod| change.after.is_none() || pod.is_being_deleted());
            concerned.for_each(|pod| queue.add(Key::Pod(Name::from_meta(&pod.metadata))));
        }
    });
    context.runnable(Arc::new(garbage), queue, Limits::default())
}

impl PodGc {
    fn node_state(&self, node: &str) -> NodeState {
        if node.is_empty() {
            return NodeState::None;
        }
        match self.context.caches.nodes.get(&Name::new("", node)) {
            Some(node) => NodeState::from_node(&node),
            None => {
                let since = *self.gone.lock().entry(node.to_owned()).or_insert_with(|| self.context.clock.now());
                NodeState::Gone { since }
            }
        }
    }

    /// Whether a node is there after all, by the API itself.
    async fn node_exists(&self, node: &str) -> Result<bool, ApiError> {
        let nodes: Api<Node> = Api::all(self.context.client.clone());
        let found = nodes.get_metadata_opt(node).await.map_err(ApiError::when(format!("look for node {node}")))?;
        Ok(found.is_some())
    }

    /// Says that a pod ended, and why nobody saw it.
    async fn fail(&self, remove: &Remove) -> Result<(), ApiError> {
        let Name { namespace, name } = &remove.pod;
        let mut status = json!({ "phase": "Failed" });
        if let Why::NodeGone { .. } = remove.why {
            status["conditions"] = json!([{
                "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC",
                "message": "PodGC: node no longer exists", "lastTransitionTime": Time(self.context.clock.now()),
            }]);
        }
        let change = json!({ "metadata": { "uid": remove.uid }, "status": status });
        let pods = self.context.pods_in(namespace);
        match pods.patch_status(name, &PatchParams::default(), &Patch::Strategic(change)).await {
            Ok(pod) => self.context.caches.pods.wrote(pod),
            Err(error) if error::is_not_found(&error, name) => {}
            Err(error) => return Err(ApiError::new(format!("fail pod {namespace}/{name}"), error)),
        }
        Ok(())
    }
}

impl Controller for PodGc {
    const NAME: &'static str = "orphaned_pods_nodes";
    const CONCURRENT_ACTIONS: usize = 16;
    type Key = Key;
    type World = World;
    type Action = Remove;
    type Outcome = ();
    type Status = ();

    async fn observe(&self, key: &Key) -> Result<Option<World>, ApiError> {
        let pods = &self.context.caches.pods;
        Ok(match key {
            Key::Pod(name) => pods.get(name).map(|pod| {
                let node = self.node_state(&pod.spec.node_name);
                World::Pod { pod, node }
            }),
            Key::Finished => {
                let mut pods = pods.all();
                pods.retain(|pod| pod.is_finished());
                Some(World::Finished { pods, limit: FINISHED_KEPT })
            }
        })
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Remove, ()> {
        plan::plan(world, now)
    }

    async fn apply(&self, _: &Key, remove: Remove) -> Result<(), ApiError> {
        if let Why::NodeGone { node } = &remove.why
            && self.node_exists(node).await?
        {
            return Ok(()); // its next change tells
        }
        let Name { namespace, name } = &remove.pod;
        tracing::info!(?remove.pod, uid = remove.uid, ?remove.why, "delete a pod that nobody else would");
        if remove.fail {
            self.fail(&remove).await?;
        }
        let fence = Preconditions { uid: Some(remove.uid.clone()), resource_version: None };
        let params =
            DeleteParams { grace_period_seconds: Some(0), preconditions: Some(fence), ..DeleteParams::background() };
        match self.context.pods_in(namespace).delete(name, &params).await {
            Ok(answer) => {
                let held = |pod: &Pod| pod.metadata.finalizers.as_ref().is_some_and(|held| !held.is_empty());
                match answer.left().filter(held) {
                    Some(pod) => self.context.caches.pods.wrote(pod),
                    None => self.context.caches.pods.removed(&remove.pod, &remove.uid),
                }
                Ok(())
            }
            Err(error) if error::has_code(&error, 404) || error::has_code(&error, 409) => Ok(()),
            Err(error) => Err(ApiError::new(format!("remove pod {namespace}/{name}"), error)),
        }
    }
}
