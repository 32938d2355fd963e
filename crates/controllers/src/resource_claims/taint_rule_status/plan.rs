//! The condition `EvictionInProgress` of a rule, in upstream's words. Pure.

use std::{collections::BTreeSet, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::resource::v1::DeviceTaintRule,
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};

use super::NO_EXECUTE;
use crate::runtime::{ObjectKey, Plan};

const EVICTION_IN_PROGRESS: &str = "EvictionInProgress";
/// Between two changes of the condition.
const PERIOD: SignedDuration = SignedDuration::from_secs(10);

pub struct World {
    pub rule: Arc<DeviceTaintRule>,
    /// Pods that the rule evicts, or would evict.
    pub pods: BTreeSet<ObjectKey>,
    /// Devices that it selects, in ResourceSlices and in allocations.
    pub published: usize,
    pub allocated: usize,
    /// Pods that were evicted for it.
    pub evicted: usize,
}

pub fn plan(world: &World, now: Timestamp) -> Plan<(), Condition> {
    let rule = &world.rule;
    let conditions = rule.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let known = conditions.into_iter().find(|condition| condition.type_ == EVICTION_IN_PROGRESS);
    let generation = rule.metadata.generation;
    if let Some(known) = known.filter(|known| known.observed_generation == generation) {
        let next = known.last_transition_time.0.saturating_add(PERIOD).unwrap_or(Timestamp::MAX);
        if rule.spec.taint.effect == "None" {
            return Plan::default(); // told once
        }
        if next > now && is_different(known, &condition(world, now)) {
            return Plan { requeue_at: Some(next), ..Plan::default() };
        }
    }
    let wanted = condition(world, now);
    let status = known.is_none_or(|known| is_different(known, &wanted)).then_some(wanted);
    Plan { status, ..Plan::default() }
}

fn is_different(a: &Condition, b: &Condition) -> bool {
    (&a.status, &a.reason, &a.message, a.observed_generation)
        != (&b.status, &b.reason, &b.message, b.observed_generation)
}

fn condition(world: &World, now: Timestamp) -> Condition {
    let namespaces: BTreeSet<&str> = world.pods.iter().map(|pod| pod.namespace.as_str()).collect();
    let places = counted(namespaces.len(), "namespace", "different namespaces");
    let (reason, mut message) = match world.rule.spec.taint.effect.as_str() {
        NO_EXECUTE if !world.pods.is_empty() => (
            "PodsPendingEviction",
            format!("{} to be evicted in {places}.", counted(world.pods.len(), "pod needs", "pods need")),
        ),
        NO_EXECUTE if world.evicted > 0 => ("Completed", String::new()),
        NO_EXECUTE => ("NotStarted", String::new()),
        "None" => (
            "NoEffect",
            format!(
                "{} selected. {} selected. {} would be evicted in {places} if the effect was NoExecute. \
                 This information will not be updated again. Recreate the DeviceTaintRule to trigger an update.",
                counted(world.published, "published device", "published devices"),
                counted(world.allocated, "allocated device", "allocated devices"),
                counted(world.pods.len(), "pod", "pods"),
            ),
        ),
        _ => ("OtherEffect", "Eviction only happens for the NoExecute effect.".to_owned()),
    };
    if world.evicted > 0 {
        let separator = if message.is_empty() { "" } else { " " };
        let pods = counted(world.evicted, "pod", "pods");
        message = format!("{message}{separator}{pods} evicted since starting the controller.");
    }
    Condition {
        type_: EVICTION_IN_PROGRESS.to_owned(),
        status: if reason == "PodsPendingEviction" { "True" } else { "False" }.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: world.rule.metadata.generation,
        last_transition_time: Time(now),
    }
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at_second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn world(effect: &str, pods: &[(&str, &str)], evicted: usize, known: Option<Condition>) -> World {
        let rule = json!({ "metadata": { "name": "r", "generation": 2 },
                           "spec": { "taint": { "key": "k", "effect": effect } },
                           "status": { "conditions": known.map(|known| vec![known]) } });
        World {
            rule: Arc::new(serde_json::from_value(rule).unwrap()),
            pods: pods.iter().map(|(namespace, name)| ObjectKey::new(*namespace, *name)).collect(),
            published: 3,
            allocated: 1,
            evicted,
        }
    }

    #[test]
    fn the_condition_counts_pods_in_upstreams_words() {
        let told = |effect: &str, pods: &[(&str, &str)], evicted: usize| {
            let condition = plan(&world(effect, pods, evicted, None), at_second(0)).status.expect("a condition");
            format!("{} {}: {}", condition.status, condition.reason, condition.message)
        };
        let none = "False NoEffect: 3 published devices selected. 1 allocated device selected. 1 pod would be evicted in \
                    1 namespace if the effect was NoExecute. This information will not be updated again. Recreate the \
                    DeviceTaintRule to trigger an update.";
        for (effect, pods, evicted, expected) in [
            ("NoExecute", &[][..], 0, "False NotStarted: "),
            ("NoExecute", &[("a", "p")], 0, "True PodsPendingEviction: 1 pod needs to be evicted in 1 namespace."),
            (
                "NoExecute",
                &[("a", "p"), ("b", "p"), ("b", "q")],
                1,
                "True PodsPendingEviction: 3 pods need to be evicted in 2 different namespaces. 1 pod evicted since \
                 starting the controller.",
            ),
            ("NoExecute", &[], 2, "False Completed: 2 pods evicted since starting the controller."),
            ("NoSchedule", &[("a", "p")], 0, "False OtherEffect: Eviction only happens for the NoExecute effect."),
            ("None", &[("a", "p")], 0, none),
        ] {
            assert_eq!(told(effect, pods, evicted), expected);
        }
    }

    #[test]
    fn it_changes_at_most_every_ten_seconds_and_only_if_something_did() {
        let known = |effect: &str| plan(&world(effect, &[("a", "p")], 0, None), at_second(100)).status;
        let again = plan(&world("NoExecute", &[("a", "p")], 0, known("NoExecute")), at_second(101));
        assert!(again.status.is_none() && again.requeue_at.is_none(), "nothing changed");
        let fewer = plan(&world("NoExecute", &[], 1, known("NoExecute")), at_second(101));
        assert!(fewer.status.is_none());
        assert_eq!(fewer.requeue_at, Some(at_second(110)));
        assert!(plan(&world("NoExecute", &[], 1, known("NoExecute")), at_second(110)).status.is_some());
        assert!(plan(&world("None", &[], 0, known("None")), at_second(500)).status.is_none(), "told once");
        let changed = Condition { observed_generation: Some(1), ..known("None").unwrap() };
        assert!(plan(&world("None", &[], 0, Some(changed)), at_second(101)).status.is_some(), "once for each change");
    }
}
