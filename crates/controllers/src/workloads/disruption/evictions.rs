//! Since when the statuses of budgets name pods as evicted, as this controller has seen it: by which pod had the name, and how long
//! ago by a clock that nobody sets.
//!
//! Lost with a restart: then the two minutes that an eviction may take begin anew, and a pod that was replaced meanwhile counts as
//! evicted for so long. That is the safe side.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_openapi::{api::policy::v1::PodDisruptionBudget, apimachinery::pkg::apis::meta::v1::Time};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::plan::SeenEviction;
use crate::{objects::pod::Pod, runtime::ObjectKey};

#[derive(Default)]
pub struct EvictionLog(Mutex<HashMap<ObjectKey, BTreeMap<String, FirstSight>>>);

struct FirstSight {
    /// The time that the status has: another one is another eviction.
    evicted_at: Time,
    uid: Option<String>,
    seen_at: Instant,
}

impl EvictionLog {
    /// What is known of the evictions that the budget names now.
    pub fn observe(
        &self,
        key: &ObjectKey,
        budget: &PodDisruptionBudget,
        pods: &[Arc<Pod>],
        now: Instant,
    ) -> BTreeMap<String, SeenEviction> {
        let named = budget.status.as_ref().and_then(|status| status.disrupted_pods.clone()).unwrap_or_default();
        let mut log = self.0.lock();
        if named.is_empty() {
            log.remove(key);
            return BTreeMap::new();
        }
        let known = log.entry(key.clone()).or_default();
        known.retain(|name, sight| named.get(name) == Some(&sight.evicted_at));
        for (name, evicted_at) in named {
            known.entry(name).or_insert_with_key(|name| {
                let uid = pods.iter().find(|pod| pod.name() == name).map(|pod| pod.uid().to_owned());
                FirstSight { evicted_at, uid, seen_at: now }
            });
        }
        let view = |sight: &FirstSight| SeenEviction { uid: sight.uid.clone(), age: now - sight.seen_at };
        known.iter().map(|(name, sight)| (name.clone(), view(sight))).collect()
    }

    /// The budget is gone.
    pub fn forget(&self, key: &ObjectKey) {
        self.0.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn budget(evicted: &[(&str, &str)]) -> PodDisruptionBudget {
        let named: BTreeMap<&str, &str> = evicted.iter().copied().collect();
        let status = json!({ "disruptedPods": named });
        serde_json::from_value(json!({ "metadata": { "name": "b" }, "status": status })).unwrap()
    }

    fn pod(name: &str, uid: &str) -> Arc<Pod> {
        Arc::new(serde_json::from_value(json!({ "metadata": { "name": name, "uid": uid } })).unwrap())
    }

    #[test]
    fn an_eviction_is_remembered_with_its_pod_until_it_is_named_no_more() {
        let (log, key, start) = (EvictionLog::default(), ObjectKey::new("ns", "b"), Instant::now());
        let seen = |uid: &str, seconds| SeenEviction { uid: Some(uid.into()), age: Duration::from_secs(seconds) };
        let observe = |evicted: &[(&str, &str)], uid, seconds| {
            let now = start + Duration::from_secs(seconds);
            log.observe(&key, &budget(evicted), &[pod("a", uid)], now).remove("a")
        };
        let first = ("a", "2026-01-01T00:00:00Z");
        assert_eq!(observe(&[first], "1", 0), Some(seen("1", 0)));
        assert_eq!(observe(&[first], "2", 9), Some(seen("1", 9)), "another pod has the name");
        assert_eq!(observe(&[("a", "2025-01-01T00:00:00Z")], "2", 10), Some(seen("2", 0)), "evicted again");
        assert_eq!(observe(&[], "2", 11), None);
        assert_eq!(observe(&[first], "2", 12), Some(seen("2", 0)));
        log.forget(&key);
        assert!(log.0.lock().is_empty());
    }
}
