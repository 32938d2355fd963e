//! Clears the condition `DisruptionTarget` of pods that were not deleted after all.
//!
//! Whoever evicts or preempts a pod first sets this condition and then deletes it. If the second did not happen within
//! two minutes it will not.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::{
    objects::pod::Pod,
    runtime::{ApiError, Context, Controller, Limits, ObjectKey, Plan, Runnable, error},
};

const CONDITION: &str = "DisruptionTarget";
const WITHIN: SignedDuration = SignedDuration::from_secs(120);

pub struct StaleDisruptions {
    context: Arc<Context>,
}

pub fn controller(context: &Arc<Context>) -> Runnable {
    let queue = context.queue::<StaleDisruptions>();
    context.caches.pods.on_change({
        let queue = queue.clone();
        move |change| {
            if change.after.is_some_and(|pod| announced(pod).is_some()) {
                queue.add(change.key.clone());
            }
        }
    });
    context.runnable(Arc::new(StaleDisruptions { context: context.clone() }), queue, Limits::default())
}

/// Since when an active pod is the target of a disruption.
fn announced(pod: &Pod) -> Option<Timestamp> {
    let condition = pod.condition(CONDITION).filter(|condition| condition.status == "True" && pod.is_active())?;
    Some(condition.last_transition_time.as_ref().map_or_else(|| pod.created(), |Time(at)| *at))
}

#[derive(Debug, PartialEq, Eq)]
pub struct ClearCondition {
    uid: String,
    version: String,
}

fn plan(pod: &Pod, now: Timestamp) -> Plan<ClearCondition, ()> {
    let Some(since) = announced(pod) else { return Plan::default() };
    if since + WITHIN > now {
        return Plan { requeue_at: Some(since + WITHIN), ..Plan::default() };
    }
    let version = pod.metadata.resource_version.clone().unwrap_or_default();
    Plan::act([ClearCondition { uid: pod.uid().to_owned(), version }])
}

impl Controller for StaleDisruptions {
    const NAME: &'static str = "stale_pod_disruption";
    type Key = ObjectKey;
    type World = Arc<Pod>;
    type Action = ClearCondition;
    type Outcome = ();
    type Status = ();

    async fn observe(&self, key: &ObjectKey) -> Result<Option<Arc<Pod>>, ApiError> {
        Ok(self.context.caches.pods.get(key))
    }

    fn plan(pod: &Arc<Pod>, now: Timestamp) -> Plan<ClearCondition, ()> {
        plan(pod, now)
    }

    async fn apply(&self, key: &ObjectKey, ClearCondition { uid, version }: ClearCondition) -> Result<(), ApiError> {
        let untrue = json!({
            "type": CONDITION, "status": "False", "reason": null, "message": null,
            "lastTransitionTime": Time(self.context.clock.now()),
        });
        let change = json!({
            "metadata": { "uid": uid, "resourceVersion": version }, "status": { "conditions": [untrue] },
        });
        let pods = self.context.pods_in(&key.namespace);
        match pods.patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(change)).await {
            Ok(pod) => self.context.caches.pods.wrote(pod),
            Err(error) if error::is_not_found(&error, &key.name) => {}
            Err(error) => return Err(ApiError::new(format!("clear DisruptionTarget of pod {key:?}"), error)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disruption_that_did_not_happen_is_cleared() {
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
        let clear = || ClearCondition { uid: "u".into(), version: "7".into() };
        for (pod, now, actions, requeue_at) in [
            (pod("True", "Running", false), 219, vec![], Some(at(220))),
            (pod("True", "Running", false), 220, vec![clear()], None),
            (pod("False", "Running", false), 999, vec![], None),
            (pod("True", "Failed", false), 999, vec![], None),
            (pod("True", "Running", true), 999, vec![], None),
        ] {
            let plan = plan(&pod, at(now));
            assert_eq!((plan.actions, plan.requeue_at), (actions, requeue_at));
        }
    }
}
