//! What follows from a node's conditions and heartbeats: conditions that become `Unknown`, taints, and what becomes of its
//! pods. Pure.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::core::v1::{Node, NodeCondition, Taint},
    apimachinery::pkg::apis::meta::v1::Time,
};
use mainstay_api::{
    node_loss::{Timing, UNIQUE_PODS_ENDED, says_unique_pods_ended},
    wellknown::taint,
};

use super::{
    eviction::{self, NoExecuteTaint, PodAction, PodView, Silence},
    heartbeats::{MassOutage, NodeHeartbeat},
    suspects::SUSPECT_TAINT,
};
use crate::runtime::Plan;

/// The conditions that the kubelet posts, and that are unknown without it.
const KUBELET_CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];
/// Says that pods of silent nodes are not evicted, since most nodes fell silent together.
pub const PAUSED_CONDITION: &str = "EvictionsPaused";
/// The reason of `Ready` with which an agent says that it was stopped and that its pods run on.
const AGENT_STOPPED: &str = "AgentStopped";

const NO_SCHEDULE: &str = "NoSchedule";
pub const NO_EXECUTE: &str = "NoExecute";
const NOT_READY: &str = taint::NOT_READY;
const UNREACHABLE: &str = taint::UNREACHABLE;
/// Condition, and the taint that follows it.
const PRESSURES: [(&str, &str); 4] = [
    ("MemoryPressure", taint::MEMORY_PRESSURE),
    ("DiskPressure", taint::DISK_PRESSURE),
    ("PIDPressure", taint::PID_PRESSURE),
    ("NetworkUnavailable", taint::NETWORK_UNAVAILABLE),
];
/// Pods that were acted upon are looked at again after this, in case the API refused it.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

pub struct World {
    pub node: Arc<Node>,
    pub timing: Timing,
    pub heartbeat: NodeHeartbeat,
    /// It is suspect, and one of those that are tainted for it.
    pub is_tainted_suspect: bool,
    /// If the node is lost: whether it has stopped its unique pods by now.
    pub unique_pods_ended: bool,
    /// Taints and pods that have not ended; nobody asks for pods while there are no taints.
    pub taints: Vec<NoExecuteTaint>,
    pub pods: Vec<PodView>,
}

#[derive(Debug, PartialEq)]
pub enum Action {
    /// Carries the version it was judged by.
    Taint {
        version: String,
        taints: Vec<Taint>,
    },
    Pod {
        action: PodAction,
        silent_since: Timestamp,
    },
}

#[derive(Debug, PartialEq)]
pub struct ConditionChanges {
    pub version: String,
    pub conditions: Vec<NodeCondition>,
    pub is_now_unknown: bool,
    /// Evictions are paused or resumed, if that is new.
    pub pause: Option<EvictionPause>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionPause {
    Begins(MassOutage),
    Ends,
}

impl World {
    fn is_silent(&self) -> bool {
        self.heartbeat.silent_for >= self.timing.unknown_after
    }

    /// How much longer a status that was posted after the last heartbeat stands: the renewal sent with it may still be under way.
    fn posted_status_stands_for(&self) -> Option<Duration> {
        let left = self.timing.unknown_after.checked_sub(self.heartbeat.status_posted_ago?)?;
        (!left.is_zero()).then_some(left)
    }

    fn is_lost(&self) -> bool {
        let while_others_are_heard = self.heartbeat.silent_while_others_are_heard;
        self.is_silent()
            && while_others_are_heard.is_some_and(|silent| silent >= self.timing.unknown_after)
            && self.heartbeat.mass_outage.is_none()
    }

    fn condition(&self, kind: &str) -> Option<&NodeCondition> {
        let mut conditions = self.node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.find(|condition| condition.type_ == kind)
    }

    fn status(&self, kind: &str) -> &str {
        self.condition(kind).map_or("", |condition| condition.status.as_str())
    }

    fn silence(&self, taints: &[Taint]) -> Silence {
        if self.is_lost() && is_lost(taints) {
            Silence::Lost { unique_pods_ended: self.unique_pods_ended }
        } else if !self.is_silent() && self.heartbeat.was_heard && self.status("Ready") != "Unknown" {
            Silence::Heard
        } else {
            Silence::Unproven
        }
    }
}

pub fn plan(world: &World, now: Timestamp) -> Plan<Action, ConditionChanges> {
    let version = world.node.metadata.resource_version.clone().unwrap_or_default();
    let before: Vec<Taint> = world.node.spec.iter().flat_map(|spec| spec.taints.iter().flatten()).cloned().collect();
    let taints = wanted_taints(&before, &follow_conditions(world, &before), now);
    let silence = world.silence(&before);
    let silent_since = now - SignedDuration::try_from(world.heartbeat.silent_for).unwrap_or_default();
    // A taint that goes now evicts nobody: a node that returns has the pods that nobody has replaced.
    let stays = |own: &&NoExecuteTaint| {
        let is_same = |taint: &Taint| taint.key == own.key && taint.value.as_deref().unwrap_or_default() == own.value;
        taints.iter().any(|taint| taint.effect == NO_EXECUTE && is_same(taint))
    };
    let lasting: Vec<NoExecuteTaint> = world.taints.iter().filter(stays).cloned().collect();
    let (pod_actions, next_pod) = eviction::plan(&lasting, silence, &world.pods, now);
    let later = |time: Duration| now + SignedDuration::try_from(time).unwrap_or_default();
    let next_look = [
        next_pod,
        next_heartbeat(world, silence).map(later),
        world.posted_status_stands_for().map(later),
        (!pod_actions.is_empty()).then(|| later(LOOK_AGAIN)),
    ];
    let mut actions: Vec<Action> =
        (taints != before).then(|| Action::Taint { version: version.clone(), taints }).into_iter().collect();
    actions.extend(pod_actions.into_iter().map(|action| Action::Pod { action, silent_since }));
    Plan { actions, status: changed_conditions(world, version, now), requeue_at: next_look.into_iter().flatten().min() }
}

/// When the node's silence is to be judged again, if nothing else happens.
fn next_heartbeat(world: &World, silence: Silence) -> Option<Duration> {
    let Timing { unknown_after, heartbeat, .. } = world.timing;
    if !world.is_silent() {
        return Some(unknown_after - world.heartbeat.silent_for);
    }
    let waits = world.pods.iter().any(|pod| pod.is_unique && !pod.is_removed) || has_volumes_in_use(&world.node);
    match (world.heartbeat.silent_while_others_are_heard, silence) {
        (_, Silence::Lost { unique_pods_ended: false }) if waits => Some(heartbeat / 2),
        (_, Silence::Lost { .. }) => None,
        (Some(silent), _) if silent < unknown_after => Some(unknown_after - silent),
        (Some(_), _) => Some(heartbeat),
        // The end of an outage of all nodes wakes all.
        (None, _) => None,
    }
}

fn changed_conditions(world: &World, version: String, now: Timestamp) -> Option<ConditionChanges> {
    let mut conditions = Vec::new();
    if world.is_silent() && world.posted_status_stands_for().is_none() {
        let known = KUBELET_CONDITIONS.iter().filter(|kind| world.status(kind) != "Unknown");
        conditions.extend(known.map(|kind| unknown(kind, world.condition(kind), now)));
    }
    let is_now_unknown = conditions.iter().any(|condition| condition.type_ == "Ready");
    let is_paused = world.status(PAUSED_CONDITION) == "True";
    let pause = match world.heartbeat.mass_outage.filter(|_| world.is_silent()) {
        Some(outage) if !is_paused => Some(EvictionPause::Begins(outage)),
        None if is_paused => Some(EvictionPause::Ends),
        Some(_) | None => None,
    };
    conditions.extend(pause.map(|pause| paused(pause, now)));
    conditions.extend(unique_pods_ended(world, now));
    (!conditions.is_empty()).then_some(ConditionChanges { version, conditions, is_now_unknown, pause })
}

/// Says of a lost node whether its unique pods have ended, if that is new: volumes are then detached though nobody unmounted them.
fn unique_pods_ended(world: &World, now: Timestamp) -> Option<NodeCondition> {
    let before: &[Taint] = world.node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let have_ended = world.silence(before) == Silence::Lost { unique_pods_ended: true };
    match (have_ended, world.status(UNIQUE_PODS_ENDED) == "True") {
        (true, _) if !says_unique_pods_ended(&world.node) => {
            let message =
                "the node is lost, and by its promise and its witnesses has stopped the pods that must be unique";
            // Never before the taint, which another server's clock may have dated: it would count for an earlier loss.
            let lost = before.iter().filter(|taint| taint.key == UNREACHABLE && taint.effect == NO_EXECUTE);
            let tainted = lost.filter_map(|taint| taint.time_added.as_ref()).map(|Time(added)| *added).max();
            let since = tainted.map_or(now, |tainted| tainted.max(now));
            Some(condition(UNIQUE_PODS_ENDED, "True", "FencePromiseKept", message, since))
        }
        (false, true) => {
            let message = "the node is not lost, or it is not certain that it has stopped the pods that must be unique";
            Some(condition(UNIQUE_PODS_ENDED, "False", "NotProven", message, now))
        }
        (true, _) | (false, false) => None,
    }
}

/// Whether the node's agent has attached volumes mounted.
pub fn has_volumes_in_use(node: &Node) -> bool {
    node.status.iter().any(|status| status.volumes_in_use.iter().flatten().next().is_some())
}

/// The taints that a node is to have for its conditions and heartbeats.
fn follow_conditions(world: &World, before: &[Taint]) -> Vec<(&'static str, &'static str)> {
    let mut wanted = Vec::new();
    let ready = if world.is_silent() { "Unknown" } else { world.status("Ready") };
    let reason = world.condition("Ready").and_then(|ready| ready.reason.as_deref());
    match ready {
        "True" => {}
        "Unknown" if world.is_lost() || is_lost(before) => {
            wanted.extend([(UNREACHABLE, NO_SCHEDULE), (UNREACHABLE, NO_EXECUTE)]);
        }
        "Unknown" => wanted.push((UNREACHABLE, NO_SCHEDULE)),
        "" => {} // nothing posted yet
        // Its pods run on, and it may be back in a moment; if not, it will be silent.
        _ if reason == Some(AGENT_STOPPED) => wanted.push((NOT_READY, NO_SCHEDULE)),
        _ => wanted.extend([(NOT_READY, NO_SCHEDULE), (NOT_READY, NO_EXECUTE)]),
    }
    let pressed = PRESSURES.iter().filter(|(condition, _)| !world.is_silent() && world.status(condition) == "True");
    wanted.extend(pressed.map(|(_, taint)| (*taint, NO_SCHEDULE)));
    if world.is_tainted_suspect {
        wanted.push((SUSPECT_TAINT, NO_SCHEDULE));
    }
    if world.node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true)) {
        wanted.push((taint::UNSCHEDULABLE, NO_SCHEDULE));
    }
    wanted
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
    let condition = condition(kind, "Unknown", reason, message, now);
    NodeCondition { last_heartbeat_time: before.and_then(|before| before.last_heartbeat_time.clone()), ..condition }
}

fn paused(pause: EvictionPause, now: Timestamp) -> NodeCondition {
    match pause {
        EvictionPause::Begins(MassOutage { silent, of }) => {
            let message = format!(
                "{silent} of {of} nodes fell silent together, which looks like a fault of the network: their pods are not \
                 evicted until heartbeats of most of them arrive again"
            );
            condition(PAUSED_CONDITION, "True", "MostNodesSilent", &message, now)
        }
        EvictionPause::Ends => {
            condition(PAUSED_CONDITION, "False", "MostNodesReporting", "heartbeats of most nodes arrive again", now)
        }
    }
}

fn condition(kind: &str, status: &str, reason: &str, message: &str, now: Timestamp) -> NodeCondition {
    NodeCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_heartbeat_time: None,
        last_transition_time: Some(Time(now)),
    }
}

/// Others' taints as they are, and of ours exactly the wanted ones.
fn wanted_taints(before: &[Taint], wanted: &[(&str, &str)], now: Timestamp) -> Vec<Taint> {
    let ours = |taint: &Taint| {
        let follows = PRESSURES.iter().any(|(_, key)| *key == taint.key) || taint.key == taint::UNSCHEDULABLE;
        follows || [NOT_READY, UNREACHABLE, SUSPECT_TAINT].contains(&&*taint.key)
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

#[cfg(test)]
mod tests;
