//! Settings of the scheduler and their defaults.

use std::time::Duration;

use mainstay_backoff::Backoff;

use crate::{core::verdict::ScoringStrategy, offers::OfferTimes};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    pub scoring: ScoringStrategy,
    /// How long an offer is valid that does not say.
    pub offer_ttl: Duration,
    /// How long an expired offer is remembered.
    pub offer_linger: Duration,
    /// How long a node that refused a pod is not considered again for that pod.
    pub refuse_time: Duration,
    /// Between attempts to schedule one pod.
    pub backoff: Backoff,
    /// How long events are collected before pods are scheduled; zero to schedule as soon as no event is left.
    pub collect: Duration,
    pub reconcile: ReconcileSettings,
    /// How long devices of a pod may take to become ready after they were allocated.
    pub binding_timeout: Duration,
    /// How long `/debug` waits for the scheduler.
    pub debug_timeout: Duration,
    /// Of the random numbers that jitter backoffs.
    pub seed: u64,
}

/// When all objects are listed again and compared with the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReconcileSettings {
    /// From the start to the first time.
    pub first: Duration,
    pub every: Duration,
    /// Shortest time between two.
    pub cooldown: Duration,
    /// Longest backoff after one that was aborted.
    pub longest_backoff: Duration,
    /// How long one may take before it is aborted.
    pub abort: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            scoring: ScoringStrategy::default(),
            offer_ttl: Duration::from_secs(5),
            offer_linger: Duration::from_secs(120),
            refuse_time: Duration::from_secs(5),
            backoff: Backoff::new(Duration::from_secs(1), Duration::from_secs(60), 1.0),
            collect: Duration::ZERO,
            reconcile: ReconcileSettings::default(),
            binding_timeout: Duration::from_secs(600),
            debug_timeout: Duration::from_secs(10),
            seed: 0,
        }
    }
}

impl Default for ReconcileSettings {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(15),
            every: Duration::from_secs(300),
            cooldown: Duration::from_secs(15),
            longest_backoff: Duration::from_secs(120),
            abort: Duration::from_secs(30),
        }
    }
}

impl Settings {
    pub fn offer_times(&self) -> OfferTimes {
        OfferTimes { ttl: self.offer_ttl, linger: self.offer_linger, refuse: self.refuse_time }
    }
}
