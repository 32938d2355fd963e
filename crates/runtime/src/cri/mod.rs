//! Client of a CRI runtime: containerd and its like.
//!
//! The runtime holds all state. What CRI has no field for travels in labels and annotations of what we make, so
//! that an agent that has just started knows as much as one that never stopped; the instance label tells ours from
//! another agent's. What does not change (a pod's address, an exited container's code) is asked for once and kept.
//!
//! Events are not part of CRI v1 as containerd 1.6 speaks it: [`poll`] looks once a second, and more often just
//! after something was asked for. The pod's cgroup is ours to make: CRI takes it as given.
//!
//! Every call has a deadline. A runtime that is gone is [`RuntimeError::Unavailable`], and found again
//! by the next call.

mod call;
mod config;
mod container;
mod exec;
mod images;
mod label;
mod logs;
mod netns;
mod observe;
mod poll;
mod proto;
mod sandbox;
mod session;
mod stats;
mod streams;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::sync::{RwLock, broadcast};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    RuntimeError,
    images::Images,
    observed::{ContainerId, ContainerStats, Observed, PodUid, SandboxId},
    port::{Result, Runtime, RuntimeVersion},
    session::{Attach, Exec, ExecOutput, Session, Tunnel},
    spec::{ContainerSpec, Resources, SandboxSpec},
};
use call::Client;
use images::CriImages;
use observe::StatusCache;
use poll::FastPolling;

#[derive(Clone, Debug)]
pub struct CriSettings {
    /// Tells this agent's pods from those of others at the same runtime; also the cgroup above all pods.
    pub instance: String,
    /// How often to look when nothing is expected to happen.
    pub poll: Duration,
}

impl CriSettings {
    pub fn new(instance: impl Into<String>) -> Self {
        Self { instance: instance.into(), poll: Duration::from_secs(1) }
    }
}

pub struct Cri {
    inner: Arc<Inner>,
    images: CriImages,
    _polling: DropGuard,
}

struct Inner {
    client: Client,
    settings: CriSettings,
    status_cache: StatusCache,
    wakeups: broadcast::Sender<PodUid>,
    fast_polling: FastPolling,
    /// Held while a sandbox is made, so that its cgroup is not taken for one left behind.
    making: RwLock<()>,
}

impl Cri {
    /// `address` is a path or `unix://` and a path. The runtime need not be there yet. Wants a tokio runtime around it.
    pub fn connect(address: &str, settings: CriSettings) -> Result<Self> {
        let client = Client::new(address)?;
        let inner = Arc::new(Inner {
            client: client.clone(),
            settings,
            status_cache: StatusCache::default(),
            wakeups: broadcast::channel(1024).0,
            fast_polling: FastPolling::default(),
            making: RwLock::default(),
        });
        let stop = CancellationToken::new();
        tokio::spawn(poll::run(inner.clone(), stop.clone()));
        Ok(Self { inner, images: CriImages::new(client), _polling: stop.drop_guard() })
    }
}

#[async_trait]
impl Runtime for Cri {
    async fn version(&self) -> Result<RuntimeVersion> {
        let version = self.inner.client.version().await?;
        Ok(RuntimeVersion { name: version.runtime_name, version: version.runtime_version })
    }

    async fn observe(&self, pod: Option<&PodUid>) -> Result<Observed> {
        self.inner.observe(pod).await
    }

    fn wakeups(&self) -> broadcast::Receiver<PodUid> {
        self.inner.wakeups.subscribe()
    }

    async fn create_sandbox(&self, spec: &SandboxSpec) -> Result<SandboxId> {
        let _fast = self.inner.fast_polling.begin();
        self.inner.create_sandbox(spec).await
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<()> {
        let _fast = self.inner.fast_polling.begin();
        self.inner.remove_sandbox(id).await
    }

    async fn create_container(&self, sandbox: &SandboxId, spec: &ContainerSpec) -> Result<ContainerId> {
        self.inner.create_container(sandbox, spec).await
    }

    async fn start_container(&self, id: &ContainerId) -> Result<()> {
        let _fast = self.inner.fast_polling.begin();
        self.inner.start_container(id).await
    }

    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        let _fast = self.inner.fast_polling.begin();
        self.inner.stop_container(id, grace).await
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<()> {
        self.inner.remove_container(id).await
    }

    async fn update_container(&self, id: &ContainerId, resources: &Resources) -> Result<()> {
        self.inner.client.update_container(id, config::resources(resources)).await
    }

    async fn update_sandbox(&self, id: &SandboxId, resources: &Resources) -> Result<()> {
        self.inner.update_sandbox(id, resources).await
    }

    async fn reopen_log(&self, id: &ContainerId) -> Result<()> {
        self.inner.client.reopen_log(id).await
    }

    async fn exec(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Option<Duration>,
        limit: usize,
    ) -> Result<ExecOutput> {
        self.inner.exec(id, command, timeout, limit).await
    }

    async fn open_exec(&self, id: &ContainerId, exec: &Exec) -> Result<Session> {
        self.inner.open_exec(id, exec).await
    }

    async fn attach(&self, id: &ContainerId, attach: &Attach) -> Result<Session> {
        self.inner.clone().attach(id, attach).await
    }

    async fn connect(&self, sandbox: &SandboxId, port: u16) -> Result<Tunnel> {
        self.inner.connect(sandbox, port).await
    }

    async fn stats(&self) -> Result<Vec<ContainerStats>> {
        self.inner.stats().await
    }

    fn images(&self) -> &dyn Images {
        &self.images
    }
}

/// An image that only the built-in runtime can make containers of.
fn host_image() -> RuntimeError {
    RuntimeError::Invalid {
        why: "the image \"host\" needs the built-in runtime; this machine uses a CRI runtime".to_owned(),
    }
}
