//! Talking to netfilter: handing over a batch, asking for a list.

use std::io;

use nix::sys::socket::{setsockopt, sockopt};
use rtnetlink::sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};

use super::wire::{DONE, ERROR, INTERRUPTED, Message, messages};

/// Lists are asked for again so often if they change while they are read.
const ATTEMPTS: usize = 20;
const LARGEST_PIECE: usize = 64 << 10;
const RECEIVED_AT_ONCE: u32 = 4 << 20;

fn open() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    socket.set_rx_buf_sz(RECEIVED_AT_ONCE)?;
    // A refusal need not repeat what was refused.
    socket.set_cap_ack(true)?;
    socket.connect(&SocketAddr::new(0, 0))?;
    Ok(socket)
}

/// Hands a batch to the kernel, which judges it before the call returns.
pub fn send(batch: &[u8]) -> io::Result<()> {
    submit(batch, |_| true)
}

/// Hands over requests that are judged one by one. This error is none.
pub fn send_all(requests: &[u8], fine: io::ErrorKind) -> io::Result<()> {
    submit(requests, |error| error.kind() != fine)
}

fn submit(bytes: &[u8], counts: impl Fn(&io::Error) -> bool) -> io::Result<()> {
    let socket = open()?;
    // The kernel takes them as one datagram, of which none may be longer than the buffer.
    let room = bytes.len() + (64 << 10);
    if setsockopt(&socket, sockopt::SndBufForce, &room).is_err() {
        setsockopt(&socket, sockopt::SndBuf, &room)?;
    }
    socket.set_non_blocking(true)?;
    socket.send(bytes, 0)?;
    loop {
        match socket.recv_from_full() {
            Ok((answers, _)) => {
                let mut refusals = messages(&answers).filter_map(|message| consent(message).err());
                if let Some(refusal) = refusals.find(&counts) {
                    return Err(refusal);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

fn consent(message: Message<'_>) -> io::Result<()> {
    match message.kind {
        ERROR if message.code() != 0 => Err(io::Error::from_raw_os_error(message.code().wrapping_neg())),
        _ => Ok(()),
    }
}

/// All that the kernel lists in answer to a request, as it was at one moment.
pub fn list<T>(request: &[u8], mut read: impl FnMut(Message<'_>, &mut Vec<T>)) -> io::Result<Vec<T>> {
    for _ in 0..ATTEMPTS {
        if let Some(found) = list_once(request, &mut read)? {
            return Ok(found);
        }
    }
    Err(io::Error::new(io::ErrorKind::Interrupted, "it changes too often to be read"))
}

fn list_once<T>(request: &[u8], read: &mut impl FnMut(Message<'_>, &mut Vec<T>)) -> io::Result<Option<Vec<T>>> {
    let socket = open()?;
    socket.send(request, 0)?;
    let (mut found, mut whole) = (Vec::new(), true);
    // The kernel answers in pieces as large as we have once had room for, and begins to look from the first
    // element for each: large pieces make long lists bearable.
    let mut answers = Vec::with_capacity(LARGEST_PIECE);
    loop {
        answers.clear();
        socket.recv(&mut answers, 0)?;
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
pub fn ask<T>(request: &[u8], read: impl FnOnce(Message<'_>) -> Option<T>) -> io::Result<T> {
    let socket = open()?;
    socket.send(request, 0)?;
    let (answer, _) = socket.recv_from_full()?;
    let message = messages(&answer).next();
    message
        .map(|message| consent(message).map(|()| message))
        .transpose()?
        .and_then(read)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer lacks what was asked for"))
}
