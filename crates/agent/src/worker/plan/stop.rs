//! Plans the end of a pod: containers together, sidecars after them in reverse order, then sandbox and volumes.

use std::time::Duration;

use jiff::Timestamp;
use mainstay_runtime::ContainerStatus;

use super::{Action, Plan, StopWhy, remove, start::is_paused};
use crate::worker::{
    drain_turns::DrainTurn,
    retry_state::{Operation, Step},
    view::{Ending, Role},
    world::World,
};

/// A new deadline that is earlier by less than this changes nothing.
const SAME: Duration = Duration::from_millis(500);

/// The pod ends, by deletion or by this machine's decision.
pub fn plan(world: &World, ending: &Ending, now: Timestamp, plan: &mut Plan) {
    if let Some(until) = world.drains_until.filter(|until| now < *until)
        && world.all().any(|container| container.state.is_running())
    {
        return plan.wake(until);
    }
    let deadline = match &world.turn {
        DrainTurn::Free => ending.deadline,
        DrainTurn::Granted { deadline } => *deadline,
        DrainTurn::Waiting { retry_at, .. } if world.all().any(|container| container.state.is_running()) => {
            if now < *retry_at {
                plan.wake(*retry_at);
            } else if !world.retry_state.in_progress.contains(&Operation::TurnRequest) {
                plan.act(Action::RequestTurn);
            }
            return;
        }
        DrainTurn::Waiting { .. } => ending.deadline,
    };
    let grace = Duration::try_from(now.until(deadline).unwrap_or_default()).unwrap_or_default();
    if !stop_all(world, grace, &StopWhy::PodEnds, now, plan) {
        return;
    }
    if !dismantle(world, "the pod ends", now, plan) {
        return;
    }
    if !ending.why.leaves_the_api() {
        return;
    }
    if world.retry_state.in_progress.contains(&Operation::ApiRemoval) {
        return;
    }
    match world.retry_state.api_removal.due(now) {
        Ok(()) => plan.act(Action::RemoveFromApi),
        Err(Some(at)) => plan.wake(at),
        Err(None) => plan.over = true,
    }
}

/// This incarnation ends; the next one begins when nothing of it is left.
pub fn recreate(world: &World, why: &str, now: Timestamp, plan: &mut Plan) {
    let why = StopWhy::PodRecreated(why.to_owned());
    if stop_all(world, world.pod.grace, &why, now, plan) {
        remove_sandboxes(world, "re-created", now, plan);
    }
}

/// All work is done: sidecars stop, and what the pod held is given back. Its logs stay.
pub fn finish(world: &World, now: Timestamp, plan: &mut Plan) {
    // Only once the API knows how it ended may the evidence go.
    if stop_all(world, world.pod.grace, &StopWhy::PodEnds, now, plan) && world.pod.finished {
        dismantle(world, "the pod has finished", now, plan);
    }
}

/// Whether nothing runs any more.
pub fn stop_all(world: &World, grace: Duration, why: &StopWhy, now: Timestamp, plan: &mut Plan) -> bool {
    let alive: Vec<&ContainerStatus> = world.all().filter(|c| !c.state.has_ended() && !is_unstarted(c)).collect();
    let role = |c: &ContainerStatus| world.pod.container(&c.name).map_or(Role::Main, |c| c.role);
    let (sidecars, others): (Vec<&ContainerStatus>, Vec<&ContainerStatus>) =
        alive.iter().partition(|c| role(c) == Role::Sidecar);
    for container in &others {
        stop(world, container, grace, why, now, plan);
    }
    if others.is_empty() {
        let order = |c: &ContainerStatus| world.pod.init.iter().position(|i| i.name == c.name);
        if let Some(last) = sidecars.iter().max_by_key(|c| order(c)) {
            stop(world, last, grace, why, now, plan);
        }
    }
    // A start under way may bring up another container.
    let starting = world
        .retry_state
        .in_progress
        .iter()
        .any(|in_progress| matches!(in_progress, Operation::Container(_) | Operation::Sandbox));
    alive.is_empty() && !starting
}

fn is_unstarted(container: &ContainerStatus) -> bool {
    matches!(container.state, mainstay_runtime::ContainerState::Created)
}

fn stop(world: &World, observed: &ContainerStatus, grace: Duration, why: &StopWhy, now: Timestamp, plan: &mut Plan) {
    let retry_state = world.retry_state.container(&observed.name);
    if world.retry_state.is_in_progress(&observed.name) {
        // A stop under way is hurried if the pod's time has been cut short.
        match retry_state.stop_deadline {
            Some(deadline) if now + grace + SAME < deadline => {}
            Some(_) | None => return,
        }
    }
    if is_paused(world, &observed.name, now, plan) {
        return;
    }
    plan.act(Action::Stop { container: observed.name.clone(), id: observed.id.clone(), grace, why: why.clone() });
}

/// Whether nothing of the pod is left on this machine but its logs.
fn dismantle(world: &World, why: &'static str, now: Timestamp, plan: &mut Plan) -> bool {
    if !remove_sandboxes(world, why, now, plan) || world.retry_state.in_progress.contains(&Operation::Volumes) {
        return false;
    }
    match (&world.retry_state.release, world.retry_state.in_progress.contains(&Operation::Release)) {
        (Step::Done, _) => true,
        (_, true) => false,
        (release, false) => {
            match release.due(now) {
                Ok(()) | Err(None) => plan.act(Action::ReleaseVolumes),
                Err(Some(at)) => plan.wake(at),
            }
            false
        }
    }
}

fn remove_sandboxes(world: &World, why: &'static str, now: Timestamp, plan: &mut Plan) -> bool {
    let ids: Vec<_> = world.sandboxes.iter().map(|s| s.id.clone()).collect();
    let none = ids.is_empty();
    if !none {
        remove(world, Action::RemoveSandboxes { ids, why }, now, plan);
    }
    none
}
