//! A connection from the agent: its requests and the responses that wait to be sent.

use std::{
    collections::VecDeque,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use crate::builtin::wire::{self, FrameReader, Response};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Request,
    Watching,
    /// To the container of this key.
    Attached(u64),
}

pub struct Connection {
    pub stream: UnixStream,
    pub frames: FrameReader,
    pub role: Role,
    unsent: VecDeque<(Vec<u8>, Option<OwnedFd>)>,
}

impl Connection {
    pub fn new(stream: UnixStream) -> Self {
        Self { stream, frames: FrameReader::default(), role: Role::Request, unsent: VecDeque::new() }
    }

    pub fn send(&mut self, answer: &Response, fd: Option<OwnedFd>) -> io::Result<()> {
        // Who watches and lags wants the last state, not all that were.
        if matches!(answer, Response::Runs(_)) {
            self.unsent.truncate(1);
        }
        self.unsent.push_back((wire::encode(answer)?, fd));
        self.flush()
    }

    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    pub fn flush(&mut self) -> io::Result<()> {
        while let Some((bytes, fd)) = self.unsent.front_mut() {
            let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
            match wire::send(&self.stream, bytes, &fds) {
                Ok(sent) if sent == bytes.len() => drop(self.unsent.pop_front()),
                Ok(sent) => {
                    bytes.drain(..sent);
                    *fd = None;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
