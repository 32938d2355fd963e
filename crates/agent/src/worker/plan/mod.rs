//! Plans the next actions for a pod from a snapshot and the time. Pure.
//!
//! Every turn derives the next step from what is there; no step counter is kept, so a crash of the agent
//! between any two steps changes nothing.

mod healing;
mod restart_all;
mod start;
mod stop;
#[cfg(test)]
mod tests;

pub use restart_all::restart_all_cause;
pub use start::restart_at;

use std::time::Duration;

use jiff::Timestamp;
use mainstay_runtime::{ContainerId, ContainerState, ContainerStatus, SandboxId};

use super::{
    retry_state::Operation,
    view::{ContainerView, Ending, EndingWhy, Role},
    world::World,
};
use crate::{
    heal::{HealingDecision, Rung},
    probe::ProbeKind,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Volumes, then the devices of claims.
    PrepareVolumes,
    CreateSandbox {
        attempt: u32,
    },
    /// Fetch the image of a container that may not start yet.
    PullImage {
        container: String,
    },
    /// Fetch the image, make the container, start it, run its first hook.
    Start {
        container: String,
        attempt: u32,
    },
    Stop {
        container: String,
        id: ContainerId,
        grace: Duration,
        why: StopWhy,
    },
    Resize {
        container: String,
        id: ContainerId,
    },
    /// Containers that have ended and are not the last of their name, or were made and never started.
    Remove {
        ids: Vec<ContainerId>,
    },
    RemoveSandboxes {
        ids: Vec<SandboxId>,
        why: &'static str,
    },
    /// The devices of claims, then volumes.
    ReleaseVolumes,
    /// Nothing is left: take the pod out of the API if it is to go.
    RemoveFromApi,
    /// Have the pod's owner make another elsewhere.
    Move {
        why: String,
    },
    /// Ask for a slot of the restart budget, for a container whose liveness failed.
    RequestRestart,
    /// Ask for the turn to be stopped, in a set of which only one pod is at a time.
    RequestTurn,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopWhy {
    PodEnds,
    /// What it should be made from has changed.
    Changed,
    /// This probe has failed as often as it may.
    Unhealthy(ProbeKind),
    /// Resized, and its policy wants a restart for that.
    Resized,
    PodRecreated(String),
    /// The runtime lost track of it.
    Lost,
    /// The end of this container has all containers of the pod started anew.
    AllRestart {
        cause: String,
    },
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub actions: Vec<Action>,
    /// What was decided about failures; the actions take it into account already.
    pub healing: Vec<HealingDecision>,
    pub wake_at: Option<Timestamp>,
    /// Nothing is left to be done for this pod, ever.
    pub over: bool,
}

impl Plan {
    fn wake(&mut self, at: Timestamp) {
        self.wake_at = Some(self.wake_at.map_or(at, |w| w.min(at)));
    }

    fn act(&mut self, action: Action) {
        self.actions.push(action);
    }
}

/// What kind of life the pod is in.
enum Life<'a> {
    Wanted,
    Ending(Ending),
    /// Ends here and begins again here.
    Recreated {
        why: String,
    },
    /// All containers end and start anew, from the first init container on; sandbox and volumes stay.
    AllRestart {
        cause: &'a ContainerStatus,
    },
    /// All its work is done, one way or the other.
    Finished,
}

pub fn plan(world: &World, now: Timestamp) -> Plan {
    let mut plan = Plan { healing: healing::decide(world, now), ..Plan::default() };
    let mut with_decisions;
    let mut world = world;
    if !plan.healing.is_empty() {
        with_decisions = world.clone();
        plan.healing.iter().for_each(|decision| with_decisions.retry_state.apply(decision));
        world = &with_decisions;
    }
    match life(world, now) {
        Life::Wanted => start::plan(world, now, &mut plan),
        Life::Ending(ending) => stop::plan(world, &ending, now, &mut plan),
        Life::Recreated { why } => stop::recreate(world, &why, now, &mut plan),
        Life::AllRestart { cause } => restart_all::plan(world, cause, now, &mut plan),
        Life::Finished => stop::finish(world, now, &mut plan),
    }
    cleanup(world, now, &mut plan);
    plan
}

fn life(world: &World, now: Timestamp) -> Life<'_> {
    if let Some(ending) = &world.pod.ending {
        return Life::Ending(ending.clone());
    }
    if world.pod.finished || outcome(world).is_some() {
        return Life::Finished;
    }
    if let Some(why) = &world.retry_state.recreate
        && pause_is_over(world, now)
    {
        return Life::Recreated { why: why.clone() };
    }
    if world.sandbox().is_some_and(|sandbox| !sandbox.ready)
        && !world.retry_state.in_progress.contains(&Operation::Sandbox)
    {
        return Life::Recreated { why: "Pod sandbox changed, it will be killed and re-created.".into() };
    }
    match restart_all_cause(world) {
        Some(cause) => Life::AllRestart { cause },
        None => Life::Wanted,
    }
}

/// Beginning anew is no way around the pause that a restart would have to wait for.
fn pause_is_over(world: &World, now: Timestamp) -> bool {
    world.pod.containers().all(|wanted| {
        let gave_up = matches!(world.retry_state.container(&wanted.name).decided, Some((_, Rung::Recreate { .. })));
        let ended = world.newest(&wanted.name).filter(|_| gave_up);
        ended.and_then(|observed| start::restart_at(world, wanted, observed)).is_none_or(|at| at <= now)
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Succeeded,
    Failed,
}

/// How the pod's work ended, if it ended for good.
pub fn outcome(world: &World) -> Option<Outcome> {
    if restart_all_cause(world).is_some() { None } else { outcome_of_containers(world) }
}

/// As [`outcome`], but for ends that have all containers started anew.
fn outcome_of_containers(world: &World) -> Option<Outcome> {
    let code = |name: &str| match &world.newest(name)?.state {
        state if state.was_fenced() => None,
        ContainerState::Exited { exit_code, .. } => Some(*exit_code),
        ContainerState::Created | ContainerState::Running { .. } | ContainerState::Unknown => None,
    };
    let gave_up = |c: &ContainerView| code(&c.name).is_some_and(|code| code != 0 && !world.pod.restarts(c, code));
    if world.pod.init.iter().filter(|c| c.role == Role::Init).any(gave_up) {
        return Some(Outcome::Failed);
    }
    let mut worst = Outcome::Succeeded;
    for container in &world.pod.main {
        let code = code(&container.name)?;
        let changed = world.newest(&container.name).is_some_and(|observed| !is_current(observed, container));
        if world.pod.restarts(container, code) || changed {
            return None;
        }
        if code != 0 {
            worst = Outcome::Failed;
        }
    }
    (!world.pod.main.is_empty()).then_some(worst)
}

fn is_current(observed: &ContainerStatus, wanted: &ContainerView) -> bool {
    observed.annotations.get(super::world::IDENTITY).is_none_or(|made_from| *made_from == wanted.identity)
}

/// Removes what is left over: containers that ended before the last of their name, older sandboxes.
fn cleanup(world: &World, now: Timestamp, plan: &mut Plan) {
    let old = world.containers.values().flat_map(|list| list.iter().skip(1));
    let ids: Vec<ContainerId> = old.filter(|c| !c.state.is_running()).map(|c| c.id.clone()).collect();
    if !ids.is_empty() {
        remove(world, Action::Remove { ids }, now, plan);
    }
    let older: Vec<SandboxId> = world.sandboxes.iter().skip(1).map(|s| s.id.clone()).collect();
    if !older.is_empty() {
        remove(world, Action::RemoveSandboxes { ids: older, why: "left over" }, now, plan);
    }
}

/// One removal at a time, and not at once again after one that failed.
fn remove(world: &World, action: Action, now: Timestamp, plan: &mut Plan) {
    let planned = |a: &Action| matches!(a, Action::Remove { .. } | Action::RemoveSandboxes { .. });
    if world.retry_state.in_progress.contains(&Operation::Cleanup) || plan.actions.iter().any(planned) {
        return;
    }
    match world.retry_state.cleanup.due(now) {
        Ok(()) | Err(None) => plan.act(action),
        Err(Some(at)) => plan.wake(at),
    }
}

impl EndingWhy {
    fn leaves_the_api(&self) -> bool {
        match self {
            Self::Deleted | Self::Unwanted => true,
            Self::Failed { .. } => false,
        }
    }
}
