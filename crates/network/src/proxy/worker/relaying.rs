//! The turns of connections that have found their backends.

use super::{
    super::{
        carry::Progress,
        connection::{Connection, State},
        poller::Side,
        slab::Token,
    },
    End, Worker,
};

impl Worker {
    pub(super) fn take_turn(&mut self, token: Token) {
        if let Some(Connection { state: State::Carrying(carrying), .. }) = self.connections.get(token) {
            carrying.has_turn = false;
            self.go_on(token);
        }
    }

    pub(super) fn go_on(&mut self, token: Token) {
        let asked = self.carry(token);
        if asked != (false, false) {
            self.watch(token, (true, true), asked);
        }
    }

    /// Carries what there is. Of client and backend, who is to announce from now on when it can be written to.
    pub(super) fn carry(&mut self, token: Token) -> (bool, bool) {
        let Some(connection) = self.connections.get(token) else { return (false, false) };
        let State::Carrying(carrying) = &mut connection.state else { return (false, false) };
        match carrying.go_on(&connection.client, &mut self.pools) {
            Ok(Progress::Waits) => {}
            Ok(Progress::Again) if carrying.has_turn => {}
            Ok(Progress::Again) => {
                carrying.has_turn = true;
                self.again.push(token);
            }
            Ok(Progress::Done) => {
                self.end(token, End::Close);
                return (false, false);
            }
            Err(_) => {
                self.end(token, End::Reset);
                return (false, false);
            }
        }
        carrying.newly_blocked()
    }

    pub(super) fn watch(&mut self, token: Token, known: (bool, bool), asked: (bool, bool)) {
        let Some(connection) = self.connections.get(token) else { return };
        let State::Carrying(carrying) = &connection.state else { return };
        let watch = |socket, side, known, asked| match (known, asked) {
            (true, false) => Ok(()),
            (true, true) => self.poller.ask_for_writable(socket, token, side),
            (false, asked) => self.poller.add(socket, token, side, asked),
        };
        let client = watch(&connection.client, Side::Client, known.0, asked.0);
        let backend = watch(&carrying.backend, Side::Backend, known.1, asked.1);
        if client.and(backend).is_err() {
            self.end(token, End::Reset);
        }
    }
}
