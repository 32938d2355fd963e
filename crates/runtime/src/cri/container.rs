//! Creates, starts, stops and removes containers of a CRI runtime.

use std::{str::FromStr, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{
    Inner,
    call::{ACTION_TIMEOUT, CallContext, QUERY_TIMEOUT, with_deadline, with_timeout},
    config, label, proto,
};
use crate::{
    error::RuntimeError,
    images::HOST_IMAGE,
    observed::{ContainerId, SandboxId},
    port::Result,
    spec::ContainerSpec,
};

/// Between two looks at a container that was asked to end.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

impl Inner {
    pub(super) async fn create_container(&self, sandbox: &SandboxId, spec: &ContainerSpec) -> Result<ContainerId> {
        if spec.image == HOST_IMAGE {
            return Err(super::host_image());
        }
        let of_sandbox = self.containers_of(sandbox).await?;
        let same = |c: &&proto::Container| {
            c.metadata.as_ref().is_some_and(|m| m.name == spec.name && m.attempt == spec.attempt)
        };
        if let Some(there) = of_sandbox.iter().find(same) {
            return Ok(ContainerId(there.id.clone()));
        }
        let pod = self.sandbox_spec(sandbox).await?;
        let user = match spec.security.run_as_user {
            None => self.image_user(spec).await?,
            Some(_) => config::ImageUser::default(),
        };
        if config::needs_features(spec) {
            config::verify_container(&pod, spec, &self.client.status().await?)?;
        }
        let target = spec.pid_of.as_deref().map(|name| newest(&of_sandbox, name)).transpose()?;
        let config = config::container(&self.settings.instance, &pod, spec, &user, target)?;
        if let Some(directory) = spec.log_path.parent() {
            let made = mainstay_files::create_private_dir(directory);
            made.map_err(|error| RuntimeError::failed(format!("make {}", directory.display()), error))?;
        }
        let mut sandbox_config = config::sandbox(&self.settings.instance, &pod);
        if let Some(context) = sandbox_config.linux.as_mut().and_then(|l| l.security_context.as_mut()) {
            context.privileged = spec.security.privileged;
        }
        let request = proto::CreateContainerRequest {
            pod_sandbox_id: sandbox.0.clone(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        let context = CallContext { doing: "create a container", what: "sandbox", id: &sandbox.0 };
        match with_timeout(
            ACTION_TIMEOUT,
            context,
            self.client.runtime().create_container(with_deadline(ACTION_TIMEOUT, request)),
        )
        .await
        {
            Ok(made) => Ok(ContainerId(made.container_id)),
            Err(error @ RuntimeError::NotFound { .. }) => Err(self.missing_image(spec).await?.unwrap_or(error)),
            Err(error) => Err(error),
        }
    }

    /// CRI says "not found" of images and sandboxes alike.
    async fn missing_image(&self, spec: &ContainerSpec) -> Result<Option<RuntimeError>> {
        let found = super::images::find(&self.client, config::image(spec)).await?;
        Ok(found.is_none().then(|| RuntimeError::ImageMissing { image: spec.image.clone() }))
    }

    async fn image_user(&self, spec: &ContainerSpec) -> Result<config::ImageUser> {
        let found = super::images::find(&self.client, config::image(spec)).await?;
        let found = found.ok_or_else(|| RuntimeError::ImageMissing { image: spec.image.clone() })?;
        Ok(config::ImageUser { uid: found.uid.map(|uid| uid.value), name: found.username })
    }

    pub(super) async fn containers_of(&self, sandbox: &SandboxId) -> Result<Vec<proto::Container>> {
        let filter = proto::ContainerFilter { pod_sandbox_id: sandbox.0.clone(), ..Default::default() };
        let request = proto::ListContainersRequest { filter: Some(filter) };
        let context = CallContext { doing: "list a sandbox's containers", what: "sandbox", id: &sandbox.0 };
        Ok(with_timeout(QUERY_TIMEOUT, context, self.client.runtime().list_containers(request)).await?.containers)
    }

    pub(super) async fn container(&self, id: &ContainerId) -> Result<proto::Container> {
        let filter = proto::ContainerFilter { id: id.0.clone(), ..Default::default() };
        let request = proto::ListContainersRequest { filter: Some(filter) };
        let context = CallContext { doing: "look for a container", what: "container", id: &id.0 };
        let found =
            with_timeout(QUERY_TIMEOUT, context, self.client.runtime().list_containers(request)).await?.containers;
        let found = found.into_iter().find(|c| c.id == id.0);
        found.ok_or_else(|| RuntimeError::NotFound { what: "container", id: id.0.clone() })
    }

    pub(super) async fn start_container(&self, id: &ContainerId) -> Result<()> {
        match self.container(id).await?.state() {
            proto::ContainerState::ContainerCreated => {}
            proto::ContainerState::ContainerRunning => return Ok(()),
            proto::ContainerState::ContainerExited | proto::ContainerState::ContainerUnknown => {
                return Err(RuntimeError::Invalid { why: format!("container {id} has already run") });
            }
        }
        let request = with_deadline(ACTION_TIMEOUT, proto::StartContainerRequest { container_id: id.0.clone() });
        let context = CallContext { doing: "start a container", what: "container", id: &id.0 };
        match with_timeout(ACTION_TIMEOUT, context, self.client.runtime().start_container(request)).await {
            Err(RuntimeError::Failed { why, .. }) if begins_processes(&why) => Err(RuntimeError::Start { why }),
            answer => answer.map(|_| ()),
        }
    }

    pub(super) async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        let container = match self.container(id).await {
            Err(RuntimeError::NotFound { .. }) => return Ok(()),
            container => container?,
        };
        if container.state() != proto::ContainerState::ContainerRunning {
            return Ok(());
        }
        let mut grace = grace;
        // A signal of the spec's own is not part of this CRI, so it is sent here.
        if let Some(signal) = label::stop_signal(&container.annotations).filter(|_| !grace.is_zero()) {
            if self.signal(id, signal, grace).await? {
                return Ok(());
            }
            grace = Duration::ZERO;
        }
        let limit = grace.saturating_add(ACTION_TIMEOUT);
        let seconds = grace.as_secs() + u64::from(grace.subsec_nanos() > 0);
        let request =
            proto::StopContainerRequest { container_id: id.0.clone(), timeout: seconds.try_into().unwrap_or(i64::MAX) };
        let context = CallContext { doing: "stop a container", what: "container", id: &id.0 };
        match with_timeout(limit, context, self.client.runtime().stop_container(with_deadline(limit, request))).await {
            Err(RuntimeError::NotFound { .. }) => Ok(()),
            answer => answer.map(|_| ()),
        }
    }

    /// Whether it ended of this signal in time.
    async fn signal(&self, id: &ContainerId, signal: &str, grace: Duration) -> Result<bool> {
        let name = if signal.starts_with("SIG") { signal.to_owned() } else { format!("SIG{signal}") };
        let signal = Signal::from_str(&name).map_err(|_| RuntimeError::Invalid { why: format!("no signal {name}") })?;
        let status = self.client.container_status(&id.0, true).await?;
        let Some(pid) = super::observe::pid(&status) else { return Ok(false) };
        // Gone already is what was wanted.
        let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
        let ended = async {
            loop {
                match self.container(id).await {
                    Err(RuntimeError::NotFound { .. }) => return Ok(true),
                    Ok(c) if c.state() != proto::ContainerState::ContainerRunning => return Ok(true),
                    Err(error) => return Err(error),
                    Ok(_) => tokio::time::sleep(POLL_INTERVAL).await,
                }
            }
        };
        tokio::time::timeout(grace, ended).await.unwrap_or(Ok(false))
    }

    pub(super) async fn remove_container(&self, id: &ContainerId) -> Result<()> {
        match self.container(id).await {
            Err(RuntimeError::NotFound { .. }) => return Ok(()),
            Ok(c) if c.state() == proto::ContainerState::ContainerRunning => {
                return Err(RuntimeError::Invalid { why: format!("container {id} still runs") });
            }
            found => found?,
        };
        let request = with_deadline(ACTION_TIMEOUT, proto::RemoveContainerRequest { container_id: id.0.clone() });
        let context = CallContext { doing: "remove a container", what: "container", id: &id.0 };
        match with_timeout(ACTION_TIMEOUT, context, self.client.runtime().remove_container(request)).await {
            Err(RuntimeError::NotFound { .. }) => Ok(()),
            answer => answer.map(|_| ()),
        }
    }
}

fn newest(containers: &[proto::Container], name: &str) -> Result<String> {
    let attempt = |c: &proto::Container| c.metadata.as_ref().filter(|m| m.name == name).map(|m| m.attempt);
    let found = containers.iter().filter_map(|c| attempt(c).map(|a| (a, &c.id))).max();
    let missing = || RuntimeError::Invalid { why: format!("there is no container {name:?} whose processes to see") };
    found.map(|(_, id)| id.clone()).ok_or_else(missing)
}

/// Words of a low-level runtime that could not run a program.
pub(super) fn begins_processes(why: &str) -> bool {
    [
        "OCI runtime",
        "failed to create containerd task",
        "failed to start containerd task",
        "unable to start container process",
    ]
    .iter()
    .any(|words| why.contains(words))
}
