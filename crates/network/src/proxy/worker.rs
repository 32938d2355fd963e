//! A thread of the proxy: its listener, its connections and its event loop. [`connecting`] finds backends,
//! [`relaying`] moves bytes.

mod connecting;
mod relaying;

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
    mailbox::Mailbox,
    poller::{PollEvent, Poller, Readiness, Side},
    resources::{Buffers, Limits, LogThrottle, Slab, Token},
    socket::{self, Destination},
    table::FrontendTable,
};
use crate::services::frontend::Frontend;

/// Connections accepted in a row before others have their turn.
const ACCEPTS_PER_WAKEUP: usize = 64;
/// Up to so many connections per thread are distributed one by one.
const FEW_CONNECTIONS: usize = 4;
/// How long accepting pauses when the process has no file left, unless a connection ends earlier.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections that last longer get TCP keepalive.
const KEEPALIVE_DELAY: Duration = Duration::from_secs(1);

pub struct Worker {
    listener: OwnedFd,
    destination: Destination,
    limits: Limits,
    table: Arc<FrontendTable>,
    mailbox: Arc<Mailbox>,
    others: Vec<Arc<Mailbox>>,
    poller: Poller,
    buffers: Buffers,
    connections: Slab<Connection>,
    /// Connections that did not find a backend at once, by frontend, in the order they came.
    queues: BTreeSet<(Frontend, u64, Token)>,
    next_in_queue: u64,
    timers: BTreeSet<(Instant, Token)>,
    /// Connections that have more to relay, and let others go first.
    yielded: Vec<Token>,
    /// Connections that got a backend a short while ago, and when they get keepalive.
    without_keepalive: VecDeque<(Instant, Token)>,
    /// Accepting is paused until then.
    paused_until: Option<Instant>,
    now: Instant,
    limit_log: LogThrottle,
    overload_log: LogThrottle,
}

impl Worker {
    pub fn new(
        listener: OwnedFd,
        destination: Destination,
        limits: Limits,
        table: Arc<FrontendTable>,
        mailbox: Arc<Mailbox>,
        others: Vec<Arc<Mailbox>>,
    ) -> io::Result<Self> {
        let poller = Poller::new(&listener, mailbox.wake_fd())?;
        Ok(Self {
            listener,
            destination,
            limits,
            table,
            mailbox,
            others,
            poller,
            buffers: Buffers::default(),
            connections: Slab::default(),
            queues: BTreeSet::new(),
            next_in_queue: 0,
            timers: BTreeSet::new(),
            yielded: Vec::new(),
            without_keepalive: VecDeque::new(),
            paused_until: None,
            now: Instant::now(),
            limit_log: LogThrottle::default(),
            overload_log: LogThrottle::default(),
        })
    }

    pub fn run(mut self) {
        let mut events = Poller::events();
        loop {
            if let Err(error) = self.poller.wait(&mut events, self.poll_timeout()) {
                tracing::error!(%error, "epoll failed: this thread of the proxy ends");
                return;
            }
            if self.mailbox.should_stop() {
                return;
            }
            self.now = Instant::now();
            let yielded = std::mem::take(&mut self.yielded);
            let mut has_messages = false;
            for event in events.drain(..) {
                match PollEvent::from(event) {
                    PollEvent::Accept => self.accept(),
                    PollEvent::Mailbox => has_messages = true,
                    PollEvent::Socket(token, side, readiness) => self.on_event(token, side, readiness),
                }
            }
            yielded.into_iter().for_each(|token| self.resume_yielded(token));
            // Only now: an event for an attempt that a message ends must not be taken for one of the next attempt.
            if has_messages {
                self.handle_messages();
            }
            self.run_timers();
            self.mailbox.set_connections(self.connections.len());
        }
    }

    /// Timeout of the next wait.
    fn poll_timeout(&self) -> Option<Duration> {
        if !self.yielded.is_empty() {
            return Some(Duration::ZERO);
        }
        let first = self.timers.first().map(|(at, _)| *at);
        let keepalive = self.without_keepalive.front().map(|(at, _)| *at);
        let next = [first, keepalive, self.paused_until].into_iter().flatten().min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    fn run_timers(&mut self) {
        while let Some((at, token)) = self.timers.first().copied() {
            if at > self.now {
                break;
            }
            self.timers.pop_first();
            if let Some(connecting) = self.connecting(token) {
                connecting.timer = None;
                self.search_backend(token);
            }
        }
        while let Some((at, token)) = self.without_keepalive.front().copied() {
            let connection = self.connections.get(token);
            if connection.is_some() && at > self.now {
                break;
            }
            self.without_keepalive.pop_front();
            if let Some(Connection { state: State::Relaying(relay), .. }) = connection {
                let _ = socket::enable_keepalive(&relay.backend); // without it, the next write notices
            }
        }
        if self.paused_until.is_some_and(|until| until <= self.now) {
            self.resume_accepting();
        }
    }

    fn handle_messages(&mut self) {
        let messages = self.mailbox.take();
        messages.accepted.into_iter().for_each(|client| self.start_connection(client));
        messages.frontends.into_iter().for_each(|frontend| self.on_frontend_change(frontend));
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_PER_WAKEUP {
            if self.connections.len() >= self.limits.connections {
                return self.pause_accepting("as many connections as its limit");
            }
            match socket::accept(&self.listener) {
                Ok(client) => match self.less_loaded_thread() {
                    None => self.start_connection(client),
                    Some(other) => other.hand_over(client),
                },
                Err(Errno::AGAIN) => return,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    return self.pause_accepting("no file descriptor left");
                }
                Err(_) => {} // the client closed before it was accepted
            }
        }
    }

    /// Another thread that should take the next connection. The kernel distributes them at random, which is fair
    /// among many; of a few busy ones, two must not share a thread while another has none.
    fn less_loaded_thread(&self) -> Option<Arc<Mailbox>> {
        let own = self.connections.len();
        let least = self.others.iter().min_by_key(|other| other.connections())?;
        let there = least.connections();
        ((own <= FEW_CONNECTIONS && own > there) || own > there * 2 + 4 * FEW_CONNECTIONS).then(|| least.clone())
    }

    /// Leaves new connections in the accept queue until a connection has ended.
    fn pause_accepting(&mut self, why: &str) {
        if self.limit_log.is_due(self.now) {
            let connections = self.connections.len();
            tracing::warn!(connections, "the proxy has {why}; new connections wait: raise RLIMIT_NOFILE");
        }
        if self.paused_until.is_none() && self.poller.listen(&self.listener, false).is_ok() {
            self.paused_until = Some(self.now + ACCEPT_PAUSE);
        }
    }

    fn resume_accepting(&mut self) {
        self.paused_until = match self.poller.listen(&self.listener, true) {
            Ok(()) => None,
            Err(_) => Some(self.now + ACCEPT_PAUSE),
        };
    }

    fn on_event(&mut self, token: Token, side: Side, readiness: Readiness) {
        match self.connections.get(token) {
            Some(Connection { state: State::Relaying(relay), .. }) => {
                relay.on_event(side, readiness);
                self.relay_bytes(token);
            }
            Some(Connection { state: State::Connecting(_), .. }) => {
                self.on_event_while_connecting(token, side, readiness)
            }
            None => {}
        }
    }

    fn end(&mut self, token: Token, mode: CloseMode) {
        self.leave_queue(token);
        let Some(connection) = self.connections.remove(token) else { return };
        match mode {
            CloseMode::Close => {}
            CloseMode::Reset => {
                socket::reset(connection.client);
                if let State::Relaying(relay) = connection.state {
                    socket::reset(relay.backend);
                }
            }
        }
        if self.paused_until.is_some() {
            self.resume_accepting();
        }
    }
}

/// How the sockets of a connection are closed.
enum CloseMode {
    Close,
    Reset,
}
