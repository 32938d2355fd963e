//! Expiry: deletes Events that are over their time to live, bootstrap tokens that are over their date, and
//! PodCertificateRequests a while after they were made.
//!
//! There may be very many of them, and they are deleted many in one transaction, which the API cannot do. So the
//! server passes in who does it ([`ExpirySweeper`]); when it is done, and what happens if it fails, is as for every
//! other controller.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};

use crate::runtime::{ApiError, Context, Controller, Limits, Plan, Runnable};

/// What expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExpiringKind {
    Events,
    BootstrapTokens,
    PodCertificateRequests,
}

impl ExpiringKind {
    const ALL: [Self; 3] = [Self::Events, Self::BootstrapTokens, Self::PodCertificateRequests];
}

pub type SweepError = Box<dyn std::error::Error + Send + Sync>;

/// Deletes what has expired, directly in the store.
pub trait ExpirySweeper: Send + Sync + 'static {
    /// How often everything is looked at.
    fn interval(&self) -> Duration;
    fn sweep(&self, kind: ExpiringKind, now: Timestamp) -> BoxFuture<'_, Result<(), SweepError>>;
}

pub struct Expiry {
    sweeper: Arc<dyn ExpirySweeper>,
}

pub fn controller(context: &Arc<Context>, sweeper: Arc<dyn ExpirySweeper>) -> Runnable {
    let queue = context.queue::<Expiry>();
    ExpiringKind::ALL.into_iter().for_each(|kind| queue.add(kind));
    context.runnable(Arc::new(Expiry { sweeper }), queue, Limits::default())
}

pub struct World {
    kind: ExpiringKind,
    interval: Duration,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Sweep {
    kind: ExpiringKind,
    now: Timestamp,
}

impl Controller for Expiry {
    const NAME: &'static str = "expiry";
    type Key = ExpiringKind;
    type World = World;
    type Action = Sweep;
    type Outcome = ();
    type Status = ();

    async fn observe(&self, kind: &ExpiringKind) -> Result<Option<World>, ApiError> {
        Ok(Some(World { kind: *kind, interval: self.sweeper.interval() }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Sweep, ()> {
        let interval = SignedDuration::try_from(world.interval).unwrap_or(SignedDuration::MAX);
        Plan {
            actions: vec![Sweep { kind: world.kind, now }],
            requeue_at: now.saturating_add(interval).ok(),
            ..Plan::default()
        }
    }

    async fn apply(&self, _: &ExpiringKind, Sweep { kind, now }: Sweep) -> Result<(), ApiError> {
        let swept = self.sweeper.sweep(kind, now).await;
        swept.map_err(|error| ApiError::new(format!("delete expired {kind:?}"), kube::Error::Service(error)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_swept_at_its_interval() {
        let world = World { kind: ExpiringKind::Events, interval: Duration::from_secs(60) };
        let now = Timestamp::UNIX_EPOCH;
        let plan = Expiry::plan(&world, now);
        assert_eq!(plan.actions, [Sweep { kind: ExpiringKind::Events, now }]);
        assert_eq!(plan.requeue_at, Some(Timestamp::from_second(60).unwrap()));
    }
}
