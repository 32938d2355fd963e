//! Which pods of a ReplicaSet are deleted first when there are too many. Pure.
//!
//! Those that would be missed least: without a node, then not running, then not ready, then
//! cheap ones by their own word, then where many of the same share a node, then those that
//! became ready lately, that restarted often, that are young. Ages are compared by their magnitude,
//! so that a restart of everything does not fix the order for ever. The uid makes the order total:
//! the same snapshot names the same victims.

use std::{cmp::Reverse, collections::HashMap, sync::Arc};

use jiff::Timestamp;

use crate::objects::pod::Pod;

const COST: &str = mainstay_api::wellknown::kubernetes::POD_DELETION_COST;

/// How many related pods each node has.
pub type Crowd = HashMap<String, usize>;

/// Counts pods per machine.
pub fn crowd<'a>(pods: impl IntoIterator<Item = &'a Arc<Pod>>) -> Crowd {
    let mut crowd = Crowd::new();
    for pod in pods {
        if pod.is_active() && !pod.spec.node_name.is_empty() {
            match crowd.get_mut(&pod.spec.node_name) {
                Some(count) => *count += 1,
                None => {
                    crowd.insert(pod.spec.node_name.clone(), 1);
                }
            }
        }
    }
    crowd
}

/// The pods that go first, so many of them.
pub fn first<'a>(mut pods: Vec<&'a Arc<Pod>>, count: usize, crowd: &Crowd, now: Timestamp) -> Vec<&'a Arc<Pod>> {
    if count < pods.len() {
        pods.sort_by_cached_key(|pod| rank(pod, crowd, now));
        pods.truncate(count);
    }
    pods
}

type Rank = (bool, u8, bool, i32, Reverse<usize>, i64, Reverse<i32>, i64, String);

fn rank(pod: &Pod, crowd: &Crowd, now: Timestamp) -> Rank {
    let placed = !pod.spec.node_name.is_empty();
    let phase = match pod.status.phase.as_str() {
        "Running" => 2,
        "Unknown" => 1,
        _ => 0,
    };
    let ready = pod.is_ready();
    let crowded = crowd.get(&pod.spec.node_name).copied().unwrap_or(0);
    let ready_for = if ready { pod.ready_since().map_or(-1, |since| magnitude(now, since)) } else { 0 };
    let restarts = pod.status.container_statuses.iter().map(|container| container.restart_count).max().unwrap_or(0);
    let age = magnitude(now, pod.created());
    (placed, phase, ready, cost(pod), Reverse(crowded), ready_for, Reverse(restarts), age, pod.uid().to_owned())
}

fn cost(pod: &Pod) -> i32 {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(COST)).and_then(|cost| cost.parse().ok()).unwrap_or(0)
}

/// How many times an age can be halved.
fn magnitude(now: Timestamp, since: Timestamp) -> i64 {
    let age = now.duration_since(since).as_nanos();
    u128::try_from(age).ok().and_then(u128::checked_ilog2).map_or(-1, i64::from)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at_second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    struct Sample {
        uid: &'static str,
        node: &'static str,
        phase: &'static str,
        ready_at: Option<i64>,
        cost: Option<&'static str>,
        restarts: i32,
        born: i64,
    }

    const PLAIN: Sample =
        Sample { uid: "m", node: "n1", phase: "Running", ready_at: Some(10), cost: None, restarts: 0, born: 5 };

    fn pod(sample: Sample) -> Arc<Pod> {
        let conditions: Value = match sample.ready_at {
            Some(second) => {
                json!([{ "type": "Ready", "status": "True", "lastTransitionTime": at_second(second).to_string() }])
            }
            None => json!([]),
        };
        let annotations = sample.cost.map(|cost| json!({ COST: cost }));
        let pod = json!({
            "metadata": {
                "name": sample.uid, "uid": sample.uid, "annotations": annotations,
                "creationTimestamp": at_second(sample.born).to_string(),
            },
            "spec": { "nodeName": sample.node },
            "status": {
                "phase": sample.phase, "conditions": conditions,
                "containerStatuses": [
                    { "name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": sample.restarts },
                ],
            },
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn those_missed_least_go_first() {
        let crowd: Crowd = [("n1".to_owned(), 1), ("crowded".to_owned(), 2)].into();
        for (what, goes) in [
            ("no machine", Sample { node: "", phase: "Pending", ready_at: None, ..PLAIN }),
            ("pending", Sample { phase: "Pending", ready_at: None, ..PLAIN }),
            ("unknown", Sample { phase: "Unknown", ..PLAIN }),
            ("not ready", Sample { ready_at: None, ..PLAIN }),
            ("cheap", Sample { cost: Some("-1"), ..PLAIN }),
            ("crowded", Sample { node: "crowded", ..PLAIN }),
            ("ready lately", Sample { ready_at: Some(900), ..PLAIN }),
            ("restarted", Sample { restarts: 3, ..PLAIN }),
            ("young", Sample { born: 900, ..PLAIN }),
            ("first by uid", Sample { uid: "a", ..PLAIN }),
        ] {
            let (goes, stays) =
                (pod(Sample { uid: if what == "first by uid" { "a" } else { "z" }, ..goes }), pod(PLAIN));
            let chosen = first(vec![&stays, &goes], 1, &crowd, at_second(1000));
            assert_eq!(chosen[0].uid(), goes.uid(), "{what}");
        }
    }

    #[test]
    fn earlier_reasons_weigh_more_than_later_ones() {
        let dear_but_not_ready = pod(Sample { uid: "a", cost: Some("1000"), ready_at: None, ..PLAIN });
        let cheap_but_ready = pod(Sample { uid: "b", cost: Some("-1000"), ..PLAIN });
        let chosen = first(vec![&cheap_but_ready, &dear_but_not_ready], 1, &Crowd::new(), at_second(1000));
        assert_eq!(chosen[0].uid(), "a");
        let odd = pod(Sample { uid: "c", cost: Some("much"), ..PLAIN });
        assert_eq!(cost(&odd), 0, "what is not a number says nothing");
    }

    #[test]
    fn ages_of_one_magnitude_are_alike() {
        assert_eq!(magnitude(at_second(1000), at_second(0)), magnitude(at_second(1000), at_second(100)));
        assert!(magnitude(at_second(1000), at_second(0)) > magnitude(at_second(1000), at_second(900)));
        assert_eq!(magnitude(at_second(1000), at_second(2000)), -1);
    }
}
