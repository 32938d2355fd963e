//! The agent's side of the conversation with a shim. Every answer is waited for so long and no longer.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Serialize;
use tokio::{io::Interest, net::UnixStream, time::timeout};

use super::wire::{self, Answer, Failure, Inbox, Received, Request};
use crate::{error::RuntimeError, port::Result};

/// For what takes a shim no time.
pub const SOON: Duration = Duration::from_secs(10);

pub struct Client {
    stream: UnixStream,
    inbox: Inbox,
}

impl Client {
    pub async fn connect(socket: &Path) -> io::Result<Self> {
        Ok(Self { stream: connect(socket).await?, inbox: Inbox::default() })
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
    pub async fn receive(&mut self) -> io::Result<Option<(Answer, Option<OwnedFd>)>> {
        loop {
            if let Some((answer, mut fds)) = self.inbox.take()? {
                return Ok(Some((answer, fds.pop())));
            }
            let (stream, inbox) = (&self.stream, &mut self.inbox);
            let filled = stream.async_io(Interest::READABLE, || match inbox.fill(stream)? {
                Received::Nothing => Err(io::ErrorKind::WouldBlock.into()),
                received => Ok(received),
            });
            if matches!(filled.await?, Received::Closed) {
                return Ok(None);
            }
        }
    }

    pub async fn ask(
        &mut self,
        request: &Request,
        fds: &[OwnedFd],
        patience: Duration,
    ) -> Result<(Answer, Option<OwnedFd>)> {
        let asked = async {
            self.send(request, fds).await?;
            self.receive().await
        };
        match timeout(patience, asked).await {
            Err(_) => Err(RuntimeError::Timeout { doing: doing(request), after: patience }),
            Ok(Err(error)) => Err(RuntimeError::failed(doing(request), error)),
            Ok(Ok(None)) => Err(RuntimeError::failed(doing(request), "the pod's shim went away")),
            Ok(Ok(Some((Answer::Failed { why, text }, _)))) => Err(refused(why, text, request)),
            Ok(Ok(Some(answer))) => Ok(answer),
        }
    }
}

/// One request on a connection of its own.
pub async fn ask(socket: &Path, request: &Request, patience: Duration) -> Result<Answer> {
    let gone =
        |error: io::Error| RuntimeError::failed(doing(request), format!("the pod's shim cannot be reached: {error}"));
    let mut client = Client::connect(socket).await.map_err(gone)?;
    Ok(client.ask(request, &[], patience).await?.0)
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

fn refused(why: Failure, text: String, request: &Request) -> RuntimeError {
    match why {
        Failure::Start => RuntimeError::Start { why: text },
        Failure::State => RuntimeError::Invalid { why: text },
        Failure::NotFound => match container(request) {
            Some(id) => RuntimeError::NotFound { what: "container", id },
            None => RuntimeError::failed(doing(request), text),
        },
        Failure::Other => RuntimeError::failed(doing(request), text),
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
        Request::Watch | Request::Resize { .. } | Request::Shutdown => None,
    }
}

fn doing(request: &Request) -> String {
    let verb = match request {
        Request::Watch => "watch the pod's shim",
        Request::Start { .. } => "start container",
        Request::Kill { .. } => "signal container",
        Request::Exec { .. } => "exec in container",
        Request::Attach { .. } => "attach to container",
        Request::Resize { .. } => "resize the terminal",
        Request::Reopen { .. } => "reopen the log of container",
        Request::Forget { .. } => "remove container",
        Request::Shutdown => "end the pod's shim",
    };
    container(request).map_or_else(|| verb.to_owned(), |id| format!("{verb} {id}"))
}
