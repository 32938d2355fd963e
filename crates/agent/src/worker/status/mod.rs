//! Computes the PodStatus: phase, conditions, containers. Pure.

pub mod conditions;
mod containers;
pub mod dependencies;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, net::IpAddr};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ContainerState, ContainerStatus, HostIP, Pod, PodIP, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};
use mainstay_api::wellknown::NODE_NOT_READY;
use mainstay_runtime::ContainerId;

use super::{
    plan::{Outcome, outcome},
    view::{ContainerView, EndingWhy, Role},
    world::World,
};

/// What the status is made of beside the world.
pub struct Facts<'a> {
    pub pod: &'a Pod,
    /// What was reported last, or what the API holds.
    pub previous: &'a PodStatus,
    pub host_addresses: &'a [IpAddr],
    /// As in `containerID: mainstay://…`.
    pub runtime: &'a str,
    /// Termination messages of containers.
    pub messages: &'a BTreeMap<ContainerId, String>,
    pub now: Timestamp,
}

pub fn status(world: &World, facts: &Facts<'_>) -> PodStatus {
    let host_network = facts.pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true));
    let addresses: Vec<IpAddr> = match world.sandbox() {
        Some(_) if host_network => facts.host_addresses.to_vec(),
        Some(sandbox) => sandbox.addresses.clone(),
        None => vec![],
    };
    let mut lists = containers::statuses(world, facts);
    let phase = phase(world, &lists, facts.previous);
    if is_terminal(phase) && !lists.all().any(has_begun) {
        // As upstream reports a pod that was rejected: nothing of it waits any more.
        lists = Lists::default();
    }
    let mut status = PodStatus {
        phase: Some(phase.into()),
        host_ip: facts.host_addresses.first().map(IpAddr::to_string),
        host_ips: non_empty(facts.host_addresses.iter().map(|ip| HostIP { ip: ip.to_string() }).collect()),
        pod_ip: addresses.first().map(IpAddr::to_string),
        pod_ips: non_empty(addresses.iter().map(|ip| PodIP { ip: ip.to_string() }).collect()),
        start_time: facts.previous.start_time.clone().or(Some(Time(whole_second(facts.now)))),
        qos_class: facts.previous.qos_class.clone(),
        container_statuses: non_empty(lists.main),
        init_container_statuses: non_empty(lists.init),
        ephemeral_container_statuses: non_empty(lists.ephemeral),
        observed_generation: facts.pod.metadata.generation,
        ..PodStatus::default()
    };
    if let Some(EndingWhy::Failed { reason, message }) = world.pod.ending.as_ref().map(|ending| &ending.why) {
        status.reason = Some(reason.clone());
        status.message = Some(message.clone());
    } else if is_terminal(phase) {
        status.reason = facts.previous.reason.clone();
        status.message = facts.previous.message.clone();
    }
    status.conditions = Some(conditions::conditions(world, facts, &status));
    status
}

/// Whether the server said in our place that the pod is not ready, because it did not hear this node: that is over, since
/// we are heard again.
pub fn is_overruled(api: &PodStatus) -> bool {
    let mut conditions = api.conditions.iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.reason.as_deref() == Some(NODE_NOT_READY))
}

/// What was reported last, but in a terminal phase if the API has one: whoever set it, a pod never leaves it.
pub fn keep_terminal_phase(reported: PodStatus, api: &PodStatus) -> PodStatus {
    let terminal = |status: &PodStatus| status.phase.as_deref().is_some_and(is_terminal);
    if terminal(&reported) || !terminal(api) {
        return reported;
    }
    PodStatus { phase: api.phase.clone(), reason: api.reason.clone(), message: api.message.clone(), ..reported }
}

fn non_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

/// Times in the API have no fraction.
pub fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

pub use mainstay_api::pod::is_terminal_phase as is_terminal;

/// The statuses of a pod's containers, in the order of its spec.
#[derive(Default)]
pub struct Lists {
    pub init: Vec<ContainerStatus>,
    pub main: Vec<ContainerStatus>,
    pub ephemeral: Vec<ContainerStatus>,
}

impl Lists {
    fn all(&self) -> impl Iterator<Item = &ContainerStatus> {
        [&self.init, &self.main, &self.ephemeral].into_iter().flatten()
    }
}

fn is_alive(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|state| state.running.is_some())
}

/// Whether a container runs, or ran before.
fn has_begun(status: &ContainerStatus) -> bool {
    let terminated = |state: &Option<ContainerState>| state.as_ref().is_some_and(|state| state.terminated.is_some());
    is_alive(status) || terminated(&status.state) || terminated(&status.last_state)
}

fn phase(world: &World, lists: &Lists, previous: &PodStatus) -> &'static str {
    match previous.phase.as_deref() {
        Some("Succeeded") => return "Succeeded",
        Some("Failed") => return "Failed",
        Some(_) | None => {}
    }
    let any_alive = lists.all().any(is_alive);
    match &world.pod.ending {
        Some(ending) if !any_alive => match (&ending.why, last_words(lists)) {
            (EndingWhy::Failed { .. }, _) => return "Failed",
            (EndingWhy::Deleted | EndingWhy::Unwanted, Some(outcome)) => return name(outcome),
            (EndingWhy::Deleted | EndingWhy::Unwanted, None) => {}
        },
        Some(_) => {}
        None => {
            if let (Some(outcome), false) = (outcome(world), any_alive) {
                return name(outcome);
            }
        }
    }
    let waits_for_init = !world.is_initialized()
        && world.pod.init.iter().zip(&lists.init).any(|(view, status)| match view.role {
            Role::Init | Role::Main | Role::Ephemeral => {
                status.state.as_ref().and_then(|s| s.terminated.as_ref()).is_none_or(|end| end.exit_code != 0)
            }
            Role::Sidecar => status.started != Some(true),
        });
    if previous.phase.as_deref() == Some("Running") && world.pod.may_restart_all() {
        return "Running"; // init containers run again in between
    }
    if waits_for_init || lists.main.is_empty() || !lists.main.iter().all(has_begun) { "Pending" } else { "Running" }
}

fn name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Succeeded => "Succeeded",
        Outcome::Failed => "Failed",
    }
}

/// How a pod that was asked to stop ended; unknown if some container never did.
fn last_words(lists: &Lists) -> Option<Outcome> {
    let mut worst = Outcome::Succeeded;
    for status in &lists.main {
        let ended = status.state.as_ref()?.terminated.as_ref()?;
        if ended.exit_code != 0 {
            worst = Outcome::Failed;
        }
    }
    (!lists.main.is_empty()).then_some(worst)
}

/// A container that ends is replaced.
fn restarts(world: &World, view: &ContainerView, exit_code: i32) -> bool {
    if world.pod.ending.is_some() {
        return false;
    }
    match view.role {
        Role::Sidecar => outcome(world).is_none(),
        Role::Init => exit_code != 0 && world.pod.restarts(view, exit_code),
        Role::Ephemeral | Role::Main => world.pod.restarts(view, exit_code),
    }
}
