//! What a thread lends to its connections while they have something to carry. Idle ones have none of it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

/// What is read at once, if it is copied.
const SCRATCH: usize = 64 << 10;
/// What a pipe takes: fewer turns for the same bytes, and still within a cache.
pub const PIPE: usize = 256 << 10;
const PIPES_KEPT: usize = 32;

pub struct Pools {
    /// Used within one call; nothing stays in it.
    pub scratch: Box<[u8]>,
    pipes: Vec<Pipe>,
}

impl Default for Pools {
    fn default() -> Self {
        Self { scratch: vec![0; SCRATCH].into(), pipes: Vec::new() }
    }
}

impl Pools {
    /// None if there is nothing left to make one of; bytes are copied then.
    pub fn pipe(&mut self) -> Option<Pipe> {
        self.pipes.pop().or_else(Pipe::new)
    }

    /// Takes an empty pipe back.
    pub fn keep(&mut self, pipe: Pipe) {
        if self.pipes.len() < PIPES_KEPT {
            self.pipes.push(pipe);
        }
    }
}

/// Where bytes lie between two sockets without being copied.
pub struct Pipe {
    exit: OwnedFd,
    entry: OwnedFd,
}

impl Pipe {
    fn new() -> Option<Self> {
        let (exit, entry) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).ok()?;
        let _ = fcntl_setpipe_size(&entry, PIPE); // it works as it comes, too
        Some(Self { exit, entry })
    }

    pub fn entry(&self) -> BorrowedFd<'_> {
        self.entry.as_fd()
    }

    pub fn exit(&self) -> BorrowedFd<'_> {
        self.exit.as_fd()
    }
}
