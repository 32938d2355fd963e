//! Node lifecycle: marks nodes whose heartbeats stopped as `Unknown`, taints nodes by their conditions, and evicts pods by
//! NoExecute taints.
//!
//! A node's Lease is its heartbeat. When it was last renewed is taken from when we saw it change, never from the clock
//! of the node itself. After [`Timing::unknown_after`] without a heartbeat its conditions become `Unknown`. Taints follow
//! the conditions.
//!
//! `Unknown` is not yet lost: `unreachable:NoExecute` is given only to nodes whose silence proves something
//! ([`heartbeats`]), and taken when heartbeats come again. Endpoints of Services go by it, and so does eviction
//! ([`eviction`]).
//!
//! One reconcile of a node does all of this, and a node is reconciled by one runner at a time. A returning node starts its
//! unique pods only when that taint is gone; it is taken away by a later reconcile than the one that removed pods, so every
//! removal has been answered by then. `docs/node-loss.md` builds on it.

mod eviction;
mod heartbeats;
mod plan;
mod pod_writes;
mod suspects;
mod taint_ages;

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, ObjectReference, PersistentVolumeClaim},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use mainstay_api::{
    node_loss::{FencePromise, Timing, is_unique_by},
    wellknown::namespace::NODE_LEASES,
};
use mainstay_events::EventNote;
use nix::time::{ClockId, clock_gettime};
use parking_lot::Mutex;
use serde_json::json;

use self::{
    eviction::PodView,
    heartbeats::{BootTime, Heartbeats},
    plan::{Action, ConditionChanges, EvictionPause, NO_EXECUTE, PAUSED_CONDITION, World},
    suspects::Suspect,
    taint_ages::TaintAges,
};
use crate::{
    objects::pod::Pod,
    runtime::{
        ApiError, Change, Context, Controller, Limits, ObjectKey, Outcomes, Plan, Runnable, cache::controller_of, error,
    },
};

pub use plan::is_lost;

/// Who says so in events, as upstream.
const COMPONENT: &str = "node-controller";

pub struct NodeLifecycle {
    context: Arc<Context>,
    timing: Timing,
    heartbeats: Arc<Mutex<Heartbeats>>,
    taint_ages: Mutex<TaintAges>,
}

pub fn controller(context: &Arc<Context>, timing: Timing) -> Runnable {
    let (queue, caches) = (context.queue::<NodeLifecycle>(), &context.caches);
    let heartbeats = Arc::new(Mutex::new(Heartbeats::new(timing)));
    caches.nodes.on_change({
        let (queue, heartbeats, nodes) = (queue.clone(), heartbeats.clone(), Arc::downgrade(&caches.nodes));
        move |change: Change<'_, Node>| {
            match change.after {
                Some(_) => queue.add(change.key.name.clone()),
                None => heartbeats.lock().forget(&change.key.name),
            }
            if let (Some(before), Some(after)) = (change.before, change.after)
                && status_heartbeat(before) != status_heartbeat(after)
            {
                heartbeats.lock().status_posted(&change.key.name, boot_time());
            }
            // Which suspects are tainted depends on all of them, and on how many nodes there are.
            let is_suspect = |node: Option<&Node>| node.and_then(Suspect::from_node);
            if is_suspect(change.before) != is_suspect(change.after)
                || change.before.is_none() != change.after.is_none()
            {
                let suspects = nodes.upgrade().map(|nodes| nodes.select(|node| suspects::suspicion(node).is_some()));
                suspects.iter().flatten().for_each(|node| queue.add(node.metadata.name.clone().unwrap_or_default()));
            }
        }
    });
    caches.node_leases.on_change({
        let (queue, heartbeats) = (queue.clone(), heartbeats.clone());
        move |change| {
            let Some(lease) = change.after else { return };
            let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
            let mut heartbeats = heartbeats.lock();
            if heartbeats.renew(&change.key.name, renewed, boot_time()) {
                heartbeats.names().for_each(|name| queue.add(name.clone()));
            }
        }
    });
    caches.pods.on_change({
        let (queue, nodes) = (queue.clone(), Arc::downgrade(&caches.nodes));
        move |change: Change<'_, Pod>| {
            let Some(node) = change.after.map(|pod| &pod.spec.node_name).filter(|node| !node.is_empty()) else {
                return;
            };
            let has_taints = |node: &Node| no_execute_taints(node).next().is_some();
            let known = nodes.upgrade().and_then(|nodes| nodes.get(&ObjectKey::new("", node)));
            if known.is_some_and(|node| has_taints(&node)) {
                queue.add(node.clone());
            }
        }
    });
    let controller = NodeLifecycle { context: context.clone(), timing, heartbeats, taint_ages: Mutex::default() };
    context.runnable(Arc::new(controller), queue, Limits::default())
}

/// By the clock that goes on while the machine sleeps and that nobody sets.
fn boot_time() -> BootTime {
    // Every Linux that runs this has the clock; without it no time would ever pass, and no node be lost.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default()
}

/// When the node last posted its status, by its own clock.
fn status_heartbeat(node: &Node) -> Option<&Time> {
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.find(|condition| condition.type_ == "Ready")?.last_heartbeat_time.as_ref()
}

fn no_execute_taints(node: &Node) -> impl Iterator<Item = &k8s_openapi::api::core::v1::Taint> {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.filter(|taint| taint.effect == NO_EXECUTE)
}

impl NodeLifecycle {
    fn api(&self) -> Api<Node> {
        Api::all(self.context.client.clone())
    }

    /// Returns the version that the node has now.
    fn written(
        &self,
        name: &str,
        doing: String,
        result: Result<Node, kube::Error>,
    ) -> Result<Option<String>, ApiError> {
        match result {
            Ok(node) => {
                let version = node.metadata.resource_version.clone();
                self.context.caches.nodes.wrote(node);
                Ok(version)
            }
            Err(error) if error::is_not_found(&error, name) => Ok(None),
            Err(error) => Err(ApiError::new(doing, error)),
        }
    }

    fn pods_of(&self, node: &str) -> Vec<PodView> {
        let pods = self.context.caches.pods.select(|pod| pod.spec.node_name == node && !pod.is_finished());
        pods.iter().map(|pod| self.view(pod)).collect()
    }

    fn view(&self, pod: &Pod) -> PodView {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let claims: HashMap<String, Arc<PersistentVolumeClaim>> = pod
            .claims()
            .filter_map(|name| {
                let claim = self.context.caches.claims.get(&ObjectKey::new(namespace.clone(), name.clone()))?;
                Some((name, claim))
            })
            .collect();
        let access_modes =
            |name: &str| claims.get(name)?.spec.as_ref()?.access_modes.as_deref().filter(|modes| !modes.is_empty());
        PodView {
            key: ObjectKey::from_meta(&pod.metadata),
            uid: pod.uid().to_owned(),
            created: pod.created(),
            tolerations: pod.spec.tolerations.clone(),
            is_unique: is_unique_by(&pod.metadata, pod.claims(), access_modes),
            is_controlled: controller_of(&pod.metadata).is_some(),
            is_ready: pod.is_ready(),
            ends_at: pod.metadata.deletion_timestamp.as_ref().map(|Time(at)| *at),
            is_removed: pod.is_being_deleted() && pod.metadata.deletion_grace_period_seconds == Some(0),
        }
    }

    fn promise(&self, node: &str) -> Option<FencePromise> {
        let lease = self.context.caches.node_leases.get(&ObjectKey::new(NODE_LEASES, node))?;
        FencePromise::from_annotations(lease.metadata.annotations.as_ref()?)
    }

    /// Whether a node that is silent for so long has stopped its unique pods, by its promise and its witnesses.
    fn have_unique_pods_ended(&self, node: &str, silent_for: Duration, now: BootTime) -> bool {
        let Some(promise) = self.promise(node) else { return false };
        let heartbeats = self.heartbeats.lock();
        promise.allows_replacement(silent_for, |witness| {
            // A witness without a promise answers nobody.
            self.promise(witness)
                .is_some_and(|own| heartbeats.is_heard(witness, own.witness_gap(), promise.hearing_time(), now))
        })
    }

    fn is_tainted_suspect(&self, name: &str, node: &Node) -> bool {
        if suspects::suspicion(node).is_none() {
            return false;
        }
        let nodes = self.context.caches.nodes.all();
        suspects::is_tainted(name, nodes.iter().filter_map(|node| Suspect::from_node(node)).collect(), nodes.len())
    }

    fn record_event(&self, name: &str, note: EventNote) {
        let node = self.context.caches.nodes.get(&ObjectKey::new("", name));
        let involved = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(name.to_owned()),
            uid: node.and_then(|node| node.metadata.uid.clone()),
            ..ObjectReference::default()
        };
        self.context.events.record_as(COMPONENT, involved, note);
    }
}

impl Controller for NodeLifecycle {
    const NAME: &'static str = "node_lifecycle_controller";
    const CONCURRENT_ACTIONS: usize = 16;
    type Key = String;
    type World = World;
    type Action = Action;
    /// The version that the node has now, if it was written.
    type Outcome = Option<String>;
    type Status = ConditionChanges;

    async fn observe(&self, name: &String) -> Result<Option<World>, ApiError> {
        let Some(node) = self.context.caches.nodes.get(&ObjectKey::new("", name)) else {
            self.taint_ages.lock().forget(name);
            return Ok(None);
        };
        let now = boot_time();
        let heartbeat = self.heartbeats.lock().heartbeat(name, now);
        let taints = self.taint_ages.lock().observe(name, no_execute_taints(&node), self.context.clock.now(), now);
        let pods = if taints.is_empty() { Vec::new() } else { self.pods_of(name) };
        let silent_for = heartbeat.silent_while_others_are_heard.unwrap_or_default();
        Ok(Some(World {
            timing: self.timing,
            is_tainted_suspect: self.is_tainted_suspect(name, &node),
            unique_pods_ended: (pods.iter().any(|pod| pod.is_unique) || plan::has_volumes_in_use(&node))
                && self.have_unique_pods_ended(name, silent_for, now),
            node,
            heartbeat,
            taints,
            pods,
        }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Action, ConditionChanges> {
        plan::plan(world, now)
    }

    async fn apply(&self, name: &String, action: Action) -> Result<Option<String>, ApiError> {
        match action {
            Action::Taint { version, taints } => {
                let change = json!({ "metadata": { "resourceVersion": version }, "spec": { "taints": taints } });
                let result = self.api().patch(name, &PatchParams::default(), &Patch::Merge(change)).await;
                self.written(name, format!("taint node {name}"), result)
            }
            Action::Pod { action, silent_since } => {
                self.apply_to_pod(name, action, silent_since).await?;
                Ok(None)
            }
        }
    }

    async fn report(
        &self,
        name: &String,
        changes: ConditionChanges,
        outcomes: &Outcomes<Option<String>>,
    ) -> Result<(), ApiError> {
        let written = outcomes.iter().filter_map(|outcome| outcome.as_ref().ok()?.clone()).next_back();
        let change = json!({
            "metadata": { "resourceVersion": written.unwrap_or(changes.version) },
            "status": { "conditions": changes.conditions },
        });
        let result = self.api().patch_status(name, &PatchParams::default(), &Patch::Strategic(change)).await;
        if self.written(name, format!("write the status of node {name}"), result)?.is_none() {
            return Ok(());
        }
        if changes.is_now_unknown {
            tracing::warn!(node = name, "node heartbeats stopped; its conditions become Unknown");
            let message = format!("Node {name} status is now: NodeNotReady");
            self.record_event(name, EventNote::normal("NodeNotReady", message));
        }
        let message = changes.conditions.iter().find(|condition| condition.type_ == PAUSED_CONDITION);
        let message = message.and_then(|condition| condition.message.clone()).unwrap_or_default();
        match changes.pause {
            Some(EvictionPause::Begins(_)) => {
                tracing::warn!(node = name, message, "most nodes are silent; the node's pods are not evicted");
                self.record_event(name, EventNote::warning("EvictionsPaused", message));
            }
            Some(EvictionPause::Ends) => self.record_event(name, EventNote::normal("EvictionsResumed", message)),
            None => {}
        }
        Ok(())
    }
}
