//! Exec, attach and port-forward sessions. Their ends are pipes and terminals that the process itself holds at the other side; the shim
//! passes them on and is no part of what flows through them.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf, unix::AsyncFd},
    net::unix::pipe,
    sync::mpsc,
    time::{error::Elapsed, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    Inner,
    shim_client::{self, ShimClient},
    sys,
    wire::{Request, Response, Streams},
};
use crate::{
    error::RuntimeError,
    observed::{ContainerId, SandboxId},
    port::Result,
    session::{Attach, Exec, ExecOutput, Input, Output, Session, TerminalSize, Tunnel},
};

/// For a process to begin; the shim gives up itself before.
const START_TIMEOUT: Duration = Duration::from_secs(70);
/// For what a process left behind to let go of its output, after it has ended.
const OUTPUT_GRACE: Duration = Duration::from_secs(2);

/// Our ends of the pipes, and those that go to the other side.
struct Pipes {
    stdin: Option<Input>,
    stdout: Option<Output>,
    stderr: Option<Output>,
    theirs: Vec<OwnedFd>,
}

fn pipes(streams: Streams) -> io::Result<Pipes> {
    let mut theirs = Vec::new();
    let mut stdin: Option<Input> = None;
    if streams.stdin {
        let (write, read) = pipe::pipe()?;
        theirs.push(read.into_blocking_fd()?);
        stdin = Some(Box::pin(StdinPipe(Some(write))));
    }
    let mut output = |wanted: bool| -> io::Result<Option<Output>> {
        if !wanted {
            return Ok(None);
        }
        let (write, read) = pipe::pipe()?;
        theirs.push(write.into_blocking_fd()?);
        Ok(Some(Box::pin(read)))
    };
    let (stdout, stderr) = (output(streams.stdout)?, output(streams.stderr)?);
    Ok(Pipes { stdin, stdout, stderr, theirs })
}

/// The shim's next answer; without a time limit, whenever it comes.
async fn receive_within(
    client: &mut ShimClient,
    limit: Option<Duration>,
) -> std::result::Result<io::Result<Option<(Response, Option<OwnedFd>)>>, Elapsed> {
    match limit {
        Some(limit) => timeout(limit.saturating_add(shim_client::RESPONSE_TIMEOUT), client.receive()).await,
        None => Ok(client.receive().await),
    }
}

impl Inner {
    async fn client(&self, id: &ContainerId) -> Result<ShimClient> {
        let (sandbox, running) =
            self.state.read_container(id, |sandbox, known| (sandbox.record.id.clone(), known.is_running()))?;
        if !running {
            return Err(RuntimeError::Invalid { why: format!("container {id} is not running") });
        }
        let connected = ShimClient::connect(&self.paths.socket(&sandbox)).await;
        connected.map_err(|error| RuntimeError::failed("reach the pod's shim", error))
    }

    pub async fn exec(
        &self,
        id: &ContainerId,
        command: &[String],
        patience: Option<Duration>,
        limit: usize,
    ) -> Result<ExecOutput> {
        let doing = || format!("exec in container {id}");
        let mut client = self.client(id).await?;
        let streams = Streams { stdin: false, stdout: true, stderr: true };
        let pipes = pipes(streams).map_err(|error| RuntimeError::failed(doing(), error))?;
        let timeout_ms = patience.map(|patience| u64::try_from(patience.as_millis()).unwrap_or(u64::MAX));
        let request =
            Request::Exec { container: id.clone(), command: command.to_vec(), tty: false, streams, timeout_ms };
        client.call(&request, &pipes.theirs, START_TIMEOUT).await?;
        drop(pipes.theirs);
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let ended = {
            let reading = async {
                tokio::join!(
                    read_limited(pipes.stdout, limit, &mut stdout),
                    read_limited(pipes.stderr, limit, &mut stderr)
                );
            };
            tokio::pin!(reading);
            let mut read = false;
            let ended = loop {
                tokio::select! {
                    () = &mut reading, if !read => read = true,
                    ended = receive_within(&mut client, patience) => break ended,
                }
            };
            if !read {
                let _ = timeout(OUTPUT_GRACE, reading).await;
            }
            ended
        };
        match ended {
            Ok(Ok(Some((Response::Ended { exit_code, timed_out: false }, _)))) => {
                Ok(ExecOutput { exit_code, stdout, stderr })
            }
            Ok(Ok(Some((Response::Ended { .. }, _)))) | Err(_) => {
                Err(RuntimeError::Timeout { doing: doing(), after: patience.unwrap_or_default() })
            }
            Ok(Ok(_)) => Err(RuntimeError::failed(doing(), "the pod's shim went away")),
            Ok(Err(error)) => Err(RuntimeError::failed(doing(), error)),
        }
    }

    pub async fn open_exec(&self, id: &ContainerId, exec: &Exec) -> Result<Session> {
        let doing = || format!("exec in container {id}");
        let mut client = self.client(id).await?;
        let streams = match exec.tty {
            true => Streams::default(),
            false => Streams { stdin: exec.stdin, stdout: exec.stdout, stderr: exec.stderr },
        };
        let pipes = pipes(streams).map_err(|error| RuntimeError::failed(doing(), error))?;
        let request = Request::Exec {
            container: id.clone(),
            command: exec.command.clone(),
            tty: exec.tty,
            streams,
            timeout_ms: None,
        };
        let (_, terminal) = client.call(&request, &pipes.theirs, START_TIMEOUT).await?;
        drop(pipes.theirs);
        let (resize, mut sizes) = mpsc::channel::<TerminalSize>(4);
        let (mut stdin, mut stdout) = (pipes.stdin, pipes.stdout);
        let mut sized = None;
        if let Some(terminal) = terminal {
            let failed = |error: io::Error| RuntimeError::failed(doing(), error);
            if exec.stdin {
                stdin = Some(Box::pin(Terminal::new(terminal.try_clone().map_err(failed)?).map_err(failed)?));
            }
            if exec.stdout {
                stdout = Some(Box::pin(Terminal::new(terminal.try_clone().map_err(failed)?).map_err(failed)?));
            }
            sized = Some(terminal);
        }
        let exit = async move {
            loop {
                tokio::select! {
                    Some(size) = sizes.recv() => {
                        if let Some(terminal) = &sized {
                            set_size(terminal, size);
                        }
                    }
                    response = client.receive() => return exit_code(response),
                }
            }
        };
        // In a task of its own: sizes are set whether or not somebody waits for the end.
        let exit = tokio::spawn(exit);
        Ok(Session {
            stdin,
            stdout,
            stderr: pipes.stderr,
            resize,
            exit: Box::pin(async move { flatten_join(exit.await) }),
        })
    }

    pub async fn attach(&self, id: &ContainerId, attach: &Attach) -> Result<Session> {
        let mut client = self.client(id).await?;
        let streams = Streams { stdin: attach.stdin, stdout: attach.stdout, stderr: attach.stderr && !attach.tty };
        let pipes = pipes(streams).map_err(|error| RuntimeError::failed(format!("attach to container {id}"), error))?;
        client
            .call(&Request::Attach { container: id.clone(), streams }, &pipes.theirs, shim_client::RESPONSE_TIMEOUT)
            .await?;
        drop(pipes.theirs);
        let (resize, mut sizes) = mpsc::channel::<TerminalSize>(4);
        let exit = Box::pin(async move {
            let mut open = true;
            loop {
                tokio::select! {
                    size = sizes.recv(), if open => match size {
                        Some(TerminalSize { width, height }) => {
                            let _ = client.send(&Request::Resize { width, height }, &[]).await;
                        }
                        None => open = false,
                    },
                    response = client.receive() => return exit_code(response),
                }
            }
        });
        let mut exit = AbortOnDropHandle::new(tokio::spawn(exit));
        Ok(Session {
            stdin: pipes.stdin,
            stdout: pipes.stdout,
            stderr: pipes.stderr,
            resize,
            exit: Box::pin(async move { flatten_join((&mut exit).await) }),
        })
    }

    pub async fn connect(&self, id: &SandboxId, port: u16) -> Result<Tunnel> {
        let (shim, ready) = self.state.read_sandbox(id, |sandbox| (sandbox.record.shim, sandbox.is_ready()))?;
        let Some(shim) = shim.filter(|_| ready) else {
            return Err(RuntimeError::Invalid { why: format!("sandbox {id} is not ready") });
        };
        let (tell, reported) = tokio::sync::oneshot::channel();
        // A thread of its own: entering a namespace is for good.
        std::thread::spawn(move || {
            let _ = tell.send(connect_in(shim.pid, port));
        });
        let failed = |error: io::Error| RuntimeError::failed(format!("connect to port {port} of sandbox {id}"), error);
        let stream = match timeout(shim_client::RESPONSE_TIMEOUT, reported).await {
            Ok(Ok(stream)) => stream.map_err(failed)?,
            Ok(Err(_)) => return Err(failed(io::ErrorKind::BrokenPipe.into())),
            Err(_) => {
                return Err(RuntimeError::Timeout {
                    doing: format!("connect to port {port} of sandbox {id}"),
                    after: shim_client::RESPONSE_TIMEOUT,
                });
            }
        };
        stream.set_nonblocking(true).map_err(failed)?;
        Ok(Box::new(tokio::net::TcpStream::from_std(stream).map_err(failed)?))
    }
}

/// The end of a pipe is signalled by closing it.
struct StdinPipe(Option<pipe::Sender>);

impl AsyncWrite for StdinPipe {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Some(pipe) => Pin::new(pipe).poll_write(cx, bytes),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0 = None;
        Poll::Ready(Ok(()))
    }
}

fn connect_in(pid: i32, port: u16) -> io::Result<std::net::TcpStream> {
    use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
    let namespace = std::fs::File::open(format!("/proc/{pid}/ns/net"))?;
    nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET)?;
    let patience = Duration::from_secs(5);
    let v4 = std::net::TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), patience);
    v4.or_else(|error| {
        let v6 = std::net::TcpStream::connect_timeout(&SocketAddr::from((Ipv6Addr::LOCALHOST, port)), patience);
        v6.map_err(|_| error)
    })
}

fn exit_code(response: io::Result<Option<(Response, Option<OwnedFd>)>>) -> Result<i32> {
    match response {
        Ok(Some((Response::Ended { exit_code, .. }, _))) => Ok(exit_code),
        Ok(_) => Err(RuntimeError::failed("wait for the process", "the pod's shim went away")),
        Err(error) => Err(RuntimeError::failed("wait for the process", error)),
    }
}

fn flatten_join(done: std::result::Result<Result<i32>, tokio::task::JoinError>) -> Result<i32> {
    done.unwrap_or_else(|error| Err(RuntimeError::failed("wait for the process", error)))
}

fn set_size(terminal: &OwnedFd, size: TerminalSize) {
    let size = rustix::termios::Winsize { ws_row: size.height, ws_col: size.width, ws_xpixel: 0, ws_ypixel: 0 };
    let _ = rustix::termios::tcsetwinsize(terminal.as_fd(), size);
}

/// Reads all, keeps some.
async fn read_limited(from: Option<Output>, limit: usize, output: &mut Vec<u8>) {
    let Some(mut from) = from else { return };
    let mut buffer = [0; 8192];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let room = limit.saturating_sub(output.len());
        output.extend_from_slice(&buffer[..count.min(room)]);
    }
}

/// The controlling side of a terminal.
struct Terminal(AsyncFd<OwnedFd>);

impl Terminal {
    fn new(fd: OwnedFd) -> io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(Self(sys::watch(fd)?))
    }
}

impl AsyncRead for Terminal {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut guard = std::task::ready!(self.0.poll_read_ready(cx))?;
            let space = buffer.initialize_unfilled();
            match guard.try_io(|fd| Ok(nix::unistd::read(fd.get_ref(), space)?)) {
                Ok(Ok(count)) => {
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
                // How a terminal says that nobody has it open any more.
                Ok(Err(error)) if error.raw_os_error() == Some(nix::libc::EIO) => return Poll::Ready(Ok(())),
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_) => {}
            }
        }
    }
}

impl AsyncWrite for Terminal {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = std::task::ready!(self.0.poll_write_ready(cx))?;
            if let Ok(done) = guard.try_io(|fd| Ok(nix::unistd::write(fd.get_ref(), bytes)?)) {
                return Poll::Ready(done);
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// A terminal has no end of its input but the character that means it.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_write(cx, &[4]).map_ok(drop)
    }
}
