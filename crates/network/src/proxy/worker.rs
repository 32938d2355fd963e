//! A thread: its listener, its connections, and what it does at each piece of news. How connections look for a backend is in
//! [`seeking`], how bytes are carried in [`carrying`].

mod carrying;
mod seeking;

use std::{
    collections::{BTreeSet, VecDeque},
    io,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::io::Errno;

use super::{
    connection::{Connection, State},
    destination::Destination,
    limits::{Limits, OnceInAWhile},
    mailbox::Mailbox,
    poller::{News, Poller, Side, Signs},
    pools::Pools,
    slab::{Slab, Token},
    socket,
    table::Table,
};
use crate::services::frontend::Frontend;

/// Accepted in a row before those that are there already have their turn.
const ARRIVALS_PER_TURN: usize = 64;
/// So few connections of a thread are worth dealing out one by one.
const FEW: usize = 4;
/// After the process had no file left for another connection, unless one ends earlier.
const PAUSE: Duration = Duration::from_millis(100);
/// Connections that last longer are asked for signs of life.
const YOUNG: Duration = Duration::from_secs(1);

pub struct Worker {
    listener: OwnedFd,
    destination: Destination,
    limits: Limits,
    table: Arc<Table>,
    mailbox: Arc<Mailbox>,
    others: Vec<Arc<Mailbox>>,
    poller: Poller,
    pools: Pools,
    connections: Slab<Connection>,
    /// Who looks for a backend at which frontend and did not find one at once, in the order they came.
    queues: BTreeSet<(Frontend, u64, Token)>,
    next_in_queue: u64,
    timers: BTreeSet<(Instant, Token)>,
    /// Who has more to carry and let others go first.
    again: Vec<Token>,
    /// Who found a backend a short while ago, and when that is no longer so.
    young: VecDeque<(Instant, Token)>,
    /// Accepting goes on then.
    paused_until: Option<Instant>,
    now: Instant,
    full: OnceInAWhile,
    crowded: OnceInAWhile,
}

impl Worker {
    pub fn new(
        listener: OwnedFd,
        destination: Destination,
        limits: Limits,
        table: Arc<Table>,
        mailbox: Arc<Mailbox>,
        others: Vec<Arc<Mailbox>>,
    ) -> io::Result<Self> {
        let poller = Poller::new(&listener, mailbox.announcement())?;
        Ok(Self {
            listener,
            destination,
            limits,
            table,
            mailbox,
            others,
            poller,
            pools: Pools::default(),
            connections: Slab::default(),
            queues: BTreeSet::new(),
            next_in_queue: 0,
            timers: BTreeSet::new(),
            again: Vec::new(),
            young: VecDeque::new(),
            paused_until: None,
            now: Instant::now(),
            full: OnceInAWhile::default(),
            crowded: OnceInAWhile::default(),
        })
    }

    pub fn run(mut self) {
        let mut events = Poller::events();
        loop {
            if let Err(error) = self.poller.wait(&mut events, self.limit()) {
                tracing::error!(%error, "the proxy can no longer wait for connections");
                return;
            }
            if self.mailbox.is_to_stop() {
                return;
            }
            self.now = Instant::now();
            let again = std::mem::take(&mut self.again);
            let mut has_mail = false;
            for event in events.drain(..) {
                match News::from(event) {
                    News::Arrival => self.accept(),
                    News::Mail => has_mail = true,
                    News::Socket(token, side, signs) => self.hear(token, side, signs),
                }
            }
            again.into_iter().for_each(|token| self.take_turn(token));
            // Not before: news of an attempt that mail would end is not to be taken for news of the next one.
            if has_mail {
                self.read_mail();
            }
            self.look_at_the_clock();
            self.mailbox.set_connections(self.connections.len());
        }
    }

    /// How long to sleep at most.
    fn limit(&self) -> Option<Duration> {
        if !self.again.is_empty() {
            return Some(Duration::ZERO);
        }
        let first = self.timers.first().map(|(at, _)| *at);
        let grown = self.young.front().map(|(at, _)| *at);
        let next = [first, grown, self.paused_until].into_iter().flatten().min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    fn look_at_the_clock(&mut self) {
        while let Some((at, token)) = self.timers.first().copied() {
            if at > self.now {
                break;
            }
            self.timers.pop_first();
            if let Some(seeking) = self.seeking(token) {
                seeking.timer = None;
                self.seek(token);
            }
        }
        while let Some((at, token)) = self.young.front().copied() {
            let connection = self.connections.get(token);
            if connection.is_some() && at > self.now {
                break;
            }
            self.young.pop_front();
            if let Some(Connection { state: State::Carrying(carrying), .. }) = connection {
                let _ = socket::notice_vanished_peers(&carrying.backend); // else it is noticed by whoever writes
            }
        }
        if self.paused_until.is_some_and(|until| until <= self.now) {
            self.resume();
        }
    }

    fn read_mail(&mut self) {
        let mail = self.mailbox.take();
        mail.arrivals.into_iter().for_each(|client| self.welcome(client));
        mail.frontends.into_iter().for_each(|frontend| self.deliver(frontend));
    }

    fn accept(&mut self) {
        for _ in 0..ARRIVALS_PER_TURN {
            if self.connections.len() >= self.limits.connections {
                return self.pause("as many connections as it may");
            }
            match socket::accept(&self.listener) {
                Ok(client) => match self.less_busy() {
                    None => self.welcome(client),
                    Some(other) => other.hand_over(client),
                },
                Err(Errno::AGAIN) => return,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => return self.pause("no file left"),
                Err(_) => {} // this one left before its turn
            }
        }
    }

    /// Another thread that had better take the next connection. The kernel deals them out by chance, which is fair enough among
    /// many; of a few that carry much, two are not to share a thread while another has none.
    fn less_busy(&self) -> Option<Arc<Mailbox>> {
        let here = self.connections.len();
        let least = self.others.iter().min_by_key(|other| other.connections())?;
        let there = least.connections();
        ((here <= FEW && here > there) || here > there * 2 + 4 * FEW).then(|| least.clone())
    }

    /// Leaves arrivals to the kernel's queue until a connection has ended.
    fn pause(&mut self, why: &str) {
        if self.full.is_due(self.now) {
            let connections = self.connections.len();
            tracing::warn!(connections, "the proxy has {why}; new ones wait: raise the limit of open files");
        }
        if self.paused_until.is_none() && self.poller.listen(&self.listener, false).is_ok() {
            self.paused_until = Some(self.now + PAUSE);
        }
    }

    fn resume(&mut self) {
        self.paused_until = match self.poller.listen(&self.listener, true) {
            Ok(()) => None,
            Err(_) => Some(self.now + PAUSE),
        };
    }

    fn hear(&mut self, token: Token, side: Side, signs: Signs) {
        match self.connections.get(token) {
            Some(Connection { state: State::Carrying(carrying), .. }) => {
                carrying.hear(side, signs);
                self.go_on(token);
            }
            Some(Connection { state: State::Seeking(_), .. }) => self.hear_while_seeking(token, side, signs),
            None => {}
        }
    }

    fn end(&mut self, token: Token, how: End) {
        self.leave_queue(token);
        let Some(connection) = self.connections.remove(token) else { return };
        match how {
            End::Close => {}
            End::Reset => {
                socket::reset(connection.client);
                if let State::Carrying(carrying) = connection.state {
                    socket::reset(carrying.backend);
                }
            }
        }
        if self.paused_until.is_some() {
            self.resume();
        }
    }
}

enum End {
    Close,
    Reset,
}
