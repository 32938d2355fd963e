//! Which pods nobody else will remove. Pure.
//!
//! * Pods on nodes that no longer exist: nobody there can say that they ended. After a while, so that a
//!   node that is only registered anew keeps its pods, they are failed and removed.
//! * Pods that are being deleted and were never placed: no node has to be waited for.
//! * Pods that are being deleted on a node that was declared out of service.
//! * Pods that ended, beyond as many as are kept.

use std::{cmp::Reverse, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;

use crate::{
    objects::pod::Pod,
    runtime::{self, ObjectKey},
};

/// How long a node must be gone before its pods are.
pub const QUARANTINE: SignedDuration = SignedDuration::from_secs(40);
/// The same for pods that are being deleted anyway.
pub const SHORT_QUARANTINE: SignedDuration = SignedDuration::from_secs(5);
/// Finished pods that are kept, in the whole cluster.
pub const FINISHED_KEPT: usize = 12_500;
/// At a time; what is left is looked at again.
const BATCH: usize = 500;

const OUT_OF_SERVICE: &str = mainstay_api::wellknown::taint::OUT_OF_SERVICE;

pub enum World {
    Pod { pod: Arc<Pod>, node: NodeState },
    Finished { pods: Vec<Arc<Pod>>, limit: usize },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// The pod was never placed.
    None,
    Gone {
        since: Timestamp,
    },
    There {
        answers: bool,
        out_of_service: bool,
    },
}

impl NodeState {
    pub fn from_node(node: &Node) -> Self {
        let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
        let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
        Self::There {
            answers: ready.is_some_and(|ready| ready.status == "True"),
            out_of_service: taints.into_iter().any(|taint| taint.key == OUT_OF_SERVICE),
        }
    }
}

/// Ends a pod for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remove {
    pub pod: ObjectKey,
    pub uid: String,
    pub why: Why,
    /// It has not ended yet: first its status has to say that it did.
    pub fail: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    NodeGone { node: String },
    NeverPlaced,
    OutOfService,
    TooManyFinished,
}

pub fn plan(world: &World, now: Timestamp) -> runtime::Plan<Remove, ()> {
    match world {
        World::Pod { pod, node } => match verdict(pod, *node, now) {
            Verdict::Keep => runtime::Plan::default(),
            Verdict::Wait(until) => runtime::Plan { requeue_at: Some(until), ..runtime::Plan::default() },
            Verdict::Remove(why) => runtime::Plan::act([remove(pod, why)]),
        },
        World::Finished { pods, limit } => {
            let mut ended: Vec<&Arc<Pod>> = pods.iter().filter(|pod| pod.is_finished() && !is_held(pod)).collect();
            let too_many = ended.len().saturating_sub(*limit);
            ended.sort_by_key(|pod| {
                (Reverse(pod.status.reason == "Evicted"), pod.created(), ObjectKey::from_meta(&pod.metadata))
            });
            runtime::Plan {
                actions: ended
                    .into_iter()
                    .take(too_many.min(BATCH))
                    .map(|pod| remove(pod, Why::TooManyFinished))
                    .collect(),
                status: None,
                requeue_at: (too_many > BATCH).then_some(now),
            }
        }
    }
}

enum Verdict {
    Keep,
    Wait(Timestamp),
    Remove(Why),
}

fn verdict(pod: &Pod, node: NodeState, now: Timestamp) -> Verdict {
    let after = |until: Timestamp, why: Why| if until > now { Verdict::Wait(until) } else { Verdict::Remove(why) };
    if is_held(pod) {
        return Verdict::Keep;
    }
    match node {
        NodeState::Gone { since } => {
            let quarantine = if pod.is_being_deleted() { SHORT_QUARANTINE } else { QUARANTINE };
            after(since + quarantine, Why::NodeGone { node: pod.spec.node_name.clone() })
        }
        NodeState::None | NodeState::There { .. } if !pod.is_being_deleted() => Verdict::Keep,
        NodeState::None => Verdict::Remove(Why::NeverPlaced),
        NodeState::There { answers: false, out_of_service: true } => Verdict::Remove(Why::OutOfService),
        NodeState::There { .. } => Verdict::Keep,
    }
}

/// Whether it was deleted with no grace at all, and only finalizers keep it.
fn is_held(pod: &Pod) -> bool {
    pod.is_being_deleted() && pod.metadata.deletion_grace_period_seconds == Some(0)
}

fn remove(pod: &Pod, why: Why) -> Remove {
    Remove { pod: ObjectKey::from_meta(&pod.metadata), uid: pod.uid().to_owned(), why, fail: !pod.is_finished() }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::{Value, json};

    use super::*;

    fn at_second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn pod(node: &str, leaving: Option<i64>, status: Value) -> Arc<Pod> {
        let pod = json!({
            "metadata": {
                "name": "p", "namespace": "ns", "uid": "u",
                "deletionTimestamp": leaving.map(|second| Time(at_second(second))),
                "deletionGracePeriodSeconds": leaving.map(|_| 30),
            },
            "spec": { "nodeName": node }, "status": status,
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn each_pod_gets_what_its_machine_allows() {
        let gone = NodeState::Gone { since: at_second(100) };
        let there = |answers, out_of_service| NodeState::There { answers, out_of_service };
        let started = json!({ "phase": "Running", "startTime": "2026-01-01T00:00:00Z" });
        let fresh = json!({ "phase": "Pending" });
        let removed = |why: Why| (Some(why), None);
        let lost = || Why::NodeGone { node: "m".into() };
        for (case, pod, node, now, expected) in [
            ("just gone", pod("m", None, started.clone()), gone, 100, (None, Some(at_second(140)))),
            ("long gone", pod("m", None, started.clone()), gone, 140, removed(lost())),
            ("gone, and leaving", pod("m", Some(90), started.clone()), gone, 101, (None, Some(at_second(105)))),
            ("gone, and left", pod("m", Some(90), started.clone()), gone, 105, removed(lost())),
            ("never placed", pod("", None, fresh.clone()), NodeState::None, 100, (None, None)),
            (
                "never placed, leaving",
                pod("", Some(90), fresh.clone()),
                NodeState::None,
                100,
                removed(Why::NeverPlaced),
            ),
            ("well", pod("m", Some(90), fresh.clone()), there(true, false), 200, (None, None)),
            ("silent", pod("m", None, fresh.clone()), there(false, false), 200, (None, None)),
            // It may have started without being able to say so: what becomes of it is up to the node's lifecycle.
            ("silent, leaving", pod("m", Some(90), fresh), there(false, false), 999, (None, None)),
            ("silent, but it ran", pod("m", Some(90), started.clone()), there(false, false), 999, (None, None)),
            (
                "out of service",
                pod("m", Some(199), started.clone()),
                there(false, true),
                200,
                removed(Why::OutOfService),
            ),
            ("out of service, yet well", pod("m", Some(199), started), there(true, true), 200, (None, None)),
        ] {
            let plan = plan(&World::Pod { pod, node }, at_second(now));
            let found = (plan.actions.first().map(|remove| remove.why.clone()), plan.requeue_at);
            assert_eq!(found, expected, "{case}");
        }
    }

    #[test]
    fn what_only_finalizers_keep_is_left_to_them() {
        let mut held = (*pod("", Some(90), json!({ "phase": "Pending" }))).clone();
        held.metadata.deletion_grace_period_seconds = Some(0);
        let plan = plan(&World::Pod { pod: Arc::new(held), node: NodeState::None }, at_second(100));
        assert!(plan.actions.is_empty() && plan.requeue_at.is_none());
    }

    #[test]
    fn of_too_many_that_ended_the_evicted_and_the_oldest_go() {
        let ended = |name: &str, reason: &str, born: i64| {
            let pod = json!({
                "metadata": { "name": name, "uid": name, "creationTimestamp": Time(at_second(born)) },
                "status": { "phase": "Failed", "reason": reason },
            });
            Arc::new(serde_json::from_value::<Pod>(pod).unwrap())
        };
        let running = pod("m", None, json!({ "phase": "Running" }));
        let pods = vec![ended("a", "", 3), ended("b", "", 1), running, ended("c", "Evicted", 9), ended("d", "", 2)];
        let plan = plan(&World::Finished { pods, limit: 2 }, at_second(100));
        let names: Vec<(&str, bool)> = plan.actions.iter().map(|it| (it.pod.name.as_str(), it.fail)).collect();
        assert_eq!(names, [("c", false), ("b", false)]);
    }

    #[test]
    fn machines_are_known_by_their_conditions_and_taints() {
        let node = |ready: &str, taints: Value| -> Node {
            serde_json::from_value(json!({
                "spec": { "taints": taints }, "status": { "conditions": [{ "type": "Ready", "status": ready }] },
            }))
            .unwrap()
        };
        let taint = json!([{ "key": OUT_OF_SERVICE, "effect": "NoExecute" }]);
        assert_eq!(
            NodeState::from_node(&node("True", json!([]))),
            NodeState::There { answers: true, out_of_service: false }
        );
        assert_eq!(
            NodeState::from_node(&node("Unknown", taint)),
            NodeState::There { answers: false, out_of_service: true }
        );
    }
}
