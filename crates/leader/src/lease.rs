//! Decides whether to acquire a Lease or to wait for it, and when a leader must have stopped. Pure.

use std::time::{Duration, Instant};

/// The Lease as it was last read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedLease {
    /// Empty if it was released.
    pub holder: String,
    pub duration: Duration,
    pub resource_version: String,
    /// Since when, by our clock, it has had this version.
    pub unchanged_since: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcquireStep {
    /// There is no such Lease.
    Create,
    /// It is ours, released or expired: write our identity into it, if it still has the observed version.
    Acquire,
    /// Another holds it until then, unless it changes.
    Wait(Instant),
}

pub fn next_step(observed: Option<&ObservedLease>, identity: &str, now: Instant) -> AcquireStep {
    let Some(lease) = observed else { return AcquireStep::Create };
    let expires = lease.unchanged_since + lease.duration;
    if lease.holder == identity || lease.holder.is_empty() || expires <= now {
        AcquireStep::Acquire
    } else {
        AcquireStep::Wait(expires)
    }
}

/// What is observed after a read: the time to expiry starts over only when the Lease changed.
pub fn observe_lease(before: Option<ObservedLease>, mut read: ObservedLease) -> ObservedLease {
    if let Some(before) = before.filter(|before| before.resource_version == read.resource_version) {
        read.unchanged_since = before.unchanged_since;
    }
    read
}

/// When the leader must have stopped, if it last renewed at `renewed`. A quarter of the duration is left for stopping.
pub fn renew_deadline(renewed: Instant, duration: Duration) -> Instant {
    renewed + duration * 3 / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    const DURATION: Duration = Duration::from_secs(6);

    fn lease(holder: &str, version: &str, unchanged_since: Instant) -> ObservedLease {
        let (holder, resource_version) = (holder.to_owned(), version.to_owned());
        ObservedLease { holder, duration: DURATION, resource_version, unchanged_since }
    }

    #[test]
    fn a_lease_is_acquired_when_it_is_missing_ours_released_or_expired() {
        let now = Instant::now();
        assert_eq!(next_step(None, "me", now), AcquireStep::Create);
        assert_eq!(next_step(Some(&lease("me", "1", now)), "me", now), AcquireStep::Acquire);
        assert_eq!(next_step(Some(&lease("", "1", now)), "me", now), AcquireStep::Acquire);
        let others = lease("other", "1", now);
        assert_eq!(next_step(Some(&others), "me", now), AcquireStep::Wait(now + DURATION));
        assert_eq!(next_step(Some(&others), "me", now + DURATION), AcquireStep::Acquire);
    }

    #[test]
    fn only_a_change_postpones_the_expiry() {
        let now = Instant::now();
        let first = observe_lease(None, lease("other", "1", now));
        let same = observe_lease(Some(first), lease("other", "1", now + DURATION));
        assert_eq!(same.unchanged_since, now);
        assert_eq!(observe_lease(Some(same), lease("other", "2", now + DURATION)).unchanged_since, now + DURATION);
    }

    #[test]
    fn the_leader_stops_before_another_may_start() {
        let now = Instant::now();
        let renewed = lease("me", "1", now);
        let deadline = renew_deadline(now, DURATION);
        assert!(deadline < renewed.unchanged_since + renewed.duration);
        assert_eq!(next_step(Some(&renewed), "other", deadline), AcquireStep::Wait(now + DURATION));
    }
}
