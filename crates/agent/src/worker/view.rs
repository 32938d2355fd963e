//! A narrow view of a pod for planning: containers, grace, why it ends.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerRestartRule, Pod, PodSpec};
use mainstay_api::config_versions::ConfigVersions;
use mainstay_runtime::spec::Resources;

use crate::{container_lists::as_container, node::Eviction, spec};

/// Upstream's stock time between asking a container to stop and killing it.
const GRACE: Duration = Duration::from_secs(mainstay_api::pod::DEFAULT_TERMINATION_GRACE_SECONDS as u64);

#[derive(Clone, Debug)]
pub struct PodView {
    pub restart: RestartPolicy,
    /// In order; sidecars among them.
    pub init: Vec<ContainerView>,
    pub main: Vec<ContainerView>,
    pub ephemeral: Vec<ContainerView>,
    pub grace: Duration,
    pub ending: Option<Ending>,
    /// The API already holds a phase that is final.
    pub finished: bool,
    /// It reads versions of ConfigMaps or Secrets, the same in its volumes and in its environment.
    pub has_config_versions: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Init,
    /// An init container that runs as long as the pod.
    Sidecar,
    Main,
    Ephemeral,
}

#[derive(Clone, Debug)]
pub struct ContainerView {
    pub name: String,
    pub role: Role,
    pub image: String,
    /// Changes when the container has to be made anew.
    pub identity: String,
    pub resources: Resources,
    pub resize_restarts: ResizeRestarts,
    pub restart_rules: RestartRules,
    /// How many containers of this name there have been, as the API remembers.
    pub made: u32,
}

/// What a container says about its own restarts, where that differs from its pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestartRules {
    pub policy: Option<RestartPolicy>,
    /// What happens at some exit codes whatever the policy; the first that matches counts.
    pub rules: Vec<RestartRule>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestartRule {
    pub action: RestartAction,
    pub exit_codes: Vec<i32>,
    /// Holds for all codes but these.
    pub negated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartAction {
    Restart,
    RestartAllContainers,
}

impl RestartRules {
    fn from_container(container: &Container) -> Self {
        let rule = |rule: &ContainerRestartRule| {
            let codes = rule.exit_codes.as_ref()?;
            Some(RestartRule {
                action: match rule.action.as_str() {
                    "RestartAllContainers" => RestartAction::RestartAllContainers,
                    _ => RestartAction::Restart,
                },
                exit_codes: codes.values.clone().unwrap_or_default(),
                negated: codes.operator == "NotIn",
            })
        };
        Self {
            policy: container.restart_policy.as_deref().map(RestartPolicy::from_name),
            rules: container.restart_policy_rules.iter().flatten().filter_map(rule).collect(),
        }
    }

    pub fn action(&self, exit_code: i32) -> Option<RestartAction> {
        self.rules.iter().find(|rule| rule.exit_codes.contains(&exit_code) != rule.negated).map(|rule| rule.action)
    }

    pub fn may_restart_all(&self) -> bool {
        self.rules.iter().any(|rule| rule.action == RestartAction::RestartAllContainers)
    }
}

/// The resources of which a change takes effect only in a new container, as `resizePolicy` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResizeRestarts {
    pub cpu: bool,
    pub memory: bool,
}

impl ResizeRestarts {
    fn from_container(container: &Container) -> Self {
        let restarts = |resource: &str| {
            let mut policies = container.resize_policy.iter().flatten();
            policies.any(|p| p.resource_name == resource && p.restart_policy == "RestartContainer")
        };
        Self { cpu: restarts("cpu"), memory: restarts("memory") }
    }

    /// Whether going from these limits to those takes a new container.
    pub fn apply_to(self, from: &Resources, to: &Resources) -> bool {
        let cpu = |r: &Resources| (r.cpu_shares, r.cpu_quota, r.cpu_period);
        (self.cpu && cpu(from) != cpu(to)) || (self.memory && from.memory_limit != to.memory_limit)
    }
}

/// The pod is to stop, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    pub why: EndingWhy,
    /// When what still runs is killed.
    pub deadline: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndingWhy {
    Deleted,
    /// Nobody wants it any more, and there is nobody to report to.
    Unwanted,
    /// Stopped by this machine; it stays in the API as failed.
    Failed {
        reason: String,
        message: String,
    },
}

impl PodView {
    /// `limits` are those of a container on this machine; `failed` is the machine's own reason to end the pod.
    pub fn from_pod(
        pod: &Pod,
        limits: impl Fn(&Container) -> Resources,
        failed: Option<Eviction>,
        now: Timestamp,
    ) -> Self {
        let spec = pod.spec.clone().unwrap_or_default();
        let grace = grace(&spec);
        let view = |c: &Container, role| ContainerView::from_container(pod, c, role, limits(c));
        Self {
            restart: RestartPolicy::from_name(spec.restart_policy.as_deref().unwrap_or("Always")),
            init: spec.init_containers.iter().flatten().map(|c| view(c, init_role(c))).collect(),
            main: spec.containers.iter().map(|c| view(c, Role::Main)).collect(),
            ephemeral: spec
                .ephemeral_containers
                .iter()
                .flatten()
                .map(|c| view(&as_container(c), Role::Ephemeral))
                .collect(),
            ending: ending(pod, &spec, failed, grace, now),
            finished: mainstay_api::pod::is_finished(pod),
            has_config_versions: !ConfigVersions::from_annotations(&pod.metadata.annotations).is_empty(),
            grace,
        }
    }

    /// A pod of which only its containers are left.
    pub fn unwanted(grace: Duration, since: Timestamp) -> Self {
        Self {
            restart: RestartPolicy::Never,
            init: vec![],
            main: vec![],
            ephemeral: vec![],
            grace,
            ending: Some(Ending { why: EndingWhy::Unwanted, deadline: since + grace }),
            finished: false,
            has_config_versions: false,
        }
    }

    /// Whether a container that ended with `exit_code` is started again.
    pub fn restarts(&self, container: &ContainerView, exit_code: i32) -> bool {
        let policy = match container.role {
            Role::Sidecar => return true,
            Role::Ephemeral => return false,
            // A first failure of an init container with `Always` is tried again like any other.
            Role::Init | Role::Main => container.restart_rules.policy.unwrap_or(self.restart),
        };
        container.restart_rules.action(exit_code).is_some()
            || match policy {
                RestartPolicy::Always => true,
                RestartPolicy::OnFailure => exit_code != 0,
                RestartPolicy::Never => false,
            }
    }

    /// Whether some container's end can have all of them started anew.
    pub fn may_restart_all(&self) -> bool {
        self.init.iter().chain(&self.main).any(|container| container.restart_rules.may_restart_all())
    }

    pub fn containers(&self) -> impl Iterator<Item = &ContainerView> {
        self.init.iter().chain(&self.main).chain(&self.ephemeral)
    }

    pub fn container(&self, name: &str) -> Option<&ContainerView> {
        self.containers().find(|c| c.name == name)
    }
}

impl RestartPolicy {
    fn from_name(name: &str) -> Self {
        match name {
            "Never" => Self::Never,
            "OnFailure" => Self::OnFailure,
            _ => Self::Always,
        }
    }
}

impl ContainerView {
    fn from_container(pod: &Pod, container: &Container, role: Role, resources: Resources) -> Self {
        let statuses = pod.status.as_ref().map(|status| match role {
            Role::Init | Role::Sidecar => &status.init_container_statuses,
            Role::Main => &status.container_statuses,
            Role::Ephemeral => &status.ephemeral_container_statuses,
        });
        let status = statuses.into_iter().flatten().flatten().find(|status| status.name == container.name);
        let made = status.filter(|s| s.container_id.as_ref().is_some_and(|id| !id.is_empty()));
        Self {
            name: container.name.clone(),
            role,
            image: container.image.clone().unwrap_or_default(),
            identity: spec::identity(container),
            resources,
            resize_restarts: ResizeRestarts::from_container(container),
            restart_rules: RestartRules::from_container(container),
            made: made.map_or(0, |s| u32::try_from(s.restart_count).unwrap_or(0) + 1),
        }
    }
}

fn init_role(container: &Container) -> Role {
    if mainstay_api::pod::is_sidecar(container) { Role::Sidecar } else { Role::Init }
}

pub fn grace(spec: &PodSpec) -> Duration {
    spec.termination_grace_period_seconds.map_or(GRACE, seconds)
}

pub fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

/// A pod that is evicted gets no more, as upstream: the machine needs what it holds now.
const EVICTION_GRACE: Duration = Duration::from_secs(1);

fn ending(pod: &Pod, spec: &PodSpec, failed: Option<Eviction>, grace: Duration, now: Timestamp) -> Option<Ending> {
    if let Some(deadline) = &pod.metadata.deletion_timestamp {
        return Some(Ending { why: EndingWhy::Deleted, deadline: deadline.0 });
    }
    if let Some(Eviction { reason, message }) = failed {
        let why = EndingWhy::Failed { reason: reason.into(), message };
        return Some(Ending { why, deadline: now + grace.min(EVICTION_GRACE) });
    }
    let allowed = seconds(spec.active_deadline_seconds?);
    let started = pod.status.as_ref()?.start_time.as_ref()?.0;
    (now >= started + allowed).then(|| Ending {
        why: EndingWhy::Failed {
            reason: "DeadlineExceeded".into(),
            message: "Pod was active on the node longer than the specified deadline".into(),
        },
        deadline: started + allowed + grace,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_evicted_pod_gets_a_second_and_no_more_than_it_asked_for() {
        let deadline = |grace: i64| {
            let spec = PodSpec { termination_grace_period_seconds: Some(grace), ..PodSpec::default() };
            let pod = Pod { spec: Some(spec), ..Pod::default() };
            let evicted = Eviction { reason: "Evicted".into(), message: String::new() };
            let now = Timestamp::UNIX_EPOCH;
            PodView::from_pod(&pod, |_| Resources::default(), Some(evicted), now).ending.unwrap().deadline.as_second()
        };
        assert_eq!([30, 1, 0].map(deadline), [1, 1, 0]);
    }
}
