//! Talking to netfilter: handing over a batch, asking for a list.
//!
//! Whoever closes a session waits until the kernel has cleared away what earlier changes replaced, which takes it several
//! milliseconds, in which nobody can change anything. So whoever changes often keeps one.

use std::io;

use nix::sys::socket::{MsgFlags, setsockopt, sockopt};
use rtnetlink::sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};

use super::wire::{DONE, ERROR, INTERRUPTED, Message, messages};

/// Lists are asked for again so often if they change while they are read.
const ATTEMPTS: usize = 20;
const LARGEST_PIECE: usize = 64 << 10;
const RECEIVED_AT_ONCE: u32 = 4 << 20;

/// A conversation with the kernel. Belongs for ever to the network namespace it was begun in.
pub struct Session(Socket);

/// Hands a batch to the kernel, which judges it before the call returns.
pub fn send(batch: &[u8]) -> io::Result<()> {
    Session::open()?.send(batch)
}

impl Session {
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        socket.set_rx_buf_sz(RECEIVED_AT_ONCE)?;
        // A refusal need not repeat what was refused.
        socket.set_cap_ack(true)?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self(socket))
    }

    /// Hands over a batch, which is judged as a whole before the call returns.
    pub fn send(&self, batch: &[u8]) -> io::Result<()> {
        self.submit(batch, |_| true)
    }

    /// Hands over requests that are judged one by one. This error is none.
    pub fn send_all(&self, requests: &[u8], fine: io::ErrorKind) -> io::Result<()> {
        self.submit(requests, |error| error.kind() != fine)
    }

    fn submit(&self, bytes: &[u8], counts: impl Fn(&io::Error) -> bool) -> io::Result<()> {
        // The kernel takes them as one datagram, of which none may be longer than the buffer.
        let room = bytes.len() + (64 << 10);
        if setsockopt(&self.0, sockopt::SndBufForce, &room).is_err() {
            setsockopt(&self.0, sockopt::SndBuf, &room)?;
        }
        self.0.send(bytes, 0)?;
        let (mut answers, mut refused) = (Vec::with_capacity(LARGEST_PIECE), None);
        loop {
            answers.clear();
            match self.0.recv(&mut answers, MsgFlags::MSG_DONTWAIT.bits()) {
                Ok(_) => {
                    let refusals = messages(&answers).filter_map(|message| consent(message).err());
                    refused = refused.or(refusals.into_iter().find(&counts));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return refused.map_or(Ok(()), Err),
                Err(error) => return Err(error),
            }
        }
    }

    /// All that the kernel lists in answer to a request, as it was at one moment.
    pub fn list<T>(&self, request: &[u8], mut read: impl FnMut(Message<'_>, &mut Vec<T>)) -> io::Result<Vec<T>> {
        for _ in 0..ATTEMPTS {
            if let Some(found) = self.list_once(request, &mut read)? {
                return Ok(found);
            }
        }
        Err(io::Error::new(io::ErrorKind::Interrupted, "it changes too often to be read"))
    }

    fn list_once<T>(
        &self,
        request: &[u8],
        read: &mut impl FnMut(Message<'_>, &mut Vec<T>),
    ) -> io::Result<Option<Vec<T>>> {
        self.0.send(request, 0)?;
        let (mut found, mut whole) = (Vec::new(), true);
        // The kernel answers in pieces as large as we have once had room for, and begins to look from the first
        // element for each: large pieces make long lists bearable.
        let mut answers = Vec::with_capacity(LARGEST_PIECE);
        loop {
            answers.clear();
            self.0.recv(&mut answers, 0)?;
            for message in messages(&answers) {
                whole &= message.flags & INTERRUPTED == 0;
                consent(message)?;
                match message.kind {
                    DONE => return Ok(whole.then_some(found)),
                    ERROR => {}
                    _ => read(message, &mut found),
                }
            }
        }
    }

    /// The one message that answers a request.
    pub fn ask<T>(&self, request: &[u8], read: impl FnOnce(Message<'_>) -> Option<T>) -> io::Result<T> {
        self.0.send(request, 0)?;
        let mut answer = Vec::with_capacity(LARGEST_PIECE);
        self.0.recv(&mut answer, 0)?;
        let message = messages(&answer).next().map(|message| consent(message).map(|()| message)).transpose()?;
        message
            .and_then(read)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer lacks what was asked for"))
    }
}

fn consent(message: Message<'_>) -> io::Result<()> {
    match message.kind {
        ERROR if message.code() != 0 => Err(io::Error::from_raw_os_error(message.code().wrapping_neg())),
        _ => Ok(()),
    }
}
