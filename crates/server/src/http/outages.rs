//! One warning when something that requests need stops to answer, one line when it answers again.
//!
//! Without this an outage is either silent (clients are told, the log is not) or a line per request.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// An outage is over when there was no failure for this long: answers in between do not make it two.
const SETTLED: Duration = Duration::from_secs(10);
/// What has not failed for this long was not asked any more; it is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(3600);

/// What does not answer now, by name.
#[derive(Default)]
pub struct Outages(Mutex<HashMap<String, Outage>>);

struct Outage {
    since: Instant,
    last_failure: Instant,
}

impl Outages {
    /// Records a failure; true if it begins an outage, which is then to be logged.
    pub fn begins(&self, name: &str, now: Instant) -> bool {
        let mut current = self.0.lock();
        if let Some(outage) = current.get_mut(name) {
            outage.last_failure = now;
            return false;
        }
        current.retain(|_, outage| now.saturating_duration_since(outage.last_failure) < FORGOTTEN);
        current.insert(name.to_owned(), Outage { since: now, last_failure: now });
        true
    }

    /// Records a success; how long the outage was if that ends one.
    pub fn ends(&self, name: &str, now: Instant) -> Option<Duration> {
        let mut current = self.0.lock();
        let outage = current.get(name)?;
        if now.saturating_duration_since(outage.last_failure) < SETTLED {
            return None;
        }
        current.remove(name).map(|outage| outage.last_failure.saturating_duration_since(outage.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_begins_once_and_ends_once() {
        let (outages, start) = (Outages::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(outages.ends("a", at(0)), None);
        assert!(outages.begins("a", at(0)));
        assert!(outages.begins("b", at(0)), "each has its own");
        assert!((1..20).all(|second| !outages.begins("a", at(second))));
        assert_eq!(outages.ends("a", at(20)), None, "one answer among failures is no end");
        assert!(!outages.begins("a", at(21)));
        assert_eq!(outages.ends("a", at(40)), Some(Duration::from_secs(21)));
        assert_eq!(outages.ends("a", at(41)), None);
        assert!(outages.begins("a", at(42)), "the next one is another");
        assert!(outages.begins("c", at(4000)));
        assert!(!outages.0.lock().contains_key("b"), "what nobody asks for is forgotten");
    }
}
