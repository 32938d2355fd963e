//! Pods that stay in ContainerCreating: in which step they hang, and since when that is worth a word. Pure.
//!
//! A pod gets `slow_start_limit` from the first look at it until its first container runs. Then an Event and a counter name the step and
//! the failure that is behind it, once per pod; nothing is cancelled, since every step is retried for as long as the pod is wanted.

use std::time::Duration;

use jiff::Timestamp;
use mainstay_runtime::ContainerState;

use super::{
    retry_state::{FailureKind, Step},
    world::World,
};
use crate::metrics::StartStep;

impl StartStep {
    pub fn text(self) -> &'static str {
        match self {
            Self::Volumes => "its volumes are not ready",
            Self::Sandbox => "its sandbox is not ready",
            Self::Image => "its image is not there",
            Self::Container => "its container has not started",
        }
    }
}

/// A pod that has been starting for too long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowStart {
    pub step: StartStep,
    /// What failed last in it.
    pub failure: Option<String>,
}

/// Whether it hangs now; else when to look again, if ever.
pub fn judge(world: &World, since: Timestamp, limit: Duration, now: Timestamp) -> Result<SlowStart, Option<Timestamp>> {
    let has_started = world.all().any(|container| !matches!(container.state, ContainerState::Created));
    if limit.is_zero() || has_started || world.pod.ending.is_some() || world.pod.finished {
        return Err(None);
    }
    let due = since.checked_add(limit).unwrap_or(Timestamp::MAX);
    if now < due {
        return Err(Some(due));
    }
    Ok(hanging_step(world))
}

fn hanging_step(world: &World) -> SlowStart {
    let failure = |step: &Step| match step {
        Step::Failed(failure) => Some(failure.message.clone()),
        Step::Undone | Step::Done | Step::Waiting { .. } => None,
    };
    let state = &world.retry_state;
    if !state.volumes.is_done() {
        return SlowStart { step: StartStep::Volumes, failure: failure(&state.volumes) };
    }
    if world.sandbox().is_none_or(|sandbox| !sandbox.ready) {
        return SlowStart { step: StartStep::Sandbox, failure: failure(&state.sandbox) };
    }
    let failed = state.containers.values().find_map(|container| container.failure.as_ref());
    let of_image =
        |kind: FailureKind| matches!(kind, FailureKind::Pull | FailureKind::InvalidImageName | FailureKind::NeverPull);
    // Nothing of a container is made before its image is there.
    let step = match failed {
        Some(failed) if !of_image(failed.kind) => StartStep::Container,
        None if world.all().next().is_some() => StartStep::Container,
        Some(_) | None => StartStep::Image,
    };
    SlowStart { step, failure: failed.map(|failed| failed.message.clone()) }
}
