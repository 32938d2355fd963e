//! The traits [`Runtime`], which every container runtime implements, and [`PodNetwork`], which the built-in runtime calls.

use std::{collections::BTreeSet, net::IpAddr, path::Path, time::Duration};

use async_trait::async_trait;
use tokio::sync::broadcast;

use crate::{
    error::RuntimeError,
    images::Images,
    observed::{ContainerId, ContainerStats, Observed, PodUid, SandboxId},
    session::{Attach, Exec, ExecOutput, Session, Tunnel},
    spec::{ContainerSpec, Resources, SandboxSpec},
};

pub type Result<T> = std::result::Result<T, RuntimeError>;

/// What runs containers. Everything it made outlives the process that asked for it, and is found
/// again by [`Runtime::observe`]. All calls may be repeated: what is already so is not an error.
#[async_trait]
pub trait Runtime: Send + Sync + 'static {
    async fn version(&self) -> Result<RuntimeVersion>;

    /// Everything this runtime holds for this agent: of one pod, or of all.
    async fn observe(&self, pod: Option<&PodUid>) -> Result<Observed>;

    /// "Look again at this pod": sent when one of its containers may have changed. Carries no news,
    /// and a receiver that lags has missed nothing but wake-ups.
    fn wakeups(&self) -> broadcast::Receiver<PodUid>;

    /// Makes what a pod's containers share: namespaces, network, cgroup. A half-made sandbox is
    /// either completed by the same call, or seen by `observe` as not ready.
    async fn create_sandbox(&self, spec: &SandboxSpec) -> Result<SandboxId>;

    /// Kills what is left in it, removes its containers, and gives everything back.
    async fn remove_sandbox(&self, id: &SandboxId) -> Result<()>;

    /// Makes a container from its image without starting it.
    async fn create_container(&self, sandbox: &SandboxId, spec: &ContainerSpec) -> Result<ContainerId>;

    async fn start_container(&self, id: &ContainerId) -> Result<()>;

    /// Sends the stop signal (the spec's, else the image's, else TERM), and KILL after `grace`.
    /// Returns when the container has ended. Zero grace kills at once.
    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<()>;

    /// Removes a container that does not run. Its log file stays: that belongs to the agent.
    async fn remove_container(&self, id: &ContainerId) -> Result<()>;

    /// Changes the limits of a container in place.
    async fn update_container(&self, id: &ContainerId, resources: &Resources) -> Result<()>;

    /// Changes the limits of the pod's cgroup in place.
    async fn update_sandbox(&self, id: &SandboxId, resources: &Resources) -> Result<()>;

    /// Writes to the log file go to a new file of the same name from now on.
    async fn reopen_log(&self, id: &ContainerId) -> Result<()>;

    /// Runs a command in a container and waits for it, killing it after `timeout` if there is one. Keeps at most
    /// `limit` bytes of each stream.
    async fn exec(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Option<Duration>,
        limit: usize,
    ) -> Result<ExecOutput>;

    /// Runs a command with its streams connected.
    async fn open_exec(&self, id: &ContainerId, exec: &Exec) -> Result<Session>;

    /// Connects to the streams of the container's own process.
    async fn attach(&self, id: &ContainerId, attach: &Attach) -> Result<Session>;

    /// A connection to a port on the pod's own loopback.
    async fn connect(&self, sandbox: &SandboxId, port: u16) -> Result<Tunnel>;

    async fn stats(&self) -> Result<Vec<ContainerStats>>;

    /// From now on all containers of the sandbox stop when the time in the fence file is up ([`crate::fence`]), or no longer do.
    /// The file is looked at before this returns; called again, it is looked at again.
    async fn fence_sandbox(&self, _: &SandboxId, _: bool) -> Result<FenceSupport> {
        Ok(FenceSupport::None)
    }

    fn images(&self) -> &dyn Images;
}

/// Whether something stops a pod when its time is up, also while there is no agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceSupport {
    Obeyed,
    /// CRI runtimes, and shims of earlier versions.
    None,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeVersion {
    /// As in a container's id: `mainstay`, `containerd`.
    pub name: String,
    pub version: String,
}

/// Addresses for pods, asked for by the built-in runtime. CRI runtimes have their own.
#[async_trait]
pub trait PodNetwork: Send + Sync + 'static {
    /// Gives the namespace at `netns` (whose `lo` is already up) its interface, routes and address. Asked
    /// twice for one sandbox, it answers the same.
    async fn attach(&self, sandbox: &SandboxId, netns: &Path, spec: &SandboxSpec) -> Result<Vec<IpAddr>>;

    /// Gives everything back; works without the namespace, and more than once.
    async fn detach(&self, sandbox: &SandboxId) -> Result<()>;

    /// Gives back what belongs to none of these.
    async fn retain(&self, live: &BTreeSet<SandboxId>) -> Result<()>;
}
