//! The agent's connection to a shim. Every request has a time limit.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Serialize;
use tokio::{io::Interest, net::UnixStream, time::timeout};

use super::wire::{self, FailureKind, FrameReader, ReadOutcome, Request, Response};
use crate::{error::RuntimeError, port::Result};

/// For what takes a shim no time.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

pub struct ShimClient {
    stream: UnixStream,
    frames: FrameReader,
}

impl ShimClient {
    pub async fn connect(socket: &Path) -> io::Result<Self> {
        Ok(Self { stream: connect(socket).await?, frames: FrameReader::default() })
    }

    /// Sends a request and the descriptors that go with it.
    pub async fn send(&self, request: &impl Serialize, fds: &[OwnedFd]) -> io::Result<()> {
        let frame = wire::encode(request)?;
        let mut sent = 0;
        while sent < frame.len() {
            let fds: Vec<_> = if sent == 0 { fds.iter().map(|fd| fd.as_fd()).collect() } else { Vec::new() };
            sent += self.stream.async_io(Interest::WRITABLE, || wire::send(&self.stream, &frame[sent..], &fds)).await?;
        }
        Ok(())
    }

    /// The next answer, and a descriptor if one came with it. `None` when the shim closed the connection.
    pub async fn receive(&mut self) -> io::Result<Option<(Response, Option<OwnedFd>)>> {
        loop {
            if let Some((answer, mut fds)) = self.frames.take()? {
                return Ok(Some((answer, fds.pop())));
            }
            let (stream, frames) = (&self.stream, &mut self.frames);
            let filled = stream.async_io(Interest::READABLE, || match frames.fill(stream)? {
                ReadOutcome::WouldBlock => Err(io::ErrorKind::WouldBlock.into()),
                received => Ok(received),
            });
            if matches!(filled.await?, ReadOutcome::Closed) {
                return Ok(None);
            }
        }
    }

    pub async fn call(
        &mut self,
        request: &Request,
        fds: &[OwnedFd],
        patience: Duration,
    ) -> Result<(Response, Option<OwnedFd>)> {
        let asked = async {
            self.send(request, fds).await?;
            self.receive().await
        };
        match timeout(patience, asked).await {
            Err(_) => Err(RuntimeError::Timeout { doing: describe(request), after: patience }),
            Ok(Err(error)) => Err(RuntimeError::failed(describe(request), error)),
            Ok(Ok(None)) => Err(RuntimeError::failed(describe(request), "the pod's shim went away")),
            Ok(Ok(Some((Response::Failed { why, text }, _)))) => Err(to_runtime_error(why, text, request)),
            Ok(Ok(Some(answer))) => Ok(answer),
        }
    }
}

/// One request on a connection of its own.
pub async fn call(socket: &Path, request: &Request, patience: Duration) -> Result<Response> {
    let gone = |error: io::Error| {
        RuntimeError::failed(describe(request), format!("the pod's shim cannot be reached: {error}"))
    };
    let mut client = ShimClient::connect(socket).await.map_err(gone)?;
    Ok(client.call(request, &[], patience).await?.0)
}

/// A socket's address is short, and directories can be deep: then it is reached through a descriptor.
async fn connect(socket: &Path) -> io::Result<UnixStream> {
    if socket.as_os_str().len() < 100 {
        return UnixStream::connect(socket).await;
    }
    let (Some(dir), Some(name)) = (socket.parent(), socket.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let dir = std::fs::File::open(dir)?;
    let short = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&dir))).join(name);
    UnixStream::connect(short).await
}

fn to_runtime_error(why: FailureKind, text: String, request: &Request) -> RuntimeError {
    match why {
        FailureKind::Start => RuntimeError::Start { why: text },
        FailureKind::State => RuntimeError::Invalid { why: text },
        FailureKind::NotFound => match container(request) {
            Some(id) => RuntimeError::NotFound { what: "container", id },
            None => RuntimeError::failed(describe(request), text),
        },
        FailureKind::Other => RuntimeError::failed(describe(request), text),
    }
}

fn container(request: &Request) -> Option<String> {
    match request {
        Request::Start { container }
        | Request::Kill { container, .. }
        | Request::Exec { container, .. }
        | Request::Attach { container, .. }
        | Request::Reopen { container }
        | Request::Forget { container } => Some(container.0.clone()),
        Request::Watch | Request::Resize { .. } | Request::Fence { .. } | Request::Shutdown => None,
    }
}

fn describe(request: &Request) -> String {
    let verb = match request {
        Request::Watch => "watch the pod's shim",
        Request::Start { .. } => "start container",
        Request::Kill { .. } => "signal container",
        Request::Exec { .. } => "exec in container",
        Request::Attach { .. } => "attach to container",
        Request::Resize { .. } => "resize the terminal",
        Request::Reopen { .. } => "reopen the log of container",
        Request::Forget { .. } => "remove container",
        Request::Fence { .. } => "fence the pod",
        Request::Shutdown => "end the pod's shim",
    };
    container(request).map_or_else(|| verb.to_owned(), |id| format!("{verb} {id}"))
}
