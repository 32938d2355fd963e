//! Patience with machines where pods fail: each failure doubles the time until the next is replaced.

use std::collections::{BTreeMap, HashMap};

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use crate::cache::Key;

const FIRST: SignedDuration = SignedDuration::from_secs(1);
const LONGEST: SignedDuration = SignedDuration::from_mins(15);

/// By set and machine.
#[derive(Default)]
pub struct Pauses(Mutex<HashMap<Key, BTreeMap<String, Pause>>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pause {
    length: SignedDuration,
    until: Timestamp,
}

impl Pauses {
    /// Until when failed pods are left alone.
    pub fn of(&self, set: &Key) -> BTreeMap<String, Timestamp> {
        let all = self.0.lock();
        all.get(set).into_iter().flatten().map(|(node, pause)| (node.clone(), pause.until)).collect()
    }

    /// A failed pod was removed.
    pub fn failed(&self, set: &Key, node: &str, now: Timestamp) {
        let mut all = self.0.lock();
        let machines = all.entry(set.clone()).or_default();
        // What went well for twice the longest pause is forgiven.
        machines.retain(|_, pause| pause.until + LONGEST + LONGEST > now);
        let length = machines.get(node).map_or(FIRST, |pause| (pause.length * 2).min(LONGEST));
        machines.insert(node.to_owned(), Pause { length, until: now + length });
    }

    pub fn forget(&self, set: &Key) {
        self.0.lock().remove(set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_are_forgiven() {
        let (pauses, set) = (Pauses::default(), Key::new("ns", "log"));
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        pauses.failed(&set, "m1", at(0));
        assert_eq!(pauses.of(&set), [("m1".to_owned(), at(1))].into());
        pauses.failed(&set, "m1", at(10));
        assert_eq!(pauses.of(&set)["m1"], at(12));
        pauses.failed(&set, "m1", at(10_000));
        assert_eq!(pauses.of(&set)["m1"], at(10_001), "that was long ago");
        for n in 0..20 {
            pauses.failed(&set, "m1", at(10_001 + n));
        }
        assert_eq!(pauses.of(&set)["m1"], at(10_020 + 900));
        pauses.forget(&set);
        assert!(pauses.of(&set).is_empty());
    }
}
