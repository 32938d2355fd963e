//! What a controller is: look at the world, decide, act, say what was seen.
//!
//! All decisions are in [`Controller::plan`], which sees a snapshot and nothing else, so that it
//! can be tested without a server, a clock or a runtime. The parts around it contain no choices:
//! `observe` reads, `apply` writes one fenced action, `report` writes what is seen. Controllers
//! neither lock, spawn nor retry; [`crate::runner`] does that for all of them.

use std::{fmt::Debug, future::Future, hash::Hash};

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;

pub trait Controller: Send + Sync + 'static {
    /// For logs.
    const NAME: &'static str;

    /// What is looked after: one key, one runner.
    type Key: Clone + Ord + Hash + Debug + Send + Sync;
    /// A snapshot of everything a decision depends on.
    type World: Send + Sync;
    /// Complete, fenced by uid or version, and harmless when repeated.
    type Action: Debug + Send;
    type Status: Send;

    /// Reads the world around a key; nothing if there is nothing to look after.
    fn observe(&self, key: &Self::Key) -> impl Future<Output = Result<Option<Self::World>, Failure>> + Send;

    fn plan(world: &Self::World, now: Timestamp) -> Plan<Self::Action, Self::Status>;

    fn apply(&self, key: &Self::Key, action: Self::Action) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Writes what was seen, where a controller has something to say.
    fn report(&self, _key: &Self::Key, _status: Self::Status) -> impl Future<Output = Result<(), Failure>> + Send {
        async { Ok(()) }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct Plan<A, S> {
    /// In order; a failure keeps the later ones from happening.
    pub actions: Vec<A>,
    /// What to report; nothing if that already stands.
    pub status: Option<S>,
    /// When to look again even if nothing is heard.
    pub wake_at: Option<Timestamp>,
}

impl<A, S> Default for Plan<A, S> {
    fn default() -> Self {
        Self { actions: Vec::new(), status: None, wake_at: None }
    }
}

impl<A, S> Plan<A, S> {
    pub fn act(actions: impl IntoIterator<Item = A>) -> Self {
        Self { actions: actions.into_iter().collect(), ..Self::default() }
    }
}

/// Looks once and does what follows; says when to look again.
pub async fn turn<C: Controller>(
    controller: &C,
    key: &C::Key,
    now: Timestamp,
    stop: &CancellationToken,
) -> Result<Option<Timestamp>, Failure> {
    let Some(world) = controller.observe(key).await? else { return Ok(None) };
    let plan = C::plan(&world, now);
    drop(world);
    let mut result = Ok(plan.wake_at);
    for action in plan.actions {
        if stop.is_cancelled() {
            return Ok(None); // between actions, never inside one
        }
        tracing::debug!(controller = C::NAME, ?key, ?action, "apply");
        if let Err(error) = controller.apply(key, action).await {
            result = Err(error);
            break;
        }
    }
    if let Some(status) = plan.status {
        controller.report(key, status).await?; // what was seen stands even when acting failed
    }
    result
}
