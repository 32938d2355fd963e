//! How connections look for a backend, and wait for one.

use std::{
    net::SocketAddrV4,
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

use rustix::io::Errno;

use super::{
    super::{
        carry::Carrying,
        connection::{Connection, Seeking, State, Step},
        poller::{Side, Signs},
        slab::Token,
        socket,
        table::{Decision, Seeker},
    },
    End, Worker, YOUNG,
};
use crate::services::frontend::Frontend;

/// A thousand that waited, delivered in the same moment, would overrun the queue of a backend that has only just begun to
/// listen (128 in many programs), and some of them would then hear nothing: when a queue overflows, the kernel may let a
/// client believe that it is connected. So they come in groups, 1,600 a second from each thread.
const DELIVERED_AT_ONCE: usize = 16;
const BETWEEN_DELIVERIES: Duration = Duration::from_millis(10);

impl Worker {
    pub(super) fn welcome(&mut self, client: OwnedFd) {
        let frontend = (self.destination)(client.as_fd()).and_then(|destination| self.table.frontend(destination));
        let Some(frontend) = frontend else { return socket::reset(client) };
        let state = State::Seeking(Seeking::new(frontend, self.now));
        let token = self.connections.insert(Connection { client, state });
        self.seek(token);
    }

    /// Goes on looking for a backend; an attempt that is under way has failed.
    pub(super) fn seek(&mut self, token: Token) {
        loop {
            let Some(connection) = self.connections.get(token) else { return };
            let State::Seeking(seeking) = &mut connection.state else { return };
            if let Some(at) = seeking.timer.take() {
                self.timers.remove(&(at, token));
            }
            seeking.step = Step::Waiting;
            let client = connection.client.as_fd();
            let seeker = Seeker {
                frontend: seeking.frontend,
                search: &mut seeking.search,
                client: &|| socket::peer(client),
                is_counted: seeking.queued.is_some(),
            };
            match self.table.decide(seeker, self.now) {
                Decision::Try { backend, within } => match socket::connect(backend, socket::has_unread(client)) {
                    Ok((socket, true)) => return self.found(token, socket, backend, None),
                    Ok((socket, false)) => {
                        if self.poller.add(&socket, token, Side::Backend, true).is_ok()
                            && self.expect(token, socket, backend)
                        {
                            return self.wait(token, self.now + within);
                        }
                    }
                    Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => self.pause("no file left"),
                    Err(_) => {}
                },
                Decision::Wait { until } => {
                    self.join_queue(token);
                    return self.wait(token, until);
                }
                Decision::Refuse => return self.end(token, End::Reset),
                Decision::Crowded => {
                    let frontend = seeking.frontend;
                    if self.crowded.is_due(self.now) {
                        tracing::warn!(?frontend, "too many connections wait for a backend; more are refused");
                    }
                    return self.end(token, End::Reset);
                }
            }
        }
    }

    /// An attempt takes its time. Whether it is worth it, which a change of the frontend may have decided by now; later
    /// changes will be heard.
    fn expect(&mut self, token: Token, backend: OwnedFd, to: SocketAddrV4) -> bool {
        let Some(seeking) = self.seeking(token) else { return false };
        seeking.step = Step::Connecting { backend, to };
        let frontend = seeking.frontend;
        if seeking.queued.is_none() {
            self.table.enter(frontend);
            self.join_queue(token);
        }
        self.table.still_sends(frontend, to)
    }

    /// It is counted at its frontend.
    fn join_queue(&mut self, token: Token) {
        let number = self.next_in_queue;
        let Some(seeking) = self.seeking(token) else { return };
        if seeking.queued.is_none() {
            seeking.queued = Some(number);
            let frontend = seeking.frontend;
            self.queues.insert((frontend, number, token));
            self.next_in_queue += 1;
        }
    }

    fn wait(&mut self, token: Token, until: Instant) {
        let Some(connection) = self.connections.get(token) else { return };
        let State::Seeking(seeking) = &mut connection.state else { return };
        seeking.timer = Some(until);
        self.timers.insert((until, token));
        if !seeking.is_watched {
            seeking.is_watched = true;
            if self.poller.add(&connection.client, token, Side::Client, false).is_err() {
                self.end(token, End::Reset);
            }
        }
    }

    /// A backend answered: at once, or as its socket announced, and perhaps with more than that.
    fn found(&mut self, token: Token, backend: OwnedFd, address: SocketAddrV4, announced: Option<Signs>) {
        self.leave_queue(token);
        let Some(connection) = self.connections.get(token) else { return };
        let State::Seeking(seeking) = &connection.state else { return };
        if seeking.search.stays() {
            self.table.remember(seeking.frontend, || socket::peer(connection.client.as_fd()), address, self.now);
        }
        let client_known = seeking.is_watched;
        let mut carrying = Carrying::new(backend, seeking.client_is_ending, announced.is_some());
        announced.into_iter().for_each(|signs| carrying.hear(Side::Backend, signs));
        connection.state = State::Carrying(carrying);
        self.young.push_back((self.now + YOUNG, token));
        // What arrives from now on is news as soon as they are watched.
        let asked = self.carry(token);
        self.watch(token, (client_known, announced.is_some()), asked);
    }

    pub(super) fn hear_while_seeking(&mut self, token: Token, side: Side, signs: Signs) {
        let Some(connection) = self.connections.get(token) else { return };
        let State::Seeking(seeking) = &mut connection.state else { return };
        match side {
            Side::Client if signs.is_broken => self.end(token, End::Reset),
            Side::Client if signs.is_ending => {
                // One that asked and then said that this was all is waiting for its answer; it cannot be told from one
                // that asked and left. One that never asked has left.
                seeking.client_is_ending = true;
                if !socket::has_unread(connection.client.as_fd()) {
                    self.end(token, End::Close);
                }
            }
            Side::Client => {} // read once there is somebody to read it to
            Side::Backend if signs.is_broken => self.seek(token),
            Side::Backend => {
                if !signs.is_writable {
                    return;
                }
                if let Step::Connecting { backend, to } = std::mem::replace(&mut seeking.step, Step::Waiting) {
                    self.found(token, backend, to, Some(signs));
                }
            }
        }
    }

    /// A frontend has changed at which somebody waits.
    pub(super) fn deliver(&mut self, frontend: Frontend) {
        let first = (frontend, 0, Token::from_number(0));
        let ours = |(of, _, _): &&(Frontend, u64, Token)| *of == frontend;
        let waiting: Vec<Token> = self.queues.range(first..).take_while(ours).map(|(_, _, token)| *token).collect();
        for (place, token) in waiting.into_iter().enumerate() {
            let Some(seeking) = self.seeking(token) else { continue };
            let attempt = match seeking.step {
                Step::Waiting => None,
                Step::Connecting { to, .. } => Some(to),
            };
            match attempt {
                Some(to) if self.table.still_sends(frontend, to) => {}
                _ if place < DELIVERED_AT_ONCE => self.seek(token),
                _ => self.seek_later(token, BETWEEN_DELIVERIES * (place / DELIVERED_AT_ONCE) as u32),
            }
        }
    }

    fn seek_later(&mut self, token: Token, after: Duration) {
        let at = self.now + after;
        let Some(seeking) = self.seeking(token) else { return };
        let before = seeking.timer.replace(at);
        if let Some(before) = before {
            self.timers.remove(&(before, token));
        }
        self.timers.insert((at, token));
    }

    pub(super) fn seeking(&mut self, token: Token) -> Option<&mut Seeking> {
        match &mut self.connections.get(token)?.state {
            State::Seeking(seeking) => Some(seeking),
            State::Carrying(_) => None,
        }
    }

    pub(super) fn leave_queue(&mut self, token: Token) {
        let Some(seeking) = self.seeking(token) else { return };
        let (frontend, queued, timer) = (seeking.frontend, seeking.queued.take(), seeking.timer.take());
        if let Some(number) = queued {
            self.queues.remove(&(frontend, number, token));
            self.table.leave(frontend);
        }
        if let Some(at) = timer {
            self.timers.remove(&(at, token));
        }
    }
}
