//! Connections that have a backend: relays bytes, and registers for the events that this needs.

use super::{
    super::{
        connection::{Connection, RelayStep, State},
        poller::Side,
        resources::Token,
    },
    CloseMode, Worker,
};

impl Worker {
    pub(super) fn resume_yielded(&mut self, token: Token) {
        if let Some(Connection { state: State::Relaying(relay), .. }) = self.connections.get(token) {
            relay.has_yielded = false;
            self.relay_bytes(token);
        }
    }

    pub(super) fn relay_bytes(&mut self, token: Token) {
        let needs_epollout = self.relay_once(token);
        if needs_epollout != (false, false) {
            self.update_epoll(token, (true, true), needs_epollout);
        }
    }

    /// Relays once. Returns for client and backend whether `EPOLLOUT` has to be registered.
    pub(super) fn relay_once(&mut self, token: Token) -> (bool, bool) {
        let Some(connection) = self.connections.get(token) else { return (false, false) };
        let State::Relaying(relay) = &mut connection.state else { return (false, false) };
        match relay.relay_bytes(&connection.client, &mut self.buffers) {
            Ok(RelayStep::Blocked) => {}
            Ok(RelayStep::Yield) if relay.has_yielded => {}
            Ok(RelayStep::Yield) => {
                relay.has_yielded = true;
                self.yielded.push(token);
            }
            Ok(RelayStep::Done) => {
                self.end(token, CloseMode::Close);
                return (false, false);
            }
            Err(_) => {
                self.end(token, CloseMode::Reset);
                return (false, false);
            }
        }
        relay.newly_blocked()
    }

    /// Registers both sockets: those that are not watched yet, and those that need `EPOLLOUT`.
    pub(super) fn update_epoll(&mut self, token: Token, watched: (bool, bool), needs_epollout: (bool, bool)) {
        let Some(connection) = self.connections.get(token) else { return };
        let State::Relaying(relay) = &connection.state else { return };
        let watch = |socket, side, watched, needs_epollout| match (watched, needs_epollout) {
            (true, false) => Ok(()),
            (true, true) => self.poller.add_writable(socket, token, side),
            (false, needs_epollout) => self.poller.add(socket, token, side, needs_epollout),
        };
        let client = watch(&connection.client, Side::Client, watched.0, needs_epollout.0);
        let backend = watch(&relay.backend, Side::Backend, watched.1, needs_epollout.1);
        if client.and(backend).is_err() {
            self.end(token, CloseMode::Reset);
        }
    }
}
