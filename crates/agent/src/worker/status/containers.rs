//! The ContainerStatus of each container, with upstream's reasons.

use std::time::Duration;

use k8s_openapi::{
    api::core::v1::{
        Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
        ContainerStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use mainstay_runtime as runtime;

use super::{Facts, Lists, restarts, whole_second};
use crate::container_lists::as_container;
use crate::fence::CUT_OFF;
use crate::worker::{
    plan::restart_at,
    retry_state::{ContainerRetryState, FailureKind},
    view::{ContainerView, Role},
    world::World,
};

pub fn statuses(world: &World, facts: &Facts<'_>) -> Lists {
    let spec = facts.pod.spec.clone().unwrap_or_default();
    let previous = |list: &Option<Vec<ContainerStatus>>, name: &str| -> Option<ContainerStatus> {
        list.iter().flatten().find(|status| status.name == name).cloned()
    };
    let ephemeral: Vec<Container> = spec.ephemeral_containers.iter().flatten().map(as_container).collect();
    let list = |views: &[ContainerView], containers: &[Container], before: &Option<Vec<ContainerStatus>>| {
        let of = |c: &Container| views.iter().find(|view| view.name == c.name);
        let status = |c: &Container| Some(container_status(world, facts, of(c)?, c, previous(before, &c.name)));
        containers.iter().filter_map(status).collect::<Vec<_>>()
    };
    Lists {
        init: list(
            &world.pod.init,
            spec.init_containers.as_deref().unwrap_or_default(),
            &facts.previous.init_container_statuses,
        ),
        main: list(&world.pod.main, &spec.containers, &facts.previous.container_statuses),
        ephemeral: list(&world.pod.ephemeral, &ephemeral, &facts.previous.ephemeral_container_statuses),
    }
}

fn container_status(
    world: &World,
    facts: &Facts<'_>,
    view: &ContainerView,
    container: &Container,
    previous: Option<ContainerStatus>,
) -> ContainerStatus {
    // One that was made and never started does not count.
    let observed = world.newest(&view.name).filter(|observed| observed.state != runtime::ContainerState::Created);
    let Some(observed) = observed else { return absent(world, view, container, previous) };
    let retry_state = world.retry_state.container(&view.name);
    let results = world.results(&observed.id);
    let running = observed.state.is_running();
    let state = state(facts, observed);
    let before = last_state(world, facts, view, previous.as_ref(), observed.attempt);
    let mut status = ContainerStatus {
        name: view.name.clone(),
        image: observed.image.clone(),
        image_id: observed.image_id.clone(),
        container_id: Some(format!("{}://{}", facts.runtime, observed.id)),
        restart_count: i32::try_from(observed.attempt).unwrap_or(i32::MAX),
        started: Some(running && results.started),
        ready: match view.role {
            Role::Init => matches!(observed.state, runtime::ContainerState::Exited { exit_code: 0, .. }),
            Role::Sidecar | Role::Main => running && results.ready,
            Role::Ephemeral => false,
        },
        state: Some(state.clone()),
        last_state: before,
        resources: container.resources.clone().filter(|_| running),
        allocated_resources: container.resources.as_ref().and_then(|r| r.requests.clone()).filter(|_| running),
        ..ContainerStatus::default()
    };
    if let runtime::ContainerState::Exited { exit_code, .. } = observed.state
        && !world.pod.finished
        && (restarts(world, view, exit_code) || observed.state.was_fenced() && world.pod.ending.is_none())
    {
        let waiting = waiting(world, view, &retry_state)
            .or_else(|| crash_loop(world, facts, view, observed))
            .filter(|_| !world.retry_state.is_in_progress(&view.name) || retry_state.failure.is_some());
        if let Some(waiting) = waiting {
            status.last_state = Some(state);
            status.state = Some(ContainerState { waiting: Some(waiting), ..ContainerState::default() });
        }
    }
    status
}

/// Nothing of it is there: not made yet, or gone with what held it.
fn absent(
    world: &World,
    view: &ContainerView,
    container: &Container,
    previous: Option<ContainerStatus>,
) -> ContainerStatus {
    let retry_state = world.retry_state.container(&view.name);
    if let Some(mut previous) = previous.filter(|p| p.container_id.is_some()) {
        let gone_for_good = world.pod.ending.is_some() || world.pod.finished;
        let waits = previous.state.as_ref().is_none_or(|state| state.terminated.is_none());
        previous.ready = previous.ready && view.role == Role::Init;
        previous.started = Some(false);
        if gone_for_good && waits {
            // It ended unseen: nobody can tell how.
            previous.state = Some(ContainerState {
                terminated: Some(ContainerStateTerminated {
                    exit_code: 137,
                    reason: Some("ContainerStatusUnknown".into()),
                    message: Some("The container could not be located when the pod was terminated".into()),
                    container_id: previous.container_id.clone(),
                    ..ContainerStateTerminated::default()
                }),
                ..ContainerState::default()
            });
        } else if !gone_for_good && view.role != Role::Init {
            if let Some(state) = previous.state.take().filter(|state| state.terminated.is_some()) {
                previous.last_state = Some(state);
            }
            let waiting = waiting(world, view, &retry_state).unwrap_or_else(|| creating(world));
            previous.state = Some(ContainerState { waiting: Some(waiting), ..ContainerState::default() });
        }
        return previous;
    }
    let waiting = waiting(world, view, &retry_state).unwrap_or_else(|| creating(world));
    ContainerStatus {
        name: view.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        started: Some(false),
        state: Some(ContainerState { waiting: Some(waiting), ..ContainerState::default() }),
        ..ContainerStatus::default()
    }
}

fn creating(world: &World) -> ContainerStateWaiting {
    if world.sandbox().is_some_and(|sandbox| sandbox.ready)
        && let Some(missing) = world.waits_for()
    {
        let message = Some(format!("waiting for {missing}"));
        return ContainerStateWaiting { reason: Some("WaitingForDependencies".into()), message };
    }
    let initializing = !world.pod.init.is_empty() && !world.is_initialized();
    let reason = if initializing { "PodInitializing" } else { "ContainerCreating" };
    ContainerStateWaiting { reason: Some(reason.into()), message: None }
}

fn waiting(world: &World, view: &ContainerView, retry_state: &ContainerRetryState) -> Option<ContainerStateWaiting> {
    if world.is_cut_off && world.pod.ending.is_none() {
        let message = "this node has no contact with the cluster, which may run the pod elsewhere".to_owned();
        return Some(ContainerStateWaiting { reason: Some(CUT_OFF.into()), message: Some(message) });
    }
    let trouble = retry_state.failure.as_ref().filter(|_| world.pod.ending.is_none())?;
    let (reason, message) = match trouble.kind {
        FailureKind::Pull if trouble.failures <= 1 => ("ErrImagePull", trouble.message.clone()),
        FailureKind::Pull => {
            ("ImagePullBackOff", format!("Back-off pulling image {:?}: ErrImagePull: {}", view.image, trouble.message))
        }
        FailureKind::InvalidImageName => ("InvalidImageName", trouble.message.clone()),
        FailureKind::NeverPull => ("ErrImageNeverPull", trouble.message.clone()),
        FailureKind::Config => ("CreateContainerConfigError", trouble.message.clone()),
        FailureKind::Create => ("CreateContainerError", trouble.message.clone()),
        FailureKind::Run => ("RunContainerError", trouble.message.clone()),
        FailureKind::PendingVolume | FailureKind::Devices | FailureKind::Other => return None,
    };
    Some(ContainerStateWaiting { reason: Some(reason.into()), message: Some(message) })
}

fn crash_loop(
    world: &World,
    facts: &Facts<'_>,
    view: &ContainerView,
    observed: &runtime::ContainerStatus,
) -> Option<ContainerStateWaiting> {
    let at = restart_at(world, view, observed).filter(|_| !observed.state.was_fenced())?;
    let forgiven = world.retry_state.container(&view.name).forgiven;
    let pause = world.restart_backoff.delay(observed.attempt.saturating_sub(forgiven));
    if facts.now >= at || pause == Duration::ZERO {
        return None;
    }
    let pod = &facts.pod.metadata;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let message = format!(
        "back-off {}s restarting failed container={} pod={}_{}({})",
        pause.as_secs(),
        view.name,
        text(&pod.name),
        text(&pod.namespace),
        text(&pod.uid)
    );
    Some(ContainerStateWaiting { reason: Some("CrashLoopBackOff".into()), message: Some(message) })
}

fn last_state(
    world: &World,
    facts: &Facts<'_>,
    view: &ContainerView,
    previous: Option<&ContainerStatus>,
    attempt: u32,
) -> Option<ContainerState> {
    let before = world.containers.get(&view.name).into_iter().flatten().find(|c| c.attempt < attempt);
    if let Some(before) = before.filter(|c| c.state.has_ended()) {
        return Some(state(facts, before));
    }
    let previous = previous?;
    let same = u32::try_from(previous.restart_count).is_ok_and(|count| count == attempt);
    let ended = |state: &Option<ContainerState>| state.clone().filter(|state| state.terminated.is_some());
    if same { ended(&previous.last_state) } else { ended(&previous.state).or_else(|| ended(&previous.last_state)) }
}

fn state(facts: &Facts<'_>, observed: &runtime::ContainerStatus) -> ContainerState {
    let time = |at| Some(Time(whole_second(at)));
    match &observed.state {
        runtime::ContainerState::Created => ContainerState {
            waiting: Some(ContainerStateWaiting { reason: Some("ContainerCreating".into()), message: None }),
            ..ContainerState::default()
        },
        runtime::ContainerState::Unknown => ContainerState {
            waiting: Some(ContainerStateWaiting {
                reason: Some("ContainerStatusUnknown".into()),
                message: Some("the runtime has lost track of the container".into()),
            }),
            ..ContainerState::default()
        },
        runtime::ContainerState::Running { started_at } => ContainerState {
            running: Some(ContainerStateRunning { started_at: time(*started_at) }),
            ..ContainerState::default()
        },
        runtime::ContainerState::Exited { started_at, finished_at, exit_code, signal: _, oom, message } => {
            let reason = match (oom, started_at, exit_code) {
                _ if observed.state.was_fenced() => CUT_OFF,
                (true, ..) => "OOMKilled",
                (false, None, _) => "StartError",
                (false, Some(_), 0) => "Completed",
                (false, Some(_), _) => "Error",
            };
            let own_message = facts.messages.get(&observed.id).filter(|own_message| !own_message.is_empty());
            let message = own_message.cloned().or_else(|| (!message.is_empty()).then(|| message.clone()));
            ContainerState {
                terminated: Some(ContainerStateTerminated {
                    exit_code: *exit_code,
                    reason: Some(reason.into()),
                    message,
                    started_at: started_at.and_then(time),
                    finished_at: time(*finished_at),
                    container_id: Some(format!("{}://{}", facts.runtime, observed.id)),
                    ..ContainerStateTerminated::default()
                }),
                ..ContainerState::default()
            }
        }
    }
}
