//! Backoff of watches and of other calls to the API that are repeated until they succeed, jittered so that nodes which
//! lost the server together do not come back together.

use std::time::Duration;

use mainstay_backoff::{Backoff, RetryState};
use mainstay_watch::WatchOptions;

/// Short enough that a server which comes back finds all nodes watching before much has changed.
pub const WATCH_BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1), 0.5);

/// A watch of the objects that a field selector selects.
pub fn watch_fields(selector: String) -> WatchOptions {
    WatchOptions { backoff: WATCH_BACKOFF, ..WatchOptions::fields(selector) }
}

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
