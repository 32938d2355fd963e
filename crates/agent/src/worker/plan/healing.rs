//! Healing decisions: what is done about containers that failed and about those whose probes fail. Pure.

use jiff::Timestamp;
use mainstay_runtime::{ContainerState, ContainerStatus};

use super::{Action, Plan, is_current, restart_at};
use crate::{
    heal::{Cause, Diagnosis, HealingDecision, History, RestartPermission, Rung, assess_failure},
    probe::ProbeKind,
    worker::{
        retry_state::Operation,
        view::{ContainerView, RestartAction},
        world::World,
    },
};

/// Decisions about everything that is new: each end of a container and each change of a probe's result once.
pub fn decide(world: &World, now: Timestamp) -> Vec<HealingDecision> {
    if world.pod.ending.is_some() || world.pod.finished {
        return Vec::new();
    }
    let mut history = world.healing.record.history.clone();
    let decide = |view: &ContainerView| {
        let observed = world.newest(&view.name)?;
        let diagnosis = match &observed.state {
            state if state.was_fenced() => None,
            ContainerState::Exited { exit_code, oom, .. } => {
                diagnose_end(world, view, observed, (*exit_code, *oom), &mut history, now)
            }
            ContainerState::Running { .. } => diagnose_probe(world, view, observed),
            ContainerState::Created | ContainerState::Unknown => None,
        }?;
        Some(HealingDecision { container: view.name.clone(), attempt: observed.attempt, diagnosis })
    };
    world.pod.containers().filter_map(decide).collect()
}

fn diagnose_end(
    world: &World,
    view: &ContainerView,
    observed: &ContainerStatus,
    (exit_code, oom): (i32, bool),
    history: &mut History,
    now: Timestamp,
) -> Option<Diagnosis> {
    let retry_state = world.retry_state.container(&view.name);
    if retry_state.decided.as_ref().is_some_and(|(attempt, _)| *attempt == observed.attempt) {
        return None;
    }
    // Stopped for a change: the next one starts with a clean slate.
    if !is_current(observed, view) || retry_state.stopped_on_purpose == Some(observed.attempt) {
        return Some(Diagnosis::Ended { resets_backoff: true });
    }
    if view.restart_rules.action(exit_code) == Some(RestartAction::RestartAllContainers) {
        return Some(Diagnosis::Ended { resets_backoff: false });
    }
    let unhealthy = retry_state.probe_failure.as_ref().filter(|failure| failure.attempt == observed.attempt);
    if exit_code == 0 && unhealthy.is_none() || !world.pod.restarts(view, exit_code) {
        return Some(Diagnosis::Ended { resets_backoff: false });
    }
    if let Some((attempt, rung)) = world.healing.record.decided.get(&view.name)
        && *attempt == observed.attempt
    {
        return Some(Diagnosis::DecidedBefore(rung.clone()));
    }
    let cause = match (unhealthy, oom) {
        (Some(failure), _) => Cause::Unhealthy { why: failure.message.clone() },
        (None, true) => Cause::OutOfMemory,
        (None, false) => Cause::Crashed { exit_code },
    };
    let policy = &world.healing.policy;
    history.settle(policy, now);
    let step = assess_failure(policy, history, world.healing.may_move, &view.name, &cause, now);
    history.record(&step.rung, now);
    let backs_off = step.rung == Rung::Restart && restart_at(world, view, observed).is_some_and(|at| at > now);
    Some(Diagnosis::Failed { cause, step, history: history.clone(), backs_off })
}

fn diagnose_probe(world: &World, view: &ContainerView, observed: &ContainerStatus) -> Option<Diagnosis> {
    let before = world.retry_state.container(&view.name).probe_failure;
    let Some(failed) = world.results(&observed.id).failed else {
        return before.map(|_| Diagnosis::ProbeRecovered);
    };
    let before = before.filter(|before| before.attempt == observed.attempt);
    let permission = match failed.probe {
        // Once granted, the permission holds for this container.
        _ if before.as_ref().is_some_and(|before| before.permission == RestartPermission::Granted) => return None,
        ProbeKind::Liveness => match world.needs.message_after_start() {
            Some(missing) => RestartPermission::Withheld { reason: format!("it waits for {missing}") },
            None => world.healing.permission.clone(),
        },
        // One that never came up serves nobody, so nobody misses it: only liveness draws on the set's budget.
        ProbeKind::Startup | ProbeKind::Readiness => RestartPermission::Granted,
    };
    let is_denied = |permission: &RestartPermission| {
        matches!(permission, RestartPermission::Denied { .. } | RestartPermission::Withheld { .. })
    };
    let was_denied = before.as_ref().is_some_and(|before| is_denied(&before.permission));
    if before.is_some_and(|before| before.permission == permission && before.message == failed.why) {
        return None;
    }
    let newly_denied = is_denied(&permission) && !was_denied;
    Some(Diagnosis::ProbeFailed { message: failed.why, permission, newly_denied })
}

/// A container whose probe failed may not be stopped yet: requests the permission, once at a time and not too often.
pub fn request_restart(world: &World, permission: &RestartPermission, now: Timestamp, plan: &mut Plan) {
    let planned = plan.actions.contains(&Action::RequestRestart);
    if planned || world.retry_state.in_progress.contains(&Operation::RestartRequest) {
        return;
    }
    match permission {
        RestartPermission::Granted | RestartPermission::Withheld { .. } => {}
        RestartPermission::Denied { retry_at, .. } if now < *retry_at => plan.wake(*retry_at),
        RestartPermission::NotRequested | RestartPermission::Denied { .. } => plan.act(Action::RequestRestart),
    }
}
