//! Bytes in one direction.
//!
//! What is read is written at once, from a buffer that all connections of a thread share. Only what the receiver did
//! not take is kept, and nothing more is read until it has gone: a slow receiver slows its sender, and
//! nobody else. When it turns out to be bulk, bytes move through a pipe inside the kernel and are not copied.
//!
//! Sockets announce themselves once (edge-triggered), so what is known of them is remembered here.

use std::os::fd::BorrowedFd;

use rustix::{
    io::{Errno, Result},
    net::{RecvFlags, SendFlags},
    pipe::{SpliceFlags, splice},
};

use super::pools::{PIPE, Pipe, Pools};

/// Reads of one connection before it is the others' turn.
const READS_PER_TURN: u32 = 8;
/// So many full buffers in a row are bulk.
const FULL_READS_OF_BULK: u8 = 2;
/// A pipe that moved less than this at once was not worth it.
const LITTLE: usize = 16 << 10;

#[derive(Default)]
pub struct Flow {
    held: Held,
    /// There may be something to read.
    pub is_readable: bool,
    /// The sender has sent its last byte, or broke: there is no later announcement.
    pub is_ending: bool,
    /// The sender broke: what it sent before can still be read, and then that it broke.
    pub is_broken: bool,
    /// The receiver takes nothing more until it says so.
    pub is_blocked: bool,
    /// All was read.
    has_ended: bool,
    /// The receiver knows that nothing follows.
    pub is_done: bool,
    full_reads: u8,
}

#[derive(Default)]
enum Held {
    #[default]
    Nothing,
    Bytes(Box<Rest>),
    Piped {
        pipe: Pipe,
        bytes: usize,
    },
}

struct Rest {
    bytes: Vec<u8>,
    sent: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nothing to do before a socket announces itself.
    Over,
    /// There is more, and others have waited for their turn.
    Again,
    /// Everything has arrived, and the receiver is to hear that nothing follows.
    Ended,
}

impl Flow {
    /// From a sender that may have sent something already, or everything.
    pub fn begun(is_ending: bool) -> Self {
        Self { is_readable: true, is_ending, ..Self::default() }
    }

    /// Whether carrying could get anywhere.
    pub fn has_work(&self) -> bool {
        !self.is_blocked && !self.is_done && (self.is_readable || !matches!(self.held, Held::Nothing))
    }

    /// Whether it broke, and nothing that it may have sent before can still be delivered.
    pub fn is_lost(&self) -> bool {
        self.is_broken && (self.is_blocked || self.has_ended)
    }

    /// Carries what there is. An error is that of either end.
    pub fn carry(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, pools: &mut Pools) -> Result<Turn> {
        let mut reads = 0;
        loop {
            if !self.flush(to, pools)? {
                self.is_blocked = true;
                return Ok(Turn::Over);
            }
            if self.has_ended {
                return Ok(Turn::Ended);
            }
            if !self.is_readable {
                return Ok(Turn::Over);
            }
            if reads == READS_PER_TURN {
                return Ok(Turn::Again);
            }
            reads += 1;
            let pipe = if self.full_reads < FULL_READS_OF_BULK { None } else { pools.pipe() };
            match pipe {
                None => self.copy(from, to, pools)?,
                Some(pipe) => self.pipe(from, pipe, pools)?,
            }
        }
    }

    /// Whether nothing is held any more.
    fn flush(&mut self, to: BorrowedFd<'_>, pools: &mut Pools) -> Result<bool> {
        match &mut self.held {
            Held::Nothing => return Ok(true),
            Held::Bytes(rest) => {
                while rest.sent < rest.bytes.len() {
                    match send(to, &rest.bytes[rest.sent..])? {
                        Some(count) => rest.sent += count,
                        None => return Ok(false),
                    }
                }
                self.held = Held::Nothing;
            }
            Held::Piped { pipe, bytes } => {
                while *bytes > 0 {
                    match would_block(splice(pipe.exit(), None, to, None, *bytes, MOVE))? {
                        Some(count) => *bytes -= count,
                        None => return Ok(false),
                    }
                }
                if let Held::Piped { pipe, .. } = std::mem::take(&mut self.held) {
                    pools.keep(pipe);
                }
            }
        }
        Ok(true)
    }

    fn copy(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, pools: &mut Pools) -> Result<()> {
        let Some((count, _)) = would_block(rustix::net::recv(from, &mut *pools.scratch, RecvFlags::empty()))? else {
            self.is_readable = false;
            return Ok(());
        };
        if count == 0 {
            self.end();
            return Ok(());
        }
        if count == pools.scratch.len() {
            self.full_reads = self.full_reads.saturating_add(1);
        } else {
            self.full_reads = 0;
            // It was all there is, unless the end had come already and wants to be read.
            self.is_readable = self.is_ending;
        }
        let mut sent = 0;
        while sent < count {
            match send(to, &pools.scratch[sent..count])? {
                Some(more) => sent += more,
                None => {
                    let bytes = pools.scratch[sent..count].to_vec();
                    self.held = Held::Bytes(Box::new(Rest { bytes, sent: 0 }));
                    break;
                }
            }
        }
        Ok(())
    }

    fn pipe(&mut self, from: BorrowedFd<'_>, pipe: Pipe, pools: &mut Pools) -> Result<()> {
        match would_block(splice(from, None, pipe.entry(), None, PIPE, MOVE)) {
            Ok(Some(0)) => self.end(),
            Ok(Some(bytes)) => {
                if bytes < LITTLE {
                    self.full_reads = 0;
                }
                self.held = Held::Piped { pipe, bytes };
                return Ok(());
            }
            Ok(None) => self.is_readable = false,
            Err(error) => {
                pools.keep(pipe);
                return Err(error);
            }
        }
        pools.keep(pipe);
        Ok(())
    }

    fn end(&mut self) {
        self.is_readable = false;
        self.has_ended = true;
    }
}

const MOVE: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);

fn send(to: BorrowedFd<'_>, bytes: &[u8]) -> Result<Option<usize>> {
    would_block(rustix::net::send(to, bytes, SendFlags::NOSIGNAL))
}

fn would_block<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Errno::AGAIN) => Ok(None),
        Err(error) => Err(error),
    }
}
