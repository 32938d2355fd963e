//! Plans the restart of all containers in place, which the end of one of them asks for (`RestartAllContainers`).
//!
//! Whatever runs is stopped, without preStop hooks. Then all init containers and containers are removed from the runtime, and
//! the pod starts as if for the first time, in the sandbox and with the volumes that it has. The container whose end was
//! the cause is removed last: as long as it is there, an agent that starts anew finds that this is to be done.

use jiff::Timestamp;
use mainstay_runtime::{ContainerId, ContainerState, ContainerStatus};

use super::{Action, Plan, StopWhy, outcome_of_containers, remove, start::restart_at, stop::stop_all};
use crate::worker::{
    retry_state::Operation,
    view::{ContainerView, RestartAction, Role},
    world::World,
};

/// The container whose end has all of them started anew: of several the one that ended first.
pub fn restart_all_cause(world: &World) -> Option<&ContainerStatus> {
    let asks = |view: &ContainerView| {
        let observed = world.newest(&view.name)?;
        let ContainerState::Exited { exit_code, finished_at, .. } = observed.state else { return None };
        let is_own_end = !observed.state.was_fenced()
            && world.retry_state.container(&view.name).stopped_on_purpose != Some(observed.attempt);
        let asks = view.restart_rules.action(exit_code) == Some(RestartAction::RestartAllContainers);
        (is_own_end && asks).then_some((view.role, finished_at, observed))
    };
    let asking = world.pod.init.iter().chain(&world.pod.main).filter_map(asks);
    // Sidecars are stopped when the work of the pod is done; how they end then says nothing.
    let is_done = || outcome_of_containers(world).is_some();
    asking
        .filter(|(role, ..)| *role != Role::Sidecar || !is_done())
        .min_by_key(|(_, finished_at, _)| *finished_at)
        .map(|(.., observed)| observed)
}

pub fn plan(world: &World, cause: &ContainerStatus, now: Timestamp, plan: &mut Plan) {
    if !stop_all(world, world.pod.grace, &StopWhy::AllRestart { cause: cause.name.clone() }, now, plan) {
        return;
    }
    // How containers ended is known from the runtime alone until it has been reported.
    if world.retry_state.in_progress.contains(&Operation::Report) {
        return;
    }
    let pause = world.pod.container(&cause.name).and_then(|view| restart_at(world, view, cause));
    if let Some(until) = pause.filter(|until| now < *until) {
        return plan.wake(until);
    }
    let is_ephemeral = |c: &ContainerStatus| world.pod.ephemeral.iter().any(|view| view.name == c.name);
    let others = world.all().filter(|c| c.id != cause.id && !is_ephemeral(c));
    let mut ids: Vec<ContainerId> = others.map(|c| c.id.clone()).collect();
    ids.push(cause.id.clone());
    remove(world, Action::Remove { ids }, now, plan);
}
