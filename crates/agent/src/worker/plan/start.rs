//! Plans the start of a pod: volumes, sandbox, init containers, containers, restarts and resizes.

use std::time::Duration;

use jiff::Timestamp;
use mainstay_runtime::{ContainerState, ContainerStatus};

use super::{Action, Plan, StopWhy, healing, is_current, remove};
use crate::{
    heal::{RestartPermission, Rung},
    worker::{
        retry_state::{FailureKind, Operation},
        view::{ContainerView, Role},
        world::World,
    },
};

/// How soon to look whether an image or a configuration has appeared by itself.
const SOON: Duration = Duration::from_secs(2);

pub fn plan(world: &World, now: Timestamp, plan: &mut Plan) {
    if let Some(why) = &world.retry_state.moving {
        if !world.retry_state.in_progress.contains(&Operation::ApiRemoval) {
            match world.retry_state.api_removal.due(now) {
                Ok(()) => plan.act(Action::Move { why: why.clone() }),
                Err(Some(at)) => plan.wake(at),
                Err(None) => {}
            }
        }
        return;
    }
    if world.is_cut_off && world.all().all(|container| !container.state.is_running()) {
        return; // whoever ends this wakes us
    }
    if !world.retry_state.volumes.is_done() {
        step(world, Operation::Volumes, Action::PrepareVolumes, now, plan);
        // What runs already has its volumes, current or not.
        if world.all().next().is_none() {
            return;
        }
    }
    let Some(sandbox) = world.sandbox() else {
        return step(world, Operation::Sandbox, Action::CreateSandbox { attempt: 0 }, now, plan);
    };
    if !sandbox.ready {
        return; // being made
    }
    for container in &world.pod.ephemeral {
        if world.newest(&container.name).is_none() {
            start(world, container, now, plan);
        }
    }
    if world.waits_for().is_some() {
        return prepare_images(world, now, plan);
    }
    if initialize(world, now, plan) {
        for container in &world.pod.main {
            keep_running(world, container, now, plan);
        }
    }
}

/// Everything but the containers is made ready while the pod waits for its needs.
fn prepare_images(world: &World, now: Timestamp, plan: &mut Plan) {
    for container in world.pod.init.iter().chain(&world.pod.main) {
        let state = world.retry_state.container(&container.name);
        if !state.has_image
            && !world.retry_state.is_in_progress(&container.name)
            && !is_paused(world, &container.name, now, plan)
        {
            plan.act(Action::PullImage { container: container.name.clone() });
        }
    }
}

fn step(world: &World, in_progress: Operation, action: Action, now: Timestamp, plan: &mut Plan) {
    let state = match in_progress {
        Operation::Volumes => &world.retry_state.volumes,
        _ => &world.retry_state.sandbox,
    };
    if world.retry_state.in_progress.contains(&in_progress) {
        return;
    }
    // A sandbox that was there and is gone has to be made again.
    match state.due(now) {
        Ok(()) | Err(None) => plan.act(action),
        Err(Some(at)) => plan.wake(at),
    }
}

/// Whether the pod's own containers may run.
fn initialize(world: &World, now: Timestamp, plan: &mut Plan) -> bool {
    let over = world.is_initialized();
    for container in &world.pod.init {
        let newest = world.newest(&container.name);
        match container.role {
            Role::Sidecar => {
                keep_running(world, container, now, plan);
                let started = newest.is_some_and(|c| c.state.is_running() && world.results(&c.id).started);
                if !started && !over {
                    return false;
                }
            }
            Role::Init | Role::Main | Role::Ephemeral => {
                if over || newest.is_some_and(succeeded) {
                    continue;
                }
                keep_running(world, container, now, plan);
                return false;
            }
        }
    }
    true
}

fn succeeded(container: &ContainerStatus) -> bool {
    matches!(container.state, ContainerState::Exited { exit_code: 0, .. })
}

fn keep_running(world: &World, wanted: &ContainerView, now: Timestamp, plan: &mut Plan) {
    if world.retry_state.is_in_progress(&wanted.name) {
        return;
    }
    let Some(observed) = world.newest(&wanted.name) else { return start(world, wanted, now, plan) };
    match &observed.state {
        ContainerState::Running { .. } => {
            if !is_paused(world, &wanted.name, now, plan) {
                look_after(world, wanted, observed, now, plan);
            }
        }
        ContainerState::Created => {
            // Made by an agent that did not live to start it.
            remove(world, Action::Remove { ids: vec![observed.id.clone()] }, now, plan);
        }
        ContainerState::Unknown => stop(wanted, observed, Duration::ZERO, StopWhy::Lost, plan),
        // Its end says nothing about it: it is started again as the same attempt.
        ContainerState::Exited { .. } if observed.state.was_fenced() => {
            start_attempt(world, wanted, observed.attempt, now, plan);
        }
        ContainerState::Exited { .. } => restart(world, wanted, observed, now, plan),
    }
}

/// Whether something that failed for this container is not yet to be tried again.
pub fn is_paused(world: &World, name: &str, now: Timestamp, plan: &mut Plan) -> bool {
    match &world.retry_state.container(name).failure {
        Some(trouble) if now < trouble.retry_at => {
            plan.wake(trouble.retry_at);
            true
        }
        Some(_) | None => false,
    }
}

/// A running container: is it what it should be?
fn look_after(world: &World, wanted: &ContainerView, observed: &ContainerStatus, now: Timestamp, plan: &mut Plan) {
    if !is_current(observed, wanted) {
        return stop(wanted, observed, world.pod.grace, StopWhy::Changed, plan);
    }
    let retry_state = world.retry_state.container(&wanted.name);
    if let Some(failed) = world.results(&observed.id).failed
        && let Some(failure) = &retry_state.probe_failure
        && failure.attempt == observed.attempt
    {
        if failure.permission == RestartPermission::Granted {
            let grace = failed.grace_seconds.map_or(world.pod.grace, crate::worker::view::seconds);
            return stop(wanted, observed, grace, StopWhy::Unhealthy(failed.probe), plan);
        }
        healing::request_restart(world, &failure.permission, now, plan);
    }
    if let Some((_, applied)) = world.outdated_resources(wanted) {
        if wanted.resize_restarts.apply_to(&applied, &wanted.resources) {
            stop(wanted, observed, world.pod.grace, StopWhy::Resized, plan);
        } else {
            plan.act(Action::Resize { container: wanted.name.clone(), id: observed.id.clone() });
        }
    }
}

fn stop(wanted: &ContainerView, observed: &ContainerStatus, grace: Duration, why: StopWhy, plan: &mut Plan) {
    plan.act(Action::Stop { container: wanted.name.clone(), id: observed.id.clone(), grace, why });
}

fn restart(world: &World, wanted: &ContainerView, observed: &ContainerStatus, now: Timestamp, plan: &mut Plan) {
    let ContainerState::Exited { exit_code, .. } = observed.state else { return };
    let changed = !is_current(observed, wanted);
    if !world.pod.restarts(wanted, exit_code) && !changed {
        return;
    }
    let retry_state = world.retry_state.container(&wanted.name);
    if let Some((attempt, rung)) = &retry_state.decided
        && *attempt == observed.attempt
        && *rung != Rung::Restart
    {
        // The pod as a whole is being cured, once the pause is over.
        restart_at(world, wanted, observed).filter(|at| now < *at).into_iter().for_each(|at| plan.wake(at));
        return;
    }
    match restart_at(world, wanted, observed) {
        Some(at) if now < at && !changed => plan.wake(at),
        Some(_) | None => start(world, wanted, now, plan),
    }
}

/// When a container that ended is started again; at once if there is no delay.
pub fn restart_at(world: &World, wanted: &ContainerView, observed: &ContainerStatus) -> Option<Timestamp> {
    let ContainerState::Exited { started_at, finished_at, .. } = observed.state else { return None };
    let healthy = started_at.is_some_and(|started| finished_at >= started + world.restart_backoff.reset_after);
    if healthy {
        return None;
    }
    let forgiven = world.retry_state.container(&wanted.name).forgiven;
    Some(finished_at + world.restart_backoff.delay(observed.attempt.saturating_sub(forgiven)))
}

fn start(world: &World, wanted: &ContainerView, now: Timestamp, plan: &mut Plan) {
    let observed = world.newest(&wanted.name).map_or(0, |c| c.attempt + 1);
    let removed = world.retry_state.container(&wanted.name).removed;
    start_attempt(world, wanted, observed.max(wanted.made).max(removed), now, plan);
}

fn start_attempt(world: &World, wanted: &ContainerView, attempt: u32, now: Timestamp, plan: &mut Plan) {
    if world.retry_state.is_in_progress(&wanted.name) || world.is_cut_off {
        return;
    }
    if world.pod.has_config_versions && !world.retry_state.volumes.is_done() {
        return; // its environment must have the versions that its volumes will show; their end wakes us
    }
    if let Some(trouble) = &world.retry_state.container(&wanted.name).failure {
        // What was missing may appear by itself: those who watch for it wake us, and we look too.
        if now < trouble.retry_at {
            let curable = matches!(
                trouble.kind,
                FailureKind::Pull | FailureKind::InvalidImageName | FailureKind::NeverPull | FailureKind::Config
            );
            return plan.wake(if curable { trouble.retry_at.min(now + SOON) } else { trouble.retry_at });
        }
    }
    plan.act(Action::Start { container: wanted.name.clone(), attempt });
}
