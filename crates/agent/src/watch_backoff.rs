//! Backoff of watches and of other calls to the API that are repeated until they succeed, jittered so that nodes which
//! lost the server together do not come back together.

use std::time::Duration;

use mainstay_backoff::{Backoff, RetryState};
use tokio::time::Instant;

/// Short enough that a server which comes back finds all nodes watching before much has changed.
const WATCH: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1), 0.5);
/// A failure so long after the last one is a first failure.
const APART: Duration = Duration::from_secs(5);

/// The usual backoff of a write that is repeated until it succeeds.
pub fn api_retries() -> ApiRetries {
    ApiRetries::new(Duration::from_millis(100), Duration::from_secs(2))
}

/// Counts failures in a row and draws the jitter.
#[derive(Clone, Copy, Debug)]
pub struct ApiRetries(RetryState);

impl ApiRetries {
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self(RetryState::new(Backoff::new(first, longest, 0.5)))
    }

    /// Counts a failure; returns how long to wait before the next attempt.
    pub fn record_failure(&mut self) -> Duration {
        self.0.record_failure(fastrand::f64())
    }

    pub fn reset(&mut self) {
        self.0.reset();
    }
}

/// For a watch. That it begins anew does not count as success: it does so before every attempt.
pub struct WatchBackoff {
    retries: RetryState,
    last: Option<Instant>,
}

impl Default for WatchBackoff {
    fn default() -> Self {
        Self { retries: RetryState::new(WATCH), last: None }
    }
}

impl Iterator for WatchBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let now = Instant::now();
        if self.last.replace(now).is_some_and(|last| now - last > APART) {
            self.retries.reset();
        }
        Some(self.retries.record_failure(fastrand::f64()))
    }
}

impl kube::runtime::utils::Backoff for WatchBackoff {
    fn reset(&mut self) {}
}

#[cfg(test)]
mod tests {
    use kube::runtime::utils::Backoff as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn delays_double_up_to_a_second_and_start_over_after_a_while_without_failures() {
        let mut backoff = WatchBackoff::default();
        for ceiling in [100, 200, 400, 800, 1000, 1000].map(Duration::from_millis) {
            let delay = backoff.next().unwrap();
            assert!(ceiling / 2 <= delay && delay <= ceiling, "{delay:?} of {ceiling:?}");
            tokio::time::sleep(delay).await;
            backoff.reset();
        }
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert!(backoff.next().unwrap() <= WATCH.first);
    }
}
