//! A client attached to a container: gets its output and may write to its standard input.
//!
//! Whoever attached and does not read holds up the container, as a terminal that is stopped does; but not for ever.

use std::{
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use nix::{errno::Errno, unistd::write};

use super::log::Stream;

/// A client that reads nothing for so long is disconnected.
pub const READ_TIMEOUT: Duration = Duration::from_secs(10);

pub struct AttachedClient {
    /// Its connection.
    pub connection: u64,
    pub stdin: Option<OwnedFd>,
    pub outputs: [Option<OwnedFd>; 2],
    unsent: [Vec<u8>; 2],
    stuck_since: Option<Instant>,
}

impl AttachedClient {
    pub fn new(connection: u64, stdin: Option<OwnedFd>, stdout: Option<OwnedFd>, stderr: Option<OwnedFd>) -> Self {
        Self { connection, stdin, outputs: [stdout, stderr], unsent: Default::default(), stuck_since: None }
    }

    pub fn queue_output(&mut self, stream: Stream, bytes: &[u8]) {
        if self.outputs[stream as usize].is_some() {
            self.unsent[stream as usize].extend_from_slice(bytes);
            self.flush(stream, Instant::now());
        }
    }

    /// Writes what it takes.
    pub fn flush(&mut self, stream: Stream, now: Instant) {
        let index = stream as usize;
        let Some(fd) = &self.outputs[index] else { return };
        while !self.unsent[index].is_empty() {
            match write(fd, &self.unsent[index]) {
                Ok(count) => {
                    self.unsent[index].drain(..count);
                    self.stuck_since = None;
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => {
                    self.stuck_since.get_or_insert(now);
                    return;
                }
                Err(_) => {
                    self.outputs[index] = None;
                    self.unsent[index] = Vec::new();
                    return;
                }
            }
        }
        self.unsent[index] = Vec::new();
    }

    pub fn pending_output(&self, stream: Stream) -> Option<&OwnedFd> {
        (!self.unsent[stream as usize].is_empty()).then_some(self.outputs[stream as usize].as_ref()).flatten()
    }

    pub fn is_behind(&self) -> bool {
        self.unsent.iter().any(|bytes| !bytes.is_empty())
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.stuck_since.map(|since| since + READ_TIMEOUT)
    }
}
