//! When the pods of a claim have to go for the taints of its devices. Pure.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::resource::v1::{DeviceTaintRuleSpec, DeviceToleration};
use mainstay_api::matching::{Effect, Taint, Toleration};

use crate::runtime::ObjectKey;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceId {
    pub driver: String,
    pub pool: String,
    pub device: String,
}

/// A device of the claim, and what the claim tolerates of it.
#[derive(Clone, Debug)]
pub struct AllocatedDevice {
    pub id: DeviceId,
    pub tolerations: Vec<DeviceToleration>,
}

/// A taint of effect NoExecute, and since when the device has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceTaint {
    pub key: String,
    pub value: String,
    pub since: Timestamp,
    /// The DeviceTaintRule that it comes from; without one it is the driver's.
    pub rule_uid: Option<String>,
}

/// A pod that the claim is reserved for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumer {
    pub pod: ObjectKey,
    pub uid: String,
}

#[derive(Debug)]
pub struct World {
    pub allocated_at: Timestamp,
    pub devices: Vec<AllocatedDevice>,
    /// Of each device.
    pub taints: Vec<Vec<DeviceTaint>>,
    /// Those that have not ended and are not being deleted.
    pub consumers: Vec<Consumer>,
}

/// An empty selector selects every device, a rule without one none.
pub fn rule_selects(rule: &DeviceTaintRuleSpec, device: &DeviceId) -> bool {
    let Some(selector) = &rule.device_selector else { return false };
    let parts =
        [(&selector.driver, &device.driver), (&selector.pool, &device.pool), (&selector.device, &device.device)];
    parts.iter().all(|(wanted, own)| wanted.as_ref().is_none_or(|wanted| wanted == *own))
}

/// When all pods of the claim are evicted: `None` if nobody is there, or everything is tolerated for ever.
pub fn evicted_at(world: &World) -> Option<Timestamp> {
    let devices = world.devices.iter().zip(&world.taints);
    let due = devices.flat_map(|(device, taints)| {
        taints.iter().filter_map(|taint| tolerated_until(&device.tolerations, taint, world.allocated_at))
    });
    due.min().filter(|_| !world.consumers.is_empty())
}

/// The rules for which the pods are evicted at this time.
pub fn evicting_rules(world: &World, now: Timestamp) -> BTreeSet<String> {
    let devices = world.devices.iter().zip(&world.taints);
    let due = devices.flat_map(|(device, taints)| {
        let is_due = |taint: &&DeviceTaint| {
            tolerated_until(&device.tolerations, taint, world.allocated_at).is_some_and(|at| at <= now)
        };
        taints.iter().filter(is_due)
    });
    due.filter_map(|taint| taint.rule_uid.clone()).collect()
}

/// `None`: for ever.
pub fn tolerated_until(
    tolerations: &[DeviceToleration],
    taint: &DeviceTaint,
    allocated_at: Timestamp,
) -> Option<Timestamp> {
    let wanted = Taint { key: taint.key.as_str(), value: taint.value.as_str(), effect: Effect::NoExecute };
    let tolerates = |own: &&DeviceToleration| {
        let parsed =
            Toleration::parse(own.key.as_deref(), own.operator.as_deref(), own.value.as_deref(), own.effect.as_deref());
        parsed.is_some_and(|parsed| parsed.tolerates(&wanted))
    };
    let matching = tolerations.iter().filter(tolerates);
    let seconds = matching.map(|own| own.toleration_seconds.unwrap_or(i64::MAX)).min().unwrap_or(0).max(0);
    // What reaches beyond the end of time is for ever.
    taint.since.max(allocated_at).checked_add(SignedDuration::from_secs(seconds)).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at_second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn world(tolerations: Value, taints: &[(&str, i64)]) -> World {
        let id = DeviceId { driver: "d".into(), pool: "p".into(), device: "gpu-0".into() };
        let taint = |(key, since): &(&str, i64)| DeviceTaint {
            key: (*key).to_owned(),
            value: String::new(),
            since: at_second(*since),
            rule_uid: Some(format!("rule-{key}")),
        };
        World {
            allocated_at: at_second(50),
            devices: vec![AllocatedDevice { id, tolerations: serde_json::from_value(tolerations).unwrap() }],
            taints: vec![taints.iter().map(taint).collect()],
            consumers: vec![Consumer { pod: ObjectKey::new("ns", "p"), uid: "u".to_owned() }],
        }
    }

    #[test]
    fn pods_go_at_once_after_their_time_or_never() {
        for (tolerations, taints, expected) in [
            (json!([]), &[][..], None),
            (json!([]), &[("broken", 100)], Some(at_second(100))),
            (json!([]), &[("broken", 10)], Some(at_second(50))),
            (json!([{"operator": "Exists"}]), &[("broken", 100)], None),
            (json!([{"key": "other", "operator": "Exists"}]), &[("broken", 100)], Some(at_second(100))),
            (
                json!([{"key": "broken", "operator": "Exists", "effect": "NoSchedule"}]),
                &[("broken", 100)],
                Some(at_second(100)),
            ),
            (
                json!([{"key": "broken", "operator": "Exists", "tolerationSeconds": 30}]),
                &[("broken", 100)],
                Some(at_second(130)),
            ),
            (
                json!([{"operator": "Exists", "tolerationSeconds": 60}, {"key": "broken", "operator": "Exists", "tolerationSeconds": 30}]),
                &[("broken", 100), ("hot", 60)],
                Some(at_second(120)),
            ),
            (json!([{"operator": "Exists", "tolerationSeconds": i64::MAX}]), &[("broken", 100)], None),
            (json!([{"operator": "Exists", "tolerationSeconds": -5}]), &[("broken", 100)], Some(at_second(100))),
        ] {
            assert_eq!(evicted_at(&world(tolerations.clone(), taints)), expected, "{tolerations} {taints:?}");
        }
        let two = world(json!([{"key": "hot", "operator": "Exists"}]), &[("broken", 100), ("hot", 60), ("wet", 200)]);
        assert_eq!(evicting_rules(&two, at_second(150)), BTreeSet::from(["rule-broken".to_owned()]));
        let unused = World { consumers: Vec::new(), ..world(json!([]), &[("broken", 100)]) };
        assert_eq!(evicted_at(&unused), None);
    }

    #[test]
    fn a_rule_selects_by_all_that_it_names() {
        let device = DeviceId { driver: "d".into(), pool: "p".into(), device: "gpu-0".into() };
        for (selector, expected) in [
            (Value::Null, false),
            (json!({}), true),
            (json!({"driver": "d"}), true),
            (json!({"driver": "d", "pool": "p", "device": "gpu-0"}), true),
            (json!({"driver": "d", "device": "gpu-1"}), false),
            (json!({"pool": "q"}), false),
        ] {
            let rule = json!({"deviceSelector": selector, "taint": {"key": "k", "effect": "NoExecute"}});
            assert_eq!(rule_selects(&serde_json::from_value(rule).unwrap(), &device), expected, "{selector}");
        }
    }
}
