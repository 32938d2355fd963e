//! epoll of one thread. Sockets are edge-triggered, so that nothing has to be registered again while a connection is
//! relayed.

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

use super::resources::Token;

const EVENTS: usize = 256;
const LISTENER: u64 = u64::MAX;
const WAKE: u64 = u64::MAX - 1;
const BACKEND_BIT: u64 = 1 << 63;
const BASE_EVENTS: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ET);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Client,
    Backend,
}

#[derive(Clone, Copy, Debug)]
pub enum PollEvent {
    /// The listener has connections.
    Accept,
    /// The mailbox has messages.
    Mailbox,
    Socket(Token, Side, Readiness),
}

/// What epoll reported for a socket.
#[derive(Clone, Copy, Debug)]
pub struct Readiness {
    pub is_readable: bool,
    pub is_writable: bool,
    /// The peer has closed its side.
    pub is_closing: bool,
    pub has_error: bool,
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

    /// Waits for events, without a limit until there is one.
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

    /// Registers a socket, with or without `EPOLLOUT`: an idle socket is always writable and would wake the thread at
    /// once.
    pub fn add(&self, socket: &OwnedFd, token: Token, side: Side, writable: bool) -> Result<()> {
        epoll::add(&self.epoll, socket, data(token, side), flags(writable))
    }

    /// Registers `EPOLLOUT` too; it is reported even if the socket is writable by now.
    pub fn add_writable(&self, socket: &OwnedFd, token: Token, side: Side) -> Result<()> {
        epoll::modify(&self.epoll, socket, data(token, side), flags(true))
    }
}

fn flags(writable: bool) -> EventFlags {
    if writable { BASE_EVENTS | EventFlags::OUT } else { BASE_EVENTS }
}

fn data(token: Token, side: Side) -> EventData {
    EventData::new_u64(match side {
        Side::Client => token.number(),
        Side::Backend => token.number() | BACKEND_BIT,
    })
}

impl From<Event> for PollEvent {
    fn from(event: Event) -> Self {
        let Event { flags, data } = event;
        let number = data.u64();
        match number {
            LISTENER => PollEvent::Accept,
            WAKE => PollEvent::Mailbox,
            _ => {
                let side = if number & BACKEND_BIT == 0 { Side::Client } else { Side::Backend };
                let ends = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
                let readiness = Readiness {
                    is_readable: flags.intersects(ends | EventFlags::IN),
                    is_writable: flags.contains(EventFlags::OUT),
                    is_closing: flags.intersects(ends),
                    has_error: flags.contains(EventFlags::ERR),
                };
                PollEvent::Socket(Token::from_number(number & !BACKEND_BIT), side, readiness)
            }
        }
    }
}
