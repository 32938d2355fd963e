//! One connection: its state, and the relaying of bytes once it has a backend.
//!
//! What is read is written at once, from a buffer that all connections of a thread share. Only what the receiver did
//! not take is kept, and nothing more is read until it is gone: a slow receiver slows its sender, and nobody else.
//! Bulk data moves through a pipe in the kernel (`splice`) and is not copied.
//!
//! Sockets are edge-triggered, so their readiness is remembered here.

use std::{
    net::SocketAddrV4,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Instant,
};

use rustix::{
    io::{Errno, Result},
    net::{RecvFlags, SendFlags, Shutdown},
    pipe::{SpliceFlags, splice},
};

use super::{
    poller::{Readiness, Side},
    resources::{Buffers, PIPE, Pipe},
    search::BackendSearch,
};
use crate::services::frontend::Frontend;

pub struct Connection {
    pub client: OwnedFd,
    pub state: State,
}

pub enum State {
    Connecting(Connecting),
    Relaying(Relay),
}

/// A connection without a backend yet.
pub struct Connecting {
    pub frontend: Frontend,
    pub search: BackendSearch,
    pub attempt: Attempt,
    /// When to search again, or to give up the attempt.
    pub timer: Option<Instant>,
    /// Its number in the queue of its frontend, while it has to be notified of changes.
    pub queued: Option<u64>,
    /// The client has closed its side, but has sent data to deliver.
    pub client_is_closing: bool,
    /// The client is registered with epoll: not before the connection has to wait.
    pub is_watched: bool,
}

pub enum Attempt {
    Waiting,
    InProgress { backend: OwnedFd, to: SocketAddrV4 },
}

impl Connecting {
    pub fn new(frontend: Frontend, accepted: Instant) -> Self {
        Self {
            frontend,
            search: BackendSearch::new(accepted),
            attempt: Attempt::Waiting,
            timer: None,
            queued: None,
            client_is_closing: false,
            is_watched: false,
        }
    }
}

/// A connection with a backend.
pub struct Relay {
    pub backend: OwnedFd,
    /// From client to backend.
    up: Transfer,
    /// From backend to client.
    down: Transfer,
    /// `EPOLLOUT` is registered for these.
    client_has_epollout: bool,
    backend_has_epollout: bool,
    /// It has more to relay, and lets other connections go first.
    pub has_yielded: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayStep {
    Blocked,
    Yield,
    /// Both directions are at their end.
    Done,
}

impl Relay {
    pub fn new(backend: OwnedFd, client_is_closing: bool, backend_has_epollout: bool) -> Self {
        let (up, down) = (Transfer::started(client_is_closing), Transfer::default());
        Self { backend, up, down, client_has_epollout: false, backend_has_epollout, has_yielded: false }
    }

    /// Records what epoll reported.
    pub fn on_event(&mut self, side: Side, readiness: Readiness) {
        let (from, into) = match side {
            Side::Client => (&mut self.up, &mut self.down),
            Side::Backend => (&mut self.down, &mut self.up),
        };
        from.is_readable |= readiness.is_readable;
        from.is_closing |= readiness.is_closing;
        from.has_error |= readiness.has_error;
        into.is_blocked &= !readiness.is_writable;
    }

    /// Relays what it can in both directions. An error ends both.
    pub fn relay_bytes(&mut self, client: &OwnedFd, buffers: &mut Buffers) -> Result<RelayStep> {
        let (client, backend) = (client.as_fd(), self.backend.as_fd());
        let up = relay_one_way(&mut self.up, &self.down, (client, backend), buffers)?;
        let down = relay_one_way(&mut self.down, &self.up, (backend, client), buffers)?;
        if self.up.is_failed() || self.down.is_failed() {
            return Err(Errno::CONNRESET);
        }
        Ok(match (up, down) {
            _ if self.up.is_done && self.down.is_done => RelayStep::Done,
            (TransferStep::Yield, _) | (_, TransferStep::Yield) => RelayStep::Yield,
            _ => RelayStep::Blocked,
        })
    }

    /// The sockets, client and backend, that newly need `EPOLLOUT`.
    pub fn newly_blocked(&mut self) -> (bool, bool) {
        let client = self.down.is_blocked && !self.client_has_epollout;
        let backend = self.up.is_blocked && !self.backend_has_epollout;
        self.client_has_epollout |= client;
        self.backend_has_epollout |= backend;
        (client, backend)
    }
}

fn relay_one_way(
    transfer: &mut Transfer,
    back: &Transfer,
    (from, to): (BorrowedFd<'_>, BorrowedFd<'_>),
    buffers: &mut Buffers,
) -> Result<TransferStep> {
    if !transfer.has_work() {
        return Ok(TransferStep::Blocked);
    }
    let step = transfer.run(from, to, buffers)?;
    if step == TransferStep::Eof {
        transfer.is_done = true;
        // The later of the two is ended by closing the sockets.
        if !back.is_done {
            rustix::net::shutdown(to, Shutdown::Write)?;
        }
    }
    Ok(step)
}

/// Reads of one connection before other connections have their turn.
const READS_PER_WAKEUP: u32 = 8;
/// So many full buffers in a row are bulk data.
const BULK_READS: u8 = 2;
/// A splice of less was not worth it.
const MIN_SPLICE: usize = 16 << 10;

/// One direction of a connection.
#[derive(Default)]
pub struct Transfer {
    unsent: Unsent,
    /// The sender may have data.
    pub is_readable: bool,
    /// The sender has closed its side or failed: epoll reports nothing more.
    pub is_closing: bool,
    /// The sender failed: data that it sent before can still be read, and then the error.
    pub has_error: bool,
    /// The receiver's socket buffer is full.
    pub is_blocked: bool,
    /// Everything was read.
    is_eof: bool,
    /// The receiver's side was shut down.
    pub is_done: bool,
    full_reads: u8,
}

#[derive(Default)]
enum Unsent {
    #[default]
    None,
    Bytes(Box<UnsentBytes>),
    Piped {
        pipe: Pipe,
        bytes: usize,
    },
}

struct UnsentBytes {
    bytes: Vec<u8>,
    sent: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferStep {
    /// Nothing to do before epoll reports a socket.
    Blocked,
    /// There is more, and other connections wait for their turn.
    Yield,
    /// Everything was delivered: the receiver's side is to be shut down.
    Eof,
}

impl Transfer {
    /// For a sender that may have sent data already, or everything.
    pub fn started(is_closing: bool) -> Self {
        Self { is_readable: true, is_closing, ..Self::default() }
    }

    /// Whether there is anything to do.
    pub fn has_work(&self) -> bool {
        !self.is_blocked && !self.is_done && (self.is_readable || !matches!(self.unsent, Unsent::None))
    }

    /// Whether it failed and nothing that was sent before can be delivered any more.
    pub fn is_failed(&self) -> bool {
        self.has_error && (self.is_blocked || self.is_eof)
    }

    /// Moves what there is. An error is that of either socket.
    pub fn run(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, buffers: &mut Buffers) -> Result<TransferStep> {
        let mut reads = 0;
        loop {
            if !self.flush(to, buffers)? {
                self.is_blocked = true;
                return Ok(TransferStep::Blocked);
            }
            if self.is_eof {
                return Ok(TransferStep::Eof);
            }
            if !self.is_readable {
                return Ok(TransferStep::Blocked);
            }
            if reads == READS_PER_WAKEUP {
                return Ok(TransferStep::Yield);
            }
            reads += 1;
            let pipe = if self.full_reads < BULK_READS { None } else { buffers.pipe() };
            match pipe {
                None => self.copy(from, to, buffers)?,
                Some(pipe) => self.pipe(from, pipe, buffers)?,
            }
        }
    }

    /// Sends what is unsent. Whether all of it went.
    fn flush(&mut self, to: BorrowedFd<'_>, buffers: &mut Buffers) -> Result<bool> {
        match &mut self.unsent {
            Unsent::None => return Ok(true),
            Unsent::Bytes(rest) => {
                while rest.sent < rest.bytes.len() {
                    match send(to, &rest.bytes[rest.sent..])? {
                        Some(count) => rest.sent += count,
                        None => return Ok(false),
                    }
                }
                self.unsent = Unsent::None;
            }
            Unsent::Piped { pipe, bytes } => {
                while *bytes > 0 {
                    match would_block(splice(pipe.exit(), None, to, None, *bytes, MOVE))? {
                        Some(count) => *bytes -= count,
                        None => return Ok(false),
                    }
                }
                if let Unsent::Piped { pipe, .. } = std::mem::take(&mut self.unsent) {
                    buffers.give_back(pipe);
                }
            }
        }
        Ok(true)
    }

    fn copy(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, buffers: &mut Buffers) -> Result<()> {
        let Some((count, _)) = would_block(rustix::net::recv(from, &mut *buffers.scratch, RecvFlags::empty()))? else {
            self.is_readable = false;
            return Ok(());
        };
        if count == 0 {
            self.set_eof();
            return Ok(());
        }
        if count == buffers.scratch.len() {
            self.full_reads = self.full_reads.saturating_add(1);
        } else {
            self.full_reads = 0;
            // That was all there is, unless the end of the stream has arrived and has to be read.
            self.is_readable = self.is_closing;
        }
        let mut sent = 0;
        while sent < count {
            match send(to, &buffers.scratch[sent..count])? {
                Some(more) => sent += more,
                None => {
                    let bytes = buffers.scratch[sent..count].to_vec();
                    self.unsent = Unsent::Bytes(Box::new(UnsentBytes { bytes, sent: 0 }));
                    break;
                }
            }
        }
        Ok(())
    }

    fn pipe(&mut self, from: BorrowedFd<'_>, pipe: Pipe, buffers: &mut Buffers) -> Result<()> {
        match would_block(splice(from, None, pipe.entry(), None, PIPE, MOVE)) {
            Ok(Some(0)) => self.set_eof(),
            Ok(Some(bytes)) => {
                if bytes < MIN_SPLICE {
                    self.full_reads = 0;
                }
                self.unsent = Unsent::Piped { pipe, bytes };
                return Ok(());
            }
            Ok(None) => self.is_readable = false,
            Err(error) => {
                buffers.give_back(pipe);
                return Err(error);
            }
        }
        buffers.give_back(pipe);
        Ok(())
    }

    fn set_eof(&mut self) {
        self.is_readable = false;
        self.is_eof = true;
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
