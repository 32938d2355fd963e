//! Notices machines that fell silent, and keeps away from those that are not well.
//!
//! A machine's Lease is its heartbeat. When it was last renewed is taken from when we saw it change, never from the
//! clock of the machine itself. After [`hearing::GRACE`] without a beat its conditions become `Unknown`. Taints follow
//! the conditions, so that placement and people see one truth. Pods are left alone.
//!
//! Unknown is not yet lost: `unreachable:NoExecute` is given only to machines whose silence proves something
//! ([`hearing`]), and taken when they are heard of. Endpoints of Services go by it.

pub mod hearing;

use std::sync::Arc;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{Node, NodeCondition, Taint},
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    failure::{self, Failure},
    runner::Queue,
    shell::{Controller, Plan},
};
use hearing::{Heard, Hearing};

const LEASES: &str = "kube-node-lease";
/// What the agent tells, and what therefore is unknown without it.
const TOLD: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

const NO_SCHEDULE: &str = "NoSchedule";
const NO_EXECUTE: &str = "NoExecute";
const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// Condition, and the taint that follows it.
const PRESSURES: [(&str, &str); 4] = [
    ("MemoryPressure", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "node.kubernetes.io/network-unavailable"),
];
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

pub struct Nodes {
    client: Client,
    pub queue: Arc<Queue<String>>,
    hearing: Mutex<Hearing>,
}

impl Nodes {
    pub fn new(client: Client) -> Self {
        Self { client, queue: Queue::new(), hearing: Mutex::default() }
    }

    fn api(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// Follows nodes and heartbeats until asked to stop.
    pub async fn follow(self: Arc<Self>, stop: CancellationToken) {
        stop.run_until_cancelled(async { tokio::join!(self.follow_nodes(), self.follow_beats()) }).await;
    }

    async fn follow_nodes(&self) {
        let events = watcher(self.api(), watcher::Config::default()).default_backoff();
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::InitApply(node) | watcher::Event::Apply(node)) => {
                    self.queue.wake(node.metadata.name.unwrap_or_default());
                }
                Ok(watcher::Event::Delete(node)) => {
                    self.hearing.lock().forget(node.metadata.name.as_deref().unwrap_or_default());
                }
                Ok(watcher::Event::Init | watcher::Event::InitDone) => {}
                Err(error) => tracing::debug!(%error, "cannot watch nodes; will watch again"),
            }
        }
    }

    async fn follow_beats(&self) {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), LEASES);
        let events = watcher(leases, watcher::Config::default()).default_backoff();
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::InitApply(lease) | watcher::Event::Apply(lease)) => self.beat(&lease),
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "cannot watch heartbeats; will watch again"),
            }
        }
    }

    fn beat(&self, lease: &Lease) {
        let name = lease.metadata.name.as_deref().unwrap_or_default();
        let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
        let mut hearing = self.hearing.lock();
        if hearing.beat(name, renewed, Timestamp::now()) {
            hearing.names().for_each(|name| self.queue.wake(name.clone()));
        }
    }
}

pub struct World {
    node: Node,
    heard: Heard,
}

#[derive(Debug, PartialEq)]
pub enum Action {
    /// Carries the version it was judged by.
    Taint { version: String, taints: Vec<Taint> },
}

#[derive(Debug, PartialEq)]
pub struct Silent {
    version: String,
    conditions: Vec<NodeCondition>,
}

fn plan(world: &World, now: Timestamp) -> Plan<Action, Silent> {
    let node = &world.node;
    let version = node.metadata.resource_version.clone().unwrap_or_default();
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let status = |kind: &str| conditions.clone().find(|c| c.type_ == kind).map_or("", |c| c.status.as_str());
    let (silent, lost_at) = (now >= world.heard.silent_at(), world.heard.lost_at(now));
    let lost = lost_at.is_some_and(|lost_at| now >= lost_at);
    let unknown: Vec<NodeCondition> = if silent {
        let news = TOLD.iter().filter(|kind| status(kind) != "Unknown");
        news.map(|kind| unknown(kind, conditions.clone().find(|c| c.type_ == **kind), now)).collect()
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
        "" => {} // a machine that has not told anything yet
        _ => wanted.extend([(NOT_READY, NO_SCHEDULE), (NOT_READY, NO_EXECUTE)]),
    }
    let pressed = PRESSURES.iter().filter(|(condition, _)| !silent && status(condition) == "True");
    wanted.extend(pressed.map(|(_, taint)| (*taint, NO_SCHEDULE)));
    if node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true)) {
        wanted.push((UNSCHEDULABLE, NO_SCHEDULE));
    }
    let taints = tainted(&before, &wanted, now);
    let actions = (taints != before).then(|| Action::Taint { version: version.clone(), taints });
    Plan {
        actions: actions.into_iter().collect(),
        status: (!unknown.is_empty()).then_some(Silent { version, conditions: unknown }),
        wake_at: if silent { lost_at.filter(|_| !lost) } else { Some(world.heard.silent_at()) },
    }
}

/// Whether these say that the machine was silent while others were heard of.
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
fn tainted(before: &[Taint], wanted: &[(&str, &str)], now: Timestamp) -> Vec<Taint> {
    let ours = |taint: &Taint| {
        let follows = PRESSURES.iter().any(|(_, key)| *key == taint.key) || taint.key == UNSCHEDULABLE;
        follows || taint.key == NOT_READY || taint.key == UNREACHABLE
    };
    let is = |taint: &Taint, (key, effect): &(&str, &str)| taint.key == *key && taint.effect == *effect;
    let kept = before.iter().filter(|taint| !ours(taint) || wanted.iter().any(|want| is(taint, want)));
    let mut taints: Vec<Taint> = kept.cloned().collect();
    for want in wanted {
        if !before.iter().any(|taint| is(taint, want)) {
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

impl Controller for Nodes {
    const NAME: &'static str = "nodes";
    type Key = String;
    type World = World;
    type Action = Action;
    type Status = Silent;

    async fn observe(&self, name: &String) -> Result<Option<World>, Failure> {
        let node = self.api().get_opt(name).await.map_err(Failure::when(format!("get node {name}")))?;
        Ok(node.map(|node| World { node, heard: self.hearing.lock().of(name, Timestamp::now()) }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Action, Silent> {
        plan(world, now)
    }

    async fn apply(&self, name: &String, action: Action) -> Result<(), Failure> {
        let Action::Taint { version, taints } = action;
        let change = json!({ "metadata": { "resourceVersion": version }, "spec": { "taints": taints } });
        done(format!("taint node {name}"), self.api().patch(name, &PatchParams::default(), &merge(change)).await)
    }

    async fn report(&self, name: &String, silent: Silent) -> Result<(), Failure> {
        tracing::warn!(node = name, "the machine does not answer");
        let change = json!({
            "metadata": { "resourceVersion": silent.version }, "status": { "conditions": silent.conditions },
        });
        let patch = Patch::Strategic(change);
        let result = self.api().patch_status(name, &PatchParams::default(), &patch).await;
        // Its taints were written first: the version is another now, and the next look writes this.
        match result {
            Err(error) if failure::is(&error, 409) => {
                self.queue.wake(name.clone());
                Ok(())
            }
            result => done(format!("write the status of node {name}"), result),
        }
    }
}

fn merge(change: Value) -> Patch<Value> {
    Patch::Merge(change)
}

fn done(doing: String, result: Result<Node, kube::Error>) -> Result<(), Failure> {
    match result {
        Ok(_) => Ok(()),
        Err(error) if failure::is(&error, 404) => Ok(()),
        Err(error) => Err(Failure::new(doing, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        hearing::tests::{at, heard},
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
        World { node: node.unwrap(), heard: heard(100, 0, 140) }
    }

    fn taints(plan: &Plan<Action, Silent>) -> Option<Vec<(String, String)>> {
        let [Action::Taint { taints, .. }] = &plan.actions[..] else { return None };
        Some(taints.iter().map(|taint| (taint.key.clone(), taint.effect.clone())).collect())
    }

    fn pair(key: &str, effect: &str) -> (String, String) {
        (key.to_owned(), effect.to_owned())
    }

    #[test]
    fn a_machine_that_is_heard_of_is_left_alone_until_it_may_be_gone() {
        let plan = plan(&world("True", json!({})), at(139));
        assert_eq!((plan.actions.len(), plan.status, plan.wake_at), (0, None, Some(at(140))));
    }

    #[test]
    fn a_silent_machine_becomes_unknown_and_unreachable() {
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
    fn while_nobody_is_heard_of_a_silent_machine_is_unknown_but_not_lost() {
        let cut_off = World { heard: heard(100, 0, 110), ..world("True", json!({})) };
        let plan = plan(&cut_off, at(140));
        assert_eq!(taints(&plan), Some(vec![pair(UNREACHABLE, NO_SCHEDULE)]));
        assert_eq!((plan.status.unwrap().conditions.len(), plan.wake_at), (4, None));
    }

    #[test]
    fn after_a_time_without_anybody_a_machine_has_time_to_come_back() {
        let unknown = json!({ "taints": [{ "key": UNREACHABLE, "effect": NO_SCHEDULE }] });
        let waited_for = World { heard: heard(100, 300, 330), ..world("Unknown", unknown) };
        let early = plan(&waited_for, at(339));
        assert_eq!((taints(&early), early.wake_at), (None, Some(at(340))));
        let expected = vec![pair(UNREACHABLE, NO_SCHEDULE), pair(UNREACHABLE, NO_EXECUTE)];
        assert_eq!(taints(&plan(&waited_for, at(340))), Some(expected));
    }

    #[test]
    fn a_lost_machine_stays_lost_until_it_is_heard_of() {
        let lost = json!({ "taints": [
            { "key": UNREACHABLE, "effect": NO_SCHEDULE }, { "key": UNREACHABLE, "effect": NO_EXECUTE },
        ] });
        let since_the_server_began = World { heard: heard(490, 490, 490), ..world("Unknown", lost.clone()) };
        let nobody_else = World { heard: heard(100, 0, 200), ..world("Unknown", lost) };
        for world in [since_the_server_began, nobody_else] {
            assert_eq!(taints(&plan(&world, at(500))), None, "{:?}", world.heard);
        }
    }

    #[test]
    fn what_is_known_is_said_once_and_taken_back() {
        let unreachable = json!({ "taints": [
            { "key": UNREACHABLE, "effect": NO_SCHEDULE }, { "key": UNREACHABLE, "effect": NO_EXECUTE },
        ] });
        let mut lost = world("Unknown", unreachable.clone());
        lost.node.status.as_mut().unwrap().conditions.iter_mut().flatten().for_each(|c| c.status = "Unknown".into());
        lost.heard = heard(100, 0, 500);
        let rests = plan(&lost, at(500));
        assert!(rests.actions.is_empty() && rests.status.is_none() && rests.wake_at.is_none());
        let back = World { heard: heard(499, 0, 499), ..world("True", unreachable) };
        assert_eq!(taints(&plan(&back, at(500))), Some(vec![]));
    }

    #[test]
    fn taints_follow_conditions_and_cordons() {
        let mut pressed = world("False", json!({ "unschedulable": true }));
        pressed.node.status.as_mut().unwrap().conditions.as_mut().unwrap()[1].status = "True".into();
        let expected = vec![
            pair(NOT_READY, NO_SCHEDULE),
            pair(NOT_READY, NO_EXECUTE),
            pair("node.kubernetes.io/memory-pressure", NO_SCHEDULE),
            pair(UNSCHEDULABLE, NO_SCHEDULE),
        ];
        assert_eq!(taints(&plan(&pressed, at(101))), Some(expected));
    }
}
