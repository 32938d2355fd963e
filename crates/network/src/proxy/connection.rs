//! One connection, from being accepted to its end.

use std::{net::SocketAddrV4, os::fd::OwnedFd, time::Instant};

use super::{carry::Carrying, search::Search};
use crate::services::frontend::Frontend;

pub struct Connection {
    pub client: OwnedFd,
    pub state: State,
}

pub enum State {
    Seeking(Seeking),
    Carrying(Carrying),
}

/// Looks for a backend.
pub struct Seeking {
    pub frontend: Frontend,
    pub search: Search,
    pub step: Step,
    /// When something has to be done about it.
    pub timer: Option<Instant>,
    /// It is to hear of changes of its frontend, until it has found a backend: its number in the queue.
    pub queued: Option<u64>,
    /// The client will send nothing more, but there is something to deliver.
    pub client_is_ending: bool,
    /// News of the client is asked for: not before it has to wait for anything.
    pub is_watched: bool,
}

pub enum Step {
    Waiting,
    Connecting { backend: OwnedFd, to: SocketAddrV4 },
}

impl Seeking {
    pub fn new(frontend: Frontend, accepted: Instant) -> Self {
        Self {
            frontend,
            search: Search::new(accepted),
            step: Step::Waiting,
            timer: None,
            queued: None,
            client_is_ending: false,
            is_watched: false,
        }
    }
}
