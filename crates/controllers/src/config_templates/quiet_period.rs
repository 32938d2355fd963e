//! Waits until the inputs of a template have been quiet for a while, so that several changes are rendered once.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use crate::runtime::ObjectKey;

/// Changes of inputs that were not looked at yet, by template.
#[derive(Default)]
pub struct QuietPeriods(Mutex<HashMap<ObjectKey, Changes>>);

#[derive(Clone, Copy)]
struct Changes {
    first: Timestamp,
    last: Timestamp,
}

impl QuietPeriods {
    /// An input changed.
    pub fn touch(&self, template: &ObjectKey, now: Timestamp) {
        let mut all = self.0.lock();
        let changes = all.entry(template.clone()).or_insert(Changes { first: now, last: now });
        changes.last = changes.last.max(now);
    }

    /// Whether the inputs may be looked at by now: nothing changed, they have been quiet for long enough, or a change has waited for the
    /// longest time. What changed until now then counts as looked at. Otherwise, when to ask again.
    pub fn take(
        &self,
        template: &ObjectKey,
        quiet: SignedDuration,
        longest: SignedDuration,
        now: Timestamp,
    ) -> Result<(), Timestamp> {
        let mut all = self.0.lock();
        let Some(changes) = all.get(template) else { return Ok(()) };
        let add = |time: Timestamp, span| time.saturating_add(span).unwrap_or(Timestamp::MAX);
        let due = add(changes.last, quiet).min(add(changes.first, longest));
        if now < due {
            return Err(due);
        }
        all.remove(template);
        Ok(())
    }

    pub fn forget(&self, template: &ObjectKey) {
        self.0.lock().remove(template);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_due_when_its_inputs_are_quiet_and_at_the_latest_after_the_longest_time() {
        let (periods, key) = (QuietPeriods::default(), ObjectKey::new("ns", "zones"));
        let time = |millis: i64| Timestamp::from_millisecond(millis).unwrap();
        let take =
            |now: i64| periods.take(&key, SignedDuration::from_secs(1), SignedDuration::from_secs(10), time(now));
        assert_eq!(take(0), Ok(()), "nothing changed");
        periods.touch(&key, time(1_000));
        assert_eq!(take(1_000), Err(time(2_000)));
        periods.touch(&key, time(1_900));
        assert_eq!(take(2_000), Err(time(2_900)));
        assert_eq!(take(2_900), Ok(()));
        assert_eq!(take(2_900), Ok(()), "looked at once");
        for millis in (10_000..=20_000).step_by(500) {
            periods.touch(&key, time(millis));
        }
        assert_eq!(take(19_999), Err(time(20_000)));
        assert_eq!(take(20_000), Ok(()));
    }
}
