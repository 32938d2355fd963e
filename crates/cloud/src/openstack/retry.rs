//! Retries of calls: which failures are worth another attempt, and after what delay. Pure.
//!
//! A create that may have reached the service is never repeated here: it would make a second one. Whoever created looks for the tag first.

use std::time::Duration;

use mainstay_backoff::Backoff;

use super::CloudError;

pub const BACKOFF: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(8), 0.5);
/// Attempts of one call, the first included.
pub const MAX_ATTEMPTS: u32 = 5;

/// What a second run of the same call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// Nothing that the first did not: reads, deletes, writes of a whole.
    Harmless,
    /// It may do the work twice.
    Harmful,
}

/// How long to wait before another attempt; nothing if there is to be none. `failures` counts this one, `left` is the time until the deadline,
/// `random` is drawn evenly from 0 to 1.
pub fn delay_before_retry(
    error: &CloudError,
    repeat: Repeat,
    failures: u32,
    left: Duration,
    random: f64,
) -> Option<Duration> {
    if failures >= MAX_ATTEMPTS || !error.is_transient() {
        return None;
    }
    if repeat == Repeat::Harmful && error.is_outcome_unknown() {
        return None;
    }
    let asked = match error {
        CloudError::Refused { retry_after, .. } => retry_after.map(|seconds| Duration::from_secs(seconds.into())),
        _ => None,
    };
    let delay = BACKOFF.delay(failures, random).max(asked.unwrap_or_default());
    (delay < left).then_some(delay)
}

/// The seconds of a `Retry-After` header; dates, which nobody sends, count as none.
pub fn parse_retry_after(value: &str) -> Option<u16> {
    value.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Service, error::Call},
        *,
    };

    const LEFT: Duration = Duration::from_secs(60);

    fn call() -> Call {
        Call { service: Service::Compute, operation: "create server", method: "POST", path: "/servers".into() }
    }

    fn refused(status: u16, retry_after: Option<u16>) -> CloudError {
        CloudError::Refused { call: call(), status, kind: None, message: String::new(), retry_after }
    }

    #[test]
    fn a_create_that_may_have_worked_is_not_repeated() {
        let timeout = CloudError::Timeout { call: call(), after: LEFT };
        for error in [&timeout, &refused(500, None), &refused(503, None)] {
            assert_eq!(delay_before_retry(error, Repeat::Harmful, 1, LEFT, 0.0), None);
            assert!(delay_before_retry(error, Repeat::Harmless, 1, LEFT, 0.0).is_some());
        }
        assert!(delay_before_retry(&refused(429, None), Repeat::Harmful, 1, LEFT, 0.0).is_some(), "it was refused");
    }

    #[test]
    fn refusals_are_not_repeated() {
        for status in [400, 401, 403, 404, 409, 412, 413] {
            assert_eq!(delay_before_retry(&refused(status, None), Repeat::Harmless, 1, LEFT, 0.0), None);
        }
    }

    #[test]
    fn the_service_says_when_and_the_deadline_bounds_it() {
        let busy = refused(429, Some(7));
        assert_eq!(delay_before_retry(&busy, Repeat::Harmless, 1, LEFT, 0.0), Some(Duration::from_secs(7)));
        assert_eq!(delay_before_retry(&busy, Repeat::Harmless, 1, Duration::from_secs(7), 0.0), None);
        assert_eq!(delay_before_retry(&busy, Repeat::Harmless, MAX_ATTEMPTS, LEFT, 0.0), None);
    }

    #[test]
    fn delays_grow_and_are_spread() {
        let down = refused(503, None);
        let delay = |failures, random| delay_before_retry(&down, Repeat::Harmless, failures, LEFT, random).unwrap();
        assert_eq!(delay(1, 0.0), Duration::from_millis(250));
        assert_eq!(delay(3, 0.0), Duration::from_secs(1));
        assert_eq!(delay(3, 1.0), Duration::from_millis(500));
    }
}
