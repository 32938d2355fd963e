//! Runs a controller: takes keys from its work queue, reconciles a bounded number of them at once, and retries.
//!
//! A key is reconciled by one runner at a time. Nothing is polled: an idle runner sleeps until a key is added or falls
//! due. A reconcile that lost a race (a conflict) is repeated at once; any other failure backs off.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{
    ApiError, Clock, Controller, ControllerMetrics, WorkQueue, metrics::ReconcileResult, outage::ApiOutage,
    queue::Backoff, reconcile,
};

/// After a failure; doubles with every further one.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
/// After losing a race, which the next look settles.
const CONFLICT_BACKOFF: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Reconciles of different keys under way at once.
    pub concurrent_reconciles: usize,
    /// The longest back-off before a retry.
    pub longest_backoff: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { concurrent_reconciles: 8, longest_backoff: Duration::from_secs(60) }
    }
}

/// A key that was reconciled, how long that took, and how it ended.
struct Reconciled<K> {
    key: K,
    took: Duration,
    result: Result<Option<Duration>, ApiError>,
}

/// Runs a controller until asked to stop, then lets the reconciles under way end.
pub async fn run<C: Controller>(
    metrics: &ControllerMetrics,
    clock: &Clock,
    controller: Arc<C>,
    queue: Arc<WorkQueue<C::Key>>,
    limits: Limits,
    stop: CancellationToken,
) {
    let (mut running, mut outage) = (FuturesUnordered::new(), ApiOutage::default());
    loop {
        let mut next = None;
        while running.len() < limits.concurrent_reconciles && !stop.is_cancelled() {
            match queue.take() {
                Ok(key) => running.push(reconcile_key(&*controller, clock, key, &stop)),
                Err(at) => {
                    next = at;
                    break;
                }
            }
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(reconciled) = running.next(), if !running.is_empty() => {
                metrics.count_reconcile(C::NAME, finish::<C>(&queue, limits, &mut outage, reconciled));
            }
            () = queue.changed() => {}
            () = sleep_until(next) => {}
        }
    }
    while running.next().await.is_some() {}
}

async fn reconcile_key<C: Controller>(
    controller: &C,
    clock: &Clock,
    key: C::Key,
    stop: &CancellationToken,
) -> Reconciled<C::Key> {
    let (now, began) = (clock.now(), Instant::now());
    let span = tracing::info_span!("reconcile", controller = C::NAME, ?key);
    let result = reconcile(controller, &key, now, stop).instrument(span).await;
    let result = result.map(|at| at.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default()));
    Reconciled { key, took: began.elapsed(), result }
}

fn finish<C: Controller>(
    queue: &WorkQueue<C::Key>,
    limits: Limits,
    outage: &mut ApiOutage,
    Reconciled { key, took, result }: Reconciled<C::Key>,
) -> ReconcileResult {
    let is_news = outage.observe(C::NAME, result.as_ref().map(|_| ()));
    match result {
        Ok(next) => {
            queue.done(key, took, Ok(next));
            if next.is_some() { ReconcileResult::RequeueAfter } else { ReconcileResult::Success }
        }
        Err(error) => {
            let conflict = error.is_conflict();
            let first = if conflict { CONFLICT_BACKOFF } else { FIRST_BACKOFF };
            let backoff = Backoff { first, longest: limits.longest_backoff };
            let retry_in = queue.done(key.clone(), took, Err(backoff)).unwrap_or_default();
            let error = error.chain();
            if conflict {
                tracing::debug!(
                    controller = C::NAME,
                    ?key,
                    error,
                    ?retry_in,
                    "object changed meanwhile; reconciling again"
                );
                ReconcileResult::Requeue
            } else {
                if is_news {
                    tracing::warn!(controller = C::NAME, ?key, error, ?retry_in, "reconcile failed; retrying");
                } else {
                    tracing::debug!(controller = C::NAME, ?key, error, ?retry_in, "reconcile failed; retrying");
                }
                ReconcileResult::Error
            }
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
