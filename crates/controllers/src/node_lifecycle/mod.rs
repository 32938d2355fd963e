//! Node lifecycle: marks nodes whose heartbeats stopped as `Unknown`, and taints nodes by their conditions.
//!
//! A node's Lease is its heartbeat. When it was last renewed is taken from when we saw it change, never from the clock
//! of the node itself. After [`heartbeats::GRACE`] without a heartbeat its conditions become `Unknown`. Taints follow
//! the conditions. Pods are not evicted.
//!
//! `Unknown` is not yet lost: `unreachable:NoExecute` is given only to nodes whose silence proves something
//! ([`heartbeats`]), and taken when heartbeats come again. Endpoints of Services go by it.

pub mod heartbeats;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, NodeCondition, Taint},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use parking_lot::Mutex;
use serde_json::json;

use crate::runtime::{ApiError, Context, Controller, Limits, ObjectKey, Outcomes, Plan, Runnable, error};
use heartbeats::{Heartbeats, NodeHeartbeat};

/// The conditions that the kubelet posts, and that are unknown without it.
const KUBELET_CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

const NO_SCHEDULE: &str = "NoSchedule";
const NO_EXECUTE: &str = "NoExecute";
const NOT_READY: &str = mainstay_api::wellknown::taint::NOT_READY;
const UNREACHABLE: &str = mainstay_api::wellknown::taint::UNREACHABLE;
/// Condition, and the taint that follows it.
const PRESSURES: [(&str, &str); 4] = [
    ("MemoryPressure", mainstay_api::wellknown::taint::MEMORY_PRESSURE),
    ("DiskPressure", mainstay_api::wellknown::taint::DISK_PRESSURE),
    ("PIDPressure", mainstay_api::wellknown::taint::PID_PRESSURE),
    ("NetworkUnavailable", mainstay_api::wellknown::taint::NETWORK_UNAVAILABLE),
];
const UNSCHEDULABLE: &str = mainstay_api::wellknown::taint::UNSCHEDULABLE;

pub struct NodeLifecycle {
    context: Arc<Context>,
    heartbeats: Arc<Mutex<Heartbeats>>,
}

pub fn controller(context: &Arc<Context>) -> Runnable {
    let queue = context.queue::<NodeLifecycle>();
    let heartbeats: Arc<Mutex<Heartbeats>> = Arc::default();
    context.caches.nodes.on_change({
        let (queue, heartbeats) = (queue.clone(), heartbeats.clone());
        move |change| match change.after {
            Some(_) => queue.add(change.key.name.clone()),
            None => heartbeats.lock().forget(&change.key.name),
        }
    });
    context.caches.node_leases.on_change({
        let (queue, heartbeats, clock) = (queue.clone(), heartbeats.clone(), context.clock.clone());
        move |change| {
            let Some(lease) = change.after else { return };
            let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
            let mut heartbeats = heartbeats.lock();
            if heartbeats.renew(&change.key.name, renewed, clock.now()) {
                heartbeats.names().for_each(|name| queue.add(name.clone()));
            }
        }
    });
    context.runnable(Arc::new(NodeLifecycle { context: context.clone(), heartbeats }), queue, Limits::default())
}

impl NodeLifecycle {
    fn api(&self) -> Api<Node> {
        Api::all(self.context.client.clone())
    }

    fn written(&self, name: &str, doing: String, result: Result<Node, kube::Error>) -> Result<(), ApiError> {
        match result {
            Ok(node) => self.context.caches.nodes.wrote(node),
            Err(error) if error::is_not_found(&error, name) => {}
            Err(error) => return Err(ApiError::new(doing, error)),
        }
        Ok(())
    }
}

pub struct World {
    node: Arc<Node>,
    heartbeat: NodeHeartbeat,
}

#[derive(Debug, PartialEq)]
pub enum Action {
    /// Carries the version it was judged by.
    Taint { version: String, taints: Vec<Taint> },
}

#[derive(Debug, PartialEq)]
pub struct UnknownConditions {
    version: String,
    conditions: Vec<NodeCondition>,
}

fn plan(world: &World, now: Timestamp) -> Plan<Action, UnknownConditions> {
    let node = &world.node;
    let version = node.metadata.resource_version.clone().unwrap_or_default();
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let status = |kind: &str| conditions.clone().find(|c| c.type_ == kind).map_or("", |c| c.status.as_str());
    let (silent, lost_at) = (now >= world.heartbeat.silent_at(), world.heartbeat.lost_at(now));
    let lost = lost_at.is_some_and(|lost_at| now >= lost_at);
    let unknown: Vec<NodeCondition> = if silent {
        let changed = KUBELET_CONDITIONS.iter().filter(|kind| status(kind) != "Unknown");
        changed.map(|kind| unknown(kind, conditions.clone().find(|c| c.type_ == **kind), now)).collect()
    } else {
        Vec::new()
    };
    let ready = if silent { "Unknown" } else { status("Ready") };
    let before: Vec<Taint> = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten()).cloned().collect();
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    match ready {
        "True" => {}
        "Unknown" if lost || is_lost(&before) => {
            wanted.extend([(UNREACHABLE, NO_SCHEDULE), (UNREACHABLE, NO_EXECUTE)]);
        }
        "Unknown" => wanted.push((UNREACHABLE, NO_SCHEDULE)),
        "" => {} // nothing posted yet
        _ => wanted.extend([(NOT_READY, NO_SCHEDULE), (NOT_READY, NO_EXECUTE)]),
    }
    let pressed = PRESSURES.iter().filter(|(condition, _)| !silent && status(condition) == "True");
    wanted.extend(pressed.map(|(_, taint)| (*taint, NO_SCHEDULE)));
    if node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true)) {
        wanted.push((UNSCHEDULABLE, NO_SCHEDULE));
    }
    let taints = wanted_taints(&before, &wanted, now);
    let actions = (taints != before).then(|| Action::Taint { version: version.clone(), taints });
    Plan {
        actions: actions.into_iter().collect(),
        status: (!unknown.is_empty()).then_some(UnknownConditions { version, conditions: unknown }),
        requeue_at: if silent { lost_at.filter(|_| !lost) } else { Some(world.heartbeat.silent_at()) },
    }
}

/// Whether these taints say that the node is lost: silent while others were not.
pub fn is_lost(taints: &[Taint]) -> bool {
    taints.iter().any(|taint| taint.key == UNREACHABLE && taint.effect == NO_EXECUTE)
}

fn unknown(kind: &str, before: Option<&NodeCondition>, now: Timestamp) -> NodeCondition {
    let (reason, message) = match before {
        Some(_) => ("NodeStatusUnknown", "Kubelet stopped posting node status."),
        None => ("NodeStatusNeverUpdated", "Kubelet never posted node status."),
    };
    NodeCondition {
        type_: kind.to_owned(),
        status: "Unknown".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_heartbeat_time: before.and_then(|before| before.last_heartbeat_time.clone()),
        last_transition_time: Some(Time(now)),
    }
}

/// Others' taints as they are, and of ours exactly the wanted ones.
fn wanted_taints(before: &[Taint], wanted: &[(&str, &str)], now: Timestamp) -> Vec<Taint> {
    let ours = |taint: &Taint| {
        let follows = PRESSURES.iter().any(|(_, key)| *key == taint.key) || taint.key == UNSCHEDULABLE;
        follows || taint.key == NOT_READY || taint.key == UNREACHABLE
    };
    let equals = |taint: &Taint, (key, effect): &(&str, &str)| taint.key == *key && taint.effect == *effect;
    let retained = before.iter().filter(|taint| !ours(taint) || wanted.iter().any(|want| equals(taint, want)));
    let mut taints: Vec<Taint> = retained.cloned().collect();
    for want in wanted {
        if !before.iter().any(|taint| equals(taint, want)) {
            taints.push(Taint {
                key: want.0.to_owned(),
                value: None,
                effect: want.1.to_owned(),
                time_added: Some(Time(now)),
            });
        }
    }
    taints
}

impl Controller for NodeLifecycle {
    const NAME: &'static str = "node_lifecycle_controller";
    type Key = String;
    type World = World;
    type Action = Action;
    type Outcome = ();
    type Status = UnknownConditions;

    async fn observe(&self, name: &String) -> Result<Option<World>, ApiError> {
        let node = self.context.caches.nodes.get(&ObjectKey::new("", name));
        let heartbeat = || self.heartbeats.lock().last_heartbeat(name, self.context.clock.now());
        Ok(node.map(|node| World { node, heartbeat: heartbeat() }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Action, UnknownConditions> {
        plan(world, now)
    }

    async fn apply(&self, name: &String, action: Action) -> Result<(), ApiError> {
        let Action::Taint { version, taints } = action;
        let change = json!({ "metadata": { "resourceVersion": version }, "spec": { "taints": taints } });
        let result = self.api().patch(name, &PatchParams::default(), &Patch::Merge(change)).await;
        self.written(name, format!("taint node {name}"), result)
    }

    async fn report(&self, name: &String, unknown: UnknownConditions, _: &Outcomes<()>) -> Result<(), ApiError> {
        tracing::warn!(node = name, "node heartbeats stopped; its conditions become Unknown");
        let change = json!({
            "metadata": { "resourceVersion": unknown.version }, "status": { "conditions": unknown.conditions },
        });
        let result = self.api().patch_status(name, &PatchParams::default(), &Patch::Strategic(change)).await;
        // If its taints were written first, the version is another now: a conflict, and the next reconcile writes this.
        self.written(name, format!("write the status of node {name}"), result)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{
        heartbeats::tests::{at, heartbeat},
        *,
    };

    fn world(ready: &str, spec: Value) -> World {
        let node = serde_json::from_value(json!({
            "metadata": { "name": "m1", "resourceVersion": "7" }, "spec": spec,
            "status": { "conditions": [
                { "type": "Ready", "status": ready }, { "type": "MemoryPressure", "status": "False" },
                { "type": "DiskPressure", "status": "False" }, { "type": "PIDPressure", "status": "False" },
            ] },
        }));
        World { node: Arc::new(node.unwrap()), heartbeat: heartbeat(100, 0, 140) }
    }

    fn taints(plan: &Plan<Action, UnknownConditions>) -> Option<Vec<(String, String)>> {
        let [Action::Taint { taints, .. }] = &plan.actions[..] else { return None };
        Some(taints.iter().map(|taint| (taint.key.clone(), taint.effect.clone())).collect())
    }

    fn pair(key: &str, effect: &str) -> (String, String) {
        (key.to_owned(), effect.to_owned())
    }

    #[test]
    fn a_node_with_heartbeats_is_left_alone_until_they_are_overdue() {
        let plan = plan(&world("True", json!({})), at(139));
        assert_eq!((plan.actions.len(), plan.status, plan.requeue_at), (0, None, Some(at(140))));
    }

    #[test]
    fn a_node_without_heartbeats_becomes_unknown_and_unreachable() {
        let plan = plan(&world("True", json!({ "taints": [{ "key": "own", "effect": "NoSchedule" }] })), at(140));
        let expected = vec![pair("own", NO_SCHEDULE), pair(UNREACHABLE, NO_SCHEDULE), pair(UNREACHABLE, NO_EXECUTE)];
        assert_eq!(taints(&plan), Some(expected));
        let silent = plan.status.unwrap();
        assert_eq!(silent.conditions.len(), 4);
        let ready = &silent.conditions[0];
        assert_eq!((ready.type_.as_str(), ready.reason.as_deref()), ("Ready", Some("NodeStatusUnknown")));
        assert_eq!(ready.message.as_deref(), Some("Kubelet stopped posting node status."));
    }

    #[test]
    fn while_no_node_has_heartbeats_a_node_is_unknown_but_not_lost() {
        let cut_off = World { heartbeat: heartbeat(100, 0, 110), ..world("True", json!({})) };
        let plan = plan(&cut_off, at(140));
        assert_eq!(taints(&plan), Some(vec![pair(UNREACHABLE, NO_SCHEDULE)]));
        assert_eq!((plan.status.unwrap().conditions.len(), plan.requeue_at), (4, None));
    }

    #[test]
    fn after_an_outage_of_all_nodes_each_has_time_to_come_back() {
        let unknown = json!({ "taints": [{ "key": UNREACHABLE, "effect": NO_SCHEDULE }] });
        let waited_for = World { heartbeat: heartbeat(100, 300, 330), ..world("Unknown", unknown) };
        let early = plan(&waited_for, at(339));
        assert_eq!((taints(&early), early.requeue_at), (None, Some(at(340))));
        let expected = vec![pair(UNREACHABLE, NO_SCHEDULE), pair(UNREACHABLE, NO_EXECUTE)];
        assert_eq!(taints(&plan(&waited_for, at(340))), Some(expected));
    }

    #[test]
    fn a_lost_node_stays_lost_until_its_next_heartbeat() {
        let lost = json!({ "taints": [
            { "key": UNREACHABLE, "effect": NO_SCHEDULE }, { "key": UNREACHABLE, "effect": NO_EXECUTE },
        ] });
        let since_the_server_began = World { heartbeat: heartbeat(490, 490, 490), ..world("Unknown", lost.clone()) };
        let nobody_else = World { heartbeat: heartbeat(100, 0, 200), ..world("Unknown", lost) };
        for world in [since_the_server_began, nobody_else] {
            assert_eq!(taints(&plan(&world, at(500))), None, "{:?}", world.heartbeat);
        }
    }

    #[test]
    fn taints_are_written_once_and_removed_again() {
        let unreachable = json!({ "taints": [
            { "key": UNREACHABLE, "effect": NO_SCHEDULE }, { "key": UNREACHABLE, "effect": NO_EXECUTE },
        ] });
        let mut lost = world("Unknown", unreachable.clone());
        Arc::make_mut(&mut lost.node)
            .status
            .as_mut()
            .unwrap()
            .conditions
            .iter_mut()
            .flatten()
            .for_each(|c| c.status = "Unknown".into());
        lost.heartbeat = heartbeat(100, 0, 500);
        let rests = plan(&lost, at(500));
        assert!(rests.actions.is_empty() && rests.status.is_none() && rests.requeue_at.is_none());
        let back = World { heartbeat: heartbeat(499, 0, 499), ..world("True", unreachable) };
        assert_eq!(taints(&plan(&back, at(500))), Some(vec![]));
    }

    #[test]
    fn taints_follow_conditions_and_cordons() {
        let mut pressed = world("False", json!({ "unschedulable": true }));
        Arc::make_mut(&mut pressed.node).status.as_mut().unwrap().conditions.as_mut().unwrap()[1].status =
            "True".into();
        let expected = vec![
            pair(NOT_READY, NO_SCHEDULE),
            pair(NOT_READY, NO_EXECUTE),
            pair("node.kubernetes.io/memory-pressure", NO_SCHEDULE),
            pair(UNSCHEDULABLE, NO_SCHEDULE),
        ];
        assert_eq!(taints(&plan(&pressed, at(101))), Some(expected));
    }
}
