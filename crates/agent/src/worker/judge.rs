//! Asking the healer: about containers that ended badly, and about those that probes condemn.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use mainstay_runtime::{ContainerState, ContainerStatus};

use super::{
    Tools,
    memory::Memory,
    plan,
    view::ContainerView,
    world::{IDENTITY, World},
};
use crate::{
    events::Kind,
    heal::{Cause, Leave, Rung},
    hook::full_name,
    probe::ProbeKind,
};

/// Brings the memory up to date with what is seen. Returns whether somebody waits for leave.
pub async fn judge(tools: &Tools, pod: &Pod, world: &World, memory: &mut Memory) -> bool {
    let mut waits = false;
    for view in world.pod.containers() {
        let Some(seen) = world.newest(&view.name) else { continue };
        match &seen.state {
            ContainerState::Exited { exit_code, oom, .. } => {
                ended(tools, pod, world, view, seen, (*exit_code, *oom), memory).await;
            }
            ContainerState::Running { .. } => waits |= condemned(tools, pod, world, view, seen, memory).await,
            ContainerState::Created | ContainerState::Unknown => {}
        }
    }
    waits
}

async fn ended(
    tools: &Tools,
    pod: &Pod,
    world: &World,
    view: &ContainerView,
    seen: &ContainerStatus,
    (exit_code, oom): (i32, bool),
    memory: &mut Memory,
) {
    let own = memory.containers.entry(view.name.clone()).or_default();
    if own.judged.as_ref().is_some_and(|(attempt, _)| *attempt == seen.attempt) {
        return;
    }
    // Stopped for a change: the next one starts with a clean slate.
    let changed = seen.annotations.get(IDENTITY).is_some_and(|made_from| *made_from != view.identity);
    if changed || own.condoned == Some(seen.attempt) {
        own.forgiven = seen.attempt + 1;
        own.judged = Some((seen.attempt, Rung::Restart));
        return;
    }
    let unhealthy = own.condemned.as_ref().is_some_and(|(attempt, _)| *attempt == seen.attempt);
    if exit_code == 0 && !unhealthy || !world.pod.restart.restarts(view.role, exit_code) {
        own.judged = Some((seen.attempt, Rung::Restart));
        return;
    }
    let cause = match (unhealthy, oom) {
        (true, _) => Cause::Unhealthy { why: own.illness.clone().unwrap_or_default() },
        (false, true) => Cause::OutOfMemory,
        (false, false) => Cause::Crashed { exit_code },
    };
    let rung = tools.healer.failed(pod, &view.name, seen.attempt, &cause).await;
    match &rung {
        Rung::Restart => {
            if plan::restart_at(world, view, seen).is_some_and(|at| at > Timestamp::now()) {
                let text = format!("Back-off restarting failed container {} in pod {}", view.name, full_name(pod));
                tools.events.container(pod, &view.name, Kind::Warning, "BackOff", text);
            }
        }
        Rung::Recreate { why } => memory.recreate = Some(why.clone()),
        Rung::Move { why } => memory.moving = Some(why.clone()),
    }
    let own = memory.containers.entry(view.name.clone()).or_default();
    own.judged = Some((seen.attempt, rung));
}

async fn condemned(
    tools: &Tools,
    pod: &Pod,
    world: &World,
    view: &ContainerView,
    seen: &ContainerStatus,
    memory: &mut Memory,
) -> bool {
    let own = memory.containers.entry(view.name.clone()).or_default();
    let Some(failed) = world.results(&seen.id).failed else {
        own.condemned = None;
        return false;
    };
    match &own.condemned {
        Some((attempt, Leave::Granted)) if *attempt == seen.attempt => return false,
        Some(_) | None => {}
    }
    // One that never came up serves nobody, so nobody misses it: only liveness draws on the set's budget.
    let leave = match failed.probe {
        ProbeKind::Liveness => tools.healer.may_kill(pod, &view.name, seen.attempt).await,
        ProbeKind::Startup | ProbeKind::Readiness => Leave::Granted,
    };
    let kept = matches!(leave, Leave::Kept { .. });
    let own = memory.containers.entry(view.name.clone()).or_default();
    if let Leave::Kept { why } = &leave
        && !own.condemned.as_ref().is_some_and(|(_, leave)| matches!(leave, Leave::Kept { .. }))
    {
        let message = format!("Container {} is kept running although unhealthy: {why}", view.name);
        tools.events.container(pod, &view.name, Kind::Warning, "Degraded", message);
    }
    own.illness = Some(failed.why);
    own.condemned = Some((seen.attempt, leave));
    kept
}
