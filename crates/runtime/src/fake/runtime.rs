//! The fake's implementation of [`Runtime`].

use std::{io::Cursor, time::Duration};

use async_trait::async_trait;
use futures::FutureExt;
use tokio::sync::{broadcast, mpsc};

use crate::{
    RuntimeError,
    fake::{
        Call, ExecResult, Fake, RecordedCall, ended,
        state::{Container, Sandbox},
    },
    images::Images,
    observed::{
        ContainerId, ContainerState, ContainerStats, ContainerStatus, Observed, PodUid, SandboxId, SandboxStatus,
    },
    port::{Result, Runtime, RuntimeVersion},
    session::{Attach, Exec, ExecOutput, Session, Tunnel},
    spec::{ContainerSpec, Resources, SandboxSpec},
};

impl Fake {
    /// Notes the call; hangs or fails as the test asked for.
    async fn enter(&self, call: Call, of: &str, command: &[String]) -> Result<()> {
        let made = RecordedCall { call, of: of.to_owned(), command: command.to_vec() };
        self.state.lock().made.push(made);
        let panics = self.state.lock().panicking.remove(&call);
        assert!(!panics, "the test says so");
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if !self.state.lock().hanging.contains(&call) {
                break;
            }
            changed.await;
        }
        let mut state = self.state.lock();
        if state.unreachable {
            return Err(RuntimeError::Unavailable { why: "the test says so".to_owned() });
        }
        match state.failures.get_mut(&call).and_then(std::collections::VecDeque::pop_front) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn name_of(&self, id: &ContainerId) -> String {
        self.state.lock().containers.get(id).map(|c| c.spec.name.clone()).unwrap_or_default()
    }

    fn pod_of(&self, id: &SandboxId) -> String {
        self.state.lock().sandboxes.get(id).map(|s| s.spec.pod.name.clone()).unwrap_or_default()
    }

    fn running(&self, id: &ContainerId) -> Result<()> {
        match self.state.lock().container(id)?.status.state {
            ContainerState::Running { .. } => Ok(()),
            _ => Err(RuntimeError::Invalid { why: format!("container {id} is not running") }),
        }
    }

    fn script(&self, name: &str, command: &[String]) -> Result<ExecResult> {
        let on_exec = self.state.lock().on_exec.clone();
        on_exec.map_or_else(|| Ok(ExecResult::default()), |script| script(name, command))
    }

    fn kill(&self, id: &ContainerId, code: i32) {
        self.change(|state, now| {
            let Ok(c) = state.container(id) else { return ((), None) };
            if !c.status.state.is_running() {
                return ((), None);
            }
            c.status.state = ended(&c.status.state, now, code, false);
            c.status.pid = None;
            ((), Some(c.status.pod.uid.clone()))
        });
    }
}

#[async_trait]
impl Runtime for Fake {
    async fn version(&self) -> Result<RuntimeVersion> {
        Ok(RuntimeVersion { name: "fake".to_owned(), version: "1".to_owned() })
    }

    async fn observe(&self, pod: Option<&PodUid>) -> Result<Observed> {
        self.enter(Call::Observe, "", &[]).await?;
        let state = self.state.lock();
        let wanted = |uid: &PodUid| pod.is_none_or(|pod| pod == uid);
        Ok(Observed {
            sandboxes: state.sandboxes.values().map(|s| s.status.clone()).filter(|s| wanted(&s.pod.uid)).collect(),
            containers: state.containers.values().map(|c| c.status.clone()).filter(|c| wanted(&c.pod.uid)).collect(),
        })
    }

    fn wakeups(&self) -> broadcast::Receiver<PodUid> {
        self.wakeups.subscribe()
    }

    async fn create_sandbox(&self, spec: &SandboxSpec) -> Result<SandboxId> {
        self.enter(Call::CreateSandbox, &spec.pod.name, &[]).await?;
        Ok(self.change(|state, now| {
            let same = |s: &&Sandbox| s.spec.pod.uid == spec.pod.uid && s.spec.attempt == spec.attempt;
            if let Some(there) = state.sandboxes.values().find(same) {
                return (there.status.id.clone(), None);
            }
            let id = SandboxId(state.next_id());
            let addresses = if spec.host_network { Vec::new() } else { vec![state.next_address()] };
            let status = SandboxStatus {
                id: id.clone(),
                pod: spec.pod.clone(),
                attempt: spec.attempt,
                ready: true,
                created_at: now,
                host_network: spec.host_network,
                addresses,
                annotations: spec.annotations.clone(),
            };
            state
                .sandboxes
                .insert(id.clone(), Sandbox { spec: spec.clone(), status, resources: spec.resources.clone() });
            (id, Some(spec.pod.uid.clone()))
        }))
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<()> {
        self.enter(Call::RemoveSandbox, &self.pod_of(id), &[]).await?;
        self.change(|state, _| {
            state.containers.retain(|_, c| c.status.sandbox != *id);
            ((), state.sandboxes.remove(id).map(|s| s.spec.pod.uid))
        });
        Ok(())
    }

    async fn create_container(&self, sandbox: &SandboxId, spec: &ContainerSpec) -> Result<ContainerId> {
        self.enter(Call::CreateContainer, &spec.name, &[]).await?;
        if !self.images.has(&spec.image, &spec.image_id) {
            return Err(RuntimeError::ImageMissing { image: spec.image.clone() });
        }
        self.change(|state, now| {
            let pod = match state.sandbox(sandbox) {
                Ok(s) if s.status.ready => s.spec.pod.clone(),
                Ok(_) => return (Err(RuntimeError::Invalid { why: format!("sandbox {sandbox} is not ready") }), None),
                Err(gone) => return (Err(gone), None),
            };
            let same = |c: &&Container| {
                c.status.sandbox == *sandbox && c.spec.name == spec.name && c.spec.attempt == spec.attempt
            };
            if let Some(there) = state.containers.values().find(same) {
                return (Ok(there.status.id.clone()), None);
            }
            let id = ContainerId(state.next_id());
            let status = ContainerStatus {
                id: id.clone(),
                sandbox: sandbox.clone(),
                pod: pod.clone(),
                name: spec.name.clone(),
                attempt: spec.attempt,
                image: spec.image.clone(),
                image_id: spec.image_id.clone(),
                created_at: now,
                state: ContainerState::Created,
                annotations: spec.annotations.clone(),
                log_path: spec.log_path.clone(),
                pid: None,
            };
            let container = Container { spec: spec.clone(), status, resources: spec.resources.clone() };
            state.containers.insert(id.clone(), container);
            (Ok(id), Some(pod.uid))
        })
    }

    async fn start_container(&self, id: &ContainerId) -> Result<()> {
        let entered = self.enter(Call::StartContainer, &self.name_of(id), &[]).await;
        self.change(|state, now| {
            let c = match state.container(id) {
                Ok(c) => c,
                Err(gone) => return (Err(gone), None),
            };
            match (&c.status.state, &entered) {
                (ContainerState::Created, Ok(())) => {
                    c.status.state = ContainerState::Running { started_at: now };
                    c.status.pid = Some(u32::MAX);
                }
                // As a real one does: what could not begin has ended.
                (ContainerState::Created, Err(RuntimeError::Start { why })) => {
                    c.status.state = ContainerState::Exited {
                        started_at: None,
                        finished_at: now,
                        exit_code: 128,
                        signal: None,
                        oom: false,
                        message: why.clone(),
                    };
                }
                (ContainerState::Exited { .. } | ContainerState::Unknown, Ok(())) => {
                    return (Err(RuntimeError::Invalid { why: format!("container {id} has already run") }), None);
                }
                (_, Err(_)) | (ContainerState::Running { .. }, _) => return (entered, None),
            }
            let whose = c.status.pod.uid.clone();
            (entered, Some(whose))
        })
    }

    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        let name = self.name_of(id);
        self.enter(Call::StopContainer, &name, &[]).await?;
        if grace.is_zero() {
            self.kill(id, 137);
        } else if !self.state.lock().stubborn.contains(&name) {
            self.kill(id, 143);
        }
        let ended = async {
            loop {
                let mut changed = std::pin::pin!(self.changed.notified());
                changed.as_mut().enable();
                if self.running(id).is_err() {
                    break;
                }
                changed.await;
            }
        };
        if tokio::time::timeout(grace, ended).await.is_err() {
            self.kill(id, 137);
        }
        Ok(())
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<()> {
        self.enter(Call::RemoveContainer, &self.name_of(id), &[]).await?;
        self.change(|state, _| {
            let running = state.containers.get(id).is_some_and(|c| c.status.state.is_running());
            if running {
                return (Err(RuntimeError::Invalid { why: format!("container {id} still runs") }), None);
            }
            (Ok(()), state.containers.remove(id).map(|c| c.status.pod.uid))
        })
    }

    async fn update_container(&self, id: &ContainerId, resources: &Resources) -> Result<()> {
        self.enter(Call::UpdateContainer, &self.name_of(id), &[]).await?;
        self.state.lock().container(id)?.resources = resources.clone();
        Ok(())
    }

    async fn update_sandbox(&self, id: &SandboxId, resources: &Resources) -> Result<()> {
        self.enter(Call::UpdateSandbox, &self.pod_of(id), &[]).await?;
        self.state.lock().sandbox(id)?.resources = resources.clone();
        Ok(())
    }

    async fn reopen_log(&self, id: &ContainerId) -> Result<()> {
        self.enter(Call::ReopenLog, &self.name_of(id), &[]).await?;
        self.running(id)
    }

    async fn exec(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Option<Duration>,
        limit: usize,
    ) -> Result<ExecOutput> {
        let name = self.name_of(id);
        self.enter(Call::Exec, &name, command).await?;
        self.running(id)?;
        let ExecResult { takes, mut output } = self.script(&name, command)?;
        if let Some(timeout) = timeout
            && takes > timeout
        {
            tokio::time::sleep(timeout).await;
            return Err(RuntimeError::Timeout { doing: format!("command {command:?}"), after: timeout });
        }
        tokio::time::sleep(takes).await;
        output.stdout.truncate(limit);
        output.stderr.truncate(limit);
        Ok(output)
    }

    async fn open_exec(&self, id: &ContainerId, exec: &Exec) -> Result<Session> {
        let name = self.name_of(id);
        self.enter(Call::OpenExec, &name, &exec.command).await?;
        self.running(id)?;
        let ExecResult { takes, output } = self.script(&name, &exec.command)?;
        Ok(Session {
            stdin: exec.stdin.then(|| Box::pin(tokio::io::sink()) as _),
            stdout: exec.stdout.then(|| Box::pin(Cursor::new(output.stdout)) as _),
            stderr: exec.stderr.then(|| Box::pin(Cursor::new(output.stderr)) as _),
            resize: mpsc::channel(1).0,
            exit: async move {
                tokio::time::sleep(takes).await;
                Ok(output.exit_code)
            }
            .boxed(),
        })
    }

    /// What is written comes back.
    async fn attach(&self, id: &ContainerId, attach: &Attach) -> Result<Session> {
        self.enter(Call::Attach, &self.name_of(id), &[]).await?;
        self.running(id)?;
        let (output, input) = tokio::io::simplex(64 << 10);
        Ok(Session {
            stdin: attach.stdin.then(|| Box::pin(input) as _),
            stdout: attach.stdout.then(|| Box::pin(output) as _),
            stderr: attach.stderr.then(|| Box::pin(tokio::io::empty()) as _),
            resize: mpsc::channel(1).0,
            exit: futures::future::pending().boxed(),
        })
    }

    /// What is written comes back.
    async fn connect(&self, sandbox: &SandboxId, _port: u16) -> Result<Tunnel> {
        self.enter(Call::Connect, &self.pod_of(sandbox), &[]).await?;
        self.state.lock().sandbox(sandbox)?;
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        tokio::spawn(async move {
            let (mut from, mut to) = tokio::io::split(theirs);
            let _ = tokio::io::copy(&mut from, &mut to).await;
        });
        Ok(Box::new(ours))
    }

    async fn stats(&self) -> Result<Vec<ContainerStats>> {
        self.enter(Call::Stats, "", &[]).await?;
        let state = self.state.lock();
        let zero = |c: &Container| ContainerStats {
            pod: Some(c.status.pod.clone()),
            name: c.spec.name.clone(),
            ..ContainerStats::default()
        };
        let running = state.containers.values().filter(|c| c.status.state.is_running());
        Ok(state.stats.clone().unwrap_or_else(|| running.map(zero).collect()))
    }

    fn images(&self) -> &dyn Images {
        &self.images
    }
}
