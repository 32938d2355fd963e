//! When a probe is attempted: once every period, and more often until its first success.
//!
//! A server takes a moment to listen after its container has started. A readiness or startup probe that waited a whole period
//! after its first failure would keep a healthy pod out of its Services for as long, so until the first success there are
//! extra attempts: 100 ms after the last one, then 200 ms, and so on up to the period. Extra attempts can only succeed: a
//! failed one counts for nothing, so `failureThreshold` times `periodSeconds` stays the time that a container has to start.
//!
//! Pure: time is an argument, counted from when the probe began.

use std::time::Duration;

const FIRST_EXTRA_DELAY: Duration = Duration::from_millis(100);

/// What an attempt counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// Made because a period is over: success and failure count.
    Regular,
    /// Made between two periods: only success counts.
    Extra,
}

#[derive(Clone, Debug)]
pub struct Schedule {
    period: Duration,
    next_regular: Duration,
    /// How long after the last attempt an extra one follows; none once the probe has succeeded.
    extra_delay: Option<Duration>,
}

impl Schedule {
    /// `impatient`: with extra attempts until the first success.
    pub fn new(period: Duration, impatient: bool) -> Self {
        Self { period, next_regular: Duration::ZERO, extra_delay: impatient.then_some(FIRST_EXTRA_DELAY) }
    }

    /// The next attempt after one that ended at `now`, and when it is due. A regular attempt that is overdue is due at once, and
    /// the next one follows a whole period later.
    pub fn next(&mut self, now: Duration) -> (Duration, Attempt) {
        if let Some(delay) = self.extra_delay
            && !self.next_regular.is_zero()
        {
            let due = now.saturating_add(delay);
            if due < self.next_regular {
                self.extra_delay = Some(delay.saturating_mul(2));
                return (due, Attempt::Extra);
            }
        }
        let due = self.next_regular.max(now);
        self.next_regular = due.saturating_add(self.period);
        (due, Attempt::Regular)
    }

    /// The probe has succeeded: from now on, a period lies between attempts.
    pub fn succeeded(&mut self) {
        self.extra_delay = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When attempts are made that take no time, up to `until` milliseconds.
    fn attempts(mut schedule: Schedule, until: u64) -> Vec<(u64, Attempt)> {
        let mut now = Duration::ZERO;
        let mut made = vec![];
        loop {
            let (due, attempt) = schedule.next(now);
            if due > Duration::from_millis(until) {
                return made;
            }
            now = due;
            made.push((due.as_millis() as u64, attempt));
        }
    }

    #[test]
    fn until_the_first_success_attempts_follow_quickly_and_the_regular_ones_stay_where_they_are() {
        use Attempt::*;
        let expected = [
            (0, Regular),
            (100, Extra),
            (300, Extra),
            (700, Extra),
            (1_500, Extra),
            (3_100, Extra),
            (6_300, Extra),
            (10_000, Regular),
            (16_400, Extra),
            (20_000, Regular),
            (30_000, Regular),
        ];
        assert_eq!(attempts(Schedule::new(Duration::from_secs(10), true), 30_000), expected);
    }

    #[test]
    fn a_patient_probe_is_attempted_once_a_period() {
        let made = attempts(Schedule::new(Duration::from_secs(5), false), 10_000);
        assert_eq!(made, [0, 5_000, 10_000].map(|at| (at, Attempt::Regular)));
    }

    #[test]
    fn after_the_first_success_only_regular_attempts_are_left() {
        let mut schedule = Schedule::new(Duration::from_secs(10), true);
        assert_eq!(schedule.next(Duration::ZERO), (Duration::ZERO, Attempt::Regular));
        let (due, attempt) = schedule.next(Duration::ZERO);
        assert_eq!(attempt, Attempt::Extra);
        schedule.succeeded();
        assert_eq!(schedule.next(due), (Duration::from_secs(10), Attempt::Regular));
    }

    #[test]
    fn an_overdue_attempt_is_due_at_once_and_the_next_a_period_later() {
        let mut schedule = Schedule::new(Duration::from_secs(1), false);
        schedule.next(Duration::ZERO);
        let late = Duration::from_millis(2_500);
        assert_eq!(schedule.next(late), (late, Attempt::Regular));
        assert_eq!(schedule.next(late).0, Duration::from_millis(3_500));
    }

    #[test]
    fn the_longest_period_does_not_overflow() {
        let mut schedule = Schedule::new(Duration::MAX, true);
        let mut now = Duration::ZERO;
        for _ in 0..200 {
            now = schedule.next(now).0;
        }
        assert!(now > Duration::from_secs(1));
    }
}
