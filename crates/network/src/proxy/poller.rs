//! What the kernel announces to a thread. Sockets are announced once for every change (edge-triggered), so that
//! nothing has to be asked for again while a connection goes on.

use std::{
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use rustix::{
    event::{
        Timespec,
        epoll::{self, CreateFlags, Event, EventData, EventFlags},
    },
    io::{Errno, Result},
};

use super::slab::Token;

const EVENTS: usize = 256;
const LISTENER: u64 = u64::MAX;
const WAKE: u64 = u64::MAX - 1;
const OF_BACKEND: u64 = 1 << 63;
const ALWAYS: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ET);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Client,
    Backend,
}

#[derive(Clone, Copy, Debug)]
pub enum News {
    /// Somebody wants to be accepted.
    Arrival,
    /// There is something in the mailbox.
    Mail,
    Socket(Token, Side, Signs),
}

/// What became possible with a socket.
#[derive(Clone, Copy, Debug)]
pub struct Signs {
    pub is_readable: bool,
    pub is_writable: bool,
    /// The peer sends nothing more.
    pub is_ending: bool,
    pub is_broken: bool,
}

pub struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    pub fn new(listener: &OwnedFd, wake: impl AsFd) -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        epoll::add(&epoll, wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        Ok(Self { epoll })
    }

    pub fn events() -> Vec<Event> {
        Vec::with_capacity(EVENTS)
    }

    /// Without a limit in time, only news ends it.
    pub fn wait(&self, events: &mut Vec<Event>, limit: Option<Duration>) -> Result<()> {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub fn listen(&self, listener: &OwnedFd, on: bool) -> Result<()> {
        let flags = if on { EventFlags::IN } else { EventFlags::empty() };
        epoll::modify(&self.epoll, listener, EventData::new_u64(LISTENER), flags)
    }

    /// With news of when it can be written to, or without: an idle socket always can, which would be news at once.
    pub fn add(&self, socket: &OwnedFd, token: Token, side: Side, writable: bool) -> Result<()> {
        epoll::add(&self.epoll, socket, data(token, side), flags(writable))
    }

    /// From now on it is also news when the socket can be written to, even if it can by now.
    pub fn ask_for_writable(&self, socket: &OwnedFd, token: Token, side: Side) -> Result<()> {
        epoll::modify(&self.epoll, socket, data(token, side), flags(true))
    }
}

fn flags(writable: bool) -> EventFlags {
    if writable { ALWAYS | EventFlags::OUT } else { ALWAYS }
}

fn data(token: Token, side: Side) -> EventData {
    EventData::new_u64(match side {
        Side::Client => token.number(),
        Side::Backend => token.number() | OF_BACKEND,
    })
}

impl From<Event> for News {
    fn from(event: Event) -> Self {
        let Event { flags, data } = event;
        let number = data.u64();
        match number {
            LISTENER => News::Arrival,
            WAKE => News::Mail,
            _ => {
                let side = if number & OF_BACKEND == 0 { Side::Client } else { Side::Backend };
                let ends = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
                let signs = Signs {
                    is_readable: flags.intersects(ends | EventFlags::IN),
                    is_writable: flags.contains(EventFlags::OUT),
                    is_ending: flags.intersects(ends),
                    is_broken: flags.contains(EventFlags::ERR),
                };
                News::Socket(Token::from_number(number & !OF_BACKEND), side, signs)
            }
        }
    }
}
