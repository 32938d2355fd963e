//! Connections that search for a backend, and wait for one.

use std::{
    net::SocketAddrV4,
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

use rustix::io::Errno;

use super::{
    super::{
        connection::{Attempt, Connecting, Connection, Relay, State},
        poller::{Readiness, Side},
        resources::Token,
        socket,
        table::{Decision, SearchRequest},
    },
    CloseMode, KEEPALIVE_DELAY, Worker,
};
use crate::services::frontend::Frontend;

/// Waiting connections are delivered in groups, 1,600 a second from each thread. A thousand at once would overflow
/// the accept queue of a backend that has only just begun to listen (128 in many programs), and when that overflows,
/// the kernel may let a client believe that it is connected.
const RETRY_GROUP: usize = 16;
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

impl Worker {
    pub(super) fn start_connection(&mut self, client: OwnedFd) {
        let frontend = (self.destination)(client.as_fd()).and_then(|destination| self.table.frontend(destination));
        let Some(frontend) = frontend else { return socket::reset(client) };
        let state = State::Connecting(Connecting::new(frontend, self.now));
        let token = self.connections.insert(Connection { client, state });
        self.search_backend(token);
    }

    /// Searches for a backend; an attempt that is under way has failed.
    pub(super) fn search_backend(&mut self, token: Token) {
        loop {
            let Some(connection) = self.connections.get(token) else { return };
            let State::Connecting(connecting) = &mut connection.state else { return };
            if let Some(at) = connecting.timer.take() {
                self.timers.remove(&(at, token));
            }
            connecting.attempt = Attempt::Waiting;
            let client = connection.client.as_fd();
            let request = SearchRequest {
                frontend: connecting.frontend,
                search: &mut connecting.search,
                client: &|| socket::peer(client),
                is_counted: connecting.queued.is_some(),
            };
            match self.table.decide(request, self.now) {
                Decision::Connect { backend, within } => match socket::connect(backend, socket::has_unread(client)) {
                    Ok((socket, true)) => return self.on_connected(token, socket, backend, None),
                    Ok((socket, false)) => {
                        if self.poller.add(&socket, token, Side::Backend, true).is_ok()
                            && self.track_attempt(token, socket, backend)
                        {
                            return self.wait(token, self.now + within);
                        }
                    }
                    Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                        self.pause_accepting("no file descriptor left")
                    }
                    Err(_) => {}
                },
                Decision::Wait { until } => {
                    self.join_queue(token);
                    return self.wait(token, until);
                }
                Decision::Reset => return self.end(token, CloseMode::Reset),
                Decision::TooManyWaiting => {
                    let frontend = connecting.frontend;
                    if self.overload_log.is_due(self.now) {
                        tracing::warn!(?frontend, "too many connections wait for a backend; resetting new ones");
                    }
                    return self.end(token, CloseMode::Reset);
                }
            }
        }
    }

    /// Records an attempt that takes a while. Returns whether it is still useful: the frontend may have changed by
    /// now; later changes are notified.
    fn track_attempt(&mut self, token: Token, backend: OwnedFd, to: SocketAddrV4) -> bool {
        let Some(connecting) = self.connecting(token) else { return false };
        connecting.attempt = Attempt::InProgress { backend, to };
        let frontend = connecting.frontend;
        if connecting.queued.is_none() {
            self.table.begin_wait(frontend);
            self.join_queue(token);
        }
        self.table.has_backend(frontend, to)
    }

    /// Queues the connection at its frontend.
    fn join_queue(&mut self, token: Token) {
        let number = self.next_in_queue;
        let Some(connecting) = self.connecting(token) else { return };
        if connecting.queued.is_none() {
            connecting.queued = Some(number);
            let frontend = connecting.frontend;
            self.queues.insert((frontend, number, token));
            self.next_in_queue += 1;
        }
    }

    fn wait(&mut self, token: Token, until: Instant) {
        let Some(connection) = self.connections.get(token) else { return };
        let State::Connecting(connecting) = &mut connection.state else { return };
        connecting.timer = Some(until);
        self.timers.insert((until, token));
        if !connecting.is_watched {
            connecting.is_watched = true;
            if self.poller.add(&connection.client, token, Side::Client, false).is_err() {
                self.end(token, CloseMode::Reset);
            }
        }
    }

    /// The connection to a backend is established: at once, or as epoll reported, perhaps with more events.
    fn on_connected(&mut self, token: Token, backend: OwnedFd, address: SocketAddrV4, reported: Option<Readiness>) {
        self.leave_queue(token);
        let Some(connection) = self.connections.get(token) else { return };
        let State::Connecting(connecting) = &connection.state else { return };
        if connecting.search.has_affinity() {
            self.table.remember(connecting.frontend, || socket::peer(connection.client.as_fd()), address, self.now);
        }
        let client_is_watched = connecting.is_watched;
        let mut relay = Relay::new(backend, connecting.client_is_closing, reported.is_some());
        reported.into_iter().for_each(|readiness| relay.on_event(Side::Backend, readiness));
        connection.state = State::Relaying(relay);
        self.without_keepalive.push_back((self.now + KEEPALIVE_DELAY, token));
        // Registered after the first relaying: what arrives later is reported.
        let needs_epollout = self.relay_once(token);
        self.update_epoll(token, (client_is_watched, reported.is_some()), needs_epollout);
    }

    pub(super) fn on_event_while_connecting(&mut self, token: Token, side: Side, readiness: Readiness) {
        let Some(connection) = self.connections.get(token) else { return };
        let State::Connecting(connecting) = &mut connection.state else { return };
        match side {
            Side::Client if readiness.has_error => self.end(token, CloseMode::Reset),
            Side::Client if readiness.is_closing => {
                // A client that sent a request and closed its side waits for the response; it cannot be distinguished
                // from one that sent a request and left. One that sent nothing has left.
                connecting.client_is_closing = true;
                if !socket::has_unread(connection.client.as_fd()) {
                    self.end(token, CloseMode::Close);
                }
            }
            Side::Client => {} // read once there is a backend
            Side::Backend if readiness.has_error => self.search_backend(token),
            Side::Backend => {
                if !readiness.is_writable {
                    return;
                }
                if let Attempt::InProgress { backend, to } =
                    std::mem::replace(&mut connecting.attempt, Attempt::Waiting)
                {
                    self.on_connected(token, backend, to, Some(readiness));
                }
            }
        }
    }

    /// A frontend with waiting connections has changed.
    pub(super) fn on_frontend_change(&mut self, frontend: Frontend) {
        let first = (frontend, 0, Token::from_number(0));
        let ours = |(of, _, _): &&(Frontend, u64, Token)| *of == frontend;
        let waiting: Vec<Token> = self.queues.range(first..).take_while(ours).map(|(_, _, token)| *token).collect();
        for (position, token) in waiting.into_iter().enumerate() {
            let Some(connecting) = self.connecting(token) else { continue };
            let attempt = match connecting.attempt {
                Attempt::Waiting => None,
                Attempt::InProgress { to, .. } => Some(to),
            };
            match attempt {
                Some(to) if self.table.has_backend(frontend, to) => {}
                _ if position < RETRY_GROUP => self.search_backend(token),
                _ => self.search_later(token, RETRY_INTERVAL * (position / RETRY_GROUP) as u32),
            }
        }
    }

    fn search_later(&mut self, token: Token, after: Duration) {
        let at = self.now + after;
        let Some(connecting) = self.connecting(token) else { return };
        let before = connecting.timer.replace(at);
        if let Some(before) = before {
            self.timers.remove(&(before, token));
        }
        self.timers.insert((at, token));
    }

    pub(super) fn connecting(&mut self, token: Token) -> Option<&mut Connecting> {
        match &mut self.connections.get(token)?.state {
            State::Connecting(connecting) => Some(connecting),
            State::Relaying(_) => None,
        }
    }

    pub(super) fn leave_queue(&mut self, token: Token) {
        let Some(connecting) = self.connecting(token) else { return };
        let (frontend, queued, timer) = (connecting.frontend, connecting.queued.take(), connecting.timer.take());
        if let Some(number) = queued {
            self.queues.remove(&(frontend, number, token));
            self.table.end_wait(frontend);
        }
        if let Some(at) = timer {
            self.timers.remove(&(at, token));
        }
    }
}
