//! Back-off for nodes where daemon pods fail: each failure doubles the time until the next one is replaced.

use std::collections::{BTreeMap, HashMap};

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use crate::runtime::ObjectKey;

const FIRST: SignedDuration = SignedDuration::from_secs(1);
const LONGEST: SignedDuration = SignedDuration::from_mins(15);

/// By set and machine.
#[derive(Default)]
pub struct FailedPodsBackoff(Mutex<HashMap<ObjectKey, BTreeMap<String, Delay>>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Delay {
    length: SignedDuration,
    until: Timestamp,
}

impl FailedPodsBackoff {
    /// Until when failed pods are left alone.
    pub fn until(&self, set: &ObjectKey) -> BTreeMap<String, Timestamp> {
        let all = self.0.lock();
        all.get(set).into_iter().flatten().map(|(node, delay)| (node.clone(), delay.until)).collect()
    }

    /// A failed pod was removed.
    pub fn failed(&self, set: &ObjectKey, node: &str, now: Timestamp) {
        let mut all = self.0.lock();
        let machines = all.entry(set.clone()).or_default();
        // What went well for twice the longest delay is forgiven.
        machines.retain(|_, delay| delay.until + LONGEST + LONGEST > now);
        let length = machines.get(node).map_or(FIRST, |delay| (delay.length * 2).min(LONGEST));
        machines.insert(node.to_owned(), Delay { length, until: now + length });
    }

    pub fn forget(&self, set: &ObjectKey) {
        self.0.lock().remove(set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_and_are_forgotten() {
        let (backoff, set) = (FailedPodsBackoff::default(), ObjectKey::new("ns", "log"));
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        backoff.failed(&set, "m1", at(0));
        assert_eq!(backoff.until(&set), [("m1".to_owned(), at(1))].into());
        backoff.failed(&set, "m1", at(10));
        assert_eq!(backoff.until(&set)["m1"], at(12));
        backoff.failed(&set, "m1", at(10_000));
        assert_eq!(backoff.until(&set)["m1"], at(10_001), "that was long ago");
        for n in 0..20 {
            backoff.failed(&set, "m1", at(10_001 + n));
        }
        assert_eq!(backoff.until(&set)["m1"], at(10_020 + 900));
        backoff.forget(&set);
        assert!(backoff.until(&set).is_empty());
    }
}
