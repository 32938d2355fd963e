//! A runtime whose containers are records, but what is run in them are processes, and their network is the machine's.

use std::{process::Stdio, time::Duration};

use async_trait::async_trait;
use futures::FutureExt;
use mainstay_runtime::{
    ContainerId, ContainerSpec, Observed, PodUid, Runtime, RuntimeError, RuntimeVersion, SandboxId, SandboxSpec,
    fake::Fake,
    images::Images,
    observed::ContainerStats,
    session::{Attach, Exec, ExecOutput, Session, TerminalSize, Tunnel},
    spec::Resources,
};
use parking_lot::Mutex;
use tokio::{
    net::TcpStream,
    process::Command,
    sync::{broadcast, mpsc},
};

type Result<T> = std::result::Result<T, RuntimeError>;

#[derive(Default)]
pub struct Processes {
    pub fake: Fake,
    /// Sizes that terminals were given.
    pub sizes: std::sync::Arc<Mutex<Vec<TerminalSize>>>,
}

impl Processes {
    fn run(&self, command: &[String], tty: bool, wanted: [bool; 3]) -> Result<Session> {
        let program: Vec<String> = if tty {
            let quoted: Vec<String> = command.iter().map(|word| format!("'{}'", word.replace('\'', "'\\''"))).collect();
            ["script", "-qfec", &quoted.join(" "), "/dev/null"].map(str::to_owned).into()
        } else {
            command.to_vec()
        };
        let pipe = |wanted| if wanted { Stdio::piped() } else { Stdio::null() };
        let mut child = Command::new(&program[0])
            .args(&program[1..])
            .stdin(pipe(wanted[0]))
            .stdout(pipe(wanted[1]))
            .stderr(pipe(wanted[2]))
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| RuntimeError::Start { why: format!("exec: {:?}: {error}", program[0]) })?;
        let (resize, mut sizes) = mpsc::channel(4);
        let found = self.sizes.clone();
        tokio::spawn(async move {
            while let Some(size) = sizes.recv().await {
                found.lock().push(size);
            }
        });
        Ok(Session {
            stdin: child.stdin.take().map(|pipe| Box::pin(pipe) as _),
            stdout: child.stdout.take().map(|pipe| Box::pin(pipe) as _),
            stderr: child.stderr.take().map(|pipe| Box::pin(pipe) as _),
            resize,
            exit: async move {
                let status = child.wait().await.map_err(|e| RuntimeError::failed("wait", e))?;
                Ok(status.code().unwrap_or(137))
            }
            .boxed(),
        })
    }
}

#[async_trait]
impl Runtime for Processes {
    async fn version(&self) -> Result<RuntimeVersion> {
        self.fake.version().await
    }

    async fn observe(&self, pod: Option<&PodUid>) -> Result<Observed> {
        self.fake.observe(pod).await
    }

    fn wakeups(&self) -> broadcast::Receiver<PodUid> {
        self.fake.wakeups()
    }

    async fn create_sandbox(&self, spec: &SandboxSpec) -> Result<SandboxId> {
        self.fake.create_sandbox(spec).await
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<()> {
        self.fake.remove_sandbox(id).await
    }

    async fn create_container(&self, sandbox: &SandboxId, spec: &ContainerSpec) -> Result<ContainerId> {
        self.fake.create_container(sandbox, spec).await
    }

    async fn start_container(&self, id: &ContainerId) -> Result<()> {
        self.fake.start_container(id).await
    }

    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        self.fake.stop_container(id, grace).await
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<()> {
        self.fake.remove_container(id).await
    }

    async fn update_container(&self, id: &ContainerId, resources: &Resources) -> Result<()> {
        self.fake.update_container(id, resources).await
    }

    async fn update_sandbox(&self, id: &SandboxId, resources: &Resources) -> Result<()> {
        self.fake.update_sandbox(id, resources).await
    }

    async fn reopen_log(&self, id: &ContainerId) -> Result<()> {
        self.fake.reopen_log(id).await
    }

    async fn exec(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Option<Duration>,
        limit: usize,
    ) -> Result<ExecOutput> {
        self.fake.exec(id, command, timeout, limit).await
    }

    async fn open_exec(&self, _: &ContainerId, exec: &Exec) -> Result<Session> {
        self.run(&exec.command, exec.tty, [exec.stdin, exec.stdout, exec.stderr])
    }

    /// To a program that echoes its input until the input ends.
    async fn attach(&self, _: &ContainerId, attach: &Attach) -> Result<Session> {
        let command = ["sed", "-u", "s/^/heard /"].map(str::to_owned);
        self.run(&command, attach.tty, [attach.stdin, attach.stdout, attach.stderr])
    }

    async fn connect(&self, _: &SandboxId, port: u16) -> Result<Tunnel> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await;
        Ok(Box::new(stream.map_err(|e| RuntimeError::failed(format!("connect to port {port}"), e))?))
    }

    async fn stats(&self) -> Result<Vec<ContainerStats>> {
        self.fake.stats().await
    }

    fn images(&self) -> &dyn Images {
        self.fake.images()
    }
}
