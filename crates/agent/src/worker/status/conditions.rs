//! The pod's conditions. A condition's transition time changes only with its status.

use k8s_openapi::{
    api::core::v1::{ContainerStatus, PodCondition, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};
use mainstay_api::config_versions::{CONTAINERS_CONDITION, ConfigVersions, FILES_CONDITION};

use super::dependencies;
use super::{Facts, is_terminal, whole_second};
use crate::{
    heal::RestartPermission,
    spec::MADE_WITH,
    worker::{
        plan::restart_all_cause,
        resize::PendingResize,
        retry_state::ProbeFailure,
        view::{EndingWhy, Role},
        world::World,
    },
};

pub const RESIZE_PENDING: &str = "PodResizePending";
pub const RESIZE_IN_PROGRESS: &str = "PodResizeInProgress";

/// Set when a container is kept running although a probe condemns it.
pub const DEGRADED: &str = "Degraded";

pub struct Finding {
    pub kind: &'static str,
    pub holds: bool,
    pub reason: Option<&'static str>,
    pub message: Option<String>,
}

impl Finding {
    pub fn plain(kind: &'static str, holds: bool) -> Self {
        Self { kind, holds, reason: None, message: None }
    }
}

/// Ours only: those of others are theirs to keep.
pub fn conditions(world: &World, facts: &Facts<'_>, status: &PodStatus) -> Vec<PodCondition> {
    let finished = is_terminal(status.phase.as_deref().unwrap_or_default());
    let succeeded = status.phase.as_deref() == Some("Succeeded");
    let ready_containers = containers_ready(status, succeeded, finished);
    let mut findings = vec![
        ready_to_start(world, finished),
        initialized(world, status, succeeded),
        ready(world, facts, &ready_containers, succeeded, finished),
        ready_containers,
        Finding::plain("PodScheduled", true),
    ];
    findings.extend(degraded(world, facts));
    findings.extend(resize(world));
    findings.extend(dependencies::finding(world, facts));
    findings.extend(config_versions(world));
    findings.extend(container_versions(world, facts));
    findings.extend(all_containers_restarting(world, succeeded, finished));
    if let Some(EndingWhy::Failed { reason, message }) = world.pod.ending.as_ref().map(|e| &e.why)
        && reason == "Evicted"
    {
        findings.push(Finding {
            kind: "DisruptionTarget",
            holds: true,
            reason: Some("TerminationByKubelet"),
            message: Some(message.clone()),
        });
    }
    findings.into_iter().map(|finding| condition(finding, facts)).collect()
}

/// Whether the pod has its sandbox; while its volumes keep it from getting one, which and why.
fn ready_to_start(world: &World, finished: bool) -> Finding {
    let plain = Finding::plain("PodReadyToStartContainers", world.sandbox().is_some_and(|sandbox| sandbox.ready));
    let obstacle =
        world.retry_state.volumes.obstacle().filter(|_| !plain.holds && !finished && world.pod.ending.is_none());
    match obstacle {
        Some(message) => Finding { reason: Some("FailedMount"), message: Some(message.to_owned()), ..plain },
        None => plain,
    }
}

/// Of which versions the files of the pod are: whoever gave it others knows from this that they are there.
fn config_versions(world: &World) -> Option<Finding> {
    let shown = &world.config_versions;
    let message = Some(shown.to_string());
    (!shown.is_empty()).then_some(Finding { kind: FILES_CONDITION, holds: true, reason: None, message })
}

/// With which versions all containers were made that there are, as far as they agree: what is in their environment, which files do not say.
fn container_versions(world: &World, facts: &Facts<'_>) -> Option<Finding> {
    let made_with = |view: &crate::worker::view::ContainerView| {
        let made = world.newest(&view.name)?;
        Some(made.annotations.get(MADE_WITH).and_then(|text| text.parse::<ConfigVersions>().ok()).unwrap_or_default())
    };
    let common = world.pod.main.iter().filter_map(made_with).reduce(|mut common, other| {
        common.copies.retain(|source, copy| other.copies.get(source) == Some(copy));
        common
    })?;
    let message = Some(common.to_string());
    let was_reported = facts.previous.conditions.iter().flatten().any(|own| own.type_ == CONTAINERS_CONDITION);
    (was_reported || world.pod.has_config_versions || !common.is_empty()).then_some(Finding {
        kind: CONTAINERS_CONDITION,
        holds: true,
        reason: None,
        message,
    })
}

fn condition(finding: Finding, facts: &Facts<'_>) -> PodCondition {
    let status = if finding.holds { "True" } else { "False" };
    let before = facts.previous.conditions.iter().flatten().find(|c| c.type_ == finding.kind);
    let since = before.filter(|c| c.status == status).and_then(|c| c.last_transition_time.clone());
    PodCondition {
        type_: finding.kind.into(),
        status: status.into(),
        reason: finding.reason.map(str::to_owned),
        message: finding.message,
        last_transition_time: since.or(Some(Time(whole_second(facts.now)))),
        observed_generation: facts.pod.metadata.generation,
        ..PodCondition::default()
    }
}

/// Upstream's conditions of a resize; neither is there when nothing is left to do.
fn resize(world: &World) -> Option<Finding> {
    if world.pod.ending.is_some() || world.pod.finished {
        return None;
    }
    if let Some(PendingResize { reason, message }) = &world.pending_resize {
        return Some(Finding {
            kind: RESIZE_PENDING,
            holds: true,
            reason: Some(*reason),
            message: Some(message.clone()),
        });
    }
    let outdated = world.pod.containers().find(|view| world.outdated_resources(view).is_some())?;
    let trouble = world.retry_state.container(&outdated.name).failure;
    Some(Finding {
        kind: RESIZE_IN_PROGRESS,
        holds: true,
        reason: trouble.as_ref().map(|_| "Error"),
        message: trouble.map(|trouble| trouble.message),
    })
}

/// Of pods that a container's end can restart as a whole.
fn all_containers_restarting(world: &World, succeeded: bool, finished: bool) -> Option<Finding> {
    if !world.pod.may_restart_all() {
        return None;
    }
    let reason = match (succeeded, finished) {
        (true, _) => Some("PodCompleted"),
        (false, true) => Some("PodFailed"),
        (false, false) => None,
    };
    let holds = reason.is_none() && world.pod.ending.is_none() && restart_all_cause(world).is_some();
    Some(Finding { kind: "AllContainersRestarting", holds, reason, message: None })
}

fn initialized(world: &World, status: &PodStatus, succeeded: bool) -> Finding {
    let done = |(view, status): (&crate::worker::view::ContainerView, &ContainerStatus)| match view.role {
        Role::Sidecar => status.started == Some(true),
        Role::Init | Role::Main | Role::Ephemeral => status.ready,
    };
    let statuses = status.init_container_statuses.as_deref().unwrap_or_default();
    let missing: Vec<&str> =
        world.pod.init.iter().zip(statuses).filter(|pair| !done(*pair)).map(|(view, _)| view.name.as_str()).collect();
    if missing.is_empty() || succeeded || world.is_initialized() {
        return Finding::plain("Initialized", true);
    }
    Finding {
        kind: "Initialized",
        holds: false,
        reason: Some("ContainersNotInitialized"),
        message: Some(format!("containers with incomplete status: [{}]", missing.join(" "))),
    }
}

fn containers_ready(status: &PodStatus, succeeded: bool, finished: bool) -> Finding {
    let kind = "ContainersReady";
    if succeeded {
        return Finding { kind, holds: false, reason: Some("PodCompleted"), message: None };
    }
    if finished {
        return Finding { kind, holds: false, reason: Some("PodFailed"), message: None };
    }
    let sidecars = status.init_container_statuses.iter().flatten().filter(|s| {
        // An init container that has succeeded is ready; one that has not keeps the pod's own from starting.
        s.state.as_ref().is_some_and(|state| state.running.is_some()) && s.started == Some(true)
    });
    let unready: Vec<&str> = status
        .container_statuses
        .iter()
        .flatten()
        .chain(sidecars)
        .filter(|s| !s.ready)
        .map(|s| s.name.as_str())
        .collect();
    if unready.is_empty() {
        return Finding::plain(kind, true);
    }
    let message = format!("containers with unready status: [{}]", unready.join(" "));
    Finding { kind, holds: false, reason: Some("ContainersNotReady"), message: Some(message) }
}

fn ready(world: &World, facts: &Facts<'_>, containers: &Finding, succeeded: bool, finished: bool) -> Finding {
    let kind = "Ready";
    if !containers.holds || succeeded || finished {
        return Finding { kind, holds: false, reason: containers.reason, message: containers.message.clone() };
    }
    if let Some(missing) = world.needs.message_after_start() {
        let message = Some(format!("waiting for {missing}"));
        return Finding { kind, holds: false, reason: Some("DependenciesNotMet"), message };
    }
    let gates = facts.pod.spec.iter().flat_map(|spec| spec.readiness_gates.iter().flatten());
    let held = facts.pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let held: Vec<_> = held.collect();
    let closed: Vec<String> = gates
        .filter(|gate| !held.iter().any(|c| c.type_ == gate.condition_type && c.status == "True"))
        .map(|gate| match held.iter().find(|c| c.type_ == gate.condition_type) {
            Some(c) => format!("the status of pod readiness gate {:?} is not \"True\", but {}", c.type_, c.status),
            None => format!("corresponding condition of pod readiness gate {:?} does not exist.", gate.condition_type),
        })
        .collect();
    if closed.is_empty() {
        return Finding::plain(kind, true);
    }
    Finding { kind, holds: false, reason: Some("ReadinessGatesNotReady"), message: Some(closed.join(", ")) }
}

fn degraded(world: &World, facts: &Facts<'_>) -> Option<Finding> {
    let retained = world.pod.containers().find_map(|view| {
        let ProbeFailure { attempt, permission, .. } = world.retry_state.container(&view.name).probe_failure?;
        let (cause, reason) = match permission {
            RestartPermission::Denied { reason, .. } => ("RestartBudget", reason),
            RestartPermission::Withheld { reason } => ("DependenciesNotMet", reason),
            RestartPermission::Granted | RestartPermission::NotRequested => return None,
        };
        let is_current = world.newest(&view.name).is_some_and(|c| c.attempt == attempt);
        is_current.then(|| (cause, format!("container {}: {reason}", view.name)))
    });
    let was = facts.previous.conditions.iter().flatten().any(|c| c.type_ == DEGRADED);
    match retained {
        Some((cause, message)) => {
            Some(Finding { kind: DEGRADED, holds: true, reason: Some(cause), message: Some(message) })
        }
        None if was => Some(Finding::plain(DEGRADED, false)),
        None => None,
    }
}
