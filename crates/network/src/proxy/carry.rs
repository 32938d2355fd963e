//! A connection that has found its backend.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::{
    io::{Errno, Result},
    net::Shutdown,
};

use super::{
    flow::{Flow, Turn},
    poller::{Side, Signs},
    pools::Pools,
};

pub struct Carrying {
    pub backend: OwnedFd,
    /// What the client sends.
    up: Flow,
    /// What the backend sends.
    down: Flow,
    /// Whether news comes when these can be written to.
    asked_client: bool,
    asked_backend: bool,
    /// It is among those that go on after the others.
    pub has_turn: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Waits,
    Again,
    /// Both have said all they had to say.
    Done,
}

impl Carrying {
    pub fn new(backend: OwnedFd, client_is_ending: bool, asked_backend: bool) -> Self {
        let (up, down) = (Flow::begun(client_is_ending), Flow::default());
        Self { backend, up, down, asked_client: false, asked_backend, has_turn: false }
    }

    /// Takes note of what a socket announced.
    pub fn hear(&mut self, side: Side, signs: Signs) {
        let (from, into) = match side {
            Side::Client => (&mut self.up, &mut self.down),
            Side::Backend => (&mut self.down, &mut self.up),
        };
        from.is_readable |= signs.is_readable;
        from.is_ending |= signs.is_ending;
        from.is_broken |= signs.is_broken;
        into.is_blocked &= !signs.is_writable;
    }

    /// Carries what can be carried. An error is the end of it, for both.
    pub fn go_on(&mut self, client: &OwnedFd, pools: &mut Pools) -> Result<Progress> {
        let (client, backend) = (client.as_fd(), self.backend.as_fd());
        let up = carry(&mut self.up, &self.down, (client, backend), pools)?;
        let down = carry(&mut self.down, &self.up, (backend, client), pools)?;
        if self.up.is_lost() || self.down.is_lost() {
            return Err(Errno::CONNRESET);
        }
        Ok(match (up, down) {
            _ if self.up.is_done && self.down.is_done => Progress::Done,
            (Turn::Again, _) | (_, Turn::Again) => Progress::Again,
            _ => Progress::Waits,
        })
    }

    /// Which sockets must announce when they can be written to and were not asked to before.
    pub fn newly_blocked(&mut self) -> (bool, bool) {
        let client = self.down.is_blocked && !self.asked_client;
        let backend = self.up.is_blocked && !self.asked_backend;
        self.asked_client |= client;
        self.asked_backend |= backend;
        (client, backend)
    }
}

fn carry(
    flow: &mut Flow,
    back: &Flow,
    (from, to): (BorrowedFd<'_>, BorrowedFd<'_>),
    pools: &mut Pools,
) -> Result<Turn> {
    if !flow.has_work() {
        return Ok(Turn::Over);
    }
    let turn = flow.carry(from, to, pools)?;
    if turn == Turn::Ended {
        flow.is_done = true;
        // The last of the two is said by closing.
        if !back.is_done {
            rustix::net::shutdown(to, Shutdown::Write)?;
        }
    }
    Ok(turn)
}
