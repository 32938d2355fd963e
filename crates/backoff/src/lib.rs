//! Exponential backoff with jitter: how long to wait before something that failed is tried again.
//!
//! Pure: the random number is an argument, so that tests and seeded runs are repeatable, and the crate has no
//! dependencies, so that every part of Mainstay can use it. Jitter is part of the type because clients that failed
//! together (all nodes, when the server restarts) must not come back together.

use std::time::Duration;

/// Delays double from `first` to `longest`; `jitter` is the share of each delay that is left to chance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    pub first: Duration,
    pub longest: Duration,
    /// From 0 (always the whole delay) to 1 (anything between nothing and the whole delay).
    pub jitter: f64,
}

impl Backoff {
    pub const fn new(first: Duration, longest: Duration, jitter: f64) -> Self {
        Self { first, longest, jitter }
    }

    /// The longest delay after so many failures in a row.
    pub fn ceiling(&self, failures: u32) -> Duration {
        let doubled = 2u32.checked_pow(failures.saturating_sub(1)).and_then(|factor| self.first.checked_mul(factor));
        doubled.map_or(self.longest, |ceiling| ceiling.min(self.longest))
    }

    /// The delay after so many failures in a row; `random` is drawn evenly from 0 to 1.
    pub fn delay(&self, failures: u32, random: f64) -> Duration {
        let share = 1.0 - self.jitter.clamp(0.0, 1.0) * random.clamp(0.0, 1.0);
        self.ceiling(failures).mul_f64(share)
    }
}

/// Counts the failures of one operation and says how long to wait after each.
#[derive(Clone, Copy, Debug)]
pub struct RetryState {
    backoff: Backoff,
    failures: u32,
}

impl RetryState {
    pub const fn new(backoff: Backoff) -> Self {
        Self { backoff, failures: 0 }
    }

    /// Counts a failure; returns how long to wait before the next attempt.
    pub fn record_failure(&mut self, random: f64) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.backoff.delay(self.failures, random)
    }

    /// The next failure is the first again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn delays_double_up_to_the_longest() {
        let backoff = Backoff::new(SECOND, 60 * SECOND, 0.0);
        let seconds: Vec<u64> = (1..10).map(|failures| backoff.delay(failures, 0.5).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(backoff.ceiling(u32::MAX), 60 * SECOND);
    }

    #[test]
    fn a_success_starts_over() {
        let mut retries = RetryState::new(Backoff::new(SECOND, 60 * SECOND, 0.0));
        assert_eq!([0; 3].map(|_| retries.record_failure(0.0)), [SECOND, 2 * SECOND, 4 * SECOND]);
        retries.reset();
        assert_eq!(retries.record_failure(0.0), SECOND);
    }

    proptest! {
        #[test]
        fn jitter_shortens_a_delay_by_at_most_its_share(
            failures in any::<u32>(), jitter in 0.0..=1.0f64, random in 0.0..=1.0f64,
        ) {
            let backoff = Backoff::new(SECOND, 60 * SECOND, jitter);
            let (delay, ceiling) = (backoff.delay(failures, random), backoff.ceiling(failures));
            prop_assert!(delay <= ceiling);
            prop_assert!(delay + Duration::from_micros(1) >= ceiling.mul_f64(1.0 - jitter));
        }
    }
}
