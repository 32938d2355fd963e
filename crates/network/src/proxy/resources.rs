//! What a thread of the proxy has for its connections: limits, buffers that are lent while bytes are relayed, and
//! numbered slots.
//!
//! Idle connections have no buffers. A slot's number is never reused for a later connection, so an event for one that
//! has ended since finds no connection.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

use nix::sys::resource::{Resource, getrlimit};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

/// Connections that wait at one frontend; more are reset. A Service that is down for seconds has far fewer; what
/// would fill this is a flood.
pub const MAX_WAITING_PER_FRONTEND: u32 = 4096;

/// Per thread.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub connections: usize,
}

impl Limits {
    /// Uses three quarters of `RLIMIT_NOFILE`, two files per connection, so that the rest of the process can always
    /// open some.
    pub fn from_rlimit(threads: usize) -> Self {
        let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(now, _)| now.min(1 << 24) as usize);
        Self { connections: (files / 4 * 3 / 2 / threads).max(8) }
    }
}

/// Limits a log message to one in ten seconds.
#[derive(Default)]
pub struct LogThrottle(Option<Instant>);

impl LogThrottle {
    const INTERVAL: Duration = Duration::from_secs(10);

    pub fn is_due(&mut self, now: Instant) -> bool {
        let due = self.0.is_none_or(|last| now.duration_since(last) >= Self::INTERVAL);
        if due {
            self.0 = Some(now);
        }
        due
    }
}

/// Size of a read that is copied.
const SCRATCH: usize = 64 << 10;
/// Size of a pipe: larger means fewer calls for the same bytes, and this still fits a cache.
pub const PIPE: usize = 256 << 10;
const SPARE_PIPES: usize = 32;

pub struct Buffers {
    /// Used within one call; nothing stays in it.
    pub scratch: Box<[u8]>,
    pipes: Vec<Pipe>,
}

impl Default for Buffers {
    fn default() -> Self {
        Self { scratch: vec![0; SCRATCH].into(), pipes: Vec::new() }
    }
}

impl Buffers {
    /// `None` if the process has no file left; bytes are copied then.
    pub fn pipe(&mut self) -> Option<Pipe> {
        self.pipes.pop().or_else(Pipe::new)
    }

    /// Takes back an empty pipe.
    pub fn give_back(&mut self, pipe: Pipe) {
        if self.pipes.len() < SPARE_PIPES {
            self.pipes.push(pipe);
        }
    }
}

/// A pipe for `splice`, which moves bytes between sockets without copying.
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

/// A slot, and which of its successive connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token {
    index: u32,
    generation: u32,
}

const GENERATIONS: u32 = u32::MAX >> 2;

impl Token {
    /// In 62 bits.
    pub fn number(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    pub fn from_number(number: u64) -> Self {
        Self { index: number as u32, generation: (number >> 32) as u32 & GENERATIONS }
    }
}

pub struct Slab<T> {
    slots: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub fn insert(&mut self, value: T) -> Token {
        if let Some(index) = self.free.pop() {
            let (generation, content) = &mut self.slots[index as usize];
            *generation = (*generation + 1) & GENERATIONS;
            *content = Some(value);
            return Token { index, generation: *generation };
        }
        self.slots.push((0, Some(value)));
        Token { index: self.slots.len() as u32 - 1, generation: 0 }
    }

    pub fn get(&mut self, token: Token) -> Option<&mut T> {
        let (generation, content) = self.slots.get_mut(token.index as usize)?;
        content.as_mut().filter(|_| *generation == token.generation)
    }

    pub fn remove(&mut self, token: Token) -> Option<T> {
        let (generation, content) = self.slots.get_mut(token.index as usize)?;
        let value = content.take_if(|_| *generation == token.generation)?;
        self.free.push(token.index);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_of_an_ended_connection_finds_no_later_one() {
        let mut slab = Slab::default();
        let first = slab.insert("first");
        assert_eq!(slab.remove(first), Some("first"));
        let second = slab.insert("second");
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(Token::from_number(second.number())), Some(&mut "second"));
        assert_eq!(slab.len(), 1);
    }
}
