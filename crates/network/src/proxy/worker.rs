//! A thread: its listener, its connections, and what it does at each piece of news.

use std::{
    collections::{BTreeSet, VecDeque},
    io,
    net::SocketAddrV4,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::io::Errno;

use super::{
    carry::{Carrying, Progress},
    connection::{Connection, Seeking, State, Step},
    destination::Destination,
    limits::{Limits, OnceInAWhile},
    mailbox::Mailbox,
    poller::{News, Poller, Side, Signs},
    pools::Pools,
    search::Next,
    slab::{Slab, Token},
    socket,
    table::{Decision, Seeker, Table},
};
use crate::services::frontend::Front;

/// Accepted in a row before those that are there already have their turn.
const ARRIVALS_PER_TURN: usize = 64;
/// After the process had no file left for another connection, unless one ends earlier.
const PAUSE: Duration = Duration::from_millis(100);
/// Connections that last longer are asked for signs of life.
const YOUNG: Duration = Duration::from_secs(1);

/// A thousand that waited, delivered in the same moment, would overrun the queue of a backend that has only just begun to
/// listen (128 in many programs), and some of them would then hear nothing: when a queue overflows, the kernel may let a
/// client believe that it is connected. So they come in groups, 1,600 a second from each thread.
const DELIVERED_AT_ONCE: usize = 16;
const BETWEEN_DELIVERIES: Duration = Duration::from_millis(10);

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
    /// Who waits at which front, in the order they came.
    queues: BTreeSet<(Front, u64, Token)>,
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
            for event in events.drain(..) {
                match News::from(event) {
                    News::Arrival => self.accept(),
                    News::Mail => self.read_mail(),
                    News::Socket(token, side, signs) => self.hear(token, side, signs),
                }
            }
            again.into_iter().for_each(|token| self.take_turn(token));
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

    /// Another thread that has clearly fewer connections: the kernel deals them out by chance, and two that carry
    /// much had better not share a thread while another is idle.
    fn less_busy(&self) -> Option<Arc<Mailbox>> {
        let here = self.connections.len();
        let least = self.others.iter().min_by_key(|other| other.connections())?;
        let there = least.connections();
        (here > there + there / 4).then(|| least.clone())
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

    fn welcome(&mut self, client: OwnedFd) {
        let front = (self.destination)(client.as_fd()).and_then(|destination| self.table.front(destination));
        let Some(front) = front else { return socket::reset(client) };
        let state = State::Seeking(Seeking::new(front, self.now));
        let token = self.connections.insert(Connection { client, state });
        self.seek(token);
    }

    /// Goes on looking for a backend; an attempt that is under way has failed.
    fn seek(&mut self, token: Token) {
        loop {
            let Some(connection) = self.connections.get(token) else { return };
            let State::Seeking(seeking) = &mut connection.state else { return };
            if let Some(at) = seeking.timer.take() {
                self.timers.remove(&(at, token));
            }
            seeking.step = Step::Waiting;
            let client = connection.client.as_fd();
            let mut is_counted = seeking.queued.is_some();
            let seeker = Seeker {
                front: seeking.front,
                search: &mut seeking.search,
                client: &|| socket::peer(client),
                is_counted: &mut is_counted,
            };
            let decision = self.table.decide(seeker, self.now);
            if is_counted && seeking.queued.is_none() {
                seeking.queued = Some(self.next_in_queue);
                self.queues.insert((seeking.front, self.next_in_queue, token));
                self.next_in_queue += 1;
            }
            let until = match decision {
                Decision::Do(Next::Refuse) => return self.end(token, End::Reset),
                Decision::Crowded => {
                    let front = seeking.front;
                    if self.crowded.is_due(self.now) {
                        tracing::warn!(?front, "too many connections wait for a backend; more are refused");
                    }
                    return self.end(token, End::Reset);
                }
                Decision::Do(Next::Wait { until }) => until,
                Decision::Do(Next::Try { backend: to, within }) => {
                    match socket::connect(to, socket::has_unread(client)) {
                        Ok((backend, true)) => return self.found(token, backend, to, None),
                        Ok((backend, false)) => {
                            if self.poller.add(&backend, token, Side::Backend, true).is_err() {
                                continue;
                            }
                            seeking.step = Step::Connecting { backend, to };
                            self.now + within
                        }
                        Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                            self.pause("no file left");
                            continue;
                        }
                        Err(_) => continue,
                    }
                }
            };
            seeking.timer = Some(until);
            self.timers.insert((until, token));
            if !seeking.is_watched {
                seeking.is_watched = true;
                if self.poller.add(&connection.client, token, Side::Client, false).is_err() {
                    self.end(token, End::Reset);
                }
            }
            return;
        }
    }

    /// A backend answered: at once, or as its socket announced, and perhaps with more than that.
    fn found(&mut self, token: Token, backend: OwnedFd, address: SocketAddrV4, announced: Option<Signs>) {
        self.leave_queue(token);
        let Some(connection) = self.connections.get(token) else { return };
        let State::Seeking(seeking) = &connection.state else { return };
        if seeking.search.stays() {
            self.table.remember(seeking.front, || socket::peer(connection.client.as_fd()), address, self.now);
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

    fn hear(&mut self, token: Token, side: Side, signs: Signs) {
        let Some(connection) = self.connections.get(token) else { return };
        let seeking = match &mut connection.state {
            State::Carrying(carrying) => {
                carrying.hear(side, signs);
                return self.go_on(token);
            }
            State::Seeking(seeking) => seeking,
        };
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

    fn take_turn(&mut self, token: Token) {
        if let Some(Connection { state: State::Carrying(carrying), .. }) = self.connections.get(token) {
            carrying.has_turn = false;
            self.go_on(token);
        }
    }

    fn go_on(&mut self, token: Token) {
        let asked = self.carry(token);
        if asked != (false, false) {
            self.watch(token, (true, true), asked);
        }
    }

    /// Carries what there is. Of client and backend, who is to announce from now on when it can be written to.
    fn carry(&mut self, token: Token) -> (bool, bool) {
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

    fn watch(&mut self, token: Token, known: (bool, bool), asked: (bool, bool)) {
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

    fn read_mail(&mut self) {
        let mail = self.mailbox.take();
        mail.arrivals.into_iter().for_each(|client| self.welcome(client));
        mail.fronts.into_iter().for_each(|front| self.deliver(front));
    }

    /// A front has changed at which somebody waits.
    fn deliver(&mut self, front: Front) {
        let first = (front, 0, Token::from_number(0));
        let ours = |(of, _, _): &&(Front, u64, Token)| *of == front;
        let waiting: Vec<Token> = self.queues.range(first..).take_while(ours).map(|(_, _, token)| *token).collect();
        for (place, token) in waiting.into_iter().enumerate() {
            let Some(seeking) = self.seeking(token) else { continue };
            let attempt = match seeking.step {
                Step::Waiting => None,
                Step::Connecting { to, .. } => Some(to),
            };
            match attempt {
                Some(to) if self.table.still_sends(front, to) => {}
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

    fn seeking(&mut self, token: Token) -> Option<&mut Seeking> {
        match &mut self.connections.get(token)?.state {
            State::Seeking(seeking) => Some(seeking),
            State::Carrying(_) => None,
        }
    }

    fn leave_queue(&mut self, token: Token) {
        let Some(seeking) = self.seeking(token) else { return };
        let (front, queued, timer) = (seeking.front, seeking.queued.take(), seeking.timer.take());
        if let Some(number) = queued {
            self.queues.remove(&(front, number, token));
            self.table.leave(front);
        }
        if let Some(at) = timer {
            self.timers.remove(&(at, token));
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
