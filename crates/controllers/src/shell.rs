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
    /// How many actions of one plan may be under way at once. More than one only where they do not depend on
    /// each other.
    const ABREAST: usize = 1;

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
    let mut actions = plan.actions.into_iter().peekable();
    let mut abreast = 1;
    while result.is_ok() && actions.peek().is_some() {
        if stop.is_cancelled() {
            return Ok(None); // between actions, never inside one
        }
        let some = actions.by_ref().take(abreast).map(|action| {
            tracing::debug!(controller = C::NAME, ?key, ?action, "apply");
            controller.apply(key, action)
        });
        let done = futures::future::join_all(some).await;
        result = done.into_iter().collect::<Result<(), Failure>>().and(result);
        // Once they are known to succeed: what is refused (a quota, say) is not asked for a hundred times.
        abreast = (abreast * 2).min(C::ABREAST.max(1));
    }
    if let Some(status) = plan.status {
        controller.report(key, status).await?; // what was seen stands even when acting failed
    }
    result
}
