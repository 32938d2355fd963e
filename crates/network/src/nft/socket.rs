//! The netfilter netlink socket: sends batches and requests, reads dumps.
//!
//! Closing the socket waits until the kernel has freed what earlier transactions replaced. That takes it several
//! milliseconds, in which nobody can commit a transaction. So a caller that commits often keeps its socket open.

use std::io;

use nix::sys::socket::{MsgFlags, setsockopt, sockopt};
use rtnetlink::sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};

use super::{
    netlink::{Message, messages},
    uapi::{NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR},
};

/// How often a dump is repeated if the table changes while it is read.
const DUMP_ATTEMPTS: usize = 20;
const RECEIVE_SIZE: usize = 64 << 10;
const RECEIVE_BUFFER: u32 = 4 << 20;

/// A socket of one network namespace: the one of the thread that opened it, whoever uses it later.
pub struct NetfilterSocket(Socket);

/// Commits a batch on a socket of its own.
pub fn send_batch(batch: &[u8]) -> io::Result<()> {
    NetfilterSocket::open()?.send_batch(batch)
}

impl NetfilterSocket {
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        socket.set_rx_buf_sz(RECEIVE_BUFFER)?;
        // An error need not repeat the request that it is about.
        socket.set_cap_ack(true)?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self(socket))
    }

    /// Commits a batch as one transaction. It is in force, or refused as a whole, when this returns.
    pub fn send_batch(&self, batch: &[u8]) -> io::Result<()> {
        self.send(batch, |_| true)
    }

    /// Sends requests that succeed or fail one by one. Errors of the kind `ignored` are none.
    pub fn send_requests(&self, requests: &[u8], ignored: io::ErrorKind) -> io::Result<()> {
        self.send(requests, |error| error.kind() != ignored)
    }

    fn send(&self, bytes: &[u8], is_failure: impl Fn(&io::Error) -> bool) -> io::Result<()> {
        // It is one datagram, and none may be longer than the send buffer.
        let room = bytes.len() + (64 << 10);
        if setsockopt(&self.0, sockopt::SndBufForce, &room).is_err() {
            setsockopt(&self.0, sockopt::SndBuf, &room)?;
        }
        self.0.send(bytes, 0)?;
        let (mut received, mut failure) = (Vec::with_capacity(RECEIVE_SIZE), None);
        loop {
            received.clear();
            match self.0.recv(&mut received, MsgFlags::MSG_DONTWAIT.bits()) {
                Ok(_) => {
                    let errors = messages(&received).filter_map(|message| check_error(message).err());
                    failure = failure.or(errors.into_iter().find(&is_failure));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return failure.map_or(Ok(()), Err),
                Err(error) => return Err(error),
            }
        }
    }

    /// Everything that a dump request lists, as it was at one moment.
    pub fn dump<T>(&self, request: &[u8], mut read: impl FnMut(Message<'_>, &mut Vec<T>)) -> io::Result<Vec<T>> {
        for _ in 0..DUMP_ATTEMPTS {
            if let Some(found) = self.dump_once(request, &mut read)? {
                return Ok(found);
            }
        }
        Err(io::Error::new(io::ErrorKind::Interrupted, "the dump was interrupted by changes every time"))
    }

    fn dump_once<T>(
        &self,
        request: &[u8],
        read: &mut impl FnMut(Message<'_>, &mut Vec<T>),
    ) -> io::Result<Option<Vec<T>>> {
        self.0.send(request, 0)?;
        let (mut found, mut consistent) = (Vec::new(), true);
        // The kernel fills datagrams as large as the largest buffer it has seen from us, and walks from the first
        // element again for each: large buffers keep the dump of a long set fast.
        let mut received = Vec::with_capacity(RECEIVE_SIZE);
        loop {
            received.clear();
            self.0.recv(&mut received, 0)?;
            for message in messages(&received) {
                consistent &= message.flags & NLM_F_DUMP_INTR == 0;
                check_error(message)?;
                match message.message_type {
                    NLMSG_DONE => return Ok(consistent.then_some(found)),
                    NLMSG_ERROR => {}
                    _ => read(message, &mut found),
                }
            }
        }
    }

    /// Sends a request that is answered by one message.
    pub fn request<T>(&self, request: &[u8], read: impl FnOnce(Message<'_>) -> Option<T>) -> io::Result<T> {
        self.0.send(request, 0)?;
        let mut received = Vec::with_capacity(RECEIVE_SIZE);
        self.0.recv(&mut received, 0)?;
        let message = messages(&received).next().map(|message| check_error(message).map(|()| message)).transpose()?;
        message
            .and_then(read)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the kernel's reply lacks an attribute"))
    }
}

fn check_error(message: Message<'_>) -> io::Result<()> {
    match message.message_type {
        NLMSG_ERROR if message.error_code() != 0 => {
            Err(io::Error::from_raw_os_error(message.error_code().wrapping_neg()))
        }
        _ => Ok(()),
    }
}
