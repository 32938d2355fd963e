//! What a controller is, and one reconcile of it: observe, plan, apply, report.
//!
//! All decisions are in [`Controller::plan`], which sees a snapshot and nothing else, so that it can be tested without
//! a server, a clock or a runtime. The parts around it contain no choices: `observe` reads, `apply` writes one fenced
//! action, `report` writes the status, given what became of the actions. Controllers neither lock, spawn nor retry;
//! the [`runner`](super::runner) does that for all of them.

use std::{fmt::Debug, future::Future, hash::Hash};

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::ApiError;

pub trait Controller: Send + Sync + 'static {
    /// The name of its work queue, in logs and metrics; upstream's where there is one.
    const NAME: &'static str;
    /// How many actions of one plan may be under way at once. More than one only where they do not depend on
    /// each other.
    const CONCURRENT_ACTIONS: usize = 1;

    /// What is reconciled: one key, one runner.
    type Key: Clone + Ord + Hash + Debug + Send + Sync;
    /// A snapshot of everything a decision depends on.
    type World: Send + Sync;
    /// Complete, fenced by uid or version, and harmless when repeated.
    type Action: Debug + Send;
    /// What an action that was applied leads to, for the report.
    type Outcome: Send + Sync;
    type Status: Send;

    /// Reads the world around a key; nothing if there is nothing to reconcile.
    fn observe(&self, key: &Self::Key) -> impl Future<Output = Result<Option<Self::World>, ApiError>> + Send;

    fn plan(world: &Self::World, now: Timestamp) -> Plan<Self::Action, Self::Status>;

    fn apply(
        &self,
        key: &Self::Key,
        action: Self::Action,
    ) -> impl Future<Output = Result<Self::Outcome, ApiError>> + Send;

    /// Writes the status that was planned, where a controller has one.
    fn report(
        &self,
        _key: &Self::Key,
        _status: Self::Status,
        _outcomes: &Outcomes<Self::Outcome>,
    ) -> impl Future<Output = Result<(), ApiError>> + Send {
        async { Ok(()) }
    }
}

/// What became of the actions of a plan, in their order, as far as they were tried.
pub type Outcomes<O> = [Result<O, ApiError>];

#[derive(Debug, PartialEq, Eq)]
pub struct Plan<A, S> {
    /// In order; a failure keeps the later ones from happening.
    pub actions: Vec<A>,
    /// What to report; nothing if that is already reported.
    pub status: Option<S>,
    /// When to reconcile again even if nothing changes.
    pub requeue_at: Option<Timestamp>,
}

impl<A, S> Default for Plan<A, S> {
    fn default() -> Self {
        Self { actions: Vec::new(), status: None, requeue_at: None }
    }
}

impl<A, S> Plan<A, S> {
    pub fn act(actions: impl IntoIterator<Item = A>) -> Self {
        Self { actions: actions.into_iter().collect(), ..Self::default() }
    }
}

/// Reconciles a key once; says when to do so again. The first failure of an action is the result, and the status is
/// reported all the same: what was observed stands even when acting failed.
pub async fn reconcile<C: Controller>(
    controller: &C,
    key: &C::Key,
    now: Timestamp,
    stop: &CancellationToken,
) -> Result<Option<Timestamp>, ApiError> {
    let Some(world) = controller.observe(key).await? else { return Ok(None) };
    let Plan { actions, status, requeue_at } = C::plan(&world, now);
    drop(world);
    let mut outcomes: Vec<Result<C::Outcome, ApiError>> = Vec::new();
    let mut actions = actions.into_iter().peekable();
    let mut concurrent = 1;
    while outcomes.iter().all(Result::is_ok) && actions.peek().is_some() {
        if stop.is_cancelled() {
            return Ok(None); // between actions, never inside one
        }
        let batch = actions.by_ref().take(concurrent).map(|action| {
            tracing::debug!(?action, "apply");
            controller.apply(key, action)
        });
        outcomes.extend(futures::future::join_all(batch).await);
        // Once they are known to succeed: what is refused (a quota, say) is not asked for a hundred times.
        concurrent = (concurrent * 2).min(C::CONCURRENT_ACTIONS.max(1));
    }
    if let Some(status) = status {
        controller.report(key, status, &outcomes).await?;
    }
    match outcomes.into_iter().find_map(Result::err) {
        Some(error) => Err(error),
        None => Ok(requeue_at),
    }
}
