//! Handles the requests of the agent.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    time::{Duration, Instant},
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::signal::Signal,
    unistd::pipe2,
};

use super::{Role, SHUTDOWN_GRACE, Shim, pending_launch::ExecOptions};
use crate::{
    builtin::{
        record::{self, LaunchSpec},
        shim::{
            attached_client::AttachedClient,
            container::Container,
            fence::Fence,
            launch::{LaunchJob, LaunchKind, Stdio},
        },
        wire::{FailureKind, Request, Response, Streams},
    },
    observed::ContainerId,
};

impl Shim {
    pub(super) fn handle_request(&mut self, from: u64, request: Request, fds: Vec<OwnedFd>) {
        let answer = match request {
            Request::Watch => {
                if let Some(connection) = self.connections.get_mut(&from) {
                    connection.role = Role::Watching;
                }
                Some(Response::Runs(self.run_records()))
            }
            Request::Start { container } => self.start(from, container),
            Request::Kill { container, signal, all } => Some(self.kill(&container, signal, all)),
            Request::Exec { container, command, tty, streams, timeout_ms } => {
                let options = ExecOptions { timeout: timeout_ms.map(Duration::from_millis) };
                self.exec(from, &container, command, tty, Stdio::from_fds(streams, fds), options)
            }
            Request::Attach { container, streams } => Some(self.attach(from, &container, streams, fds)),
            Request::Resize { width, height } => {
                if let Some(Role::Attached(key)) = self.connections.get(&from).map(|connection| connection.role)
                    && let Some(container) = self.containers.get(&key)
                {
                    container.resize(width, height);
                }
                None
            }
            Request::Reopen { container } => Some(self.with_container(&container, |container| {
                container.log.reopen();
                Response::Done
            })),
            Request::Fence { file } => Some(self.set_fence(file)),
            Request::Forget { container } => {
                if let Some(key) = self.key_of(&container)
                    && !self.containers.get(&key).is_some_and(Container::is_running)
                {
                    self.containers.remove(&key);
                }
                Some(Response::Done)
            }
            Request::Shutdown => {
                for container in self.containers.values() {
                    let _ = container.signal(Signal::SIGKILL as i32, true);
                }
                self.ending = Some((from, Instant::now() + SHUTDOWN_GRACE));
                None
            }
        };
        if let Some(answer) = answer {
            self.respond(from, &answer);
        }
    }

    fn with_container(&mut self, id: &ContainerId, act: impl FnOnce(&mut Container) -> Response) -> Response {
        match self.key_of(id).and_then(|key| self.containers.get_mut(&key)) {
            Some(container) => act(container),
            None => Response::Failed { why: FailureKind::NotFound, text: format!("container {id} was not started") },
        }
    }

    fn start(&mut self, from: u64, id: ContainerId) -> Option<Response> {
        if let Some(container) = self.key_of(&id).and_then(|key| self.containers.get(&key)) {
            return Some(match container.is_running() {
                true => Response::Started(container.run.clone()),
                false => {
                    Response::Failed { why: FailureKind::State, text: format!("container {id} was started before") }
                }
            });
        }
        self.try_start(from, id).err().map(|error| failed(&error))
    }

    fn try_start(&mut self, from: u64, id: ContainerId) -> io::Result<()> {
        if self.fence.as_ref().is_some_and(|fence| !fence.permits_start()) {
            return Err(io::Error::other(
                "this machine has no contact with the cluster, which may run the pod elsewhere",
            ));
        }
        let dir = self.dir.container(&id);
        let launch: LaunchSpec = record::read(&dir.launch())?;
        let mut container = Container::new(id.clone(), dir.clone(), launch.clone());
        let stdio = container.open_streams()?;
        container.save();
        let key = self.next;
        self.next += 1;
        self.containers.insert(key, container);
        let job = LaunchJob { id, dir, launch, stdio, kind: LaunchKind::Container };
        let begun = self.launch(key, from, job, None);
        if let (Err(error), Some(container)) = (&begun, self.containers.get_mut(&key)) {
            container.record_start_failure(error.to_string());
        }
        self.look_at_fence(); // its timer rests while nothing runs
        begun
    }

    fn set_fence(&mut self, file: Option<PathBuf>) -> Response {
        match file.map(Fence::new).transpose() {
            Ok(fence) => {
                // One that has begun to stop its pod does not forget it.
                if self.fence.as_ref().map(Fence::file) != fence.as_ref().map(Fence::file) {
                    self.fence = fence;
                }
                self.look_at_fence();
                Response::Done
            }
            Err(error) => failed(&error),
        }
    }

    fn kill(&mut self, id: &ContainerId, signal: i32, all: bool) -> Response {
        self.with_container(id, |container| match container.signal(signal, all) {
            Ok(()) => Response::Done,
            Err(error) => Response::Failed { why: FailureKind::Other, text: format!("signal: {error}") },
        })
    }

    fn exec(
        &mut self,
        from: u64,
        id: &ContainerId,
        command: Vec<String>,
        tty: bool,
        stdio: io::Result<Stdio>,
        options: ExecOptions,
    ) -> Option<Response> {
        let stdio = match stdio {
            Ok(stdio) => stdio,
            Err(error) => return Some(failed(&error)),
        };
        let Some(key) = self.key_of(id) else {
            return Some(Response::Failed {
                why: FailureKind::NotFound,
                text: format!("container {id} is not running"),
            });
        };
        let container = self.containers.get(&key).filter(|container| container.is_running());
        let Some(container) = container else {
            return Some(Response::Failed { why: FailureKind::State, text: format!("container {id} is not running") });
        };
        let job = LaunchJob {
            id: id.clone(),
            dir: container.dir.clone(),
            launch: container.launch.clone(),
            stdio,
            kind: LaunchKind::Exec { command, tty },
        };
        self.launch(key, from, job, Some(options)).err().map(|error| failed(&error))
    }

    fn attach(&mut self, from: u64, id: &ContainerId, streams: Streams, fds: Vec<OwnedFd>) -> Response {
        let Some(key) = self.key_of(id) else {
            return Response::Failed { why: FailureKind::NotFound, text: format!("container {id} is not running") };
        };
        let Some(container) = self.containers.get_mut(&key).filter(|container| container.is_running()) else {
            return Response::Failed { why: FailureKind::State, text: format!("container {id} is not running") };
        };
        let Ok([stdin, stdout, stderr]) = assign_fds(streams, fds) else {
            return Response::Failed { why: FailureKind::Other, text: "streams are missing".into() };
        };
        for fd in [&stdin, &stdout, &stderr].into_iter().flatten() {
            let _ = nonblocking(fd);
        }
        container.attached.push(AttachedClient::new(from, stdin, stdout, stderr));
        if let Some(connection) = self.connections.get_mut(&from) {
            connection.role = Role::Attached(key);
        }
        Response::Begun
    }
}

impl Stdio {
    fn from_fds(streams: Streams, fds: Vec<OwnedFd>) -> io::Result<Self> {
        let [stdin, stdout, stderr] = assign_fds(streams, fds)?;
        let null = || -> io::Result<OwnedFd> { Ok(File::options().read(true).write(true).open("/dev/null")?.into()) };
        let or_null = |fd: Option<OwnedFd>| fd.map_or_else(null, Ok).map(Some);
        Ok(Self { stdin: or_null(stdin)?, stdout: or_null(stdout)?, stderr: or_null(stderr)? })
    }
}

fn assign_fds(streams: Streams, fds: Vec<OwnedFd>) -> io::Result<[Option<OwnedFd>; 3]> {
    let mut fds = fds.into_iter();
    let mut next = |wanted: bool| match wanted {
        true => fds.next().map(Some).ok_or_else(|| io::Error::other("a stream is missing")),
        false => Ok(None),
    };
    Ok([next(streams.stdin)?, next(streams.stdout)?, next(streams.stderr)?])
}

impl Container {
    /// Pipes to and from it; the ends that are its own.
    fn open_streams(&mut self) -> io::Result<Stdio> {
        if self.launch.tty {
            return Ok(Stdio::default());
        }
        let (out, stdout) = pipe2(OFlag::O_CLOEXEC)?;
        let (err, stderr) = pipe2(OFlag::O_CLOEXEC)?;
        nonblocking(&out)?;
        nonblocking(&err)?;
        self.outputs = [Some(out.into()), Some(err.into())];
        let stdin = if self.launch.stdin {
            let (stdin, typed) = pipe2(OFlag::O_CLOEXEC)?;
            nonblocking(&typed)?;
            self.stdin = Some(typed);
            stdin
        } else {
            File::open("/dev/null")?.into()
        };
        let owner = nix::unistd::Uid::from_raw(self.launch.stdio_owner);
        for stream in [&stdout, &stderr] {
            nix::unistd::fchown(stream, Some(owner), None)?;
        }
        Ok(Stdio { stdin: Some(stdin), stdout: Some(stdout), stderr: Some(stderr) })
    }

    pub fn connect_terminal(&mut self, terminal: OwnedFd) {
        let _ = nonblocking(&terminal);
        self.outputs[0] = terminal.try_clone().ok().map(File::from);
        if self.launch.stdin {
            self.stdin = terminal.try_clone().ok();
        }
        self.terminal = Some(terminal);
    }
}

fn nonblocking(fd: &OwnedFd) -> nix::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(fd.as_fd(), FcntlArg::F_GETFL)?);
    fcntl(fd.as_fd(), FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).map(drop)
}

fn failed(error: &io::Error) -> Response {
    Response::Failed { why: FailureKind::Other, text: error.to_string() }
}
