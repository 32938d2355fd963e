//! Takes back what was said of a pod that was to be taken away and is still there.
//!
//! Whoever evicts or preempts a pod first says so in its conditions, and then deletes it. If the second
//! did not happen within two minutes it will not.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::{
    cache::Key,
    failure::{self, Failure},
    runner::{Limits, Queue},
    shell::{Controller, Plan},
    workloads::{Turns, Workloads, pod::Pod, turns},
};

const CONDITION: &str = "DisruptionTarget";
const WITHIN: SignedDuration = SignedDuration::from_secs(120);

pub struct Stale {
    shared: Arc<Workloads>,
}

/// Begins to listen.
pub fn listen(shared: &Arc<Workloads>) -> Turns {
    let queue = Queue::new();
    shared.caches.pods.on_change({
        let queue = queue.clone();
        move |change| {
            if change.after.is_some_and(|pod| announced(pod).is_some()) {
                queue.wake(change.key.clone());
            }
        }
    });
    turns(Arc::new(Stale { shared: shared.clone() }), queue, Limits::default())
}

/// Since when a pod that stays was to go.
fn announced(pod: &Pod) -> Option<Timestamp> {
    let condition = pod.condition(CONDITION).filter(|condition| condition.status == "True" && pod.is_active())?;
    Some(condition.last_transition_time.as_ref().map_or_else(|| pod.created(), |Time(at)| *at))
}

#[derive(Debug, PartialEq, Eq)]
pub struct TakeBack {
    uid: String,
    version: String,
}

fn plan(pod: &Pod, now: Timestamp) -> Plan<TakeBack, ()> {
    let Some(since) = announced(pod) else { return Plan::default() };
    if since + WITHIN > now {
        return Plan { wake_at: Some(since + WITHIN), ..Plan::default() };
    }
    let version = pod.metadata.resource_version.clone().unwrap_or_default();
    Plan::act([TakeBack { uid: pod.uid().to_owned(), version }])
}

impl Controller for Stale {
    const NAME: &'static str = "stale-disruptions";
    type Key = Key;
    type World = Arc<Pod>;
    type Action = TakeBack;
    type Status = ();

    async fn observe(&self, key: &Key) -> Result<Option<Arc<Pod>>, Failure> {
        Ok(self.shared.caches.pods.get(key))
    }

    fn plan(pod: &Arc<Pod>, now: Timestamp) -> Plan<TakeBack, ()> {
        plan(pod, now)
    }

    async fn apply(&self, key: &Key, TakeBack { uid, version }: TakeBack) -> Result<(), Failure> {
        let untrue = json!({
            "type": CONDITION, "status": "False", "reason": null, "message": null,
            "lastTransitionTime": Time(Timestamp::now()),
        });
        let change = json!({
            "metadata": { "uid": uid, "resourceVersion": version }, "status": { "conditions": [untrue] },
        });
        let pods = self.shared.pods_in(&key.namespace);
        match pods.patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(change)).await {
            Ok(pod) => self.shared.caches.pods.wrote(pod),
            Err(error) if failure::no_such_object(&error, &key.name) => {}
            Err(error) => return Err(Failure::new(format!("take back the disruption of pod {key:?}"), error)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_announced_and_did_not_happen_is_taken_back() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let pod = |status: &str, phase: &str, leaving: bool| -> Pod {
            serde_json::from_value(json!({
                "metadata": { "uid": "u", "resourceVersion": "7", "deletionTimestamp": leaving.then(|| Time(at(1))) },
                "status": { "phase": phase, "conditions": [
                    { "type": CONDITION, "status": status, "lastTransitionTime": Time(at(100)) },
                ] },
            }))
            .unwrap()
        };
        let take_back = || TakeBack { uid: "u".into(), version: "7".into() };
        for (pod, now, actions, wake_at) in [
            (pod("True", "Running", false), 219, vec![], Some(at(220))),
            (pod("True", "Running", false), 220, vec![take_back()], None),
            (pod("False", "Running", false), 999, vec![], None),
            (pod("True", "Failed", false), 999, vec![], None),
            (pod("True", "Running", true), 999, vec![], None),
        ] {
            let plan = plan(&pod, at(now));
            assert_eq!((plan.actions, plan.wake_at), (actions, wake_at));
        }
    }
}
