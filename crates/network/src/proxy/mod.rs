//! Connections that our own process carries: those that wait for a backend, and all of Services that ask for it.
//!
//! The kernel's packet rules redirect such connections to one port of ours; where they were going is still known to
//! the kernel ([`destination`]) and names the frontend. A frontend without backends **holds** its connections: they are
//! accepted and not read, so that they cost a socket and a few hundred bytes, until `set` brings a backend or the hold
//! is over, when they are reset, which a client understands as a refusal. Whose backend does not answer looks
//! for another, and waits too if there is none ([`search`]).
//!
//! A few threads of our own ([`worker`]) do this, each with its own listener on the port, its own epoll and its own
//! connections, so that they share nothing but the table of frontends ([`table`]). They stay off the runtime of the rest of the
//! process: a flood of traffic here delays no probe there, and a byte on its way meets neither a task nor
//! a timer. Idle threads sleep, with nothing to wake them.
//!
//! What it gives up, as every proxy: backends see this machine's address, and connections end with the process. To one
//! backend, connections that clients close first can be no more in a minute than the kernel has local ports (28,000
//! stock); beyond that they wait for a port as they would for a backend.

mod affinity;
mod carry;
mod connection;
mod destination;
mod flow;
mod limits;
mod mailbox;
mod poller;
mod pools;
mod search;
mod slab;
mod socket;
mod table;
#[cfg(test)]
mod tests;
mod worker;

use std::{io, sync::Arc, thread::JoinHandle};

pub use destination::{Destination, local_address, original_destination};

use self::{limits::Limits, mailbox::Mailbox, table::Table, worker::Worker};
use crate::services::frontend::{BackendPool, Frontend};

/// More than two would take cores from the pods: this path carries what cannot go by the kernel.
const MOST_THREADS: usize = 2;

/// Listens and carries until it is dropped.
pub struct Proxy {
    port: u16,
    table: Arc<Table>,
    mailboxes: Vec<Arc<Mailbox>>,
    threads: Vec<JoinHandle<()>>,
}

impl Proxy {
    /// Listens on a port of its own choosing on all addresses, on threads of its own.
    pub fn start() -> io::Result<Arc<Self>> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self::start_with(original_destination, cores.min(MOST_THREADS))
    }

    /// As `start`, with something else to say where a connection was going: without packet rules, nobody knows.
    pub fn start_with(destination: Destination, threads: usize) -> io::Result<Arc<Self>> {
        let threads = threads.max(1);
        let first = socket::listen(0)?;
        let port = socket::port(&first)?;
        let mut listeners = vec![first];
        for _ in 1..threads {
            listeners.push(socket::listen(port)?);
        }
        let table = Arc::new(Table::default());
        let limits = Limits::of_this_process(threads);
        let mailboxes = listeners.iter().map(|_| Mailbox::new().map(Arc::new)).collect::<io::Result<Vec<_>>>()?;
        let mut proxy = Self { port, table, mailboxes, threads: Vec::new() };
        for (number, listener) in listeners.into_iter().enumerate() {
            let mut others = proxy.mailboxes.clone();
            let own = others.swap_remove(number);
            let worker = Worker::new(listener, destination, limits, proxy.table.clone(), own, others)?;
            let thread = std::thread::Builder::new().name("proxy".into()).stack_size(256 << 10);
            proxy.threads.push(thread.spawn(move || worker.run())?);
        }
        Ok(Arc::new(proxy))
    }

    /// Where the kernel sends connections.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What becomes of connections to a frontend from now on, those that wait included.
    pub fn set(&self, frontend: Frontend, pool: Option<&BackendPool>) {
        if self.table.set(frontend, pool) {
            self.mailboxes.iter().for_each(|mailbox| mailbox.changed(frontend));
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.stop());
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // a panic has been printed already
        }
    }
}
